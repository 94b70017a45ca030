"""A record that kills Spark's worker when it is decoded: it goes to quarantine, and all others of its slice arrive."""

from __future__ import annotations

import pytest

from game_events.pipeline.bronze.load import deadly_records
from game_events.sources.source import MicroBatch, Partition
from game_events.spark.failures import WorkerCrashError

LANES = [Partition("t", "A" * 22, partition) for partition in range(3)]


class Job:
    """Dies of these records, by (partition, offset); `killed`: attempts that die of somebody's `kill`."""

    def __init__(self, deadly=(), killed=()):
        self.deadly, self.killed, self.tried = set(deadly), set(killed), []

    def __call__(self, part):
        records = {(split.number, at) for split in part.start for at in range(part.start[split], part.end[split])}
        assert len(records) == part.records
        self.tried.append(records)
        if records & self.deadly or len(self.tried) in self.killed:
            raise WorkerCrashError(f"a worker crashed over {len(records)} records")


def found(job, ends, starts=(0, 0, 0)):
    part = MicroBatch(dict(zip(LANES, starts, strict=False)), dict(zip(LANES, ends, strict=False)))
    deadly = deadly_records(part, WorkerCrashError("the whole slice"), job)
    return {(split.number, offset) for split, offset in deadly}


@pytest.mark.parametrize("deadly", [{(0, 0)}, {(2, 49_999)}, {(1, 0)}, {(0, 5), (1, 7), (2, 49_999)}])
def test_the_records_that_kill_a_worker_are_found_in_a_slice_of_any_size(deadly):
    job = Job(deadly)
    assert found(job, (50_000, 10, 50_000)) == deadly
    assert sum(len(tried) for tried in job.tried[-1:]) == 1


def test_a_worker_that_somebody_killed_makes_no_record_guilty():
    assert found(Job(killed=[1, 2, 3]), (4, 0, 3)) == set()


@pytest.mark.parametrize("ends", [(1, 0, 0), (4, 0, 0)])
def test_where_nothing_can_be_decoded_it_is_not_the_records_and_the_run_fails(ends):
    """A library that is missing kills every worker: good records stay where they are."""
    everything = {(0, at) for at in range(4)}
    with pytest.raises(WorkerCrashError, match="the whole slice"):
        found(Job(everything), ends)


def test_an_end_is_put_to_the_search_where_too_many_records_are_deadly():
    job = Job({(0, at) for at in range(0, 1000, 2)})
    with pytest.raises(WorkerCrashError, match="the whole slice"):
        found(job, (1000, 0, 0))
    assert len(job.tried) < 100
