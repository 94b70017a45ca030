"""Runs whose process was killed, on a real instance; the processes are real, Spark is not needed."""

import shutil
import signal
import subprocess
import sys

import dagster as dg
import psutil
import pytest
from dagster import DagsterRunStatus
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from game_events.config.settings import load_settings
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import (
    LAKEHOUSE_TAG,
    OWN_ALERTS,
    PROCESS_TAG,
    OwnRuns,
    end_dead_runs,
    lakehouse_tag,
    this_process,
)
from game_events.orchestration.sensors import writer_of_bronze
from game_events_tests.support.fixtures.dagster import INSTANCE
from game_events_tests.support.sensors import build_sensor

OWN = OwnRuns.of(load_settings())

#: A run as the command line starts it, which claims the pool `bronze` and then hangs.
HANG = """
import sys, time, dagster as dg
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import PROCESS_TAG, this_process
from game_events.orchestration.runs import OWN_ALERTS
@dg.op(pool="bronze")
def hang(): print("working", flush=True); time.sleep(600)
@dg.job(executor_def=dg.in_process_executor)
def refresh(): hang()
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    refresh.execute_in_process(instance=instance, tags={PROCESS_TAG: this_process(), OWN_ALERTS: "true", **Graph.of().tags})
"""


@pytest.fixture
def instance(instance_on_disk):
    """Another process runs on it."""
    return instance_on_disk


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    """The folder of an instance with a run whose process was killed in the middle."""
    home = tmp_path_factory.mktemp("killed") / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE / "dagster.yaml", home / "dagster.yaml")
    command = [sys.executable, "-c", HANG, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGKILL)
    return home


@pytest.fixture
def after_a_kill(left_behind, tmp_path):
    """An instance with that run, and the run."""
    home = shutil.copytree(left_behind, tmp_path / "after")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (run,) = instance.get_runs()
        yield instance, run


def test_a_killed_run_is_failed_with_the_reason_and_its_pool_slot_is_free_again(after_a_kill):
    instance, killed = after_a_kill
    assert killed.status == DagsterRunStatus.STARTED
    assert instance.event_log_storage.get_concurrency_info("bronze").active_slot_count == 1

    sensor = build_sensor("dead_runs", Graph.of())
    found = sensor(dg.build_sensor_context(instance=instance))
    assert "ended 1 runs without a process" in found.skip_message
    after = instance.get_run_by_id(killed.run_id)
    assert after.status == DagsterRunStatus.FAILURE
    assert after.tags[OWN_ALERTS] == "false", "whoever was to send its alerts is gone"
    said = [e.dagster_event.message for e in instance.all_logs(killed.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)]
    assert "its process" in said[0]
    assert "the next run finishes its work" in said[0]
    assert instance.event_log_storage.get_concurrency_info("bronze").active_slot_count == 0
    assert "every unfinished run has its process" in sensor(dg.build_sensor_context(instance=instance)).skip_message


def test_a_killed_run_holds_nobody_back(after_a_kill):
    instance, killed = after_a_kill
    assert writer_of_bronze(instance, OWN) is None
    assert instance.get_run_by_id(killed.run_id).status == DagsterRunStatus.FAILURE


def origin(job):
    """Where a run came from that a daemon started: Dagster asks for it in runs that wait."""
    target = LoadableTargetOrigin(python_file="definitions.py")
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target, "game_events")
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job)


@pytest.fixture
def start(instance):
    """A run that is under way, by whom its tag says."""

    def make(process, status=DagsterRunStatus.STARTED, name="refresh"):
        tags = lakehouse_tag(load_settings()) | ({PROCESS_TAG: process} if process else {})
        run = dg.DagsterRun(job_name=name, status=status, tags=tags, remote_job_origin=origin(name))
        return instance.add_run(run)

    return make


def me(host=None, pid=None, started=None, place=None):
    """This process, or one that differs from it."""
    mine = this_process().split(":")
    return ":".join(str(other) if other else part for part, other in zip(mine, (host, pid, started, place), strict=True))


def test_only_runs_known_to_be_dead_are_ended(instance, start):
    alive = {
        start(me()).run_id,
        start(me(host="another-machine", pid=1)).run_id,  # nobody here can tell
        start(None).run_id,
        start("no such form").run_id,
        start(me(pid=4_000_000), DagsterRunStatus.QUEUED).run_id,  # waits: it has no process yet
    }
    dead = {
        start(me(pid=4_000_000)).run_id,  # above the kernel's highest number
        start(me(started=int(psutil.Process().create_time()) - 60)).run_id,  # the number is another process's now
        start(me(pid=4_000_000), DagsterRunStatus.STARTING).run_id,
    }
    canceling = start(me(pid=4_000_000), DagsterRunStatus.CANCELING).run_id
    elsewhere = {PROCESS_TAG: me(pid=4_000_000), LAKEHOUSE_TAG: "/elsewhere/*"}
    alive.add(instance.add_run(dg.DagsterRun(job_name="refresh", status=DagsterRunStatus.STARTED, tags=elsewhere)).run_id)
    assert {r.run_id for r in end_dead_runs(instance, OWN)} == {*dead, canceling}
    status = {r.run_id: r.status for r in instance.get_runs()}
    assert {status[run_id] for run_id in dead} == {DagsterRunStatus.FAILURE}
    assert status[canceling] == DagsterRunStatus.CANCELED
    assert not {status[run_id] for run_id in alive} & {DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED}


def test_a_run_that_is_executed_again_is_not_judged_by_the_process_of_the_run_it_repeats(instance, start):
    """The UI's "Re-execute" takes over all tags; the new worker needs seconds to start and to say which process it is."""
    parent = start(me(pid=4_000_000), DagsterRunStatus.FAILURE)

    def again(process):
        return instance.add_run(
            dg.DagsterRun(
                job_name="refresh",
                status=DagsterRunStatus.STARTING,
                tags={PROCESS_TAG: process, **lakehouse_tag(load_settings())},
                parent_run_id=parent.run_id,
                root_run_id=parent.run_id,
                remote_job_origin=origin("refresh"),
            )
        )

    inherited, killed = again(me(pid=4_000_000)), again(me(pid=4_000_001))
    assert [r.run_id for r in end_dead_runs(instance, OWN)] == [killed.run_id]
    assert instance.get_run_by_id(inherited.run_id).status == DagsterRunStatus.STARTING


def test_a_run_that_writes_bronze_or_waits_to_is_seen(instance, start):
    assert start(me(), name="__ASSET_JOB")
    for name in ("refresh", "continuous", "replay", "redecode"):
        for status in (DagsterRunStatus.QUEUED, DagsterRunStatus.STARTED):
            assert writer_of_bronze(instance, OWN) is None
            run = start(me(), status, name)
            assert writer_of_bronze(instance, OWN).run_id == run.run_id
            instance.delete_run(run.run_id)
