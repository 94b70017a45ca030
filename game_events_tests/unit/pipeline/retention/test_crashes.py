"""Maintenance that is killed while it removes rows by age loses no other row, and the next one completes it."""

from __future__ import annotations

import json
import signal

import pytest

from game_events_tests.support.servers.attached_driver import start_driver
from game_events_tests.support.worlds.waves import wait_all
from game_events_tests.unit.pipeline.retention.world import World

POINTS = (
    "expired_staged:bronze_events",
    "expired_committed:bronze_events",
    "raw_values_staged",
    "raw_values_dropped",
)
DAYS = {"bronze": 60, "raw": 20}


@pytest.mark.parametrize("point", POINTS)
def test_a_removal_that_is_killed_at_any_point_is_completed_by_the_next_maintenance(point, tmp_path):
    world = World(tmp_path / "lakehouse", DAYS)
    world.load([100, 40, 1])
    world.load([90, 80])
    driver = start_driver(world.pipeline.settings, None, tmp_path / "log", point, "maintain", retention_days=json.dumps(DAYS))
    assert wait_all([driver], 900) == [-signal.SIGKILL], (tmp_path / "log").read_text()
    gone = 0 if point.startswith("expired_staged") else 3
    assert len(world.ages(world.pipeline.bronze)) == 5 - gone
    assert world.reconcile().expired_bronze == gone
    assert world.raw_values() == {"raw_values_dropped": 1}.get(point, 5 - gone)
    world.maintained()
    assert world.ages(world.pipeline.bronze) == [1, 40]
    assert world.reconcile().expired_bronze == 3
    assert world.raw_values() == 1
