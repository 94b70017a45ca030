"""Iceberg beside Delta: what it adds to an increment of 100 games, in the driver's processor time and until the run's end."""

from __future__ import annotations

import time

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, ratio
from game_events.config.settings import Settings
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.iceberg.lag import lags
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation

GAMES, RECORDS = 100, 20_000
TOPIC = "bench_iceberg"


def iceberg(arena: Arena) -> list[Figure]:
    """The same increments without and with it, in turns; the first run of each, which makes the tables, is left out."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    with arena.lakehouse() as made:
        for number in range(1 + arena.pairs):
            settings = settings_for(arena.folder, TOPIC, made)
            produce_bulk(
                settings,
                BulkSimulation(records=RECORDS, games=GAMES, seed=number, gamers_per_game=50, pool_per_version=RECORDS),
                partitions=PARTITIONS,
            )
            for is_on in (False, True):
                place = settings_for(arena.folder, TOPIC, made / ("on" if is_on else "off"))
                began = time.monotonic()
                used = time.process_time()
                place = place.model_copy(update={"iceberg": is_on})
                _run(arena, place)
                if number:
                    seconds[is_on].append(time.monotonic() - began)
                    cpu[is_on].append(time.process_time() - used)
                if is_on:
                    _assert_current(place)
    more = [b - a for a, b in zip(cpu[False], cpu[True], strict=True)]
    return [
        Figure(f"an increment of {GAMES} games, without Iceberg", "s", seconds[False]),
        Figure("the same with Iceberg: 203 tables", "s", seconds[True]),
        Figure("processor time of the driver for Iceberg", "s", more),
        ratio("with Iceberg / without", seconds[True], seconds[False]),
    ]


def _run(arena: Arena, settings: Settings) -> None:
    pipeline = Pipeline(settings, lambda: arena.spark)
    report = RunReport()
    with recorded(pipeline, report, "refresh"):
        refresh(pipeline, report)
    assert report.success, report.errors


def _assert_current(settings: Settings) -> None:
    found = lags(settings, Lakehouse.of(settings))
    assert len(found) >= 2 * GAMES, len(found)
    assert all(lag.is_current for lag in found), found
