"""Each layer alone: bronze beside its source, silver and gold beside a scan of bronze."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from benchmarks.arena import Arena
from benchmarks.figures import Figure, Target, ratio
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.sources.source import MicroBatch, Reading, ReadNotes, plan_micro_batch
from game_events.workers.job import WorkerJob, task_numbers

GAMES = (10, 100, 1_000)
SCAN, SILVER, GOLD, UNIFIED = "Delta scan to nothing", "silver", "gold", "unified gold"
#: The source alone, and bronze.
SOURCE, BRONZE = "Kafka to nothing", "bronze"


def whole_topic(pipeline: Pipeline) -> MicroBatch:
    """All records of the topic, as bronze would plan them."""
    now = pipeline.source.snapshot()
    part = plan_micro_batch(now, now.earliest, now.latest, sum(now.latest.values()))
    assert part is not None, "the topic is empty"
    return part


def bronze(arena: Arena) -> list[Figure]:
    """Kafka to bronze, beside the same ranges read and thrown away; one round is left out."""
    for pair in range(-1, arena.pairs):
        for games in GAMES:
            topic = arena.topic(games)
            with arena.lakehouse() as root:
                pipeline, report = arena.pipeline(topic, root), RunReport()
                arena.timed(SOURCE, games, pair, partial(source_to_nothing, pipeline))
                arena.timed(BRONZE, games, pair, partial(load_bronze, pipeline, report))
                assert report.rows("bronze") == arena.events, f"bronze has {report.rows('bronze')} of {arena.events} rows"
    figures = []
    for games in GAMES:
        figures += [arena.measured.rate(name, games) for name in (SOURCE, BRONZE)]
        own, alone = ([step.rate for step in arena.measured.of(name, games)] for name in (BRONZE, SOURCE))
        figures.append(ratio(f"bronze's rate / the source's, {games:,} games", own, alone, Target(">=", 0.6)))
    return figures


def fan_out(arena: Arena) -> list[Figure]:
    """Bronze to silver, gold and the unified table; bronze is made once for each number of games, outside the clock."""
    with arena.lakehouse() as made:
        for games in GAMES:
            load_bronze(arena.pipeline(arena.topic(games), made / str(games)), RunReport())
        for pair in range(arena.pairs):
            for games in GAMES:
                _fan_out_once(arena, pair, games, made / str(games))
    measured = arena.measured
    figures = [measured.rate(name, games) for games in GAMES for name in (SCAN, SILVER, GOLD, UNIFIED)]
    for games in GAMES:
        scan = measured.seconds([SCAN], games)
        for name in (SILVER, GOLD):
            figures.append(ratio(f"{name}'s time / the scan's, {games:,} games", measured.seconds([name], games), scan))
    many, few = (measured.seconds([SILVER, GOLD], games) for games in (GAMES[-1], GAMES[0]))
    name = f"silver + gold, time for {GAMES[-1]:,} games / for {GAMES[0]}"
    return [*figures, ratio(name, many, few, Target("<=", 2))]


def _fan_out_once(arena: Arena, pair: int, games: int, made: Path) -> None:
    with arena.lakehouse() as root:
        # Links instead of copies: bronze's files are never changed.
        shutil.copytree(made, root, copy_function=os.link)
        pipeline = arena.pipeline(arena.topic(games), root)
        report = RunReport()
        rows = pipeline.spark.read.format("delta").load(pipeline.bronze.uri)
        # Building Delta's snapshot costs more than this scan, and only at a table's first read.
        rows.limit(1).collect()
        arena.timed(SCAN, games, pair, lambda: rows.write.format("noop").mode("overwrite").save())
        arena.timed(SILVER, games, pair, lambda: refresh_silver(pipeline, report))
        arena.timed(GOLD, games, pair, lambda: refresh_gold(pipeline, report))
        arena.timed(UNIFIED, games, pair, lambda: refresh_unified(pipeline, report))
        assert report.success, report.errors
        assert report.rows("silver") == arena.events, f"silver has {report.rows('silver')} of {arena.events} rows"
        assert len(report.of("gold")) == games, f"gold has {len(report.of('gold'))} of {games} games"


@dataclass
class Count:
    """What a worker counted."""

    records: int = 0


@dataclass(frozen=True)
class Discard(WorkerJob[Count]):
    """Reads a task's records as bronze does, and throws them away."""

    result: ClassVar[type] = Count
    reading: Reading

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Count:
        """Count the records of the tasks of these numbers."""
        notes, found = ReadNotes(), Count()
        for numbers in batches:
            for task in numbers.column(0).to_pylist():
                for batch in self.reading.batches(task, notes):
                    found.records += len(batch)
        return found


def source_to_nothing(pipeline: Pipeline) -> None:
    """Read the whole topic in bronze's own tasks, and nothing else: what a refresh could reach at most."""
    part = whole_topic(pipeline)
    reading = pipeline.source.reading(part)
    counts = Discard(reading).collect(task_numbers(pipeline.spark, reading.tasks))
    found = sum(count.records for count in counts)
    assert found == part.records, f"{found:,} of {part.records:,} records were read"
