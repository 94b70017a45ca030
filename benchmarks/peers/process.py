"""A peer's process: a line of JSON is a load, a line of JSON the answer; the end of its input ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class PeerProcess:
    """The running process, and the file that its errors go to."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        """One request, one answer; other lines that a library prints are passed over.

        Raises:
            RuntimeError: the process ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"the peer's process ended: {self.log.read_text()[-2000:]}")


def own_environment() -> dict[str, str]:
    """This process's environment without Spark's settings, which a session of its own has left there; with its interpreter."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@contextmanager
def peer_process(command: Sequence[str], folder: Path, name: str) -> Iterator[PeerProcess]:
    """Start a process that works below `folder`, and end it afterwards."""
    log = folder / f"{name}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=own_environment(),
            cwd=folder,
        )
    try:
        yield PeerProcess(process, log)
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_TIMEOUT_S)
        if process.poll() is None:
            process.kill()
            process.wait()
