"""What a look at restored and deleted tables decides, on tables made by hand: no service is needed."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.generations import BronzeIdentity, oldest_batch
from game_events.lakehouse.commits.restores import LOOKED_AT, MAINTENANCE_INFO, history, restored_lately
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.suppressed import add_suppressed, finish_suppressed
from game_events.lakehouse.tables import QUARANTINE, UNIFIED, Table
from game_events.pipeline.bronze import restored as bronze_restored
from game_events.pipeline.bronze.restored import mend_restored_bronze
from game_events.pipeline.bronze.starting_offsets import is_gone, not_there_any_more
from game_events.pipeline.erasure.run import forget
from game_events.pipeline.maintenance.incremental import COMMITS, Upkeep
from game_events.pipeline.maintenance.run import maintain
from game_events.pipeline.quarantine.lost import refuse_lost_quarantine
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.lost_tables import find_lost_tables
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.pipeline.state.commit_info import ERASED_ROWS, slice_info
from game_events.pipeline.state.offsets import identity, offsets_of
from game_events.sources.core.source import Split
from game_events_tests.lanes import by_partition, seen
from game_events_tests.support.pipelines import without_spark

ROWS = pa.schema([pa.field("_batch", pa.int64())])
TOPIC, ID = "games", "5cB9Bc9QRbCeqUM/tZO+tg"


@pytest.fixture
def make(tmp_path):
    def pipeline(**more):
        return without_spark(tmp_path / "lakehouse", kafka_topic=TOPIC, **more)

    return pipeline


@pytest.fixture
def pipeline(make):
    return make()


def put(table, rows=(), advance=None, info=None, **options):
    """One commit."""
    handle = table.open()
    writer = StagedWriter(table, ROWS)
    if rows:
        writer.write(pa.table({"_batch": list(rows)}, schema=ROWS))
    table_id = str(handle.metadata().id) if handle is not None else None
    commit(Commit(table, ROWS, writer.close(), {}, advance or {}, table_id, info=info or {}, **options))
    return table.open().version()


def slice_(pipeline, batch, start, end, rows=1, **txns):
    """A commit of bronze, as runs make them; returns its version."""
    ranges = {Split(TOPIC, ID, p): (start.get(p, 0), to) for p, to in end.items()}
    apps = {lane.app: to for lane, (_, to) in ranges.items()} | identity(ranges) | {"batch": batch} | txns
    return put(pipeline.bronze, [batch] * rows, apps, slice_info(batch, rows, 0, ranges))


def mended(pipeline):
    report = RunReport()
    mend_restored_bronze(pipeline, report)
    return report.notices


def test_offsets_go_back_to_those_of_the_rows_that_are_there_and_a_new_generation_begins(pipeline):
    assert mended(pipeline) == []
    slice_(pipeline, 0, {}, {0: 5}, rows=0)
    first = slice_(pipeline, 1, {0: 5}, {0: 9})
    whole = slice_(pipeline, 2, {0: 9}, {0: 12, 1: 3}, rows=2)  # a partition was added
    assert mended(pipeline) == []
    pipeline.bronze.open().restore(first)
    assert "2 rows were gone" in mended(pipeline)[0]
    handle = pipeline.bronze.open()
    assert by_partition(offsets_of(handle, TOPIC, ID)) == {0: 9, 1: 0}
    assert BronzeIdentity.of(handle).generation == handle.transaction_version("batch") == 3
    assert mended(pipeline) == [], "once"
    assert oldest_batch(handle) == 1, "rows of older batches than its generation are there"
    # The restore is undone, behind maintenance: the rows are there, so are their offsets, and the layers behind begin anew.
    handle.restore(whole)
    put(pipeline.bronze, info={MAINTENANCE_INFO: "compaction"})
    assert mended(pipeline)
    assert by_partition(offsets_of(pipeline.bronze.open(), TOPIC, ID)) == {0: 12, 1: 3}
    assert pipeline.bronze.open().transaction_version(Txn.INCARNATION) == 4


def test_a_restore_that_takes_no_row_away_changes_nothing(pipeline):
    whole = slice_(pipeline, 1, {}, {0: 9})
    put(pipeline.bronze, info={MAINTENANCE_INFO: "compaction"})
    pipeline.bronze.open().restore(whole)
    before = pipeline.bronze.open().version()
    assert mended(pipeline) == []
    # One commit says that it was looked at: no later run reads histories for it.
    assert LOOKED_AT in pipeline.bronze.open().history(1)[0]
    assert mended(pipeline) == []
    assert pipeline.bronze.open().version() == before + 1
    assert by_partition(offsets_of(pipeline.bronze.open(), TOPIC, ID)) == {0: 9}


def test_a_restore_to_before_a_redecode_loses_nothing_although_no_entry_tells_of_the_batches_any_more(pipeline, monkeypatch):
    slice_(pipeline, 1, {}, {0: 9})
    whole = slice_(pipeline, 2, {0: 9}, {0: 12})
    put(pipeline.bronze, [1, 2], info={"redecode": "yes"}, replace=True)
    pipeline.bronze.open().restore(whole)
    history = DeltaTable.history
    monkeypatch.setattr(DeltaTable, "history", lambda handle, _limit=None: history(handle, 1))  # the others were cleaned up
    assert mended(pipeline) == []
    assert not restored_lately(pipeline.bronze)


def test_a_restore_is_looked_at_again_if_the_table_is_restored_once_more_in_the_meantime(pipeline, monkeypatch):
    first = slice_(pipeline, 1, {}, {0: 9})
    whole = slice_(pipeline, 2, {0: 9}, {0: 12})
    put(pipeline.bronze, info={MAINTENANCE_INFO: "compaction"})
    pipeline.bronze.open().restore(whole)
    note = bronze_restored.note_looked_at

    def beaten(table, handle):
        monkeypatch.setattr(bronze_restored, "note_looked_at", note)
        table.open().restore(first)
        note(table, handle)

    monkeypatch.setattr(bronze_restored, "note_looked_at", beaten)
    assert "1 rows were gone" in mended(pipeline)[0]
    assert by_partition(offsets_of(pipeline.bronze.open(), TOPIC, ID)) == {0: 9}


def test_a_restore_finds_partitions_behind_one_without_progress(pipeline):
    first = slice_(pipeline, 1, {}, {1: 9})
    slice_(pipeline, 2, {1: 9}, {1: 12, 70: 4})
    pipeline.bronze.open().restore(first)
    assert "1 rows were gone" in mended(pipeline)[0]
    handle = pipeline.bronze.open()
    assert [handle.transaction_version(Split(TOPIC, ID, p).app) for p in (0, 1, 70)] == [None, 9, 0]


def test_a_restore_to_the_empty_table_reads_everything_again(pipeline):
    empty = slice_(pipeline, 0, {}, {0: 5}, rows=0)
    slice_(pipeline, 1, {0: 5}, {0: 9})
    pipeline.bronze.open().restore(empty)
    assert mended(pipeline)
    assert by_partition(offsets_of(pipeline.bronze.open(), TOPIC, ID)) == {0: 5}


@pytest.mark.parametrize(("app", "why"), [("replay", "rows were replayed"), ("reset", "a full refresh")])
def test_what_cannot_simply_be_read_again_is_refused_with_the_version_to_restore(pipeline, app, why):
    first = slice_(pipeline, 1, {}, {0: 9})
    whole = slice_(pipeline, 2, {0: 9}, {0: 12}, **{app: 2})
    pipeline.bronze.open().restore(first)
    pipeline.bronze.open().restore(0)
    with pytest.raises(DataError, match=rf"{why}.*came between.*TO VERSION AS OF {whole},"):
        mended(pipeline)
    pipeline.bronze.open().restore(whole)
    assert mended(pipeline) == []


def test_entries_of_a_history_have_their_own_versions_whoever_commits_meanwhile(pipeline, monkeypatch):
    slice_(pipeline, 1, {}, {0: 9})
    stale, opened = [pipeline.bronze.open()], Table.open
    newest = slice_(pipeline, 2, {0: 9}, {0: 12})
    monkeypatch.setattr(Table, "open", lambda table: stale.pop() if stale else opened(table))
    assert [(entry["version"], entry["batch"]) for entry in history(pipeline.bronze)] == [(newest, "2"), (0, "1")]


def erased(pipeline, number, *hashes):
    """As an erasure does it, but for the rows."""
    add_suppressed(pipeline.lakehouse, b"a key of the tests", hashes, "run")
    put(pipeline.bronze, advance={Txn.ERASURES: number}, info={ERASED_ROWS: "1"})
    finish_suppressed(pipeline.lakehouse, hashes)


@pytest.mark.parametrize("by_time", [False, True])
def test_a_restore_that_brings_forgotten_gamers_back_is_refused_until_they_are_forgotten_again(pipeline, by_time):
    first = slice_(pipeline, 1, {}, {0: 9})
    erased(pipeline, 1, "ann", "bob")
    whole = slice_(pipeline, 2, {0: 9}, {0: 12})
    put(pipeline.bronze, info={MAINTENANCE_INFO: "compaction"})
    pipeline.bronze.open().restore(whole)
    assert mended(pipeline) == [], "the erasure is in force"
    times = {int(e["version"]): e["timestamp"] for e in pipeline.bronze.open().history()}
    to = datetime.fromtimestamp(times[first] / 1000 + 0.005, UTC) if by_time else first
    pipeline.bronze.open().restore(to)
    refused = rf"before an erasure.*2 at most.*TO VERSION AS OF {whole + 3},.*game-events forget"
    with pytest.raises(DataError, match=refused):
        mended(pipeline)
    with pytest.raises(DataError, match=refused):
        refresh_silver(pipeline, RunReport())
    pipeline.bronze.open().restore(whole)
    assert mended(pipeline) == [], "undone"
    pipeline.bronze.open().restore(first)
    erased(pipeline, 2, "ann")
    with pytest.raises(DataError, match="1 at most"):
        mended(pipeline)
    erased(pipeline, 3, "bob")
    assert "1 rows were gone" in mended(pipeline)[0]
    assert by_partition(offsets_of(pipeline.bronze.open(), TOPIC, ID)) == {0: 9}


def test_the_same_where_nothing_else_came_since_the_erasure(pipeline):
    first = slice_(pipeline, 1, {}, {0: 9})
    erased(pipeline, 1, "ann")
    pipeline.bronze.open().restore(first)
    with pytest.raises(DataError, match="1 at most"):
        mended(pipeline)
    erased(pipeline, 2, "ann")
    assert mended(pipeline), "silver has counted the rows twice as gone, so it begins anew"
    assert pipeline.bronze.open().transaction_version(Txn.INCARNATION) == 2
    erased(pipeline, 3, "bob")
    assert mended(pipeline) == []


def test_a_quarantine_that_lacks_rows_is_refused_until_the_restore_is_undone(pipeline, make):
    slice_(pipeline, 1, {}, {0: 9}, **{Txn.RECORDS_QUARANTINED: 4})
    bronze, report = pipeline.bronze.open(), RunReport()
    with pytest.raises(DataError, match=r"quarantine_events is gone, and with it 4 records.*ON_DATA_LOSS=record_gap"):
        refuse_lost_quarantine(pipeline, bronze, report)
    refuse_lost_quarantine(make(on_data_loss="record_gap"), bronze, report)
    assert "the 4 records" in report.notices[0]
    put(pipeline.quarantine, [1])
    whole = put(pipeline.quarantine, [2])
    refuse_lost_quarantine(pipeline, bronze, report)
    pipeline.quarantine.open().restore(0)
    for setting in ("stop", "record_gap"):
        with pytest.raises(DataError, match=rf"quarantine_events was restored.*TO VERSION AS OF {whole},"):
            refuse_lost_quarantine(make(on_data_loss=setting), bronze, report)
    # Neither commits anything to it, which would hide the restore.
    for work in (refresh_silver, lambda p, report: forget(p, report, frozenset({"ann"}))):
        with pytest.raises(DataError, match=rf"quarantine_events was restored.*TO VERSION AS OF {whole},"):
            work(make(erasure_key="a key of the tests"), report)
    assert pipeline.lakehouse.names() == ["bronze_events", "quarantine_events"]
    pipeline.quarantine.open().restore(whole)
    looked_at = refuse_lost_quarantine(pipeline, bronze, report)
    assert LOOKED_AT in looked_at.history(1)[0], "the undo is noted: later runs need not compare files again"
    assert refuse_lost_quarantine(pipeline, bronze, report).version() == looked_at.version()


def test_a_restored_quarantine_whose_log_does_not_reach_back_is_refused_in_words(pipeline):
    slice_(pipeline, 1, {}, {0: 9})
    for batch in range(3):
        put(pipeline.quarantine, [batch])
    pipeline.quarantine.open().restore(0)
    pipeline.quarantine.open().create_checkpoint()
    for version in range(3):
        (pipeline.quarantine.local_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(DataError, match="quarantine_events was restored"):
        refuse_lost_quarantine(pipeline, pipeline.bronze.open(), RunReport())


@pytest.mark.parametrize("dry_run", [True, False])
def test_maintenance_leaves_a_restored_table_alone_until_a_run_has_looked_at_it(pipeline, dry_run):
    slice_(pipeline, 1, {}, {0: 9})
    lakehouse = pipeline.lakehouse
    asked = {t.name: t for t in (pipeline.bronze, pipeline.quarantine, lakehouse.silver("uno"), lakehouse.table(UNIFIED))}
    others = {name: lakehouse.table(name) for name in ("event_log", "progress")}
    for table in (asked | others).values():
        for batch in (1, 2):
            put(table, [batch], info={"bronze_batch": str(batch)} if table.name in asked else {})
        table.open().restore(table.open().version() - 1)
    before = {name: table.open().version() for name, table in asked.items()}
    report = RunReport()
    maintain(pipeline, report, dry_run=dry_run)
    skipped = {entry.table for entry in report.upkeep.values() if "a run has to look at it first" in (entry.skipped or "")}
    assert skipped == set(asked)
    upkeep = Upkeep(lakehouse, pipeline.retention)
    upkeep.note([*asked] * COMMITS)
    upkeep._budget_s = 10.0
    assert {entry.table for entry in upkeep.work() if entry.skipped} == set(asked)
    assert {name: table.open().version() for name, table in asked.items()} == before
    put(pipeline.quarantine, [3])
    report = RunReport()
    maintain(pipeline, report, dry_run=dry_run)
    assert report.upkeep[QUARANTINE].skipped is None


def test_games_whose_tables_are_gone_or_went_back_are_noted_and_others_are_left_alone(pipeline, make):
    slice_(pipeline, 2, {}, {0: 9})
    lakehouse, key = pipeline.lakehouse, BronzeIdentity.of(pipeline.bronze.open()).key
    games = ("chess", "go", "ludo", "uno")
    pipeline.progress.update(key, lambda now: now.done(Layer.SILVER, 2, dict.fromkeys(games, 2)).done(Layer.GOLD, 2))
    for game in games:
        for table in (lakehouse.silver(game), lakehouse.gold(game)):
            for batch in (1, 2):
                put(table, [batch], info={"bronze_batch": str(batch)})
    report = RunReport()
    find_lost_tables(pipeline, report)
    assert (report.notices, pipeline.progress.read(key).failed) == ([], {})

    shutil.rmtree(lakehouse.silver("chess").uri)
    lakehouse.silver("go").open().restore(0)
    lakehouse.gold("uno").open().restore(0)
    put(lakehouse.gold("uno"), info={MAINTENANCE_INFO: "compaction"})
    find_lost_tables(make(games=("go", "ludo", "uno")), report)
    assert report.notices == ["made whole again: gold_uno_player_agg (restored), silver_go_events (restored)"]
    failed = pipeline.progress.read(key).failed.keys()
    assert failed == {
        (Layer.SILVER, "go"),
        (Layer.GOLD, "go"),
        (Layer.UNIFIED, "go"),
        (Layer.GOLD, "uno"),
        (Layer.UNIFIED, "uno"),
    }
    find_lost_tables(pipeline, RunReport())
    assert (Layer.SILVER, "chess") in pipeline.progress.read(key).failed


def test_a_gold_table_that_was_never_made_is_not_lost(pipeline):
    """As of a game that came since gold's last refresh, or whose gold fails."""
    slice_(pipeline, 3, {}, {0: 9})
    key = BronzeIdentity.of(pipeline.bronze.open()).key
    games = {"chess": 2, "new": 3, "broken": 2}
    pipeline.progress.update(key, lambda now: now.done(Layer.SILVER, 3, games).done(Layer.GOLD, 2, failed={"broken": "a rule"}))
    for game in games:
        put(pipeline.lakehouse.silver(game), [1], info={"bronze_batch": "1"})
    report = RunReport()
    find_lost_tables(pipeline, report)
    assert report.notices == ["made whole again: gold_chess_player_agg (deleted)"]


def test_a_table_that_is_not_there_was_not_restored_and_no_folder_is_made_for_the_look(pipeline):
    assert not restored_lately(pipeline.bronze)
    assert not pipeline.bronze.local_path.exists()


def test_a_bronze_that_is_made_again_tells_of_what_kafka_has_forgotten(pipeline, make):
    now = seen(TOPIC, ID, {0: 7, 1: 0}, {0: 9, 1: 3})
    assert not is_gone(pipeline)
    put(pipeline.lakehouse.table(QUARANTINE), [1])
    assert is_gone(pipeline)
    with pytest.raises(DataError, match=r"bronze_events is gone.*games\[0\]: offsets 0 to 6.*ON_DATA_LOSS"):
        not_there_any_more(pipeline, now)
    assert [(g.start, g.end) for g in not_there_any_more(make(on_data_loss="record_gap"), now)] == [(0, 7)]
    assert not_there_any_more(make(starting_timestamp="2026-01-01T00:00:00Z"), now) == ()
    assert DeltaTable(pipeline.quarantine.uri).version() == 0
