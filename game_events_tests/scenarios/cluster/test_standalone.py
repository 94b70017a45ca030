"""The pipeline on a standalone cluster of two workers, started with the commands of docs/cluster.md at free ports."""

from __future__ import annotations

import pytest

from game_events_tests.scenarios.cluster.other_kinds import assert_tests_pass_on
from game_events_tests.support.servers.spark_kinds import KIND, LOCAL, STANDALONE


@pytest.mark.timeout(1800)
@pytest.mark.skipif(KIND != LOCAL, reason="starts another kind itself")
@pytest.mark.usefixtures("stack")
def test_the_pipeline_does_the_same_on_a_standalone_cluster():
    assert_tests_pass_on(STANDALONE)
