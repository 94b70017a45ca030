"""1,000 games in a table each and in one table for all: a first load, and increments in which each game has one record.

Silver, gold and the unified table, from a bronze that is there; both layouts in turns. Increments once by a pipeline that keeps
tables open, as continuous mode does, and once by a new one, as runs do.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from itertools import product
from typing import Any

from benchmarks.arena import Arena
from benchmarks.figures import Figure, Target, ratio
from benchmarks.games import produce
from benchmarks.memory import tree_parts_cpu_s
from game_events.lakehouse.tables import PARTITIONED, TABLES
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh_downstream

GAMES = 1_000
FIRST_RECORDS, RECORDS = 20_000, 1_000
#: Increments before the clock runs.
WARM = 3
LAYOUTS = (TABLES, PARTITIONED)
FIRST, KEPT, OPENED = "first load", "increment, tables kept open", "increment, a run of its own"


def layouts(arena: Arena) -> list[Figure]:
    """Seconds and processor time of both layouts, and their ratios."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pair in range(1 + arena.pairs):  # the first one warms up
        topic = f"bench_layouts_{pair}"
        produce(arena, topic, GAMES, FIRST_RECORDS, seed=0)
        found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        with arena.lakehouse() as root:
            # A lakehouse each: a handle that is kept is opened again after commits of others.
            kept: dict[tuple[str, str], Pipeline] = {}
            for number in range(1 + WARM + 1):
                if number:
                    produce(arena, topic, GAMES, RECORDS, seed=number)
                for what, layout in product((KEPT, OPENED), LAYOUTS):
                    new = arena.pipeline(topic, root / f"{layout}-{what == KEPT}", silver_layout=layout)
                    pipeline = kept.setdefault((what, layout), new) if what == KEPT else new
                    found[what if number else FIRST, layout].append(_measured(arena, pipeline))
        for key, all_found in found.items():
            wall, processor = all_found[-1]
            arena.say(f"  {key[0]}, {key[1]}: {wall:.2f} s, processor {processor:.2f} s")
            if pair:
                seconds[key].append(wall)
                spent[key].append(processor)
    return [figure for what in (FIRST, KEPT, OPENED) for figure in _figures(what, seconds, spent)]


def _figures(what: str, seconds: dict[Any, list[float]], spent: dict[Any, list[float]]) -> list[Figure]:
    figures = []
    for name, samples in (("time", seconds), ("processor time", spent)):
        figures += [Figure(f"{what}, {GAMES:,} games, {layout}: {name}", "s", samples[what, layout]) for layout in LAYOUTS]
        goal = Target("<=", 0.5) if what == OPENED and name == "time" else None
        one, other = samples[what, PARTITIONED], samples[what, TABLES]
        figures.append(ratio(f"{what}, {GAMES:,} games: {name}, partitioned / tables", one, other, goal))
    return figures


def _measured(arena: Arena, pipeline: Pipeline) -> tuple[float, float]:
    """Seconds and processor seconds of silver, gold and unified."""
    report = RunReport()
    _ = arena.spark  # made and warmed before the clock runs
    load_bronze(pipeline, report)
    before, began = sum(tree_parts_cpu_s(os.getpid(), arena.excluded).values()), time.monotonic()
    refresh_downstream(pipeline, report)
    wall = time.monotonic() - began
    processor = sum(tree_parts_cpu_s(os.getpid(), arena.excluded).values()) - before
    assert report.success, report.errors
    assert len({table.game for table in report.of("gold")}) == GAMES, len(report.of("gold"))
    return wall, processor
