"""Which process executes a run: a tag by which other processes of the machine find out that it is gone."""

import os
import socket

import psutil
from dagster import DagsterInstance, DagsterRun

#: Tag of a run: host, process id and the second in which the process was started, as process ids are used again.
PROCESS_TAG = "game_events/process"
PARTS = 3
#: Two processes may see a third one's start a second apart: it is computed from the time of the machine's start.
SLACK_S = 3


def this_process() -> str:
    """The tag's value for this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{int(psutil.Process().create_time())}"


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
    """Whether the process of a tag has certainly ended; False for another machine's."""
    parts = (tag or "").rsplit(":", 2)
    if len(parts) != PARTS or parts[0] != socket.gethostname() or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    try:
        process = psutil.Process(int(parts[1]))
        ended = process.status() == psutil.STATUS_ZOMBIE
        return ended or abs(process.create_time() - int(parts[2])) > SLACK_S
    except psutil.NoSuchProcess:
        return True
