"""Continuous mode on or off: what the newest runs say, and what the sensor does about it."""

import os
import socket
import subprocess
import sys
import time

import dagster as dg
import psutil
import pytest
from dagster import DagsterRunStatus

from game_events.config.settings import load_settings
from game_events.orchestration.continuous import (
    FIRST_PAUSE_S,
    HEALTHY_S,
    LONGEST_PAUSE_S,
    ROW_CHANGING_TAG,
    PastRun,
    build_continuous,
    decide,
    row_changing_run,
    run_under_way,
)
from game_events.orchestration.jobs import build_redecode, build_refresh
from game_events.orchestration.keys import JOB
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import ENDED_BY_ITSELF, PROCESS_TAG, OwnRuns, is_gone, this_process
from game_events_tests.support.sensors import build_sensor

NOW = 1_700_000_000.0
GRAPH, OWN = Graph.of(), OwnRuns.of(load_settings())
continuous, refresh, redecode = build_continuous(GRAPH), build_refresh(GRAPH), build_redecode(GRAPH)


def run(status, ended=NOW, lasted=5.0, name="a"):
    return PastRun(name, status, ended - lasted, ended)


FAILED = DagsterRunStatus.FAILURE


def test_before_it_was_started_once_nothing_happens():
    assert not decide([], NOW).run_key
    assert "never started" in decide([], NOW).why


@pytest.mark.parametrize("status", [DagsterRunStatus.SUCCESS, DagsterRunStatus.CANCELED])
def test_what_a_user_ended_stays_off_whatever_failed_before(status):
    decision = decide([run(status), run(FAILED)], NOW + 1e6)
    assert not decision.run_key
    assert decision.why.startswith("off: ")


@pytest.mark.parametrize("status", [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED])
def test_a_run_under_way_is_left_alone(status):
    assert not decide([run(status), run(FAILED)], NOW + 1e6).run_key


def test_a_failed_run_is_started_again_after_a_pause_that_doubles_up_to_a_bound():
    for failures in range(1, 12):
        runs = [run(FAILED, name=str(n)) for n in range(failures)]
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failures - 1))
        assert not decide(runs, NOW + pause - 1).run_key
        assert decide(runs, NOW + pause).run_key
    assert pause == LONGEST_PAUSE_S


def test_after_a_run_that_lasted_or_that_a_user_ended_pauses_begin_anew():
    old = [run(FAILED)] * 5
    assert decide([run(FAILED, lasted=HEALTHY_S), *old], NOW + FIRST_PAUSE_S).run_key
    assert decide([run(FAILED), run(DagsterRunStatus.CANCELED), *old], NOW + FIRST_PAUSE_S).run_key


def test_each_failure_has_a_run_key_of_its_own():
    keys = [decide([run(FAILED, name=name)], NOW + 1e6).run_key for name in ("a", "b")]
    assert len(set(keys)) == 2
    assert None not in keys


def test_a_process_that_is_gone_is_told_from_one_that_lives_and_from_one_nobody_can_see():
    mine = this_process()
    assert not is_gone(mine)
    host, pid, started, place = mine.split(":")
    boot, namespace = place.split("/")
    assert is_gone(f"{host}:{pid}:{int(started) - 60}:{place}"), "the same process id, used again"
    assert is_gone(f"{host}:{pid}:{started}:ffffffff/{namespace}"), "the machine was restarted"
    assert not is_gone(f"elsewhere:4000000:{started}:{place}")
    assert not is_gone(f"{host}:4000000:{started}:{boot}/1"), "another container with this host name"
    for unknown in (None, "", "x", f"{host}:x:y", f"{host}:x:y:{place}"):
        assert not is_gone(unknown)
    assert not is_gone(f"{host}:{pid}:{started}"), "as an earlier version wrote it"
    assert is_gone(f"{host}:4000000:{started}")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        tag = f"{socket.gethostname()}:{child.pid}:{int(psutil.Process(child.pid).create_time())}"
        assert not is_gone(tag)
    assert is_gone(tag)


@pytest.fixture
def tick(instance):
    def look():
        return build_sensor("continuous_mode", Graph.of())(dg.build_sensor_context(instance=instance))

    return look


def test_the_sensor_starts_a_vanished_run_again_and_not_one_that_was_terminated(instance, tick):
    assert isinstance(tick(), dg.SkipReason)

    def started(**tags):
        made = instance.create_run_for_job(continuous, tags=tags | GRAPH.tags)
        instance.report_engine_event("started", made)
        instance.handle_new_event(event(made, dg.DagsterEventType.RUN_START))
        return made

    alive = started(**{PROCESS_TAG: this_process()})
    assert instance.get_run_by_id(alive.run_id).status == DagsterRunStatus.STARTED
    assert f"run {alive.run_id} is started" in tick().skip_message
    assert run_under_way(instance, load_settings()).run_id == alive.run_id
    instance.report_run_canceled(alive)
    assert tick().skip_message.startswith("off: ")

    gone = started(**{PROCESS_TAG: f"{socket.gethostname()}:{os.getpid()}:{int(time.time()) - 10**6}"})
    assert run_under_way(instance, load_settings()) is None
    first = tick()
    assert instance.get_run_by_id(gone.run_id).status == DagsterRunStatus.FAILURE
    assert isinstance(first, dg.SkipReason)
    assert "failed (1 in a row)" in first.skip_message

    failed = started()
    instance.handle_new_event(event(failed, dg.DagsterEventType.RUN_FAILURE, time.time() - LONGEST_PAUSE_S))
    request = tick()
    assert isinstance(request, dg.RunRequest)
    assert request.run_key == f"continuous-after-{failed.run_id}"


def test_a_run_that_was_ended_with_a_failing_game_stays_off(instance, tick):
    """Ctrl-C, or the end of `--duration-s`: the run has failed, as a table has, and nobody wants it back."""
    for told, off in (("true", True), ("false", False)):
        made = instance.create_run_for_job(continuous, tags={ENDED_BY_ITSELF: told, **GRAPH.tags})
        instance.report_run_failed(made, "1 tables failed")
        assert tick().skip_message.startswith("off: ") is off


def test_row_changing_work_goes_first_and_other_runs_do_not(instance):
    assert row_changing_run(instance, OWN) is None
    instance.create_run_for_job(refresh, status=DagsterRunStatus.STARTING, tags=GRAPH.tags)
    instance.create_run_for_job(redecode, status=DagsterRunStatus.SUCCESS, tags=GRAPH.tags)
    assert row_changing_run(instance, OWN) is None
    tagged = instance.create_run_for_job(
        refresh, status=DagsterRunStatus.STARTING, tags={ROW_CHANGING_TAG: "true", **GRAPH.tags}
    )
    assert row_changing_run(instance, OWN) == f"run {tagged.run_id} of refresh goes first"
    instance.report_run_canceled(tagged)
    starting = instance.create_run_for_job(redecode, status=DagsterRunStatus.STARTING, tags=GRAPH.tags)
    assert row_changing_run(instance, OWN) == f"run {starting.run_id} of redecode goes first"
    assert JOB not in row_changing_run(instance, OWN)
    # Without a daemon nobody ends a run that was killed: it must not keep continuous mode waiting for ever.
    instance.add_run_tags(starting.run_id, {PROCESS_TAG: f"{socket.gethostname()}:4000000:1"})
    assert row_changing_run(instance, OWN) is None


def event(made, kind, at=None):
    return dg.EventLogEntry(
        error_info=None,
        level=20,
        user_message="",
        run_id=made.run_id,
        timestamp=at or time.time(),
        job_name=made.job_name,
        dagster_event=dg.DagsterEvent(kind.value, made.job_name),
    )
