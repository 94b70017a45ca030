"""Many games: processor time per game and layer if all have news, and what idle games cost.

The processor time of a layer is split by process (driver, JVM, Python workers).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, Target, ratio
from benchmarks.memory import tree_parts_cpu_s
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.table_checks import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation

GAMES, RECORDS = 1_000, 20_000
IDLE_GAMES, IDLE_RECORDS = 2_000, 1_000
SILVER, GOLD, UNIFIED, AFTER = "silver", "gold", "unified", "checks and event log"
#: Layer -> goal: milliseconds of processor time per game.
LIMITS_MS = {SILVER: 2.5, GOLD: 3.0, UNIFIED: 1.0}
#: Refreshes before the clock runs: the first makes the tables, and the JVM compiles what runs often for some more.
FIRST = 4
TOPIC = "bench_many_games"
KEPT, OPENED = "tables kept open", "tables opened by each run"

Parts = dict[str, float]


def games(arena: Arena) -> list[Figure]:
    """All games have news; then one game has news beside idle ones."""
    return [*_all_with_news(arena), *_idle(arena)]


def _all_with_news(arena: Arena) -> list[Figure]:
    """Refreshes by a pipeline that keeps tables open, as continuous mode does, and by new ones, as runs do, in turns."""
    spent: dict[tuple[str, str], list[Parts]] = defaultdict(list)
    with arena.lakehouse() as made:
        kept = arena.pipeline(TOPIC, made / "kept")
        for number in range(FIRST + arena.pairs):
            produce(arena, TOPIC, GAMES, RECORDS, seed=number)
            for how in (KEPT, OPENED):
                pipeline = kept if how == KEPT else arena.pipeline(TOPIC, made / "opened")
                found = _refresh(arena, pipeline)
                arena.say(f"  {how}: " + "; ".join(f"{layer} {_text(parts)}" for layer, parts in found.items()))
                if number >= FIRST:
                    for layer, parts in found.items():
                        spent[layer, how].append(parts)
    figures = []
    for (layer, how), all_parts in spent.items():
        note = _text({name: sum(p[name] for p in all_parts) / len(all_parts) for name in all_parts[0]})
        samples = [sum(p.values()) for p in all_parts]
        target = Target("<=", LIMITS_MS[layer]) if how == KEPT and layer in LIMITS_MS else None
        figures.append(
            Figure(f"{layer}: processor time per game, {GAMES:,} games with news, {how}", "ms", samples, target, note)
        )
    return figures


def _text(parts: Parts) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items())


def _refresh(arena: Arena, pipeline: Pipeline) -> dict[str, Parts]:
    """One refresh; layer -> process -> milliseconds of processor time per game."""
    report = RunReport()
    _ = arena.spark  # made and warmed before the clock runs
    found: dict[str, Parts] = {}

    def measured(name: str, work: Callable[[], object]) -> None:
        before = tree_parts_cpu_s(os.getpid(), arena.excluded)
        work()
        after = tree_parts_cpu_s(os.getpid(), arena.excluded)
        found[name] = {part: 1_000 * (after[part] - before[part]) / GAMES for part in after}

    load_bronze(pipeline, report)
    measured(SILVER, lambda: refresh_silver(pipeline, report))
    measured(GOLD, lambda: refresh_gold(pipeline, report))
    measured(UNIFIED, lambda: refresh_unified(pipeline, report))
    measured(AFTER, lambda: _after(pipeline, report))
    assert report.success, report.errors
    assert len({t.game for t in report.of("gold")}) == GAMES, len(report.of("gold"))
    assert report.rows("silver") == RECORDS, report.rows("silver")
    return found


def _after(pipeline: Pipeline, report: RunReport) -> None:
    with recorded(pipeline, report, "refresh"):
        check_after_run(pipeline, report)


def _idle(arena: Arena) -> list[Figure]:
    """A refresh of one game with news, beside idle games and alone, in turns; without Dagster."""
    alone, beside = list[float](), list[float]()
    with arena.lakehouse() as made:
        for others in (0, IDLE_GAMES):
            topic = f"bench_idle_{others}"
            produce(arena, topic, 1 + others, IDLE_RECORDS + others, seed=0)
            report = refresh(arena.pipeline(topic, made / str(others)))
            assert report.success, report.errors
        for number in range(3 + 3 * arena.pairs):
            for others, times in ((0, alone), (IDLE_GAMES, beside)):
                topic = f"bench_idle_{others}"
                produce(arena, topic, 1, IDLE_RECORDS, seed=1 + number)
                pipeline, report = arena.pipeline(topic, made / str(others)), RunReport()
                before = sum(tree_parts_cpu_s(os.getpid(), arena.excluded).values())
                with recorded(pipeline, report, "refresh"):
                    refresh(pipeline, report)
                    check_after_run(pipeline, report)
                spent = sum(tree_parts_cpu_s(os.getpid(), arena.excluded).values()) - before
                assert report.rows("silver") == IDLE_RECORDS, report.rows("silver")
                if number >= 3:  # warm
                    times.append(spent)
    return [
        Figure("one game with news, alone: processor time of a refresh", "s", alone),
        Figure(f"one game with news beside {IDLE_GAMES:,} idle games", "s", beside),
        ratio(f"beside {IDLE_GAMES:,} idle games / alone", beside, alone, Target("<=", 1.05)),
    ]


def produce(arena: Arena, topic: str, games: int, records: int, seed: int) -> None:
    """Records of so many games, as many of each."""
    settings = settings_for(arena.folder, topic, arena.folder / "unused")
    simulation = BulkSimulation(records=records, games=games, seed=seed, gamers_per_game=5, pool_per_version=records)
    produce_bulk(settings, simulation, partitions=PARTITIONS)
