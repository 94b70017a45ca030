"""Which process executes a run: a tag by which other processes of the machine find out that it is gone."""

import os
import re
import socket
from functools import cache
from pathlib import Path

import dagster as dg
import psutil
from dagster import DagsterInstance, DagsterRun

from game_events.orchestration.dagster_private import plan_process

#: Tag of a run: host, process id, the second in which the process was started (process ids are used again), and in which boot
#: of the machine and which namespace of process ids.
PROCESS_TAG = "game_events/process"
#: An earlier version wrote no boot and no namespace.
_TAG = re.compile(r"(?P<host>[^:]*):(?P<pid>[0-9]{1,9}):(?P<started>[0-9]{1,12})(?::(?P<boot>[^:/]*)/(?P<namespace>[^:/]*))?")
#: Two processes may see a third one's start a second apart: it is computed from the time of the machine's start.
SLACK_S = 3


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
