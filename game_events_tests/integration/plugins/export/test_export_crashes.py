"""An export that is killed, at each named point and anywhere between, is finished by the next run."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from game_events.lakehouse.tables import EXPORT_CALLS, paths
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.export.delivery import ExportTarget
from game_events.plugins.export.rows import OnReplaced
from game_events.plugins.export.run import Exporter, _take_over, export_status
from game_events.plugins.export.tables import ExportTables
from game_events.plugins.export.worker import SendChunks
from game_events_tests.support.killing.sitecustomize import killed_at
from game_events_tests.support.servers.attached_driver import Driver, start_driver
from game_events_tests.support.servers.rest_receiver import Receiver, receiving
from game_events_tests.support.worlds.export import World, offsets_of, only_same_calls_were_repeated
from game_events_tests.support.worlds.waves import wait_all

#: The driver's, then a worker's.
DRIVER_POINTS = ("export_staged", "export_planned", "export_settled")
POINTS = (*DRIVER_POINTS, "export_answered")
#: It notes what was answered at its end alone, however long that takes.
WORKER = """
import pickle, sys
from game_events.plugins.export import worker
worker.NOTE_EVERY_S = 3600
pickle.load(open(sys.argv[1], "rb")).run_task(0)
"""


def assert_the_next_run_finishes_it(world: World, receiver: Receiver) -> None:
    world.export(receiver, rest_rows_per_call=3)
    assert offsets_of(receiver) == world.offsets()
    only_same_calls_were_repeated(receiver)
    assert world.export(receiver).parts["export"].calls == 0
    assert export_status(world.pipeline())["waiting"]["rows"] == 0
    planned = world.pipeline().lakehouse.table(EXPORT_CALLS).open()
    assert planned is not None
    assert paths(planned) == []


def driver(world: World, spark: SparkSession, receiver: Receiver, log: Path, crash_at: str = "") -> Driver:
    settings = world.settings()
    more = {"rest_url": receiver.url, "rest_rows_per_call": "3", "rest_tasks": "2", "rest_calls_per_task": "1"}
    return start_driver(settings, spark, log, crash_at, "export", **more)


@pytest.mark.scenario
def test_a_driver_that_is_killed_at_any_point_or_while_calls_are_under_way_loses_no_row(
    world: World, spark: SparkSession, tmp_path: Path
):
    with receiving(tmp_path / "log") as receiver:
        for point in DRIVER_POINTS:
            world.events(chess=20, uno=4)
            log = tmp_path / "driver.log"
            assert wait_all([driver(world, spark, receiver, log, point)], 120) == [-signal.SIGKILL], log.read_text()
            if point != "export_settled":
                assert len(offsets_of(receiver)) < len(world.offsets()), f"{point} is before the first call"
            world.events(chess=2)
            assert_the_next_run_finishes_it(world, receiver)
    with receiving(tmp_path / "slow", latency_ms=300) as receiver:
        world.sent.clear()
        world.events(chess=90, uno=20)
        killed = driver(world, spark, receiver, tmp_path / "driver.log")
        until = time.monotonic() + 100
        while len(receiver.calls) < 6 and time.monotonic() < until:
            time.sleep(0.05)
        killed.kill()
        killed.wait(30)
        came = len(receiver.calls)
        assert 6 <= came < 37, "it was killed in the middle"
        assert_the_next_run_finishes_it(world, receiver)


@pytest.mark.parametrize("point", ["export_answered"])
def test_a_worker_that_is_killed_before_it_has_noted_its_answers_sends_them_again_under_the_same_keys(
    point: str, world: World, tmp_path: Path
):
    world.events(chess=30)
    with receiving(tmp_path / "log") as receiver:
        pipeline = world.pipeline(receiver, rest_rows_per_call=3)
        target, tables = ExportTarget.of(pipeline.settings), ExportTables.of(pipeline.lakehouse, "gamer_id")
        assert Exporter(pipeline, RunReport()).plan_slice(OnReplaced())
        planned = tables.planned.open()
        assert planned is not None
        waiting = tables.waiting(planned, None)
        chunks, counts = (waiting.column(c).to_numpy().astype(np.int64) for c in ("chunk", "rows"))
        run = _take_over(tables, "killed")
        job = SendChunks(tables, target, paths(planned), 1, chunks, counts, 1, run, "killed")
        (tmp_path / "job").write_bytes(pickle.dumps(job))
        ended = subprocess.run(
            [sys.executable, "-c", WORKER, str(tmp_path / "job")],
            env=os.environ | killed_at(point),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert len(offsets_of(receiver)) == 30, "all of them were answered"
        assert export_status(pipeline)["waiting"]["rows"] == 30, "none of them was noted"
        assert_the_next_run_finishes_it(world, receiver)
        assert max(receiver.keys.values()) == 2
