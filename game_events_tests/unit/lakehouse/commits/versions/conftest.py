"""Fixtures of the tests of older versions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from game_events.lakehouse.tables import Lakehouse
from game_events_tests.unit.lakehouse.commits.versions.world import World


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    worlds: list[World] = []
    monkeypatch.setattr(time, "time", lambda: worlds[0].now)
    return worlds


@pytest.fixture
def world(tmp_path: Path, clock: list[World]) -> World:
    clock.append(World(Lakehouse(str(tmp_path)).table("silver_uno_events")))
    return clock[0]
