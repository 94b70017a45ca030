"""Dagster's own bookkeeping: the job `refresh` against what it does without Dagster (checks and event log among it).

All of 1,000 games have news.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dagster import DagsterInstance

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from game_events.cli.dagster_run import dagster_file
from game_events.config.settings import Settings
from game_events.definitions import build_defs
from game_events.pipeline.checks.table_checks import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation

GAMES, RECORDS = 1_000, 20_000
TOPIC = "bench_bookkeeping"


def bookkeeping(arena: Arena) -> list[Figure]:
    """Processor time of this process (not of Spark), and what Dagster's storage grows by, for one run."""
    home = arena.folder / "bookkeeping"
    home.mkdir()
    shutil.copyfile(dagster_file("dagster.yaml"), home / "dagster.yaml")
    direct, inside, grown = list[float](), list[float](), list[float]()
    with arena.lakehouse() as made, DagsterInstance.from_config(str(home)) as instance:
        for number in range(1 + arena.pairs):
            _produce(arena, seed=number)
            before = _size(home)
            times = (
                _timed(lambda: _function(arena, _settings(arena, made / "direct"))),
                _timed(lambda: _job(arena, instance, _settings(arena, made / "inside"))),
            )
            # The first run makes every game's partition, once.
            if number:
                direct.append(times[0])
                inside.append(times[1])
                grown.append((_size(home) - before) / 2**20)
    more = [b - a for a, b in zip(direct, inside, strict=True)]
    return [
        Figure(f"refresh of {GAMES:,} games with news, this process's processor time", "s", direct),
        Figure("the same as a job inside Dagster", "s", inside),
        Figure("processor time for Dagster's events", "s", more, Target("<=", 1)),
        Figure("growth of Dagster's storage by one run", "MiB", grown, Target("<=", 2)),
        ratio("inside Dagster / the function", inside, direct),
    ]


def _timed(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _settings(arena: Arena, lakehouse: Path) -> Settings:
    return settings_for(arena.folder, TOPIC, lakehouse)


def _function(arena: Arena, settings: Settings) -> None:
    pipeline, report = Pipeline(settings, lambda: arena.spark), RunReport()
    with recorded(pipeline, report, "refresh"):
        refresh(pipeline, report)
        check_after_run(pipeline, report)
    assert report.success, report.errors
    assert report.rows("silver") == RECORDS, report.rows("silver")


def _job(arena: Arena, instance: DagsterInstance, settings: Settings) -> None:
    assert arena.spark is not None  # the resource finds the session that there is
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    job = build_defs(settings).resolve_job_def("refresh")
    assert job.execute_in_process(instance=instance, run_config=quiet).success


def _produce(arena: Arena, seed: int) -> None:
    settings = settings_for(arena.folder, TOPIC, arena.folder / "unused")
    simulation = BulkSimulation(records=RECORDS, games=GAMES, seed=seed, gamers_per_game=5, pool_per_version=RECORDS)
    produce_bulk(settings, simulation, partitions=PARTITIONS)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
