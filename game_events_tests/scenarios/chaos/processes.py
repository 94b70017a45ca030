"""The processes of a chaos run: drivers with their JVM and Python workers, found below the process that was started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from game_events.spark.config import DAEMON
from game_events_tests.support.commands import GAME_EVENTS
from game_events_tests.support.killing.sitecustomize import killed_at

#: A JVM whose Python is gone ends by itself within 3 s on an idle machine.
ORPHAN_S = 60.0


@dataclass
class Driver:
    """One command under way.

    Attributes:
        name: what it is called in the report.
        process: the driver.
        log: its output.
        crash_at: the failpoint that it was started with.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    crash_at: str | None = None

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """Everything below the driver: its JVM, the JVM's Python daemon, the workers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.process.pid).children(recursive=True))
        return []

    def jvm(self) -> psutil.Process | None:
        """Spark's JVM, once there is one."""
        return next((p for p in self.tree() if _is(p, "java")), None)

    def workers(self) -> list[psutil.Process]:
        """Python workers: forked by the daemon, so their parent is one too."""
        daemons = [p for p in self.tree() if _is(p, DAEMON, whole=True)]
        pids = {p.pid for p in daemons}
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p for p in daemons if p.ppid() in pids]
        return []

    def kill(self) -> None:
        """SIGKILL to the driver; its JVM and workers have to end by themselves."""
        below = self.tree()
        self.process.kill()
        self.process.wait()
        self.end_rest(below)

    def end_rest(self, below: Sequence[psutil.Process]) -> None:
        """Wait for what the driver left behind; processes are known by pid and start, so nobody else's is touched."""
        _, stayed = psutil.wait_procs(list(below), ORPHAN_S)
        for process in stayed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def said(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-3_000:]


def _is(process: psutil.Process, word: str, *, whole: bool = False) -> bool:
    """Whether a part of its command line has the word, or is it; the JVM's settings name the daemon, too."""
    with contextlib.suppress(psutil.Error):
        return any(word == part if whole else word in part for part in process.cmdline())
    return False


def start(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], home: Path, crash_at: str | None = None
) -> Driver:
    """Start a command of this project in a process of its own; `home` has its Dagster instance, as on a machine of its own."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / f"{name}-{time.time_ns()}.log"
    env = {k: v for k, v in os.environ.items() if k != "DAGSTER_HOME"} | environment | {"GAME_EVENTS_STATE_DIR": str(home)}
    if crash_at is not None:
        env |= killed_at(crash_at)
    with log.open("wb") as out:
        process = subprocess.Popen([*GAME_EVENTS, *arguments], env=env, cwd=home, stdout=out, stderr=subprocess.STDOUT)
    return Driver(name, process, log, crash_at)


def kill_one(found: Sequence[psutil.Process], draw: Random) -> psutil.Process | None:
    """SIGKILL to one of several processes; None if none of them was there any more."""
    for process in draw.sample(list(found), len(found)):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
            return process
    return None
