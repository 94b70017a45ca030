"""Killing drivers, and the world of a file: what the tests of crashes and rivals share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events_tests.guarantees.attached_driver import start_driver
from game_events_tests.guarantees.waves import wait_all
from game_events_tests.guarantees.world import World

if TYPE_CHECKING:
    from game_events_tests.conftest import MakePipeline, MakeSettings

Crash = Callable[..., None]


@pytest.fixture
def crash(settings: Settings, spark: SparkSession, tmp_path: Path) -> Crash:
    """Work in a driver of its own, which SIGKILL ends at a point."""

    def crash(point: str, work: str = "run", using: Settings = settings, **more: str) -> None:
        log = tmp_path / "driver.log"
        assert wait_all([start_driver(using, spark, log, point, work, **more)], 900) == [-signal.SIGKILL], log.read_text()

    return crash


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    """Those of a file: more than one if a test has left the one before unfinished."""
    return []


@pytest.fixture
def world(
    worlds: list[World], make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """One whose rows are all in their places."""
    if not worlds or not worlds[-1].whole:
        place = tmp_path_factory.mktemp("world")
        worlds.append(World(make_settings(lakehouse=str(place / "lakehouse"), state_dir=place / "state"), make_pipeline))
    return worlds[-1]
