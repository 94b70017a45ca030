"""The whole graph with five ordinary rules beside the same without any, in turns: a first load, and 1,000 new records."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from benchmarks.arena import PARTITIONS, Arena, settings_for
from benchmarks.figures import Figure, ratio
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.rules import Rule

GAMES, RECORDS = 10, 1_000
TOPIC = "bench_rules"
#: A range, a value that must be there, a set, a pattern, and a comparison of two columns. One row in a hundred violates the
#: pattern: gamers have numbers from 0000 on, 100 in each game.
RULES = (
    Rule(name="possible", sql="event_timestamp BETWEEN timestamp'2000-01-01' AND timestamp'2100-01-01'", action="drop"),
    Rule(name="has_device", sql="device_id IS NOT NULL AND device_id <> ''", action="quarantine"),
    Rule(name="known_device", sql=f"device_id IN ({', '.join(repr(f'device_{n}') for n in range(20))})"),
    Rule(name="gamer", sql="gamer_id RLIKE '^game_[0-9]+-[0-9]*[1-9][0-9]*$'", action="quarantine"),
    Rule(name="happened_before", sql="event_timestamp <= _kafka_timestamp + INTERVAL 1 HOUR", action="drop"),
)
FIRST, INCREMENT = "first load", f"{RECORDS:,} new records"
#: Name -> rules.
WAYS = {"without rules": (), "five rules": RULES}


def rules(arena: Arena) -> list[Figure]:
    """Kafka to bronze, silver, gold and the unified table, with and without rules; one round is left out."""
    for pair in range(-1, arena.pairs):
        for way in WAYS:
            with arena.lakehouse() as root:
                _timed(arena, FIRST, way, pair, _pipeline(arena, arena.topic(GAMES), root, way), arena.events)
    with arena.lakehouse() as root:
        _produce(arena, seed=1)
        for way in WAYS:
            assert refresh(_pipeline(arena, TOPIC, root / way, way)).success
        for pair in range(-3, 3 * arena.pairs):
            _produce(arena, seed=10 + pair)
            for way in WAYS:
                _timed(arena, INCREMENT, way, pair, _pipeline(arena, TOPIC, root / way, way), RECORDS)
    return [figure for what in (FIRST, INCREMENT) for figure in _figures(arena, what)]


def _produce(arena: Arena, seed: int) -> None:
    simulation = BulkSimulation(records=RECORDS, games=GAMES, gamers_per_game=100, seed=seed)
    produce_bulk(settings_for(arena.folder, TOPIC, arena.folder / "unused"), simulation, partitions=PARTITIONS)


def _pipeline(arena: Arena, topic: str, root: Path, way: str) -> Pipeline:
    made = arena.pipeline(topic, root)
    return Pipeline(made.settings.model_copy(update={"rules": WAYS[way]}), made.get_spark)


def _timed(arena: Arena, what: str, way: str, pair: int, pipeline: Pipeline, events: int) -> None:
    reports: list[RunReport] = []
    arena.timed(_step(what, way), GAMES, pair, lambda: reports.append(refresh(pipeline)), events)
    (report,) = reports
    assert report.success, report.errors
    judged = sum(table.rows + table.dropped + table.quarantined for table in report.of("silver"))
    assert judged == events, f"silver has judged {judged} of {events} rows"


def _step(what: str, way: str) -> str:
    return f"{what}, {way}"


def _figures(arena: Arena, what: str) -> list[Figure]:
    figures = []
    both = [arena.measured.of(_step(what, way), GAMES) for way in WAYS]
    for unit, value in (("s", attrgetter("seconds")), ("s of processor time", attrgetter("cpu_s"))):
        samples = [[value(step) for step in steps] for steps in both]
        figures += [Figure(_step(what, way), unit, found) for way, found in zip(WAYS, samples, strict=True)]
        figures.append(ratio(f"{what}, {unit}: five rules / none", samples[1], samples[0]))
    return figures
