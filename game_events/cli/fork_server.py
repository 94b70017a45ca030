"""The fork server of `game-events up`: imports once what runs need, and forks for each command.

`game_events.cli.forked_command` is its other side. There are three kinds of process: the server only accepts connections
and forks; a keeper for each command reads the request, passes signals on and reports the exit code; the command itself is in a
fork of its keeper. The server never has a thread of Python's, settings, or a connection to anything: what a fork finds is
modules. It ends with the process that has started it, by its stdin; commands under way go on.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from game_events.cli.forked_command import (
    EXIT_CODE,
    FORKED,
    GO,
    LENGTH,
    READY,
    READY_S,
    SIGNALS,
    digest,
    sockets_folder,
)
from game_events.cli.main import CORE_COMMANDS, FAILED, exit_codes, run_here
from game_events.jvm.private_folders import only_mine

#: What a run imports, also where it does so late.
MODULES = (
    *sorted({CORE_COMMANDS[name].target.partition(":")[0] for name in FORKED if name in CORE_COMMANDS}),
    "game_events.cli.dagster_run",
    "game_events.spark.connect_channel",
    "pyspark.sql.connect.session",
    "pyarrow.dataset",
    "dagster._core.instance.factory",
    "dagster._core.storage.sqlite_storage",
    "dagster._core.storage.local_compute_log_manager",
    "upath",
    "httpcore2",
    "truststore",
)
#: Process, user and group of the other end of a Unix socket.
PEER = struct.Struct("3i")


def serve(modules: Sequence[str] = MODULES) -> None:
    """Serve until stdin is closed; returns only in the processes of commands."""
    try:
        listener, path = _begin(modules)
    except (OSError, ImportError, AttributeError) as error:
        print(f"commands start by themselves, more slowly: {error}", file=sys.stderr, flush=True)
        os._exit(FAILED)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            path.unlink(missing_ok=True)
            os._exit(0)  # as commands end, without what libraries have to say at Python's own end
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone away
            continue
        with connection:
            try:
                keeper = os.fork()
            except OSError:  # no memory, no process: the command does without
                continue
            if keeper == 0:
                listener.close()
                return _keep(connection)


def _begin(modules: Sequence[str]) -> tuple[socket.socket, Path]:
    """Import, then listen; AttributeError on another system, OSError where no socket can be made, ImportError for a module."""
    os.close(os.pidfd_open(os.getpid()))
    path = _own_folder() / f"{digest()}-{os.getpid()}"  # of the code as it is before it is read
    for name in modules:
        importlib.import_module(name)
    if threading.active_count() > 1:
        raise OSError(f"a module has started threads: {threading.enumerate()}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    # Now, and not once more for what is there: else each fork would soon have its own copy of every page.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # else each keeper that has ended would stay as a zombie
    return listener, path


def _own_folder() -> Path:
    """The folder of sockets, without those of servers that were killed."""
    folder = sockets_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if not only_mine(folder):
        raise PermissionError(f"{folder} is not this user's own")
    for path in folder.iterdir():
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
    return folder


def _keep(connection: socket.socket) -> None:
    """Keep a command's process; returns only in that one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    try:
        connection.settimeout(READY_S)
        request = _receive(connection)
        os.chdir(request["folder"])
        connection.settimeout(None)  # what the command has sent after READY is taken, however late
        connection.sendall(READY)
        go, streams, _, _ = socket.recv_fds(connection, len(GO), 3)
        if go != GO or len(streams) != 3:
            raise OSError("the command does not wait any more")
    except (OSError, ValueError):
        os._exit(FAILED)
    try:
        process = os.fork()
    except OSError as error:
        os.write(streams[2], f"error: no process for the command: {error}\n".encode())
        code = FAILED
    else:
        if process == 0:
            connection.close()
            _become(request, streams)
            return
        for stream in streams:
            os.close(stream)
        code = _wait(process, connection)
    with suppress(OSError):  # the command has been killed
        connection.sendall(EXIT_CODE.pack(code))
    os._exit(0)


def _receive(connection: socket.socket) -> Mapping[str, Any]:
    """A request; OSError if it is not whole, or not this user's."""
    _, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    with connection.makefile("rb") as received:
        head = received.read(LENGTH.size)
        if user != os.geteuid() or len(head) != LENGTH.size:
            raise OSError("no request of this user")
        request: Mapping[str, Any] = json.loads(received.read(*LENGTH.unpack(head)))
    return request


def _wait(process: int, connection: socket.socket) -> int:
    """The exit code of a process, negative for a signal; signals of the connection are passed on, its end is SIGKILL."""
    ended = os.pidfd_open(process)
    while True:
        ready, _, _ = select.select([ended, connection.fileno()], [], [])
        if ended in ready:
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        for number in connection.recv(16) or [signal.SIGKILL]:
            os.kill(process, number)


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Make this process what it would be if the command had been started in it."""
    for fd, sent in enumerate(streams):
        os.dup2(sent, fd)
        os.close(sent)
    for number in SIGNALS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else default)
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv, sys.path[:] = request["arguments"], request["path"]
    importlib.invalidate_caches()
    tempfile.tempdir = None  # the environment's, once more
    sys.stdin, sys.stdout, sys.stderr = _stream(0, sys.stdin), _stream(1, sys.stdout), _stream(2, sys.stderr)


def _stream(fd: int, like: Any) -> TextIOWrapper:  # noqa: ANN401 - types of `sys` allow less
    """A stream as Python makes it at its start. The server's cannot stay: whether it is a terminal or a file has been asked."""
    buffer: Any = os.fdopen(fd, "wb" if fd else "rb", 0 if like.write_through and fd else -1, closefd=False)
    is_by_line = not like.write_through and (fd == 2 or os.isatty(fd))
    return TextIOWrapper(buffer, like.encoding, like.errors, line_buffering=is_by_line, write_through=like.write_through)


def main() -> None:
    """Be the server, and in its forks the commands."""
    exit_codes()
    serve()
    run_here()
