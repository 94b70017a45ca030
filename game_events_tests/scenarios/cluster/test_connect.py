"""The pipeline over Spark Connect: tests that other kinds of Spark pass, too, and what only a Connect server can show."""

from __future__ import annotations

import pytest

from game_events_tests.scenarios.cluster.other_kinds import assert_tests_pass_on
from game_events_tests.support.servers.spark_kinds import CONNECT, KIND, LOCAL


@pytest.mark.timeout(1800)
@pytest.mark.skipif(KIND != LOCAL, reason="starts another kind itself")
@pytest.mark.usefixtures("stack")
def test_the_pipeline_does_the_same_over_spark_connect():
    assert_tests_pass_on(CONNECT)
