"""Killing drivers: what the tests of crashes share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events.settings import Settings
from game_events_tests.guarantees.attached_driver import start_driver
from game_events_tests.guarantees.waves import wait_all

Crash = Callable[..., None]


@pytest.fixture
def crash(settings: Settings, spark: SparkSession, tmp_path: Path) -> Crash:
    """Work in a driver of its own, which SIGKILL ends at a point."""

    def crash(point: str, work: str = "run", using: Settings = settings, **more: str) -> None:
        log = tmp_path / "driver.log"
        assert wait_all([start_driver(using, spark, log, point, work, **more)], 180) == [-signal.SIGKILL], log.read_text()

    return crash
