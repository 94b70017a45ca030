"""A record that kills Spark's worker when it is decoded: it goes to quarantine, and all others of its slice arrive."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
from pyspark import cloudpickle

from game_events.decoding.frame import Reason
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.bronze import load as bronze_module
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import replay
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import framed, make_topic, put

DEADLY = """
import faulthandler

from game_events.decoding.decoder import BatchDecoder
from game_events.workers.decode import BronzeTask

decode = BatchDecoder.decode


def watched(decoder, values, headers=None, registry=""):
    if any(b"deadly" in value for value in values.to_pylist()):
        faulthandler._sigsegv()
    return decode(decoder, values, headers, registry)


class DeadlyTask(BronzeTask):
    def stage(self, batches):
        BatchDecoder.decode = watched
        try:
            return BronzeTask.stage(self, batches)
        finally:
            BatchDecoder.decode = decode
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
