"""Increments: the same 1,000 new records in lakehouses with few and with many gamers, warm, in turns."""

from __future__ import annotations

from pathlib import Path

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.producer.produce import produce_bulk
from game_events.producer.simulator import BulkSimulation

GAMES, RECORDS, FEW = 10, 1_000, 1_000
GOLD = "gold and unified"


def increments(arena: Arena) -> list[Figure]:
    """Gold and the unified table after 1,000 new records: gold's old rows are copied, so their number should hardly matter."""
    sizes, rows = (FEW, arena.events), dict[int, int]()
    with arena.lakehouse() as made:
        for gamers in sizes:
            _produce(arena, gamers, records=gamers, seed=0)
            report = refresh(arena.pipeline(_topic(gamers), made / str(gamers)))
            assert report.success, report.errors
        for pair in range(arena.pairs):
            for gamers in sizes:
                rows[gamers] = _increment(arena, pair, gamers, made / str(gamers))
    times = [arena.measured.seconds([f"{GOLD} beside {gamers:,}"], GAMES) for gamers in sizes]
    names = [f"gold and unified, {RECORDS:,} new records beside {rows[gamers]:,} gamers" for gamers in sizes]
    figures = [Figure(name, "s", found) for name, found in zip(names, times, strict=True)]
    return [
        *figures,
        ratio(f"the same beside {rows[arena.events]:,} / {rows[FEW]:,} gamers", times[1], times[0], Target("<=", 3)),
    ]


def _increment(arena: Arena, pair: int, gamers: int, root: Path) -> int:
    """Produce, load and measure; returns the number of gamers."""
    _produce(arena, gamers, RECORDS, seed=1 + pair)
    pipeline, report = arena.pipeline(_topic(gamers), root), RunReport()
    load_bronze(pipeline, report)
    refresh_silver(pipeline, report)

    def gold() -> None:
        refresh_gold(pipeline, report)
        refresh_unified(pipeline, report)

    arena.timed(f"{GOLD} beside {gamers:,}", GAMES, pair, gold, RECORDS)
    assert report.success, report.errors
    assert report.rows("silver") == RECORDS, f"silver has {report.rows('silver')} new rows of {RECORDS}"
    return sum(table.table_rows for table in report.of("gold"))


def _topic(gamers: int) -> str:
    return f"bench_increments_{gamers}"


def _produce(arena: Arena, gamers: int, records: int, seed: int) -> None:
    """Events of so many gamers; no event of the pool is sent twice."""
    settings = settings_for(arena.folder, _topic(gamers), arena.folder / "unused")
    each = max(1, gamers // GAMES)
    simulation = BulkSimulation(records=records, games=GAMES, seed=seed, gamers_per_game=each, pool_per_version=records)
    produce_bulk(settings, simulation, partitions=PARTITIONS)
