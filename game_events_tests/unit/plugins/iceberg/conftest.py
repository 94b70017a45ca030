"""Tables of a lakehouse with Iceberg beside Delta."""

from __future__ import annotations

import pytest

from game_events_tests.support.pipelines import without_spark


@pytest.fixture
def pipeline(tmp_path):
    return without_spark(tmp_path / "lake", iceberg=True)


@pytest.fixture
def silver(pipeline):
    return pipeline.lakehouse.table("silver_rummy_events")
