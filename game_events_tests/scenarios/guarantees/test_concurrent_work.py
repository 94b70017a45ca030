"""Drivers on two machines, a run beside a live loop, full refreshes, redecodes and replays at once: no row lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from game_events.errors import ConflictError
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline import quarantine as quarantine_reset
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.loop import Loop
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import assert_books_balance, count, rows
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.shared_topic import World
from game_events_tests.support.worlds.waves import GAMES, power_cut_at, run_rivals, send, versions

#: Seconds: several processes at once, on a machine that may be busy.
PATIENCE_S = 600


@pytest.mark.parametrize("ends", [(8, 40), (40, 8, 15)])
def test_drivers_that_have_all_staged_slices_with_different_ends_load_every_row_once(
    ends: tuple[int, ...], world: World, spark: SparkSession, tmp_path: Path
) -> None:
    world.send(version=len(ends), games=(*GAMES, f"late_{len(ends)}"), records=3, poison=0.5)
    run_rivals(world.settings, [{"max_records_per_batch": str(end)} for end in ends], spark, tmp_path)
    assert world.refresh().success
    world.assert_whole()


def test_runs_beside_a_live_loop_take_nothing_twice_and_stop_nobody(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(poll_interval_s=0.05, gold_interval_s=0, max_records_per_batch=25)
    sent = send(settings)
    loop = Loop(make_pipeline(settings))
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        until(lambda: count(settings, "gold_unified_player_agg"), what="the loop's first rows")
        for version in (2, 3, 4):
            sent = sent.merge(send(settings, version=version, games=(*GAMES, f"late_{version}"), records=3))
            assert refresh(make_pipeline(make_settings(max_records_per_batch=10))).success
        until(lambda: count(settings, BRONZE) == sent.decodable, what="every row in bronze")
    finally:
        loop.stop.set()
        thread.join(PATIENCE_S)
    assert loop.report.total.errors == []
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


def test_a_full_refresh_that_two_runs_finish_at_once_fails_neither_although_the_first_removes_what_the_second_reads(
    make_settings: MakeSettings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(allow_bronze_full_refresh=True)
    sent = send(settings, poison=0.5)
    refresh(make_pipeline(settings))
    with power_cut_at("reset_committed"):
        replace_bronze(make_pipeline(settings), RunReport())
    real, rivals = quarantine_reset.read_files, []

    def overtaken(*arguments: Any) -> DataFrame:
        rows = real(*arguments)
        if not rivals:
            rivals.append(RunReport())
            quarantine_reset.complete_quarantine(make_pipeline(settings), rivals[0])
        return rows

    monkeypatch.setattr(quarantine_reset, "read_files", overtaken)
    mine = RunReport()
    quarantine_reset.complete_quarantine(make_pipeline(settings), mine)
    assert (len(rivals[0].tables), len(mine.tables)) == (1, 0)
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


def test_everything_that_changes_rows_at_once_one_goes_on_and_the_others_say_why_they_do_not(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(allow_bronze_full_refresh=True, max_records_per_batch=15)
    sent = send(settings, poison=0.5)
    refresh(make_pipeline(settings))
    for version in (2, 3):
        sent = sent.merge(send(settings, version=version, records=3, poison=0.5))
        work: list[Callable[[Pipeline], object]] = [
            refresh,
            lambda p: refresh(Pipeline(make_settings(max_records_per_batch=7), p.get_spark)),
            lambda p: replace_bronze(p, RunReport()),
            lambda p: replace_bronze(p, RunReport()),
            lambda p: redecode(p, RunReport()),
            lambda p: redecode(p, RunReport()),
            lambda p: replay(p, RunReport(), ReplaySelection()),
            lambda p: refresh_downstream(p, RunReport(), full=True),
            lambda p: maintain(p, RunReport()),
        ]
        together = threading.Barrier(len(work))

        def one(do: Callable[[Pipeline], object], together: threading.Barrier = together) -> str:
            pipeline = make_pipeline(settings)
            together.wait()
            try:
                do(pipeline)
            except ConflictError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(len(work)) as pool:
            said = list(pool.map(one, work))
        assert "" in said, "nobody went on"
        assert said[0] == said[1] == "", "a run gave up"
        assert all("run" in why for why in said if why), said
        assert refresh(make_pipeline(settings)).success
        assert_books_balance(settings, sent)
    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before
    assert rows(settings, BRONZE, "SELECT count(DISTINCT _kafka_topic_id) FROM t") == [(1,)]
