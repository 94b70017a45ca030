"""Server processes that outlive the command that starts them: spawn, find, stop.

A process is recognised by pid AND start time, so a reused pid is never touched.
"""

import os
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

#: Seconds between SIGTERM and SIGKILL. Kafka stops in about 1 s, with many partitions in a few.
STOP_TIMEOUT_S = 30
#: The start time is computed from the boot time, which moves when the clock is set.
CREATE_TIME_TOLERANCE_S = 2.0
LOG_LINES_SHOWN = 20


class ServerProcess(BaseModel):
    """A started server, as the state file records it; `create_time` in seconds since 1970, as psutil gives it."""

    model_config = ConfigDict(frozen=True)

    pid: int
    create_time: float
    port: int


def spawn(
    command: Sequence[str],
    *,
    port: int,
    cwd: Path,
    log: Path,
    environment: Mapping[str, str] | None = None,
    inherited: Collection[int] = (),
) -> ServerProcess:
    """Start `command` in a session of its own, with its output in `log`; the log before becomes ``*.log.1``.

    `environment`: instead of this process's own; `inherited`: descriptors that it keeps open.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=inherited,
        )
    created = psutil.Process(child.pid).create_time()
    child.returncode = 0  # it shall outlive this object, which would warn about that otherwise
    return ServerProcess(pid=child.pid, create_time=created, port=port)


def find(server: ServerProcess | None) -> psutil.Process | None:
    """The running process of `server`, or None if it ended."""
    if server is None:
        return None
    try:
        process = psutil.Process(server.pid)
        if abs(process.create_time() - server.create_time) > CREATE_TIME_TOLERANCE_S:
            return None
        if process.status() == psutil.STATUS_ZOMBIE:
            with suppress(psutil.TimeoutExpired):
                process.wait(0)  # reaps it if it is our own child
            return None
    except psutil.NoSuchProcess:
        return None
    return process


def stop(servers: Iterable[ServerProcess | None]) -> None:
    """SIGTERM to all that still run, SIGKILL to those that do not end in `STOP_TIMEOUT_S`, and to what they have started."""
    processes = [process for process in map(find, servers) if process is not None]
    started = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            started += process.children(recursive=True)
            process.terminate()
    _, left = psutil.wait_procs([*processes, *started], timeout=STOP_TIMEOUT_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_TIMEOUT_S)


def last_lines(log: Path) -> str:
    """The end of a log for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line[:300]}" for line in lines[-LOG_LINES_SHOWN:]) or "  (empty)"
