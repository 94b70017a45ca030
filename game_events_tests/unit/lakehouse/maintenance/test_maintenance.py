"""Maintenance of one table: same rows, fewer files, and nothing goes that somebody may need."""

import dataclasses
import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse import maintenance
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.transactions import restored
from game_events.lakehouse.commits.versions import OldVersions, delete_files
from game_events.lakehouse.data.reading import BATCH_INFO, read_arrow, selection
from game_events.lakehouse.maintenance import (
    FULL_GOAL,
    LOOP_GOAL,
    join_files,
    orphans,
    small_files,
)
from game_events.lakehouse.table_properties import Retention
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.maintenance import IncrementalMaintenance, _tidy
from game_events.pipeline.reporting.result import TableMaintenance
from game_events_tests.support.faults import at_commit, at_failpoints
from game_events_tests.support.tables import SCHEMA, committed_files, data_files, numbers, plan, put, rows, staged_numbers

OURS = {BATCH_INFO: "1"}
#: Of a loop's time: tables are maintained as soon as they are due.
NO_LIMIT = {"share": 1e9, "most_saved_s": 1e9}


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


@pytest.fixture
def table(lakehouse):
    return lakehouse.table("silver_uno_events")


def append(table, count, first=0):
    """So many commits of two rows each."""
    for n in range(first, first + count):
        commit(plan(table, [2 * n, 2 * n + 1], n or None, n + 1, info=OURS))


def replaced(table, count):
    """So many commits that replace the table."""
    for n in range(count):
        commit(plan(table, [n], n or None, n + 1, replace=n > 0, info=OURS))


def join_all(table, goal=FULL_GOAL):
    for group in small_files(table, table.open(), goal):
        join_files(table, table.open(), group)


def test_joined_files_hold_the_same_rows_in_fewer_files_and_progress_stays(table):
    append(table, 20)
    before = rows(table)
    join_all(table)
    assert rows(table) == before
    assert len(committed_files(table)) == 1
    assert table.open().transaction_version("txn") == 20
    append(table, 1, first=20)
    assert numbers(table) == list(range(42))


def test_a_streaming_reader_is_told_that_joined_files_bring_no_new_rows(table):
    append(table, 3)
    join_all(table)
    entry = Path(table.uri, "_delta_log", f"{table.open().version():020}.json").read_text()
    actions = [json.loads(line) for line in entry.splitlines()]
    changes = [a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a]
    assert len(changes) == 4
    assert not any(changes)


def test_files_with_and_without_later_columns_are_joined(table):
    append(table, 2)
    inner = pa.struct([("a", pa.int64())])
    wide = pa.schema([*SCHEMA, ("extra", pa.string()), ("deep", inner)])
    files = staged_numbers(table, [4], wide, extra=["x"], deep=[{"a": 1}])
    commit(plan(table, [4], 2, 3, schema=wide, files=files))
    wider = pa.schema([*SCHEMA, ("extra", pa.string()), ("deep", pa.struct([("a", pa.int64()), ("b", pa.string())]))])
    files = staged_numbers(table, [5], wider, extra=["y"], deep=[{"a": 2, "b": "z"}])
    commit(plan(table, [5], 3, 4, schema=wider, files=files))
    join_all(table)
    assert len(committed_files(table)) == 1
    found = read_arrow(table, table.open()).sort_by("n").to_pylist()
    assert [row["extra"] for row in found] == [None, None, None, None, "x", "y"]
    assert [row["deep"] for row in found[3:]] == [None, {"a": 1, "b": None}, {"a": 2, "b": "z"}]


def test_batches_are_still_found_by_their_files_statistics(table):
    schema = pa.schema([*SCHEMA, ("_batch", pa.int64())])
    for batch in range(1, 5):
        files = staged_numbers(table, [batch], schema, _batch=[batch])
        commit(plan(table, [], batch - 1 or None, batch, schema=schema, files=files))
    first, second, *_ = small_files(table, table.open(), FULL_GOAL)[0]
    join_files(table, table.open(), [first, second])
    assert selection(table.open(), 2).exact
    assert selection(table.open(), 2).rows == 2
    assert not selection(table.open(), 1).exact


def test_a_loop_writes_a_row_again_once_for_each_size_class(table, monkeypatch):
    goal = dataclasses.replace(LOOP_GOAL, files=6)
    monkeypatch.setattr(maintenance, "CLASS_FACTOR", 4)
    written = []
    for n in range(37):
        commit(plan(table, range(100 * n, 100 * n + 100), n or None, n + 1))
        if n == 0:
            (size,) = pa.table(table.open().get_add_actions()).column("size_bytes").to_pylist()
            monkeypatch.setattr(maintenance, "SMALLEST_CLASS_BYTES", 2 * size)
        for group in small_files(table, table.open(), goal):
            written.append(join_files(table, table.open(), group).rows)
    assert numbers(table) == list(range(3700))
    assert len(committed_files(table)) < 3 * goal.files
    assert written == [*[600] * 6, 3600], "each row once for each of two size classes"


def test_quarantine_keeps_files_of_other_layers_and_games_apart(lakehouse):
    quarantine = lakehouse.table("quarantine_events")
    schema = pa.schema([*SCHEMA, ("layer", pa.string()), ("game", pa.string())])
    places = [("bronze", None), ("silver", "uno"), ("silver", "chess")] * 2
    for n, (layer, game) in enumerate(places):
        files = staged_numbers(quarantine, [n], schema, layer=[layer], game=[game])
        commit(plan(quarantine, [], n or None, n + 1, schema=schema, files=files))
    join_all(quarantine)
    assert len(committed_files(quarantine)) == 3
    assert numbers(quarantine) == list(range(6))


def test_large_files_are_left_alone(table):
    append(table, 4)
    size = max(pa.table(table.open().get_add_actions()).column("size_bytes").to_pylist())
    assert not small_files(table, table.open(), dataclasses.replace(FULL_GOAL, bytes=size))


def test_who_joins_files_that_a_rival_has_joined_stops_and_leaves_nothing_behind(table):
    append(table, 3)
    (group,) = small_files(table, table.open(), FULL_GOAL)
    stale = table.open()
    join_files(table, table.open(), group)
    before = data_files(table)
    with pytest.raises(ConflictError, match="somebody else rewrote"):
        join_files(table, stale, group)
    assert data_files(table) == before
    assert numbers(table) == list(range(6))


def test_a_commit_that_meets_a_compaction_half_way_lands_all_the_same(table):
    append(table, 3)
    ours = plan(table, [99], 3, 4)
    joined = []

    def beaten(write, *given, **options):
        if not joined:
            joined.append(True)
            (group,) = small_files(table, table.open(), FULL_GOAL)
            join_files(table, table.open(), group)
        return write(*given, **options)

    with at_commit(beaten):
        landed = commit(ours)
    assert landed.rows == 1
    assert numbers(table) == [0, 1, 2, 3, 4, 5, 99]


def test_a_restore_is_found_behind_many_compactions(table):
    append(table, 3)
    DeltaTable(table.uri).restore(1)
    for n in range(10):
        (group,) = small_files(table, table.open(), FULL_GOAL) or [None]
        if group is None:
            schema = pa.schema(table.open().schema())
            table.open().create_write_transaction([], "append", table.open().schema())
            assert schema.names == ["n", "s"]
        else:
            join_files(table, table.open(), group)
        assert restored(table.open()), n


def test_files_that_no_commit_names_go_when_they_are_old(table):
    append(table, 2)
    old, young, listed = (staged_numbers(table, [n])[0].path for n in (50, 51, 52))
    past = time.time() - 7200
    for name in (old, listed):
        os.utime(Path(table.uri, name), (past, past))
    for name in committed_files(table):
        os.utime(Path(table.uri, name), (past, past))
    found = orphans(table, 3600, OldVersions(table), keep={listed})
    assert list(found) == [old]
    assert found[old] > 0
    assert delete_files(table, sorted(found), 0) == 1
    assert data_files(table) == committed_files(table) | {young, listed}
    assert numbers(table) == [0, 1, 2, 3]


def test_files_that_a_rival_has_just_replaced_are_no_orphans_however_old_they_are(table):
    append(table, 3)
    past = time.time() - 7200
    for name in committed_files(table):
        os.utime(Path(table.uri, name), (past, past))
    known = OldVersions(table)
    known.named(table.open())
    join_all(table)
    assert orphans(table, 3600, known) == {}


def test_joining_files_takes_nothing_back_that_a_rival_has_noted_about_a_column(table):
    append(table, 2)
    (group,) = small_files(table, table.open(), FULL_GOAL)
    stale = table.open()
    table.open().alter.set_column_metadata("n", {"game_events": "later"})
    join_files(table, stale, group)
    (column,) = [f for f in table.open().schema().fields if f.name == "n"]
    assert column.metadata["game_events"] == "later"
    assert numbers(table) == [0, 1, 2, 3]


def test_a_file_that_cannot_be_read_ends_no_loop(lakehouse, table):
    append(table, LOOP_GOAL.files)
    Path(table.uri, sorted(committed_files(table))[0]).write_bytes(b"PAR1")
    maintenance = IncrementalMaintenance(lakehouse, **NO_LIMIT)
    maintenance.note([table.name] * LOOP_GOAL.files)
    (done,) = [entry for entry in maintenance.work() if entry.table == table.name]
    assert done.error


def test_an_error_without_a_text_is_reported_by_its_class(lakehouse, table, caplog):
    append(table, LOOP_GOAL.files)
    maintenance = IncrementalMaintenance(lakehouse, **NO_LIMIT)
    maintenance.note([table.name] * LOOP_GOAL.files)

    def out_of_memory(point, _):
        if point == "joined_staged":
            raise MemoryError

    with at_failpoints(out_of_memory):
        assert [entry.error for entry in maintenance.work() if entry.table == table.name] == ["MemoryError"]
    assert "maintenance=failed" in caplog.text


class TestMaintenanceOfALoop:
    @pytest.fixture
    def maintenance(self, lakehouse):
        return IncrementalMaintenance(
            Lakehouse(lakehouse.root, retention=Retention(every_h=1e-6, kept_h=1e-6, derived_h=1e-6)), **NO_LIMIT
        )

    def test_a_table_is_looked_after_when_it_has_enough_commits(self, table, maintenance):
        append(table, LOOP_GOAL.files)
        for _ in range(LOOP_GOAL.files - 1):
            maintenance.note([table.name])
        assert not maintenance.work()
        maintenance.note([table.name])
        time.sleep(0.01)
        done = {entry.table: entry for entry in maintenance.work()}[table.name]
        assert (done.joined, done.into, done.files) == (LOOP_GOAL.files, 1, 1)
        maintenance.note([table.name] * LOOP_GOAL.files)
        time.sleep(0.01)
        later = {entry.table: entry for entry in maintenance.work()}[table.name]
        assert done.replaced + later.replaced == LOOP_GOAL.files
        assert data_files(table) == committed_files(table)

    def test_it_takes_no_more_than_its_share_and_the_others_turn_comes(self, lakehouse):
        maintenance = IncrementalMaintenance(lakehouse, share=1e-9)
        tables = [lakehouse.silver(f"g{n}") for n in range(3)]
        for silver in tables:
            append(silver, LOOP_GOAL.files)
            maintenance.note([silver.name] * LOOP_GOAL.files)
        first = maintenance.work()
        assert len(first) == 1
        assert not maintenance.work(), "a table takes more than is saved up: its time is owed first"
        maintenance.share = maintenance.most_saved_s = 1e9
        names = {entry.table for entry in [*first, *maintenance.work()]}
        assert {silver.name for silver in tables} <= names

    def test_what_cannot_be_looked_after_is_told_and_harms_nobody(self, lakehouse, table, maintenance):
        append(table, LOOP_GOAL.files)
        good = lakehouse.silver("chess")
        append(good, LOOP_GOAL.files)
        Path(table.uri, "_delta_log", "00000000000000000002.json").write_text('{"add": not json')
        maintenance.note([table.name, good.name] * LOOP_GOAL.files)
        done = {entry.table: entry for entry in maintenance.work()}
        assert done[table.name].error
        assert done[good.name].into == 1


def test_a_query_for_one_message_type_reads_a_share_of_the_row_groups_of_compacted_silver(lakehouse):
    lakehouse.sizes = dataclasses.replace(lakehouse.sizes, row_group_rows=100)
    lakehouse.time = "at"
    table = lakehouse.table("silver_uno_events")
    types = [f"t.Type{n:02}" for n in range(10)]
    for batch in range(1, 5):
        count = 400
        own = {"_message_type": [types[(7 * n) % 10] for n in range(count)], "at": [(n * 37) % 101 for n in range(count)]}
        put(table, {**own, "n": range(count), "_batch": [batch] * count}, {"batch": batch}, OURS | {"bronze_batch": str(batch)})
    before = sorted(read_arrow(table, table.open()).to_pylist(), key=str)
    (group,) = small_files(table, table.open(), FULL_GOAL)
    _tidy(table, table.open(), FULL_GOAL, TableMaintenance(table.name), lakehouse)
    assert sorted(read_arrow(table, table.open()).to_pylist(), key=str) == before
    (name,) = committed_files(table)
    file = pq.ParquetFile(Path(table.uri) / name)
    bounds = []
    for number in range(file.num_row_groups):
        column = next(c for i in range(4) if (c := file.metadata.row_group(number).column(i)).path_in_schema == "_message_type")
        bounds.append((column.statistics.min, column.statistics.max))
    assert len(bounds) == 16, group
    assert sum(low <= types[3] <= high for low, high in bounds) <= 3
    ordered = file.read(["_message_type", "at"]).to_pylist()
    assert ordered == sorted(ordered, key=lambda row: (row["_message_type"], row["at"]))
