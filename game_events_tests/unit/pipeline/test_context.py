"""Bronze batches of small records that this process has read; how long a look waits for the source."""

from dataclasses import replace

from game_events.pipeline.context import SNAPSHOT_S, BatchRange
from game_events.sources.kafka.admin import TIMEOUT_S
from game_events_tests.support.pipelines import without_spark


def test_a_look_that_changes_nothing_waits_less_for_the_source_than_a_run(tmp_path):
    run = without_spark(tmp_path)
    assert [pipeline.source.admin.timeout_s for pipeline in (run, replace(run, read_only=True))] == [TIMEOUT_S, SNAPSHOT_S]


def test_batches_that_follow_one_another_are_one_range():
    found = BatchRange()
    assert not found.covers(0, 1)
    for batch in (5, 6, 7):
        found.add(batch)
    assert found.covers(4, 7)
    assert found.covers(6, 7)
    assert not found.covers(3, 7), "an earlier batch may have large records"
    assert not found.covers(4, 8), "so may a later one"


def test_a_batch_of_another_writer_in_between_begins_a_new_range():
    found = BatchRange()
    found.add(5)
    found.add(7)
    assert not found.covers(4, 7)
    assert found.covers(6, 7)
    found.add(1)  # bronze was made again
    assert found.covers(0, 1)
    assert not found.covers(0, 7)
