"""A world of tables for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events_tests.sinks.world import World


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    """Empty at first."""
    return World(tmp_path, spark)
