"""A short chaos run: one of each victim, chosen moments, then the books. `make chaos` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from game_events.pipeline.refresh import refresh
from game_events_tests.chaos.chaos_run import chaos, drained_by
from game_events_tests.conftest import MakePipeline

#: The producer and the registry are killed while the loop comes back, so that one start of a JVM serves two kills.
KINDS = ["worker", "producer", "broker", "jvm", "registry", "driver"]


@pytest.mark.stack
def test_every_invariant_holds_after_workers_servers_the_jvm_and_drivers_were_killed_under_a_producer_at_work(
    make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    account = chaos(tmp_path, seed=11, kinds=list(KINDS), rate=300.0, drain=drained_by(make_pipeline, refresh), say=print)
    assert {"worker", "producer", "broker", "JVM", "registry", "driver"} <= {kill.victim for kill in account.kills}
    assert account.sound, account.to_markdown()
    assert account.looks > 0
