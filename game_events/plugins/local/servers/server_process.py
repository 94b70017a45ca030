"""Server processes that outlive the command that starts them, and the ports that they get on the loopback address.

A process is recognised by pid AND start time, so a reused pid is never touched.
"""

import os
import random
import socket
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from game_events.errors import ConfigurationError

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


HOST = "127.0.0.1"

#: Linux takes ports from 32768 on for outgoing connections, other systems from 49152 on.
SERVER_PORTS = range(20000, 32768)


class Ports(BaseModel):
    """The three listeners of a stack: Kafka's for clients, its controller's, and the registry's."""

    model_config = ConfigDict(frozen=True)

    kafka: int
    controller: int
    registry: int


def choose_ports(given: Mapping[str, int | None], running: Mapping[str, int], last: Mapping[str, int]) -> Ports:
    """For each field of `Ports`: a running server's port, else the one given, else the last one if it is free, else any.

    Raises:
        ConfigurationError: a given port is busy, given twice, or not the one that the running server has.
    """
    chosen: dict[str, int] = {}
    for name, port in given.items():
        if port is not None:
            _check(name, port, running.get(name), chosen)
            chosen[name] = port
    chosen.update(running)
    for name in Ports.model_fields.keys() - chosen.keys():
        before = last.get(name)
        taken = chosen.values()
        if before is not None and before not in taken and is_free(before):
            chosen[name] = before
        else:
            chosen[name] = next(port for port in free_ports(len(chosen) + 1) if port not in taken)
    return Ports(**chosen)


def _check(name: str, port: int, running: int | None, chosen: Mapping[str, int]) -> None:
    if running is not None and port != running:
        raise ConfigurationError(
            f"{name} of this stack runs on port {running}, not {port}: run `game-events stack down` first, "
            "or leave the port out"
        )
    if port in chosen.values():
        raise ConfigurationError(f"port {port} is given twice: {name} needs one of its own")
    if running is None and not is_free(port):
        raise ConfigurationError(
            f"port {port} for {name} is busy or not allowed: stop what listens there, give another port, "
            "or none to take a free one"
        )


def is_free(port: int) -> bool:
    """Whether a server may listen on `port` of `HOST` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java's servers do: TIME_WAIT does not matter
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different free ports, outside the range of outgoing connections, which could take them before the server does."""
    free = filter(is_free, random.sample(SERVER_PORTS, len(SERVER_PORTS)))
    return list(islice(free, count))


def listens(port: int) -> bool:
    """Whether something accepts connections on `port` of `HOST`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
