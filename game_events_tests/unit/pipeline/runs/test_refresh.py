"""How often a run opens the tables that all of its steps read."""

from __future__ import annotations

from game_events.lakehouse.tables import Table
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.model.world import World


def test_a_run_opens_bronze_and_quarantine_once_for_each_of_their_versions_however_many_steps_read_them() -> None:
    """Their logs have an entry for each micro-batch: opening them takes longer, the longer a loop has run."""
    world = World()
    try:
        world.strictness = 1  # rejects multiples of 4
        world.records_come([("rummy", "ann", 1, 1), ("uno", "bob", 4, 1)])
        world.work()
        before = {key: versions(world, key) for key in ("bronze_events", "quarantine_events")}
        world.records_come([("rummy", "ann", 3, 1), ("uno", "cyd", 8, 1)])
        with opened_tables() as opened:
            assert world.work().rows("silver") == 1
        for key, there in before.items():
            commits = versions(world, key) - there
            assert commits > 0
            # By the first step of the run, and by each commit, whose handle the steps after it share.
            assert opened.count(key) <= 1 + commits, key
    finally:
        world.close()


def versions(world: World, key: str) -> int:
    handle = Table(key, f"{world.folder}/{key}").open()
    return handle.version() + 1 if handle is not None else 0
