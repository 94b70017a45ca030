"""Increments: the same 1,000 new records in lakehouses with few and with many gamers, warm, in turns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import functions as F

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from game_events.extending import GoldAggregate
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.producer.produce import produce_bulk
from game_events.producer.simulator import BulkSimulation

RECORDS = 1_000
#: First records that are made at a time: they are in memory.
PART, FIRST_SEED = 500_000, 1_000
#: Events up to which the goals for 1.8 million gamers hold; with more that for 10 million.
MANY = 3_000_000
GOLD = "gold and unified"
#: Cannot be merged: of keys with new rows all rows are read.
DEVICES = GoldAggregate(
    "devices",
    "by_key",
    keys=("gamer_id",),
    function=lambda silver: silver.groupBy("_game", "gamer_id").agg(F.countDistinct("device_id").alias("devices")),
    definition="d" * 16,
)
CHANGED, ALL = "a distinct count, keys with new rows", "a distinct count, all keys"


@dataclass(frozen=True)
class Shape:
    """A lakehouse: its games, and about how many gamers they have together (as many as there were first records)."""

    games: int
    gamers: int

    @property
    def topic(self) -> str:
        """A topic of its own."""
        return f"bench_increments_{self.games}_{self.gamers}"


def increments(arena: Arena) -> list[Figure]:
    """Gold and the unified table after 1,000 new records: gold's old rows are copied, so their number should hardly matter."""
    few, many = Shape(10, 1_000), Shape(10, arena.events)
    # Six of ten events are of a gamer of their own.
    goals = (Target("<=", 2), Target("<=", 3)) if arena.events <= MANY else (Target("<=", 6), None)
    shapes = {few: None, many: goals[0], Shape(1, arena.events): None}
    gamers = dict[Shape, int]()
    with arena.lakehouse() as made:
        for shape in shapes:
            for part in range(-(-shape.gamers // PART)):
                _produce(arena, shape, min(PART, shape.gamers - part * PART), seed=FIRST_SEED + part)
            report = refresh(arena.pipeline(shape.topic, made / shape.topic))
            assert report.success, report.errors
        for pair in range(-1, arena.pairs):
            for shape in shapes:
                gamers[shape] = _increment(arena, pair, shape, made / shape.topic)
            _distinct_count(arena, pair, arena.pipeline(many.topic, made / many.topic))
    times = {shape: arena.measured.seconds([_step(shape)], shape.games) for shape in shapes}
    figures = [Figure(_named(shape, gamers[shape]), "s", times[shape], target) for shape, target in shapes.items()]
    name = f"the same beside {gamers[many]:,} / {gamers[few]:,} gamers in {many.games} games"
    figures.append(ratio(name, times[many], times[few], goals[1]))
    changed, every = (arena.measured.seconds([step], many.games) for step in (CHANGED, ALL))
    figures += [Figure(f"{step}, beside {gamers[many]:,} gamers", "s", s) for step, s in ((CHANGED, changed), (ALL, every))]
    return [*figures, ratio("a distinct count: all keys / keys with new rows", every, changed)]


def _step(shape: Shape) -> str:
    return f"{GOLD} beside {shape.gamers:,}"


def _named(shape: Shape, gamers: int) -> str:
    games = "one game" if shape.games == 1 else f"{shape.games} games"
    return f"{GOLD}, {RECORDS:,} new records beside {gamers:,} gamers in {games}"


def _increment(arena: Arena, pair: int, shape: Shape, root: Path) -> int:
    """Produce, load and measure; returns the number of gamers."""
    _produce(arena, shape, RECORDS, seed=2 + pair)
    pipeline, report = arena.pipeline(shape.topic, root), RunReport()
    load_bronze(pipeline, report)
    refresh_silver(pipeline, report)

    def gold() -> None:
        refresh_gold(pipeline, report)
        refresh_unified(pipeline, report)

    arena.timed(_step(shape), shape.games, pair, gold, RECORDS)
    assert report.success, report.errors
    assert report.rows("silver") == RECORDS, f"silver has {report.rows('silver')} new rows of {RECORDS}"
    return sum(table.table_rows for table in report.of("gold"))


def _distinct_count(arena: Arena, pair: int, pipeline: Pipeline) -> None:
    """Refresh an aggregate that cannot be merged, then make it again from all rows."""
    for step, full in ((CHANGED, False), (ALL, True)):
        report = RunReport()
        arena.timed(step, 10, pair, partial(refresh_gold, pipeline, report, aggregate=DEVICES, full=full), RECORDS)
        assert report.success, report.errors


def _produce(arena: Arena, shape: Shape, records: int, seed: int) -> None:
    """Events of so many gamers; no event of the pool is sent twice."""
    settings = settings_for(arena.folder, shape.topic, arena.folder / "unused")
    each = max(1, shape.gamers // shape.games)
    simulation = BulkSimulation(records=records, games=shape.games, seed=seed, gamers_per_game=each, pool_per_version=records)
    produce_bulk(settings, simulation, partitions=PARTITIONS)
