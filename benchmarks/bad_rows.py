"""Kafka to bronze, with and without payloads that are cut off: what finding the bad rows costs the good ones."""

from __future__ import annotations

from functools import partial

from benchmarks.arena import Arena
from benchmarks.figures import Figure, Target, ratio
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.reporting.report import RunReport

GAMES = 10
SHARES = {"bronze, no bad rows": 0.0, "bronze, 1% bad rows": 0.01}


def bad_rows(arena: Arena) -> list[Figure]:
    """Both topics hold the same number of records; the bad ones are drawn evenly and land in quarantine."""
    for pair in range(arena.pairs):
        for name, share in SHARES.items():
            topic = arena.topic(GAMES, bad_share=share)
            with arena.lakehouse() as root:
                pipeline, report = arena.pipeline(topic, root), RunReport()
                arena.timed(name, GAMES, pair, partial(load_bronze, pipeline, report))
            good, bad = report.rows("bronze"), report.rows("quarantine")
            assert good + bad == arena.events, f"bronze has {good}, quarantine {bad} of {arena.events} records"
            assert bad == arena.bad_records(topic), f"quarantine has {bad} of {arena.bad_records(topic)} bad records"
    figures = [arena.measured.rate(name, GAMES) for name in SHARES]
    clean, spoilt = ([step.rate for step in arena.measured.of(name, GAMES)] for name in SHARES)
    note = "payloads cut off within a field, spread evenly"
    return [*figures, ratio("bronze's rate, 1% bad rows / none", spoilt, clean, Target(">=", 0.5), note)]
