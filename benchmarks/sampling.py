"""Where this process's threads are: samples of their stacks, by step of a refresh."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERVAL_S = 0.002
SPARK_JOBS = "Spark: waiting for jobs"
SPARK_CALLS = "Spark: plans and other calls"
OTHER = "other"
#: Methods of Spark's objects that run a job; other calls make plans.
JOB_METHODS = {"collect", "toLocalIterator", "toArrow", "_collect_as_arrow", "count", "save", "toPandas", "foreach"}
#: (part of a file's path, function; empty: any) -> step. The innermost frame that has one decides.
STEPS = {
    ("/pyspark/", ""): SPARK_CALLS,
    ("lakehouse/commits/", "_landed"): "commits: read back",
    ("lakehouse/commits/transactions.py", ""): "commits: look for restores",
    ("lakehouse/commits/evolution.py", ""): "commits: compare columns",
    ("lakehouse/data/columns.py", ""): "commits: compare columns",
    ("lakehouse/commits/", ""): "commits",
    ("lakehouse/storage.py", ""): "commits",
    ("lakehouse/table_pool.py", ""): "opening tables",
    ("lakehouse/tables.py", ""): "opening tables",
    ("lakehouse/open_table.py", ""): "opening tables",
    ("lakehouse/data/", ""): "listing, copying and staging files",
    ("system_tables.py", ""): "progress",
    ("game_events/lakehouse/", ""): "other work on tables",
    ("game_events/sources/", ""): "Kafka: offsets and plans",
    ("game_events/schema_registry.py", ""): "schemas",
    ("game_events/decoding/", ""): "schemas",
    ("pipeline/schemas/", ""): "schemas",
    ("pipeline/bronze/", ""): "bronze: plans",
    ("pipeline/fanout.py", ""): "plans of the one pass",
    ("pipeline/silver/", ""): "silver: plans",
    ("pipeline/gold/", ""): "gold: plans",
    ("pipeline/checks/", ""): "checks",
    ("pipeline/reporting/", ""): "report",
    ("pipeline/event_log.py", ""): "event log",
}
#: Frames in which a thread of a pool waits for work, or any thread for another one.
_IDLE = {("thread.py", "_worker"), ("threading.py", "wait"), ("threading.py", "_wait_for_tstate_lock")}


@contextmanager
def sampled(thread: int) -> Iterator[Counter[str]]:
    """Step -> samples, while the body runs.

    Args:
        thread: what this thread does is counted; while it waits for other threads, what these do, as one sample together. So
            shares of samples are shares of its time.
    """
    found, stop = Counter[str](), threading.Event()

    def watch() -> None:
        own = threading.get_ident()
        while not stop.wait(INTERVAL_S):
            # Python 3.11 waits for ever if it collects garbage in this call (python/cpython#106883).
            gc.disable()
            frames = sys._current_frames()
            gc.enable()
            del frames[own]
            found.update(_steps_of(thread, frames))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()


def _steps_of(thread: int, frames: dict[int, FrameType]) -> dict[str, float]:
    """One sample: the step of this thread, or those of the threads it waits for."""
    main = frames.pop(thread)
    busy = [step_of(frame) for frame in frames.values() if not _is_idle(frame) and _is_ours(frame)]
    if not _is_idle(main) or not busy:
        return {step_of(main): 1.0}
    return {step: count / len(busy) for step, count in Counter(busy).items()}


def _is_idle(frame: FrameType) -> bool:
    code = frame.f_code
    return any(code.co_filename.endswith(file) and code.co_name == function for file, function in _IDLE)


def _is_ours(frame: FrameType | None) -> bool:
    while frame is not None:
        if f"{os.sep}game_events{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def step_of(frame: FrameType | None) -> str:
    """The step of a stack."""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        for (part, function), step in STEPS.items():
            if part in file and function in ("", name):
                return SPARK_JOBS if step == SPARK_CALLS and _runs_a_job(frame) else step
        frame = frame.f_back
    return OTHER


def _runs_a_job(frame: FrameType | None) -> bool:
    while frame is not None:
        if "/pyspark/" in frame.f_code.co_filename and frame.f_code.co_name in JOB_METHODS:
            return True
        frame = frame.f_back
    return False
