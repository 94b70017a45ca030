"""A record that kills Spark's worker when it is decoded: it goes to quarantine, and all others of its slice arrive."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
from pyspark import cloudpickle

from game_events.decoding.core.reasons import Reason
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.bronze import staging as bronze_module
from game_events.pipeline.bronze.isolation import deadly_records
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.replay import ReplaySelection, replay
from game_events.pipeline.runs.refresh import refresh
from game_events.sources.core.source import MicroBatch, Split
from game_events.spark.crashed_workers import WorkerCrashError
from game_events_tests.books import count, rows
from game_events_tests.guarantees.topics import framed, make_topic, put
from game_events_tests.pipeline.quality_world import Event

LANES = [Split("t", "A" * 22, partition) for partition in range(3)]


class Job:
    """Dies of these records, by (partition, offset); `killed`: attempts that die of somebody's `kill`."""

    def __init__(self, deadly=(), killed=()):
        self.deadly, self.killed, self.tried = set(deadly), set(killed), []

    def __call__(self, part):
        records = {(lane.partition, at) for lane in part.start for at in range(part.start[lane], part.end[lane])}
        assert len(records) == part.records
        self.tried.append(records)
        if records & self.deadly or len(self.tried) in self.killed:
            raise WorkerCrashError(f"a worker crashed over {len(records)} records")


def found(job, ends, starts=(0, 0, 0)):
    part = MicroBatch(dict(zip(LANES, starts, strict=False)), dict(zip(LANES, ends, strict=False)))
    deadly = deadly_records(part, WorkerCrashError("the whole slice"), job)
    return {(lane.partition, offset) for lane, offset in deadly}


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


DEADLY = """
import faulthandler

from game_events.pipeline.bronze.worker import BronzeTask


class DeadlyTask(BronzeTask):
    def stage(self, batches):
        def watched():
            for batch in batches:
                for value, reason in zip(batch.column("value").to_pylist(), batch.column("reason").to_pylist()):
                    if b"deadly" in value and reason is None:
                        faulthandler._sigsegv()
                yield batch

        return BronzeTask.stage(self, watched())
"""


@pytest.fixture
def deadly_code(tmp_path):
    """A decoder that ends the process when it meets a certain player, as a fault in native code does; workers get its text."""
    file = tmp_path / "deadly_code.py"
    file.write_text(textwrap.dedent(DEADLY))
    spec = importlib.util.spec_from_file_location("deadly_code", file)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "deadly_code", module)
        spec.loader.exec_module(module)
        cloudpickle.register_pickle_by_value(module)
        yield module
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.scenario
def test_the_other_records_of_the_slice_arrive_in_the_same_run_and_the_deadly_one_once_its_cause_is_gone(
    make_settings, make_pipeline, deadly_code, monkeypatch
):
    settings = make_settings()
    make_topic(settings, 2)
    good = framed(settings, [Event("uno", n) for n in range(4)])
    (deadly,) = framed(settings, [Event("uno", 99, gamer="deadly")])
    put(settings, [*good[:2], deadly], partition=0)
    put(settings, good[2:], partition=1)
    with monkeypatch.context() as patch:
        patch.setattr(bronze_module, "BronzeTask", deadly_code.DeadlyTask)
        report = refresh(make_pipeline(settings))
        assert report.success, report.errors
        assert refresh(make_pipeline(settings)).tables == []
    assert (count(settings, BRONZE), count(settings, "silver_uno_events")) == (4, 4)
    assert report.rejected == {Reason.MALFORMED: 1}
    ((partition, offset, reason, detail, raw),) = rows(
        settings, QUARANTINE, "SELECT _kafka_partition, _kafka_offset, reason, detail, _raw_value FROM t"
    )
    assert (partition, offset, reason, raw) == (0, 2, Reason.MALFORMED, deadly)
    assert "crashed over" in detail
    assert "Segmentation fault" in detail
    assert "\n" not in detail
    # Whoever replays everything does not run into it; asked for by its reason, it is tried.
    assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == 0
    assert replay(make_pipeline(settings), RunReport(), ReplaySelection(frozenset({Reason.MALFORMED}))).rows == 1
    assert refresh(make_pipeline(settings)).success
    assert count(settings, "silver_uno_events") == 5
    assert reconcile(make_pipeline(settings)).passed
