"""Ends a process with SIGKILL at a failpoint, as a power cut would: no handler and no clean-up runs.

Python imports a module of this name when it starts: so child processes install the handler, Spark's Python workers too.
"""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

VARIABLE = "GAME_EVENTS_TESTS_KILL_AT"


def kill_at(place: str) -> None:
    """Have this process killed at a failpoint: ``name`` or ``name:detail``; ``name@3`` at the third arrival."""
    from game_events.lakehouse import failpoints  # noqa: PLC0415 - a forked worker has modules of its own

    wanted, _, times = place.partition("@")
    arrivals = count(1)

    def kill(name: str, detail: object) -> None:
        if wanted in (name, f"{name}:{detail}") and next(arrivals) >= int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.handler = kill


def killed_at(place: str) -> dict[str, str]:
    """Environment of a child process: the first of it and its own children to reach the failpoint is killed."""
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    return {VARIABLE: place, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


if os.environ.get(VARIABLE):
    kill_at(os.environ[VARIABLE])
    os.register_at_fork(after_in_child=lambda: kill_at(os.environ[VARIABLE]))
