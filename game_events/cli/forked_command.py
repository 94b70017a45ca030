"""Commands in a process that the fork server of `game-events up` forks: everything that they import is there already.

The server (`game_events.cli.fork_server`) listens on a Unix socket in a folder of this user. The socket's name has a digest of
all that a process cannot take over from another one: a command finds only a server from which its process would not differ.
Everything else (arguments, environment, folder, streams) is sent. A connection carries, in this order: the request; `READY`
from its keeper; `GO` with the three streams, without which nothing begins; then signals, one byte each, to the process, and
its exit code, four bytes, back. A connection that ends kills the process.

`game-events`, the command: in a process of the fork server of `game-events up` if there is one, else in this one.

The fork server as `game-events up` starts it: a process that makes other terminals' commands start quickly.
"""

import hashlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from game_events.jvm.private_folders import only_mine

PACKAGE = Path(__file__).parents[1]

#: Commands that run a Dagster job: its imports take seconds.
FORKED = frozenset({"run", "redecode", "maintain", "archive", "forget"})

#: Arguments of commands that live long, which would keep the memory of a server that ends.
NOT_FORKED = frozenset({"--continuous"})

#: In the names of open files.
FILES = "/fd/"

READY, GO = b"R", b"G"

#: Seconds for each step until `GO`; after that the command goes on without a server.
READY_S = 5.0

LENGTH, EXIT_CODE = struct.Struct(">I"), struct.Struct(">i")

#: Passed on. A process that another one stops (Ctrl-Z) goes on.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

#: Variables that Python and libraries read when they are loaded.
READ_AT_START = (
    "PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "ARROW_", "JE_", "_RJEM_", "OMP_", "OPENBLAS_", "GOTO_", "MKL_",
    "NUMEXPR_", "NPY_", "NUMPY_", "PANDAS_", "GRPC_", "PROTOCOL_BUFFERS_", "RUST_", "RAYON_", "TOKIO_", "SQLITE_", "OPENSSL_",
    "SSL", "CRYPTOGRAPHY_", "PYDANTIC_", "TYPER_", "FSSPEC_", "UPATH_", "SPARK_CONNECT_LOG_",
    "PYSPARK_PIN_THREAD", "PY4J_", "DAGSTER_", "COVERAGE_",
)  # fmt: skip

READ_LATER = frozenset({"DAGSTER_HOME"})

#: Lines of /proc/self/status: users, groups, processors, and what a sandbox takes away.
STATUS = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "Cpus_allowed", "Mems_allowed", "SigBlk")


def sockets_folder() -> Path:
    """The folder of this user's sockets; its path is short, as a socket's must be."""
    return Path(tempfile.gettempdir()) / f"game-events-forks-{os.geteuid()}"


def digest() -> str:
    """What a forked process has of its server for good: interpreter, code, limits, variables read at the start.

    OSError where the system does not tell.
    """
    parts = [
        [sys.executable, sys.flags, sys.getfilesystemencoding(), *map(_folder_state, sys.path[1:])],
        [_state(path) for path in sorted(PACKAGE.rglob("*.py"))],
        sorted((k, v) for k, v in os.environ.items() if k.startswith(READ_AT_START) and k not in READ_LATER),
        [path.readlink() for path in sorted(Path("/proc/self/ns").iterdir())],
        [line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith(STATUS)],
        [resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")],
        os.getpriority(os.PRIO_PROCESS, 0),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def run_forked(arguments: Sequence[str]) -> int | None:
    """Run a command (`sys.argv`) in a process of the fork server; returns its exit code. None: nothing of it was begun.

    A signal that reaches this process is sent to the other one.
    """
    is_forked = bool(FORKED.intersection(arguments[1:2])) and not NOT_FORKED.intersection(arguments)
    # `--file <(command)`: only the streams are sent.
    is_forked = is_forked and not any(FILES in word for word in (*arguments, *os.environ.values()))
    connection = _connected() if is_forked else None
    if connection is None:
        return None
    with connection:
        try:
            _send_request(connection, arguments)
            if connection.recv(1) != READY:
                return None
            socket.send_fds(connection, [GO], [0, 1, 2])
        except OSError:
            return None
        return _follow(connection)


def _state(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path), found.st_mtime_ns, found.st_size


def _folder_state(name: str) -> list[object]:
    """A folder of modules: another one if modules were added or removed (those of this project are looked at one by one)."""
    path = Path(name)
    return [name, None if path.is_absolute() else Path.cwd(), path.stat().st_mtime_ns if path.exists() else None]


def _connected() -> socket.socket | None:
    """A connection to a server from which this process would not differ."""
    # Whatever the system refuses (no /proc, no room for a temporary file, a closed stream): the command starts by itself.
    with suppress(OSError):
        folder = sockets_folder()
        # Else another user would get the environment.
        if not only_mine(folder):
            return None
        for fd in (0, 1, 2):
            os.fstat(fd)
        for path in folder.glob(f"{digest()}-*"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(READY_S)
            try:
                connection.connect(str(path))
            except OSError:  # its server was killed
                connection.close()
            else:
                return connection
    return None


def _send_request(connection: socket.socket, arguments: Sequence[str]) -> None:
    mask = os.umask(0o077)
    os.umask(mask)
    request = {
        "arguments": list(arguments),
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "umask": mask,
        "path": sys.path,
        "ignored": [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
    }
    packed = json.dumps(request).encode()
    connection.sendall(LENGTH.pack(len(packed)) + packed)


def _follow(connection: socket.socket) -> int:
    """Wait for the process's end; returns its exit code, or ends this process by the same signal."""

    def send(number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # it has just ended
            connection.send(bytes([number]))

    connection.settimeout(None)
    for number in SIGNALS:
        signal.signal(number, send)
    answer = b""
    with suppress(OSError):  # the keeper was killed
        answer = connection.recv(EXIT_CODE.size, socket.MSG_WAITALL)
    # Without an answer it is not known how far the command came: as after SIGKILL.
    code: int = EXIT_CODE.unpack(answer)[0] if len(answer) == EXIT_CODE.size else -signal.SIGKILL
    if code < 0:
        with suppress(OSError):  # SIGKILL has no other
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def command_line() -> None:
    """Run the command of `sys.argv` and end the process. What a command line needs is imported only if it runs here."""
    code = run_forked(sys.argv)
    if code is not None:
        sys.exit(code)
    from game_events.cli.main import run_here

    run_here()


#: Its module is above this one: it runs commands. Like the command's file, it finds no modules in the working folder.
CODE = "import sys; sys.path[0] = sys.path[0] or sys.prefix; from game_events.cli.fork_server import main; main()"


@contextmanager
def fork_server() -> Iterator[subprocess.Popen[bytes]]:
    """Start it, for as long as the context lasts; it takes seconds until commands find it."""
    # Its session is its own, so that a Ctrl-C does not reach it; it ends with its stdin, however this process ends.
    process = subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for socket in _sockets(process):
            socket.unlink(missing_ok=True)


def is_ready(server: subprocess.Popen[bytes]) -> bool:
    """Whether commands find it."""
    return any(_sockets(server))


def _sockets(server: subprocess.Popen[bytes]) -> Iterator[Path]:
    return sockets_folder().glob(f"*-{server.pid}")
