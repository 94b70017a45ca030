"""How long a look waits for the source."""

from dataclasses import replace

from game_events.pipeline.context import SNAPSHOT_S
from game_events.sources.kafka.source import TIMEOUT_S
from game_events_tests.support.pipelines import without_spark


def test_a_look_that_changes_nothing_waits_less_for_the_source_than_a_run(tmp_path):
    run = without_spark(tmp_path)
    assert [pipeline.source.admin.timeout_s for pipeline in (run, replace(run, read_only=True))] == [TIMEOUT_S, SNAPSHOT_S]
