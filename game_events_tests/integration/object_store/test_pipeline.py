"""The whole pipeline with its tables in an S3-compatible store: the same guarantees as on a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import CHECKS
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.loop import Loop
from game_events.pipeline.runs.refresh import refresh, refresh_downstream, selection_of
from game_events.plugins.catalog.sql import TablesSql
from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.support.reconciliation import assert_books_balance, coordinates, count, rows
from game_events_tests.support.servers.object_store import BUCKET, ObjectStore
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import Event, send_events
from game_events_tests.support.worlds.waves import (
    GAMES,
    assert_gold_follows_silver,
    power_cut_at,
    run_rivals,
    send,
    versions,
)

MakeS3 = Callable[[Settings], Pipeline]
#: Where a run is cut off: before any commit, between two of them, at a table's first commit.
POINTS = ("bronze_staged", "quarantine_committed", "before_create:silver_late_events", "gold_staged")


def test_files_of_a_first_write_that_was_never_committed_make_no_game_of_a_name(
    s3: Settings, make_s3_pipeline: MakeS3, store: ObjectStore
) -> None:
    """A folder without a log: its name was taken for a game's that had been let in, and its one row for enough."""
    settings = s3.model_copy(update={"max_games": 1, "new_game_min_rows": 5})
    folder = f"{BUCKET}/{s3.lakehouse.rpartition('/')[2]}/silver_ghost_events"
    with store.files().open_output_stream(f"{folder}/part-0.parquet") as file:
        file.write(b"half a file")
    send_events(settings, [Event("ghost"), *(Event("chess", n) for n in range(9))])
    report = refresh(make_s3_pipeline(settings))
    assert report.success, report.errors
    assert report.unrouted == {"over_limit": 1}
    assert count(settings, "silver_chess_events") == 9
    send_events(settings, [Event("chess"), *(Event("ghost", n) for n in range(5))])
    assert refresh(make_s3_pipeline(settings)).unrouted == {}
    assert (count(settings, "silver_chess_events"), count(settings, "silver_ghost_events")) == (10, 6)


@pytest.mark.every_spark
def test_a_run_fills_the_tables_and_one_with_nothing_new_writes_nothing(s3: Settings, make_s3_pipeline: MakeS3) -> None:
    sent = send(s3)
    report = refresh(make_s3_pipeline(s3))
    assert report.success, report.errors
    assert_books_balance(s3, sent)
    with TablesSql(Lakehouse.of(s3)) as tables:
        _, rows = tables.query(
            "SELECT count(*), count(DISTINCT _kafka_offset) > 1 FROM bronze_events WHERE game_name IS NOT NULL"
        )
        assert list(rows) == [(report.rows("bronze"), True)]
    before = versions(s3)
    assert refresh(make_s3_pipeline(s3)).tables == []
    assert versions(s3) == before
    checked = [check.run(make_s3_pipeline(s3)) for check in CHECKS]
    assert [found.summary for found in checked if not found.passed] == []
    assert [found.counts["gold_read_by"] for found in checked if "gold_read_by" in found.counts] == ["delta-spark"]


@pytest.mark.scenario
def test_a_run_cut_off_anywhere_is_finished_by_the_next_one(s3: Settings, make_s3_pipeline: MakeS3) -> None:
    sent = send(s3)
    refresh(make_s3_pipeline(s3))
    for number, point in enumerate(POINTS):
        sent = sent.merge(send(s3, version=1 + number % 3, games=(*GAMES, "late"), records=3, poison=0.5))
        with power_cut_at(point):
            refresh(make_s3_pipeline(s3))
    report = refresh(make_s3_pipeline(s3))
    assert report.success, report.errors
    assert_books_balance(s3, sent)


@pytest.mark.scenario
def test_three_drivers_at_once_with_different_ends_load_every_row_once(
    s3: Settings, make_s3_pipeline: MakeS3, spark: SparkSession, tmp_path: Path
) -> None:
    sent = send(s3).merge(send(s3, version=1, records=4)).merge(send(s3, version=2, records=4))
    store = {"storage_endpoint": str(s3.storage_endpoint)}
    run_rivals(s3, [{"max_records_per_batch": end, **store} for end in ("15", "40", "7")], spark, tmp_path)
    assert refresh(make_s3_pipeline(s3)).success
    assert_books_balance(s3, sent)


@pytest.mark.scenario
def test_full_refresh_replay_redecode_and_maintenance_work_there_too(
    s3: Settings, make_s3_pipeline: MakeS3, store: ObjectStore
) -> None:
    settings = s3.model_copy(update={"allow_bronze_full_refresh": True})
    sent = send(settings, version=2)
    refresh(make_s3_pipeline(settings))
    assert redecode(make_s3_pipeline(settings), RunReport()).rows == sent.decodable
    pipeline = make_s3_pipeline(settings)
    report = refresh(pipeline, selection=selection_of(pipeline, full_refresh=["all"]))
    assert report.success, report.errors
    assert_books_balance(settings, sent)
    again = replay(make_s3_pipeline(settings), RunReport(), ReplaySelection())
    assert (again.rows, count(settings, QUARANTINE)) == (0, sum(sent.poison.values()))
    refresh_downstream(make_s3_pipeline(settings), RunReport(), full=True)
    kept = RunReport()
    maintain(make_s3_pipeline(settings), kept)
    assert kept.success, kept.errors
    assert_books_balance(settings, sent)
    assert reconcile(make_s3_pipeline(settings)).passed
    left = [
        name
        for name in store.names(settings.lakehouse.removeprefix(f"s3://{BUCKET}/"))
        if "_full_refresh-" in name or "_probe" in name
    ]
    assert left == []


@pytest.mark.scenario
def test_a_loop_and_a_replay_with_rows_bring_each_row_once_there_too(
    s3: Settings, make_s3_pipeline: MakeS3, stack: StackState
) -> None:
    with registry_proxy(stack.schema_registry_url) as proxy:
        settings = s3.model_copy(update={"schema_registry_url": proxy.url, "poll_interval_s": 0.05, "gold_interval_s": 0})
        unknown = send(s3, version=2, poison=0)
        proxy.hide(unknown.schema_ids[2])
        loop = Loop(make_s3_pipeline(settings))
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            until(lambda: count(settings, QUARANTINE) == unknown.decodable, what="rows that nobody can decode yet")
            sent = send(s3, version=1)
            until(lambda: count(settings, BRONZE) == sent.decodable, what="the loop's own rows")
            proxy.show_all()
            again = replay(make_s3_pipeline(settings), RunReport(), ReplaySelection())
            # The loop sees that the schema became known, too: whoever comes first brings the rows.
            assert again.rows in {0, unknown.decodable}
            later = send(s3, version=3, games=(*GAMES, "late"))
            until(
                lambda: count(settings, BRONZE) == sum(m.decodable for m in (unknown, sent, later)), what="the wave behind it"
            )
        finally:
            loop.stop.set()
            thread.join(60)
        assert not thread.is_alive()
        assert loop.report.total.errors == []
        assert refresh(make_s3_pipeline(settings)).success
    bronze = coordinates(settings, BRONZE)
    assert len(bronze) == len(set(bronze))
    assert sorted(c for game in (*GAMES, "late") for c in coordinates(settings, f"silver_{game}_events")) == bronze
    poison = sum(m.records_total - m.decodable for m in (sent, later))
    assert rows(settings, QUARANTINE, "SELECT count(*), count(replayed_batch) FROM t") == [
        (unknown.decodable + poison, unknown.decodable)
    ]
    assert reconcile(make_s3_pipeline(settings)).passed
    assert_gold_follows_silver(settings, *GAMES, "late")
