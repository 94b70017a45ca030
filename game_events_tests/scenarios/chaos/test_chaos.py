"""A short chaos run: one of each victim, chosen moments, then the books. `make chaos` has the long one."""

from __future__ import annotations

from pathlib import Path

from game_events.config.settings import load_settings
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.conftest import MakePipeline
from game_events_tests.scenarios.chaos.chaos_run import chaos, drained_by
from game_events_tests.scenarios.chaos.declared import AT_FIRST
from game_events_tests.scenarios.chaos.invariants import Books, broken
from game_events_tests.scenarios.chaos.topic_truth import SCHEMA

#: Only the JVM's and the driver's death cost the start of another one.
KINDS = ["worker", "producer", "broker", "jvm", "registry", "driver"]


def test_every_invariant_holds_after_workers_servers_the_jvm_and_drivers_were_killed_under_a_producer_at_work(
    make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    drain = drained_by(make_pipeline, refresh)
    account = chaos(tmp_path, seed=11, kinds=list(KINDS), rate=100.0, calm_s=2.0, drain=drain, say=print)
    assert {"worker", "producer", "broker", "JVM", "registry", "driver"} <= {kill.victim for kill in account.kills}
    assert account.sound, account.to_markdown()
    assert account.looks > 0
    # And the books would say so if it were otherwise: of a topic without records every row is one too many.
    wrong = broken(Books(load_settings(lakehouse=str(tmp_path / "lakehouse")), SCHEMA.empty_table(), AT_FIRST))
    assert {name for name, rows in wrong.items() if rows} >= {
        "bronze holds each decodable record of each source once, byte for byte",
        "quarantine holds each other record of each source once, byte for byte",
        "silver of each game holds the first row of each event that rules let through, in the table of its type",
        "quarantine holds each rejected row once",
        "gold is what the topics say",
    }
