"""Where this process's threads are: samples of their stacks, by step of a refresh."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERVAL_S = 0.003
#: (part of a file's path, function; empty: any) -> step. The innermost frame that has a step decides.
STEPS = {
    ("delta_log.py", ""): "read the log's entries",
    ("lakehouse/tables.py", "open"): "open tables",
    ("lakehouse/tables.py", "add_actions"): "list files",
    ("commits/restores.py", ""): "look for restores",
    ("commits/commit.py", "_landed"): "read back after the commit",
    ("commits/commit.py", "_write"): "write the commit",
    ("commits/commit.py", "_create"): "write the commit",
    ("commits/commit.py", ""): "compare before the commit",
    ("commits/evolution.py", ""): "compare columns",
    ("lakehouse/descriptions.py", ""): "compare columns",
    ("data/staging.py", "unseen"): "look for the files",
    ("data/file_copies.py", ""): "copy files",
    ("gold/unified", ""): "plan the unified table",
    ("gold/plan.py", ""): "plan gold",
    ("silver/passes.py", "start"): "plan silver",
    ("gold/execute.py", ""): "plan Spark's job",
    ("spark_files.py", ""): "plan Spark's job",
    ("pipeline/reporting", ""): "report",
    ("data/worker_job.py", "decode"): "results of workers",
    ("system_tables/progress.py", ""): "progress",
    ("observability/event_log.py", ""): "event log",
    ("pipeline/checks", ""): "checks",
}
#: Frames at which a thread waits: for Spark, for work, for another thread.
WAITING = {
    ("socket.py", "readinto"),
    ("threading.py", "wait"),
    ("thread.py", "_worker"),
    ("threading.py", "_wait_for_tstate_lock"),
}


@contextmanager
def sampled() -> Iterator[Counter[str]]:
    """Step -> samples, of all threads that do not wait, while the body runs."""
    found, stop = Counter[str](), threading.Event()

    def watch() -> None:
        own = threading.get_ident()
        while not stop.wait(INTERVAL_S):
            # Python 3.11 waits for ever if it collects garbage in this call (python/cpython#106883).
            gc.disable()
            frames = sys._current_frames()
            gc.enable()
            for thread, frame in frames.items():
                if thread != own and (step := step_of(frame)) is not None:
                    found[step] += 1

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def step_of(frame: FrameType | None) -> str | None:
    """The step of a stack; None: it waits."""
    first = True
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if first and any(file.endswith(end) and name == function for end, function in WAITING):
            return None
        first = False
        for (part, function), step in STEPS.items():
            if part in file and function in ("", name):
                return step
        frame = frame.f_back
    return "else"
