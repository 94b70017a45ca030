"""What a look at restored and deleted tables decides, on tables made by hand: no service is needed."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import MAINTENANCE_INFO, RESTORE_CHECKED, BronzeIdentity, Txn, restored_lately
from game_events.lakehouse.tables import QUARANTINE, UNIFIED, Layer
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.bronze.offsets import is_gone, not_there_any_more
from game_events.pipeline.maintenance import COMMITS, IncrementalMaintenance, maintain
from game_events.pipeline.offsets import ERASED_ROWS, batch_info, identity, offsets_of
from game_events.pipeline.quarantine import intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.pending import find_lost_tables
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.plugins.governance.erased_people import add_people, finish_people
from game_events.plugins.governance.run import erase
from game_events.sources.source import Partition
from game_events_tests.support.faults import at_commit
from game_events_tests.support.offsets import by_partition, seen
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

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


def put_batches(table, batches=(), *details, **options):
    """A commit of rows of these batches; returns its version."""
    return put(table, pa.table({"_batch": list(batches)}, schema=ROWS), *details, **options).version()


def slice_(pipeline, batch, start, end, rows=1, **txns):
    """A commit of bronze, as runs make them; returns its version."""
    ranges = {Partition(TOPIC, ID, p): (start.get(p, 0), to) for p, to in end.items()}
    apps = {split.app: to for split, (_, to) in ranges.items()} | identity(ranges) | {"batch": batch} | txns
    return put_batches(pipeline.bronze, [batch] * rows, apps, batch_info(batch, rows, 0, ranges))


def checked(pipeline):
    report = RunReport()
    return intact_tables(pipeline, report)[0], report.notices


def refusal(table, version=None):
    """A pattern of the error: table, version and command."""
    undo = rf"RESTORE TABLE delta\.`{table.uri}` TO VERSION AS OF {version};.*" if version is not None else ""
    return rf"{table.name} was restored.*Nothing was done.*{undo}game-events run --full-refresh bronze"


def test_a_restored_bronze_is_refused_until_the_restore_is_undone(pipeline):
    assert intact_tables(pipeline, RunReport()) is None
    first = slice_(pipeline, 1, {0: 5}, {0: 9})
    slice_(pipeline, 2, {0: 9}, {0: 12, 1: 3}, rows=2)  # a partition was added
    put_batches(pipeline.bronze, info={MAINTENANCE_INFO: "compaction"})
    whole = pipeline.bronze.open().version()
    pipeline.bronze.open().restore(first)
    put_batches(pipeline.bronze, info={MAINTENANCE_INFO: "compaction"})
    pipeline.bronze.open().restore(0)
    before = pipeline.bronze.open().version()
    for work in (checked, lambda p: refresh_silver(p, RunReport()), lambda p: load_bronze(p, RunReport(), until=object())):
        with pytest.raises(DataError, match=refusal(pipeline.bronze, whole)):
            work(pipeline)
    assert pipeline.bronze.open().version() == before
    pipeline.bronze.open().restore(whole)
    handle, notices = checked(pipeline)
    assert (RESTORE_CHECKED in handle.history(1)[0], notices) == (True, []), "acknowledged: no later run reads histories for it"
    assert by_partition(offsets_of(handle, TOPIC, ID)) == {0: 12, 1: 3}
    assert BronzeIdentity.of(handle).incarnation == 0
    assert checked(pipeline)[0].version() == handle.version()


def test_a_restore_that_takes_no_file_away_is_no_loss(pipeline):
    whole = slice_(pipeline, 1, {}, {0: 9})
    put_batches(pipeline.bronze, info={MAINTENANCE_INFO: "checkpoint"})
    pipeline.bronze.open().restore(whole)
    assert by_partition(offsets_of(checked(pipeline)[0], TOPIC, ID)) == {0: 9}


def test_a_restore_to_before_a_redecode_is_refused_too(pipeline):
    slice_(pipeline, 1, {}, {0: 9})
    old = slice_(pipeline, 2, {0: 9}, {0: 12})
    whole = put_batches(pipeline.bronze, [1, 2], info={"redecode": "yes"}, replace=True)
    pipeline.bronze.open().restore(old)
    with pytest.raises(DataError, match=refusal(pipeline.bronze, whole)):
        checked(pipeline)


def test_a_restore_is_checked_again_if_the_table_is_restored_once_more_in_the_meantime(pipeline):
    first = slice_(pipeline, 1, {}, {0: 9})
    whole = slice_(pipeline, 2, {0: 9}, {0: 12})
    pipeline.bronze.open().restore(first)
    pipeline.bronze.open().restore(whole)
    beaten = []

    def late(write, *given, **options):
        if not beaten:
            beaten.append(pipeline.bronze.open().restore(first))
        return write(*given, **options)

    with at_commit(late), pytest.raises(DataError, match=refusal(pipeline.bronze, whole)):
        checked(pipeline)


def test_without_the_version_before_the_restore_the_error_names_the_full_refresh_only(pipeline):
    for batch in (1, 2, 3):
        slice_(pipeline, batch, {}, {0: batch})
    pipeline.bronze.open().restore(0)
    pipeline.bronze.open().create_checkpoint()
    for version in range(3):
        (pipeline.bronze.local_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(DataError, match=refusal(pipeline.bronze)) as refused:
        checked(pipeline)
    assert "VERSION AS OF" not in str(refused.value)


def erased(pipeline, number, *hashes):
    """As an erasure does it, but for the rows."""
    add_people(pipeline.lakehouse, b"a key of the tests", hashes, "run")
    put_batches(pipeline.bronze, set_transactions={Txn.ERASURES: number}, info={ERASED_ROWS: "1"})
    finish_people(pipeline.lakehouse, hashes)


@pytest.mark.parametrize("by_time", [False, True])
def test_a_restore_that_brings_erased_rows_back_is_refused_until_it_is_undone(pipeline, by_time):
    first = slice_(pipeline, 1, {}, {0: 9})
    erased(pipeline, 1, "ann", "bob")
    whole = slice_(pipeline, 2, {0: 9}, {0: 12})
    times = {int(e["version"]): e["timestamp"] for e in pipeline.bronze.open().history()}
    to = datetime.fromtimestamp(times[first] / 1000 + 0.005, UTC) if by_time else first
    pipeline.bronze.open().restore(to)
    for work in (checked, lambda p: refresh_silver(p, RunReport())):
        with pytest.raises(DataError, match=refusal(pipeline.bronze, whole)):
            work(pipeline)
    pipeline.bronze.open().restore(whole)
    assert checked(pipeline)[1] == []


def test_an_undo_that_would_bring_erased_rows_back_is_not_offered_and_not_accepted(pipeline):
    first = slice_(pipeline, 1, {}, {0: 9})
    whole = slice_(pipeline, 2, {0: 9}, {0: 12})
    pipeline.bronze.open().restore(first)
    erased(pipeline, 1, "ann")  # an erasure that was under way
    pipeline.bronze.open().restore(whole)
    with pytest.raises(DataError, match=refusal(pipeline.bronze)) as refused:
        checked(pipeline)
    assert "VERSION AS OF" not in str(refused.value)


def test_an_older_copy_of_bronze_is_refused_as_silver_would_leave_out_new_rows(pipeline):
    slice_(pipeline, 1, {}, {0: 9})
    copy = shutil.copytree(pipeline.bronze.local_path, pipeline.bronze.local_path.parent.parent / "copy")
    slice_(pipeline, 2, {0: 9}, {0: 12})
    key = BronzeIdentity.of(pipeline.bronze.open()).key
    pipeline.progress.update(key, lambda now: now.done(Layer.SILVER, 2, {"uno": 2}))
    assert intact_tables(pipeline, RunReport())[0].version() == 1
    shutil.rmtree(pipeline.bronze.local_path)
    shutil.copytree(copy, pipeline.bronze.local_path)
    with pytest.raises(DataError, match="an older copy: it ends at batch 1, and silver has rows up to batch 2"):
        intact_tables(pipeline, RunReport())


def test_a_quarantine_that_lacks_rows_is_refused_until_the_restore_is_undone(pipeline, make):
    slice_(pipeline, 1, {}, {0: 9}, **{Txn.RECORDS_QUARANTINED: 4})
    report = RunReport()
    with pytest.raises(DataError, match=r"quarantine_events is gone, and with it 4 records.*ON_DATA_LOSS=record_gap"):
        intact_tables(pipeline, report)
    intact_tables(make(on_data_loss="record_gap"), report)
    assert "the 4 records" in report.notices[0]
    put_batches(pipeline.quarantine, [1])
    whole = put_batches(pipeline.quarantine, [2])
    intact_tables(pipeline, report)
    pipeline.quarantine.open().restore(0)
    for setting in ("stop", "record_gap"):
        with pytest.raises(DataError, match=refusal(pipeline.quarantine, whole)):
            intact_tables(make(on_data_loss=setting), report)
    # Neither commits anything to it, which would hide the restore.
    for work in (refresh_silver, lambda p, report: erase(p, report, frozenset({"ann"}))):
        with pytest.raises(DataError, match=refusal(pipeline.quarantine, whole)):
            work(make(erasure_key="a key of the tests"), report)
    assert pipeline.lakehouse.names() == ["bronze_events", "quarantine_events"]
    pipeline.quarantine.open().restore(whole)
    _, intact = intact_tables(pipeline, report)
    assert RESTORE_CHECKED in intact.history(1)[0], "the undo is acknowledged: later runs need not compare files again"
    assert intact_tables(pipeline, report)[1].version() == intact.version()


def test_an_older_copy_of_quarantine_is_refused_and_a_new_one_after_a_recorded_loss_is_not(pipeline, make):
    put_batches(pipeline.quarantine, [1], {Txn.MICRO_BATCHES: 1})
    copy = shutil.copytree(pipeline.quarantine.local_path, pipeline.quarantine.local_path.parent.parent / "copy")
    put_batches(pipeline.quarantine, [2], {Txn.MICRO_BATCHES: 2})
    slice_(pipeline, 1, {}, {0: 9}, **{Txn.RECORDS_QUARANTINED: 2, Txn.QUARANTINE_COMMITS: 2})
    assert intact_tables(pipeline, RunReport()) is not None
    shutil.rmtree(pipeline.quarantine.local_path)
    shutil.copytree(copy, pipeline.quarantine.local_path)
    with pytest.raises(DataError, match="quarantine_events is an older copy: bronze_events counts 2 commits to it, it has 1"):
        intact_tables(pipeline, RunReport())
    shutil.rmtree(pipeline.quarantine.local_path)
    intact_tables(make(on_data_loss="record_gap"), RunReport())
    put_batches(pipeline.quarantine, [2], {Txn.MICRO_BATCHES: 1})
    assert intact_tables(pipeline, RunReport()) is not None


def test_a_restored_quarantine_whose_log_does_not_reach_back_is_to_be_deleted_and_rebuilt(pipeline):
    slice_(pipeline, 1, {}, {0: 9})
    for batch in range(3):
        put_batches(pipeline.quarantine, [batch])
    pipeline.quarantine.open().restore(0)
    pipeline.quarantine.open().create_checkpoint()
    for version in range(3):
        (pipeline.quarantine.local_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(DataError, match=r"quarantine_events was restored.*delete the table and run .*--full-refresh bronze"):
        intact_tables(pipeline, RunReport())


@pytest.mark.parametrize("dry_run", [True, False])
def test_maintenance_leaves_a_restored_table_alone_until_a_run_has_looked_at_it(pipeline, dry_run):
    slice_(pipeline, 1, {}, {0: 9})
    lakehouse = pipeline.lakehouse
    asked = {t.name: t for t in (pipeline.bronze, pipeline.quarantine, lakehouse.silver("uno"), lakehouse.table(UNIFIED))}
    others = {name: lakehouse.table(name) for name in ("event_log", "progress")}
    for table in (asked | others).values():
        for batch in (1, 2):
            put_batches(table, [batch], info={"bronze_batch": str(batch)} if table.name in asked else {})
        table.open().restore(table.open().version() - 1)
    before = {name: table.open().version() for name, table in asked.items()}
    report = RunReport()
    maintain(pipeline, report, dry_run=dry_run)
    skipped = {entry.table for entry in report.maintenance.values() if "a run has to check it first" in (entry.skipped or "")}
    assert skipped == set(asked)
    maintenance = IncrementalMaintenance(lakehouse, share=1e9, most_saved_s=1e9)
    maintenance.note([*asked] * COMMITS)
    assert {entry.table for entry in maintenance.work() if entry.skipped} == set(asked)
    assert {name: table.open().version() for name, table in asked.items()} == before
    put_batches(pipeline.quarantine, [3])
    report = RunReport()
    maintain(pipeline, report, dry_run=dry_run)
    assert report.maintenance[QUARANTINE].skipped is None


def test_games_whose_tables_are_gone_or_went_back_are_noted_and_others_are_left_alone(pipeline, make):
    slice_(pipeline, 2, {}, {0: 9})
    lakehouse, key = pipeline.lakehouse, BronzeIdentity.of(pipeline.bronze.open()).key
    games = ("chess", "go", "ludo", "uno")
    pipeline.progress.update(key, lambda now: now.done(Layer.SILVER, 2, dict.fromkeys(games, 2)).done(Layer.GOLD, 2))
    for game in games:
        for table in (lakehouse.silver(game), lakehouse.gold(game)):
            for batch in (1, 2):
                put_batches(table, [batch], info={"bronze_batch": str(batch)})
    report = RunReport()
    find_lost_tables(pipeline, report)
    assert (report.notices, pipeline.progress.read(key).failed) == ([], {})

    shutil.rmtree(lakehouse.silver("chess").uri)
    lakehouse.silver("go").open().restore(0)
    lakehouse.gold("uno").open().restore(0)
    put_batches(lakehouse.gold("uno"), info={MAINTENANCE_INFO: "compaction"})
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
        put_batches(pipeline.lakehouse.silver(game), [1], info={"bronze_batch": "1"})
    report = RunReport()
    find_lost_tables(pipeline, report)
    assert report.notices == ["made whole again: gold_chess_player_agg (deleted)"]


def test_a_table_that_is_not_there_was_not_restored_and_no_folder_is_made_for_the_look(pipeline):
    assert not restored_lately(pipeline.bronze)
    assert not pipeline.bronze.local_path.exists()


def test_a_bronze_that_is_made_again_tells_of_what_kafka_has_forgotten(pipeline, make):
    now = seen(TOPIC, ID, {0: 7, 1: 0}, {0: 9, 1: 3})
    assert not is_gone(pipeline)
    put_batches(pipeline.lakehouse.table(QUARANTINE), [1])
    assert is_gone(pipeline)
    with pytest.raises(DataError, match=r"bronze_events is gone.*games\[0\]: offsets 0 to 6.*ON_DATA_LOSS"):
        not_there_any_more(pipeline, now)
    assert [(g.start, g.end) for g in not_there_any_more(make(on_data_loss="record_gap"), now)] == [(0, 7)]
    assert not_there_any_more(make(starting_timestamp="2026-01-01T00:00:00Z"), now) == ()
    assert DeltaTable(pipeline.quarantine.uri).version() == 0
