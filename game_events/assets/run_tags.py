"""Tags of runs: what a run does by itself, which process works on it, who tells of its failure."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import psutil

#: The run brings every layer up to date by itself: automation has nothing to add to what it logs.
CARRIES = "game_events/carries"
ALL_LAYERS = "all"
CARRIES_ALL = {CARRIES: ALL_LAYERS}
#: Why the run was started.
REASON = "game_events/reason"
#: `host:pid:create_time` of the process that works on the run.
PROCESS = "game_events/process"
#: The run's own process sends its alerts (the command line, where no daemon may be running).
OWN_ALERTS = "game_events/own_alerts"

#: The tag has whole seconds, and two processes may see a third one's start a second apart (the boot time is corrected).
SLACK_S = 3


@dataclass(frozen=True)
class WorkingProcess:
    """A process, told from a later one with the same number by its start."""

    host: str
    pid: int
    create_time: float  # seconds since 1970

    @classmethod
    def me(cls) -> WorkingProcess:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    @classmethod
    def parse(cls, tag: str) -> WorkingProcess | None:
        """A tag's value; None if it is none."""
        host, *numbers = tag.rsplit(":", 2)
        try:
            pid, created = numbers
            return cls(host, int(pid), float(created))
        except ValueError:
            return None

    def __str__(self) -> str:
        """The tag's value."""
        return f"{self.host}:{self.pid}:{int(self.create_time)}"

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended: a process of another machine never is."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.create_time) > SLACK_S or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False
