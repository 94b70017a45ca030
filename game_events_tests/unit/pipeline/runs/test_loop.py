"""Which errors the loop waits out, which end it, and how long it waits; nothing real is needed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, ConflictError, DataError, TransientError
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import BronzeResult, LayerResult, TableReport
from game_events.pipeline.runs.loop import JOB_ATTEMPTS, MIB, TAG, Loop
from game_events.spark.failures import WorkerCrashError
from game_events_tests.support.pipelines import reading


class QuietSession:
    """A session that takes tags."""

    def addTag(self, tag):  # noqa: N802 - Spark's name
        self.tag = tag

    def interruptTag(self, tag):  # noqa: N802
        self.interrupted = tag


class FailingTopic:
    """A topic whose offsets cannot be read a number of times; then the loop is stopped."""

    def __init__(self, error, times, stop):
        self.error, self.left, self.stop = error, times, stop

    def snapshot(self):
        if self.left:
            self.left -= 1
            raise self.error
        self.stop.set()
        return SimpleNamespace(latest={0: 0})


@pytest.fixture
def make_loop(tmp_path):
    def make(error, times, sessions=None, gold_interval_s=0, **options):
        stop, session = threading.Event(), QuietSession()
        settings = load_settings(lakehouse=str(tmp_path), poll_interval_s=0.05, gold_interval_s=gold_interval_s)
        pipeline = reading(Pipeline(settings, sessions or (lambda: session)), FailingTopic(error, times, stop))
        quick = {"first_pause_s": 0.001, "longest_pause_s": 0.002, "cycle": lambda *_args, **_options: None}
        return Loop(pipeline, stop=stop, **(quick | options))

    return make


class RemoteSession(QuietSession):
    """One on a Connect server, which takes it back."""

    # As those of `pyspark.sql.connect.session` have it: that is how they are told from classic ones.
    __module__ = "pyspark.sql.connect.session"
    is_stopped = False
    client = SimpleNamespace(set_retry_policies=lambda _policies: None)

    def stop(self):
        self.is_stopped = True


def of_gold(table, layer="gold", rows=10, table_rows=10, mib=1):
    return TableReport(layer, table, table, "uno", rows=rows, table_rows=table_rows, table_bytes=mib * MIB)


@pytest.mark.parametrize(
    ("tables", "expected_s"),
    [
        ([of_gold("gold_uno_player_agg", mib=1)], None),
        ([of_gold("gold_uno_player_agg", mib=10)], 7200 * 10 / 1024),
        ([of_gold("gold_uno_player_agg", mib=100)], 7200 * 100 / 5000),
        ([of_gold("gold_uno_player_agg", mib=10), of_gold("u", "unified", 10, 100, 100)], 7200 * 20 / 5500),
        ([replace(of_gold("gold_uno_player_agg", mib=100), error="no")], None),
    ],
    ids=["small", "more than a GiB", "more than fifty times", "unified copies one game of ten", "failed"],
)
def test_gold_is_refreshed_less_often_if_its_replaced_files_would_take_too_much_room(make_loop, tables, expected_s):
    """Each version stays for two hours."""

    def cycle(_pipeline, report, **_options):
        report.add(LayerResult(tables=tables))

    loop = make_loop(None, 0, gold_interval_s=10, cycle=cycle)
    loop.run()
    assert loop.report.gold_interval_s == (None if expected_s is None else pytest.approx(expected_s))
    assert ("gold is refreshed each" in loop.report.summary()) == (expected_s is not None)
    assert ("gold_interval_s" in loop.report.loop_dict()) == (expected_s is not None)


def test_an_interval_of_gold_as_long_as_that_of_polls_means_gold_in_each_cycle(make_loop):
    golds, ends = [], iter(range(9))

    def cycle(_pipeline, _report, *, gold, **_options):
        golds.append(gold)

    def slow_snapshot():
        time.sleep(0.03)
        return SimpleNamespace(latest={0: next(ends)})

    loop = make_loop(None, 0, cycle=cycle, gold_interval_s=0.05)
    loop.pipeline.source.snapshot = slow_snapshot
    loop.wait_for = lambda: loop.stop.set() if len(golds) == 4 else None
    loop.run()
    assert golds[:4] == [True] * 4


@pytest.mark.parametrize("times", [1, 3])
def test_a_session_that_its_server_has_forgotten_is_given_back_and_the_next_attempt_has_another(make_loop, times):
    made = []

    def renewed():
        if not made or made[-1].is_stopped:
            made.append(RemoteSession())
        return made[-1]

    loop = make_loop(PySparkException("[INVALID_HANDLE.SESSION_CHANGED] The server was restarted."), times, renewed)
    assert loop.run().retries == times
    assert [session.is_stopped for session in made] == [*[True] * times, False]
    assert made[-1].tag == TAG, "its jobs can be ended"


def test_gold_is_owed_after_a_cycle_that_failed_behind_silvers_commits(make_loop):
    golds = []

    def cycle(_pipeline, _report, *, gold, **_options):
        golds.append(gold)
        if len(golds) == 2:
            raise TransientError("storage away")

    loop = make_loop(TransientError("unused"), 0, cycle=cycle, gold_interval_s=3600)
    ends = iter(range(9))
    loop.pipeline.source.snapshot = lambda: SimpleNamespace(latest={0: next(ends)})
    loop._turn()
    assert (golds, loop._gold_owed) == ([True], False)
    with pytest.raises(TransientError):
        loop._turn()
    loop._turn()
    assert (golds, loop._gold_owed) == ([True, False, False], True)


@pytest.mark.parametrize("error", [TransientError("broker away"), ConflictError("a rival")])
def test_an_outage_is_waited_out_however_long_it_is(make_loop, error):
    loop = make_loop(error, 5 * JOB_ATTEMPTS)
    assert loop.run().retries == 5 * JOB_ATTEMPTS
    assert loop.report.state == "stopped"


@pytest.mark.parametrize(
    "error", [PySparkException("a job"), DeltaError("a table"), OSError("a disk"), WorkerCrashError("a worker crashed")]
)
def test_a_fault_that_may_be_an_outage_is_repeated_so_many_times_and_then_ends_the_loop(make_loop, error):
    assert make_loop(error, JOB_ATTEMPTS - 1).run().retries == JOB_ATTEMPTS - 1
    with pytest.raises(type(error), match=str(error)):
        make_loop(error, JOB_ATTEMPTS).run()


@pytest.mark.parametrize(
    "error", [ConfigurationError("no topic"), DataError("expired"), Py4JNetworkError("gone"), ConnectionRefusedError("gone")]
)
def test_what_only_a_person_or_a_new_process_can_cure_ends_the_loop_at_once(make_loop, error):
    loop = make_loop(error, 1)
    with pytest.raises(type(error)):
        loop.run()
    assert loop.report.retries == 0
    assert loop.report.state == "stopped"


def test_while_it_waits_the_state_says_for_what_and_the_switch_ends_the_wait(make_loop):
    error = TransientError("Kafka at here:1: no answer\nand pages of stack")
    loop = make_loop(error, 1, first_pause_s=3600, longest_pause_s=3600)
    thread = threading.Thread(target=loop.run)
    thread.start()
    while loop.report.state != "waiting":
        thread.join(0.01)
    assert loop.report.why == "Kafka at here:1: no answer"
    loop.stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_an_abandoned_spark_job_is_the_loops_end_and_no_failure(make_loop):
    loop = make_loop(PySparkException("cancelled"), 1)
    loop.abandon()
    loop.run()
    loop.stop.clear()
    loop.pipeline.source.snapshot = lambda: (loop.abandon(), loop.pipeline.source.fail())
    loop.pipeline.source.fail = lambda: (_ for _ in ()).throw(PySparkException("cancelled"))
    assert loop.run().state == "stopped"
    assert loop.pipeline.spark.interrupted == loop.pipeline.spark.tag


def test_a_full_slice_is_followed_by_the_next_cycle_without_new_records(make_loop):
    seen = []

    def one_slice(_pipeline, report, **_options):
        seen.append(1)
        report.add(BronzeResult(lag={0: max(0, 3 - len(seen))}))

    loop = make_loop(None, 0, cycle=one_slice)
    loop.pipeline.source.snapshot = lambda: SimpleNamespace(latest={0: 30})
    loop.wait_for = lambda: loop.stop.set() if loop.report.looks else None
    loop.run()
    assert len(seen) == 3
