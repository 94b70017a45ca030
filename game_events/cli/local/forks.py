"""The fork server as `game-events up` starts it: a process that makes other terminals' commands start quickly."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from game_events.cli.common.forked_command import sockets_folder

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
