"""The Spark Connect server that the runs of `game-events up` share: started, watched, started again, stopped."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex, token_urlsafe

from pydantic import ValidationError

from game_events.cli.shared_spark import publish, withdraw
from game_events.config.settings import Settings
from game_events.jvm.private_folders import private_folder, process_temporary_folder, remove_left_behind
from game_events.plugins.local.servers import connect_server
from game_events.plugins.local.servers.connect_server import PrivateSocket
from game_events.plugins.local.servers.server_process import ServerProcess, find, free_ports, stop
from game_events.spark.config import shares_python_environment, spark_config
from game_events.spark.connect import TOKEN_VARIABLE
from game_events.spark.session import READY_FILE

log = logging.getLogger(__name__)
LOOK_S = 0.5
#: Seconds before it is started again: doubled while it does not live long, up to the second.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LIVED_S = 60.0


class WarmSpark:
    """One server at one address for as long as `game-events up` lives: a Unix socket that leads to whichever port it has now.

    A run that is under way when the server dies fails as transient: it is tried again, with a new session. Nothing of it can be
    half done, as the run's own process commits, never the server.
    """

    def __init__(
        self,
        settings: Settings,
        say: Callable[[str], None],
        *,
        look_s: float = LOOK_S,
        first_pause_s: float = FIRST_PAUSE_S,
        start: Callable[..., ServerProcess] = connect_server.start,
    ) -> None:
        """Nothing is started yet.

        `look_s`: between two looks; `first_pause_s`: after the server's end, doubled each time; `start`: starts a server.
        """
        self._start_server = start
        self._look_s = look_s
        self._first_pause_s = first_pause_s
        self._settings = settings
        self._conf = spark_config(settings)
        self._folder = private_folder(settings.state_dir.resolve() / "spark")
        self._log = self._folder / "connect.log"
        self._file = self._folder / "connect.json"
        # Not where each session ships this project to machines or workers that do not have it.
        shared = shares_python_environment(settings) and settings.spark_ship_code != "always"
        self._ready = settings.state_dir.resolve() / READY_FILE if shared else None
        self._say = say
        self._token = token_urlsafe(32)
        self._ending = threading.Event()
        self._server: ServerProcess | None = None
        self._socket = PrivateSocket(process_temporary_folder().path / f"connect-{token_hex(4)}", self._ready_server)
        self._watcher = threading.Thread(target=self._watch, name="warm_spark", daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """What the runs' processes get."""
        return {"GAME_EVENTS_SPARK_REMOTE": self._socket.address, TOKEN_VARIABLE: self._token}

    def start(self) -> None:
        """Start it, and go on: the first run waits for it as it would for a JVM of its own."""
        stop([_recorded(self._file)])  # one that a killed `up` has left behind
        self._start()
        publish(self._settings, self._socket.address, self._token)
        self._watcher.start()

    def end(self) -> None:
        """Stop it for good."""
        withdraw(self._settings)
        self._ending.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._socket.close()
        stop([self._server])
        for file in filter(None, (self._file, self._ready)):
            file.unlink(missing_ok=True)
        remove_left_behind()

    def _start(self) -> None:
        # Another port each time: a program that took the last one does not keep this one from starting.
        (port,) = free_ports(1)
        self._server = self._start_server(
            self._conf, self._folder, port=port, token=self._token, log=self._log, shared_workers=self._ready
        )
        self._file.write_text(self._server.model_dump_json())

    def _ready_server(self) -> ServerProcess | None:
        return self._server if self._ready is None or self._ready.exists() else None

    def _watch(self) -> None:
        pause = self._first_pause_s
        started = time.monotonic()
        while not self._ending.wait(self._look_s):
            if find(self._server) is not None:
                continue
            lived = time.monotonic() - started >= LIVED_S
            pause = self._first_pause_s if lived else min(2 * pause, LONGEST_PAUSE_S)
            self._say(f"the shared Spark server ended; starting it again in {pause:.0f} s (its log: {self._log}.1)")
            if self._ending.wait(pause):
                return
            started = time.monotonic()
            try:
                self._start()
            except OSError as error:  # no memory, no disk: the next look tries again
                log.warning("warm_spark=not_started error=%r", str(error))


def _recorded(file: Path) -> ServerProcess | None:
    with suppress(OSError, ValidationError):
        return ServerProcess.model_validate_json(file.read_bytes())
    return None
