"""What looking at the older versions of a table costs: each part of its log is read once, and those of a store together."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.log import SOURCES, TableLog
from game_events.lakehouse.commits.versions import OldVersions
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table
from game_events.pipeline import maintenance
from game_events.pipeline.maintenance import IncrementalMaintenance
from game_events_tests.support.tables import fails_before, put


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Lakehouse(str(tmp_path)).table(BRONZE)
    for n in range(6):
        put(table, {"n": [n]}, {"txn": n}, {BATCH_INFO: "1", SOURCES: '["t"]'})
    return table


def test_each_version_is_looked_at_for_erasures_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    marks = OldVersions._marks
    monkeypatch.setattr(OldVersions, "_marks", lambda versions, listed: looked.append(1) or marks(versions, listed))
    OldVersions(table).plan(table.open())
    assert looked == [1]


@pytest.mark.parametrize(("key", "asked"), [(BRONZE, 1), ("silver_uno_events", 0)])
def test_topics_are_looked_for_in_bronze_alone_and_from_the_newest_entry_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, asked: int
) -> None:
    table = Lakehouse(str(tmp_path)).table(key)
    for n in range(6):
        put(table, {"n": [n]}, {"txn": n}, {BATCH_INFO: "1", SOURCES: '["t"]'})
    versions = OldVersions(table)
    versions.plan(table.open())
    read: list[int] = []
    entry = OldVersions._entry
    monkeypatch.setattr(OldVersions, "_entry", lambda self, listed, v: read.append(v) or entry(self, listed, v))
    monkeypatch.setattr(OldVersions, "_marks", lambda *_: {})
    monkeypatch.setattr(OldVersions, "_named_by", lambda *_: set())
    versions.plan(table.open())
    assert len([v for v in read if v != 5]) == 0
    assert asked <= len(read) <= asked + 1, "the newest entry, for the changed rows that it names"


def test_entries_in_an_object_store_are_read_several_at_a_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = table.open()
    together = threading.Barrier(2)
    opened = TableLog.opened
    threads: set[int] = set()

    def slow(log: TableLog, name: str) -> pa.NativeFile:
        threads.add(threading.get_ident())
        together.wait(10)  # raises where one is read after the other
        return opened(log, name)

    monkeypatch.setattr(TableLog, "opened", slow)
    monkeypatch.setattr(Table, "is_local", property(lambda _: False))
    for look in (OldVersions(table).plan, OldVersions(table).named):
        look(handle)
    assert len(threads) > 1


def test_a_loop_makes_what_it_knows_of_a_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lakehouse = Lakehouse(str(tmp_path))
    put(lakehouse.silver("uno"), {"n": [1]}, {"txn": 1}, {BATCH_INFO: "1"})
    made: list[str] = []
    usual = maintenance.OldVersions
    monkeypatch.setattr(maintenance, "OldVersions", lambda table: made.append(table.name) or usual(table))
    loop = IncrementalMaintenance(lakehouse)
    for _ in range(3):
        assert not loop._maintain("silver_uno_events").error
        loop._thinned_at.clear()
    assert made == ["silver_uno_events"]


def test_a_store_that_does_not_answer_then_is_an_error_of_the_table_and_ends_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakehouse = Lakehouse(str(tmp_path))
    put(lakehouse.silver("uno"), {"n": [1]}, {"txn": 1}, {BATCH_INFO: "1"})
    monkeypatch.setattr(maintenance, "OldVersions", fails_before(OSError("the store does not answer")))
    loop = IncrementalMaintenance(lakehouse)
    assert loop._maintain("silver_uno_events").error == "the store does not answer"
    assert loop._commits["silver_uno_events"] == 1
