"""A lakehouse that commit af3c08a wrote is read and extended: compacted tables, quarantine, an erasure, progress, event log."""

from __future__ import annotations

import zipfile
from collections import Counter
from itertools import groupby
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from pydantic import SecretStr

from game_events.lakehouse.tables import UNIFIED
from game_events.pipeline.event_log import recorded
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh
from game_events.rules import Rule
from game_events_tests.integration.plugins.files.test_pipeline import failed_checks
from game_events_tests.support.old_lakehouse import (
    ERASURE_KEY,
    FORGOTTEN,
    GAMES,
    REJECTED,
    RULES,
    SCORES_FROM,
    container,
    event,
)
from game_events_tests.support.reconciliation import gold, rows
from game_events_tests.support.worlds.file_samples import put
from game_events_tests.support.worlds.waves import unified, versions

PACKED = Path(__file__).parents[3] / "support" / "data" / "old_lakehouse.zip"
COLUMNS = ["game_name", "gamer_id", "n", "event_timestamp", "note"]


@pytest.fixture
def make(make_files, tmp_path):
    """A pipeline over the unpacked lakehouse, with the settings that it was written with."""
    with zipfile.ZipFile(PACKED) as packed:
        packed.extractall(tmp_path)
    rules, key = tuple(Rule.model_validate(rule) for rule in RULES), SecretStr(ERASURE_KEY)
    written_with = {"files_schema": None, "files_message_type": None, "time_column": "event_timestamp", "erasure_key": key}
    return lambda **other: make_files(**{**written_with, "rules": rules, **other})


def assert_holds(settings, end, columns=COLUMNS):
    """Every row of every layer, read by DuckDB, is that of the events below `end`."""
    events = [event(n) for n in range(end)]
    kept = [[e.get(name) for name in columns] for e in events if e["gamer_id"] != FORGOTTEN]
    listed = f"SELECT {', '.join(columns)} FROM t ORDER BY n"
    assert list(map(list, rows(settings, "bronze_events", listed))) == kept
    for game in GAMES:
        silver = [row for row in kept if row[0] == game and row[2] != REJECTED]
        assert list(map(list, rows(settings, f"silver_{game}_events", listed))) == silver
        gamers = groupby(sorted(silver, key=lambda row: row[1]), key=lambda row: row[1])
        times = {gamer: [row[3] for row in of] for gamer, of in gamers}
        assert gold(settings, game) == {gamer: (len(of), min(of), max(of)) for gamer, of in times.items()}
        assert unified(settings, game) == gold(settings, game)


def assert_is_partitioned(settings, before):
    """The unified table has partitions since the newest runs; polars, which is not ours, reads both forms by Delta's log."""
    uri = f"{settings.lakehouse}/{UNIFIED}"
    assert [DeltaTable(uri, version=v).metadata().partition_columns for v in (before, None)] == [[], ["game_name"]]
    now = pl.scan_delta(uri).collect()
    shown = {(row["game_name"], row["gamer_id"]): row["session_count"] for row in now.to_dicts()}
    assert shown == {(game, gamer): found[0] for game in GAMES for gamer, found in gold(settings, game).items()}
    old = pl.scan_delta(uri, version=before).collect()
    assert (old.columns, 0 < old.height <= now.height) == (now.columns, True)


def reasons(settings):
    return Counter(reason for (reason,) in rows(settings, "quarantine_events", "SELECT reason FROM t"))


def test_an_old_lakehouse_is_read_and_extended_and_every_row_is_in_its_place_once(make, landing):
    pipeline = make()
    settings = pipeline.settings
    assert_holds(settings, SCORES_FROM)
    assert reasons(settings) == {"UNREADABLE_FILE": 1, "n_known": 1}
    before = versions(settings)
    report = refresh(make())
    assert (report.success, report.tables, versions(settings)) == (True, [], before), "nothing is new, nothing is rebuilt"

    put(landing, "third.avro", container(range(SCORES_FROM, 72)))
    put(landing, "cut.avro", container(range(SCORES_FROM, 72))[:-20])
    report = refresh(make())
    assert report.success, report.errors
    assert report.rows("bronze") == 12 - 2
    assert report.suppressed == 2, "what comes later of an erased gamer is kept out"
    assert_holds(settings, 72, [*COLUMNS, "score"])
    assert_is_partitioned(settings, before[UNIFIED])
    assert reasons(settings) == {"UNREADABLE_FILE": 2, "n_known": 1}
    assert failed_checks(make()) == ["score (double): new"]

    maintain(make(), RunReport())
    assert redecode(make(), RunReport()).rows == 58
    pipeline, report = make(), RunReport()
    with recorded(pipeline, report, "refresh"):
        refresh(pipeline, report)
    assert report.success, report.errors
    assert_holds(settings, 72, [*COLUMNS, "score"])
    assert failed_checks(make()) == ["score (double): new"]
    kinds = Counter(rows(settings, "event_log", "SELECT name, status FROM t WHERE kind = 'run'"))
    assert kinds == {("refresh", "succeeded"): 3, ("maintain", "succeeded"): 1, ("forget", "succeeded"): 1}
