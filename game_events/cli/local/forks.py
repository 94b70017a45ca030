"""The fork server as `game-events up` starts it: a process that makes other terminals' commands start quickly."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from game_events.cli.common.forked_command import sockets_folder

#: Its module, which is above this one: it runs commands.
MODULE = "game_events.cli.fork_server"


@contextmanager
def fork_server() -> Iterator[subprocess.Popen[bytes]]:
    """Start it, for as long as the context lasts; it takes seconds until commands find it."""
    # Its session is its own, so that a Ctrl-C does not reach it; it ends with its stdin, however this process ends.
    process = subprocess.Popen([sys.executable, "-m", MODULE], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for socket in sockets_folder().glob(f"*-{process.pid}"):
            socket.unlink(missing_ok=True)
