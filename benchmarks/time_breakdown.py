"""Where the time of an increment goes: samples of what the thread that runs a refresh does or waits for."""

from __future__ import annotations

import threading
import time
from collections import Counter

from benchmarks.arena import WARM_EVENTS, Arena
from benchmarks.figures import Figure
from benchmarks.increments import RECORDS
from benchmarks.sampling import sampled
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh

GAMES = (10, 100, 1_000)
#: Rounds before the clock runs, and at least so many with it: half a second has few samples.
WARM = 2
ROUNDS = {10: 20, 100: 10, 1_000: 3}
#: A smaller share is of "other".
LEAST = 0.01


def time_breakdown(arena: Arena) -> list[Figure]:
    """Milliseconds of an increment by what they are spent on, for lakehouses of each number of games."""
    return [figure for games in GAMES for figure in _of(arena, games)]


def _of(arena: Arena, games: int) -> list[Figure]:
    """Runs of their own, warm, each over 1,000 new records, from Kafka to the unified table."""
    topic, rounds = f"bench_breakdown_{games}", max(ROUNDS[games], arena.pairs)
    found, seconds = Counter[str](), list[float]()
    _ = arena.spark  # made and warmed before the clock runs
    arena.produce(topic, min(WARM_EVENTS, arena.events), games)
    with arena.lakehouse() as root:
        assert refresh(arena.pipeline(topic, root)).success
        for number in range(WARM + rounds):
            arena.produce(topic, RECORDS, games, seed=1_000 + number)
            pipeline, report = arena.pipeline(topic, root), RunReport()
            began = time.monotonic()
            with sampled(threading.get_ident()) as samples:
                refresh(pipeline, report)
            if number >= WARM:
                seconds.append(time.monotonic() - began)
                found.update(samples)
            assert report.success, report.errors
            assert report.rows("silver") == RECORDS, report.rows("silver")
    return _figures(games, found, seconds)


def _figures(games: int, found: Counter[str], seconds: list[float]) -> list[Figure]:
    table, mean_ms = f"{RECORDS:,} records, {games:,} games", 1_000 * sum(seconds) / len(seconds)
    figures = [Figure(f"{table} | the whole run | ms", "ms", [1_000 * each for each in seconds])]
    for step, count in found.most_common():
        share = count / found.total()
        if share >= LEAST:
            figures.append(Figure(f"{table} | {step} | ms", "ms", [mean_ms * share]))
            figures.append(Figure(f"{table} | {step} | share (%)", "%", [100 * share]))
    return figures
