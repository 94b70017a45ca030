"""Checks on the whole, each shown to fail on a fault that was put there; on tables that real runs, replays, redecodes made."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import QUARANTINE_COLUMNS
from game_events.lakehouse.tables import BRONZE, UNIFIED, Lakehouse
from game_events.pipeline.checks.audits import gold_equals_recompute
from game_events.pipeline.checks.table_checks import CHECKS, check_after_run, fresh, offsets_continuous, offsets_unique
from game_events.pipeline.offsets import batch_info
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.worlds.waves import power_cut_at, send


@pytest.fixture
def settings(make_settings, proxy):
    return make_settings(schema_registry_url=proxy.url)


@pytest.fixture
def copies(settings, make_settings, make_pipeline, proxy, tmp_path):
    """Gives a fresh copy of the same lakehouse each time, to damage it."""
    count = iter(range(100))

    def copy(**overrides):
        folder = tmp_path / f"copy{next(count)}"
        shutil.copytree(settings.lakehouse, folder)
        return make_pipeline(make_settings(schema_registry_url=proxy.url, lakehouse=str(folder), **overrides))

    return copy


@pytest.mark.scenario
def test_the_offset_checks_pass_through_replay_crash_redecode_and_log_clean_up_and_fail_on_each_fault(
    settings, make_settings, make_pipeline, proxy, copies
):
    unknown = send(make_settings(), version=2, poison=0.2)
    proxy.hide(unknown.schema_ids[2])
    refresh(make_pipeline(settings))
    send(make_settings(), version=1, poison=0.2)
    with power_cut_at("quarantine_committed"):
        refresh(make_pipeline(settings))
    refresh(make_pipeline(settings))
    proxy.show_all()
    # The replay crashed before quarantine noted it: its rows are in both, and that is known.
    with power_cut_at("replay_committed"):
        refresh(make_pipeline(settings))
    assert_sound(make_pipeline(settings))
    refresh(make_pipeline(settings))
    redecode(make_pipeline(settings), RunReport())
    pipeline = make_pipeline(settings)
    found = assert_sound(pipeline)
    assert found.counts["from_batch"] == 0
    assert found.counts["rows_committed"] == Lakehouse.of(settings).table(BRONZE).open().count()
    assert found.counts["offsets_read"] >= found.counts["rows_committed"]

    cleaned = copies()
    bronze = cleaned.bronze.open()
    bronze.create_checkpoint()
    for version in range(bronze.version() - 1):
        (cleaned.bronze.local_path / f"_delta_log/{version:020d}.json").unlink(missing_ok=True)
    assert offsets_continuous(cleaned).passed
    assert offsets_continuous(pipeline, recent=3).passed
    assert "older ones were not checked" in offsets_continuous(pipeline, recent=3).summary
    assert_gaps_and_losses_are_found(copies, found.counts["rows_committed"])
    assert_doubles_are_found(copies)


def assert_gaps_and_losses_are_found(copies, rows):
    """Each fault in a copy of its own."""
    for start, what in ((5, "were left out before batch"), (-5, "were read twice before batch")):
        gap = copies()
        commit_slice(gap, start)
        failed = offsets_continuous(gap)
        assert not failed.passed
        assert failed.wrong_rows
        assert what in failed.summary
        assert not offsets_continuous(gap, recent=10).passed, "the look of every run sees it too"

    crowded = copies()
    commit_slice(crowded, 0, records=1, rows=2)
    assert "has 2 records of 1 offsets" in offsets_continuous(crowded).summary

    lost = copies()
    Path(lost.bronze.open().file_uris()[0]).unlink()
    assert "1 files of the table are missing, among them part-" in offsets_continuous(lost).summary

    removed = copies()
    row = first_row(removed.bronze.open())
    at = f"_kafka_partition = {row['_kafka_partition']} AND _kafka_offset = {row['_kafka_offset']}"
    assert removed.bronze.open().delete(at)["num_deleted_rows"] == 1
    assert f"were committed with {rows} rows, the table holds {rows - 1}" in offsets_continuous(removed).summary
    assert offsets_unique(removed).passed

    restored = copies()
    DeltaTable(restored.bronze.uri).restore(2)
    assert not offsets_continuous(restored).passed, "a restored bronze is not read again by itself: this is where it shows"


def assert_doubles_are_found(copies):
    """In bronze, in quarantine, in both; a row that silver rejected is in both by design."""
    doubled = copies()
    row = first_row(doubled.bronze.open())
    append(doubled.bronze, pq.read_table(doubled.bronze.open().file_uris()[0]).slice(0, 1))
    failed = offsets_unique(doubled)
    assert (failed.passed, failed.wrong_rows, failed.counts["doubled_in_bronze"]) == (False, True, 1)
    assert f"[{row['_kafka_partition']}]@{row['_kafka_offset']}" in failed.summary

    both = copies()
    held = {name: row.get(name) for name in ("_kafka_topic_id", "_kafka_partition", "_kafka_offset")} | {"layer": "bronze"}
    append(both.quarantine, pa.Table.from_pylist([held], schema=QUARANTINE_COLUMNS))
    failed = offsets_unique(both)
    assert (failed.passed, failed.counts["coordinates_doubled"], failed.counts["doubled_in_bronze"]) == (False, 1, 0)
    twice = copies()
    append(twice.quarantine, pa.Table.from_pylist([held | {"_kafka_offset": 10**9}] * 2, schema=QUARANTINE_COLUMNS))
    assert offsets_unique(twice).counts["doubled_in_quarantine"] == 1
    rejected = copies()
    append(rejected.quarantine, pa.Table.from_pylist([held | {"layer": "silver"}], schema=QUARANTINE_COLUMNS))
    assert offsets_unique(rejected).passed


@pytest.mark.scenario
def test_gold_and_the_unified_table_are_compared_with_what_silver_gives(
    settings, make_settings, make_pipeline, copies, monkeypatch
):
    send(make_settings(), poison=0.0)
    refresh(make_pipeline(settings))
    send(make_settings(), poison=0.0, games=("rummy",))
    pipeline = make_pipeline(settings)
    refresh(pipeline)
    found = gold_equals_recompute(pipeline)
    assert found.passed, found.summary
    assert (found.counts["games"], found.counts["games_compared_with_unified"]) == ("rummy, spades, uno", 3)
    assert gold_equals_recompute(pipeline, sample_games=1).counts["games_compared"] == 1

    # Delta Lake's own reader reads gold, and leaves out the files that the second run has replaced.
    assert found.counts["gold_read_by"] == "delta-spark"
    rummy = pipeline.lakehouse.gold("rummy")
    assert len(list(rummy.local_path.glob("*.parquet"))) > len(rummy.open().file_uris())
    with monkeypatch.context() as patch:
        patch.setattr("game_events.pipeline.checks.audits.reads_delta", lambda _: False)
        without = gold_equals_recompute(pipeline)
    assert (without.passed, without.counts["gold_read_by"]) == (True, "this project")
    assert without.counts["players"] == found.counts["players"] > 0

    for table, where in (("gold_rummy_player_agg", (1, 1)), (UNIFIED, (0, 1))):
        wrong = copies()
        handle = wrong.lakehouse.table(table).open()
        one = first_row(handle)
        handle.update(
            updates={"session_count": "session_count + 1"}, predicate=f"gamer_id = '{one['gamer_id']}' AND {game_of(table)}"
        )
        keep_seen(wrong, table)
        failed = gold_equals_recompute(wrong)
        assert (failed.passed, failed.wrong_rows) == (False, True)
        assert (failed.counts["players_that_differ_in_gold"], failed.counts["players_that_differ_in_unified"]) == where
        assert "rummy (" in failed.summary
        assert one["gamer_id"] not in str(failed), "no gamer is named"

    doubled = copies()
    uri = doubled.lakehouse.gold("uno").open().file_uris()[0]
    append(doubled.lakehouse.gold("uno"), pq.read_table(uri).slice(0, 1))
    assert gold_equals_recompute(doubled).counts["players_that_differ_in_gold"] == 1
    # Silver is ahead of gold: pending, not wrong.
    ahead = copies()
    send(make_settings(), poison=0.0)
    with power_cut_at("silver_committed"):
        refresh(ahead)
    assert gold_equals_recompute(make_pipeline(ahead.settings)).passed


def test_bronze_is_fresh_until_it_is_too_old_and_then_it_is_said_whose_doing_that_is(
    settings, make_settings, make_pipeline, copies
):
    send(make_settings(), poison=0.0)
    refresh(make_pipeline(settings))
    assert fresh(make_pipeline(settings)).passed
    assert "off" in fresh(copies(freshness_s=0)).summary
    assert fresh(copies(freshness_s=3600)).passed
    nothing = make_pipeline(make_settings(lakehouse=settings.lakehouse + "-other", freshness_s=1))
    assert not fresh(nothing).passed
    later = time.time() + 3600
    strict = copies(freshness_s=1800)
    found = fresh(strict, later)
    assert (found.passed, found.wrong_rows, found.counts["unread_records"]) == (False, False, 0)
    assert "do its producers send?" in found.summary
    assert isinstance(found.counts["seconds_since_newest_record"], float)
    more = send(make_settings(), poison=0.0)
    assert f"{more.records_total} unread records" in fresh(strict, later).summary
    away = make_pipeline(strict.settings.model_copy(update={"kafka_topic": "not_there"}))
    assert "the topic cannot be read" in fresh(away, later).summary


def test_a_check_that_cannot_be_made_fails_no_run_and_is_told(settings, make_settings, make_pipeline):
    send(make_settings(), poison=0.0)
    pipeline = make_pipeline(settings)
    report = refresh(pipeline)

    def broken(*_):
        raise OSError("no such bucket")

    check_after_run(pipeline, report, [replace(c, in_run=broken) if c.name == "fresh" else c for c in CHECKS])
    found = {c.name: (c.passed, c.summary) for c in report.checks}
    assert found["fresh"] == (False, "could not be made: no such bucket")
    others = {"offsets_continuous", "offsets_lost", "schema_drift", "rows_conserved"}
    assert {name for name, (passed, _) in found.items() if passed} == others
    assert report.success


def assert_sound(pipeline):
    unique = offsets_unique(pipeline)
    assert unique.passed, unique.summary
    found = offsets_continuous(pipeline)
    assert found.passed, found.summary
    return found


def commit_slice(pipeline, skipped, records=10, rows=0):
    """A commit of bronze as a faulty writer would make it: it begins `skipped` offsets behind where the last one ended."""
    handle, split = pipeline.bronze.open(), min(pipeline.source.snapshot().latest)
    batch = handle.transaction_version(Txn.BATCH)
    start = handle.transaction_version(split.app) + skipped
    info = batch_info(batch + 1, rows, 0, {split: (start, start + records)})
    advance = {Txn.BATCH: batch + 1, split.app: start + records}
    plan = Commit(pipeline.bronze, pa.schema([]), [], {}, advance, str(handle.metadata().id), info=info)
    commit(plan)


def append(table, rows):
    write_deltalake(table.uri, rows, mode="append", schema_mode="merge")


def first_row(handle):
    return pq.read_table(handle.file_uris()[0]).slice(0, 1).to_pylist()[0]


def game_of(table):
    return "game_name = 'rummy'" if table == UNIFIED else "true"


def keep_seen(pipeline, table):
    """The unified table speaks for the version of gold that was changed by hand, as if it had taken it over."""
    if table == UNIFIED:
        return
    unified, gold = pipeline.lakehouse.table(UNIFIED).open(), pipeline.lakehouse.table(table).open()
    app = {f"gold:{gold.metadata().id}": gold.version()}
    commit(Commit(pipeline.lakehouse.table(UNIFIED), pa.schema([]), [], {}, app, str(unified.metadata().id)))
