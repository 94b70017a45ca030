"""Orphaned-run reaper: runs without a process are marked as failed, and their pool slots freed. A tag says which it is.

Dagster itself only notices a dead worker while the code server that started it lives: a run of the command line that was
killed, or one that was killed with `game-events up`, would stay "started" and keep its pool's slot for ever (1.13:
`run_monitoring` asks the launcher, and the default one does not know the state of a started run's worker).
"""

import logging
import os
import re
import socket
from functools import cache
from pathlib import Path

import dagster as dg
import psutil
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from game_events.orchestration.dagster_private import plan_process
from game_events.orchestration.runs.own_runs import LAKEHOUSE_TAG, OwnRuns
from game_events.orchestration.runs.tags import OWN_ALERTS

log = logging.getLogger(__name__)
#: Tag of a run: host, process id, the second in which the process was started (process ids are used again), and in which boot
#: of the machine and which namespace of process ids.
PROCESS_TAG = "game_events/process"
#: An earlier version wrote no boot and no namespace.
_TAG = re.compile(r"(?P<host>[^:]*):(?P<pid>[0-9]{1,9}):(?P<started>[0-9]{1,12})(?::(?P<boot>[^:/]*)/(?P<namespace>[^:/]*))?")
#: Two processes may see a third one's start a second apart: it is computed from the time of the machine's start.
SLACK_S = 3
#: A run in one of these has (or had) a process that works on it.
WORKING = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
#: Those, and runs that wait for one.
UNFINISHED = [*WORKING, DagsterRunStatus.QUEUED]
#: Unfinished runs read: a tick has to stay short.
LIMIT = 200


def end_dead_runs(instance: DagsterInstance, own: OwnRuns) -> list[DagsterRun]:
    """Mark own runs of this machine without a living process as failed (those being canceled: as canceled).

    Returns:
        the runs, as they were before.
    """
    # An earlier version of this project tagged its runs with their process alone.
    untagged = [run for run in instance.get_runs(RunsFilter(statuses=WORKING), limit=LIMIT) if LAKEHOUSE_TAG not in run.tags]
    working = {run.run_id: run for run in (*own.runs(instance, LIMIT, statuses=WORKING), *untagged)}.values()
    dead = [run for run in working if worker_is_gone(instance, run)]
    for run in dead:
        now = instance.get_run_by_id(run.run_id)
        if now is None or now.is_finished:
            continue  # it has ended meanwhile
        why = f"its process ({run.tags[PROCESS_TAG]}) is gone: killed, or the machine restarted; the next run finishes its work"
        # It cannot send its own alerts any more.
        instance.add_run_tags(run.run_id, {OWN_ALERTS: "false"})
        if run.status == DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, f"The run was being canceled; {why}")
        else:
            instance.report_run_failed(run, f"The run cannot go on: {why}")
        free_slots(instance, run.run_id)
        log.warning("run_id=%s job=%s dead=true process=%s", run.run_id, run.job_name, run.tags[PROCESS_TAG])
    return dead


def free_slots(instance: DagsterInstance, run_id: str) -> None:
    """Give back the pool slots of a run that has ended; the daemon would do so half a minute later."""
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits:
        storage.free_concurrency_slots_for_run(run_id)


def unfinished_runs(instance: DagsterInstance, own: OwnRuns) -> list[DagsterRun]:
    """Own runs that wait or work, newest first; ends dead ones first."""
    end_dead_runs(instance, own)
    return own.runs(instance, LIMIT, statuses=UNFINISHED)


def this_process() -> str:
    """The tag's value for this process."""
    return process_tag(os.getpid())


def process_tag(pid: int) -> str:
    """The tag's value for a process of this machine."""
    return f"{socket.gethostname()}:{pid}:{int(psutil.Process(pid).create_time())}:{_boot()}/{_namespace()}"


def mark_process(context: dg.InitResourceContext) -> None:
    """Tag a run with the process that executes its plan, which is not the process of each step with every executor.

    A run whose steps are executed elsewhere (Kubernetes, Docker) gets no tag, and is never judged.
    """
    pid = plan_process()
    if context.instance is not None and context.run is not None and pid is not None:
        context.instance.add_run_tags(context.run.run_id, {PROCESS_TAG: process_tag(pid)})


def worker_is_gone(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether the process that works on a run has certainly ended.

    A run that is executed again from the UI comes with the tags of the run it repeats: until its own process has
    set its tag, False.
    """
    tag = run.tags.get(PROCESS_TAG)
    if not is_gone(tag):
        return False
    if run.parent_run_id is None:
        return True
    parent = instance.get_run_by_id(run.parent_run_id)
    return parent is not None and parent.tags.get(PROCESS_TAG) != tag


def is_gone(tag: str | None) -> bool:
    """Whether the process of a tag has certainly ended.

    False for a process of another machine, and of another container of this one, which this process cannot see.
    """
    found = _TAG.fullmatch(tag or "")
    if found is None or found["host"] != socket.gethostname():
        return False
    if found["boot"] and _boot() and found["boot"] != _boot():
        return True  # the machine was restarted since
    if found["namespace"] and found["namespace"] != _namespace():
        return False
    try:
        process = psutil.Process(int(found["pid"]))
        ended = process.status() == psutil.STATUS_ZOMBIE
        return ended or abs(process.create_time() - int(found["started"])) > SLACK_S
    except psutil.NoSuchProcess:
        return True


@cache
def _boot() -> str:
    """The boot of this machine; empty where the system has no such id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""


@cache
def _namespace() -> str:
    """The namespace of this process's id: containers of one host name may have different ones; empty on other systems."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")  # noqa: PTH115 - no file
    except OSError:
        return ""
