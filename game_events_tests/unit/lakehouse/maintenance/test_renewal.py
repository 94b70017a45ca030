"""Files of earlier releases, by whose statistics readers miss rows, get current ones; no row changes. No service."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from game_events.errors import ConflictError
from game_events.lakehouse import maintenance
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import is_current
from game_events.lakehouse.maintenance import (
    FULL_GOAL,
    OutdatedFile,
    first_groups,
    join_files,
    outdated_files,
    renew,
    small_files,
)
from game_events.lakehouse.tables import Lakehouse, paths
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.edge_values import copied, earlier_release, merged, written
from game_events_tests.support.faults import at_commit
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import committed_files, data_files, put, rows

NAME = "\U00020bb7\u91ce"


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).silver("uno")


def renew_all(table):
    """Renew every outdated file; returns the paths of these."""
    found = []
    for group in first_groups(outdated_files(table.open())):
        renew(table, table.open(), group)
        found += [file.path for file in group]
    return found


def count(table, condition):
    """Rows, as delta-rs finds them by statistics."""
    sql = QueryBuilder().register("t", DeltaTable(table.uri))
    return pa.table(sql.execute(f"SELECT count(*) AS n FROM t WHERE {condition}").read_all()).column("n")[0].as_py()


def texts(table):
    """Rows as texts, which tell NaN and the two zeros apart."""
    return sorted(map(str, rows(table)))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_texts_that_no_reader_found_are_found_and_other_files_stay(table, checkpoint):
    with earlier_release():
        for text in ("anna", NAME, "zoe"):
            put(table, {"s": [text]})
    if checkpoint:
        DeltaTable(table.uri).create_checkpoint()
    before, others = rows(table), set(paths(table.open()))
    assert count(table, f"s = '{NAME}'") == 0
    assert len(renew_all(table)) == 1
    assert count(table, f"s = '{NAME}'") == 1
    assert rows(table) == before
    assert len(set(paths(table.open())) & others) == 2
    assert renew_all(table) == []


def test_files_with_floating_point_numbers_are_written_again(table):
    nested = pa.struct([("l", pa.list_(pa.float32()))])
    schema = pa.schema([("f", pa.float64()), ("s", nested), ("m", pa.map_(pa.string(), pa.float64()))])
    good = {"f": 0.0, "s": {"l": [1.5, None]}, "m": [("a", 2.0)]}
    bad = [{"f": float("nan")}, {"f": -0.0}, {"s": {"l": [1.0, -0.0]}}, {"m": [("a", float("nan"))]}]
    with earlier_release():
        for row in (good, dict.fromkeys(good), *(good | one for one in bad)):
            put(table, pa.Table.from_pylist([good, row], schema=schema))
    before = texts(table)
    assert count(table, "f > 5") == 0
    assert len(renew_all(table)) == 6
    assert texts(table) == before
    assert count(table, "f > 5") == 1
    for path in committed_files(table):
        group = pq.read_metadata(Path(table.uri, path)).row_group(0)
        assert not any(group.column(n).has_dictionary_page for n in range(3) if "key" not in group.column(n).path_in_schema)


@pytest.mark.parametrize("make", [written, merged, copied], ids=lambda make: make.__name__)
def test_maintenance_renews_the_tables_of_each_layer_once_and_streaming_readers_see_no_change(make, tmp_path):
    """Silver is compacted, which renews its files, too; gold and the partitioned table are not."""
    with earlier_release():
        table = make(Lakehouse(str(tmp_path)))
    before = texts(table)
    pipeline, version = without_spark(tmp_path), table.open().version()
    for expected in (True, False):
        report = RunReport()
        maintain(pipeline, report, [table.name])
        done = report.maintenance[table.name]
        assert (done.error, done.outdated) == (None, 0)
        assert bool(done.renewed or done.joined) is expected
    assert texts(table) == before
    assert all(map(is_current, paths(table.open())))
    assert outdated_files(table.open()) == []
    for number in range(version + 1, table.open().version() + 1):
        actions = TableLog(table).actions(number)
        assert not any(a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a)


def test_one_maintenance_renews_a_bounded_number_of_bytes_the_oldest_files_first(tmp_path, monkeypatch):
    pipeline = without_spark(tmp_path)
    gold = pipeline.lakehouse.gold("uno")
    with earlier_release():
        for n in range(5):
            put(gold, {"f": [float(n)]}, info={BATCH_INFO: "1"})
    sizes = {file.path: file.size for file in outdated_files(gold.open())}
    oldest = list(sizes)
    monkeypatch.setattr(maintenance, "GROUP_FILES", 1)
    monkeypatch.setattr(maintenance, "MOST_BYTES", sum(list(sizes.values())[:2]))
    left = []
    while not left or left[-1]:
        report = RunReport()
        maintain(pipeline, report, [gold.name], dry_run=True)
        counted = report.maintenance[gold.name]
        report = RunReport()
        maintain(pipeline, report, [gold.name])
        done = report.maintenance[gold.name]
        assert (counted.renewed, counted.outdated) == (done.renewed, done.outdated)
        left.append(done.outdated)
        assert set(oldest[5 - done.outdated :]) == {path for path in paths(gold.open()) if not is_current(path)}
    assert left == [3, 1, 0]
    assert [row for (row,) in rows(gold, "f")] == [0, 1, 2, 3, 4]


def test_a_file_larger_than_the_bound_is_renewed_alone_and_commits_have_a_bounded_number_of_files():
    large, small = OutdatedFile("large", maintenance.MOST_BYTES + 1), [OutdatedFile(str(n), 1) for n in range(1_200)]
    assert list(first_groups([large, *small])) == [[large]]
    assert list(map(len, first_groups(small))) == [500, 500, 200]
    assert list(first_groups([])) == []


def test_a_compaction_half_way_through_a_renewal_is_found_and_nothing_is_left_over(table):
    with earlier_release():
        for n in range(3):
            put(table, {"f": [float(n), float("nan")]})
    handle = table.open()
    (group,) = first_groups(outdated_files(handle))
    (joined,) = small_files(table, table.open(), FULL_GOAL)
    join_files(table, table.open(), joined)
    before = data_files(table)
    with pytest.raises(ConflictError, match="rewrote them first"):
        renew(table, handle, group)
    assert data_files(table) == before
    assert outdated_files(table.open()) == []


def test_an_append_half_way_through_a_renewal_stays_and_so_does_what_an_earlier_release_adds_until_the_next_one(table):
    with earlier_release():
        put(table, {"f": [float("nan")]})
    added = []

    def appended(write, *given, **options):
        if not added:
            added.append(True)
            with earlier_release():
                put(table, {"f": [7.0, float("nan")]})
        return write(*given, **options)

    with at_commit(appended):
        assert len(renew_all(table)) == 1
    assert count(table, "f > 7") == 1
    assert len(renew_all(table)) == 1
    assert count(table, "f > 7") == 2


@pytest.mark.parametrize("harm", [lambda path: os.truncate(path, 20), os.remove])
@pytest.mark.parametrize("column", [{"s": [NAME]}, {"f": [0.5]}], ids=["text", "number"])
def test_a_lost_file_is_named_and_keeps_no_other_work_of_maintenance_waiting(tmp_path, harm, column):
    pipeline = without_spark(tmp_path)
    gold = pipeline.lakehouse.gold("uno")
    with earlier_release():
        put(gold, column, info={BATCH_INFO: "1"})
    harm(broken := Path(gold.uri, outdated_files(gold.open())[0].path))
    (Path(gold.uri) / "orphan.parquet").write_bytes(b"left by a crash")
    os.utime(Path(gold.uri) / "orphan.parquet", (0, 0))
    report = RunReport()
    maintain(pipeline, report, [gold.name])
    assert broken.name in report.maintenance[gold.name].error
    assert report.maintenance[gold.name].outdated == 1
    assert report.maintenance[gold.name].orphans == 1
    assert data_files(gold) - {broken.name} == set()


def test_a_file_that_cannot_be_read_leaves_nothing_behind_and_is_reported(tmp_path):
    pipeline = without_spark(tmp_path)
    gold = pipeline.lakehouse.gold("uno")
    with earlier_release():
        for n in range(2):
            put(gold, {"f": [float(n)]}, info={BATCH_INFO: "1"})
    broken = Path(gold.uri, outdated_files(gold.open())[1].path)
    os.truncate(broken, 20)
    before = data_files(gold)
    report = RunReport()
    maintain(pipeline, report, [gold.name])
    assert broken.name in report.maintenance[gold.name].error
    assert data_files(gold) == before
