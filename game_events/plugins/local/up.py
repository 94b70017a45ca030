"""`game-events up`: local stack, a warm Spark server, Dagster's webserver and daemon, until Ctrl-C.

`game-events stack up|down|status`: only the local broker and registry.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Annotated

import httpx2
import psutil
import typer
from pydantic import ValidationError

from game_events.cli.dagster_run import WORKSPACE_FILE, dagster_file, dagster_home, share_dagster_home
from game_events.cli.output import Json, Output
from game_events.cli.shared_spark import publish, withdraw
from game_events.config.http_bounds import bounded
from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.jvm.private_folders import private_folder, process_temporary_folder, remove_left_behind
from game_events.plugins.local.servers import connect_server, local_stack
from game_events.plugins.local.servers.connect_server import PrivateSocket
from game_events.plugins.local.servers.server_process import HOST, ServerProcess, find, free_ports, is_free, stop
from game_events.sources.factory import class_of
from game_events.sources.kafka.client import ensure_topic
from game_events.spark.config import shares_python_environment, spark_config
from game_events.spark.connect import TOKEN_VARIABLE
from game_events.spark.session import READY_FILE

log = logging.getLogger(__name__)

#: What the Dagster UI is made by.
WEBSERVER = "dagster_webserver"

START_DEADLINE_S = 120

#: `dagster dev` takes 1 to 5 s; with a run under way longer.
STOP_TIMEOUT_S = 15

#: Between two looks whether the Spark server lives.
LOOK_S = 0.5

#: Seconds before the Spark server is started again: doubled while it does not live long, up to the longest.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LIVED_S = 60.0


def up(
    port: Annotated[int, typer.Option(help="Port of the Dagster UI.")] = 3000,
    stack: Annotated[bool, typer.Option(help="Start the local stack; off: use the Kafka and registry of the settings.")] = True,
) -> None:
    """Start the local stack, the Dagster UI and the daemon that runs sensors; Ctrl-C stops all of it."""
    output = Output(as_json=False)
    _require_ui(port)
    # Whoever stops a service sends SIGTERM: the same as Ctrl-C, from the first moment on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = load_settings()
    share_dagster_home(settings)
    server: subprocess.Popen[bytes] | None = None
    warm: WarmSpark | None = None
    try:
        if stack:
            local_stack.up(settings.state_dir, on_progress=output.say)
            local = load_settings()
            for topic in class_of(local).named_topics(local):
                ensure_topic(local, 4, topic)
        if settings.warm_spark and not settings.spark_remote:
            warm = WarmSpark(settings, output.say)
            warm.start()
        server = _start(settings, port, warm.environment if warm is not None else {})
        _wait(server, port)
        output.say(f"Dagster UI: http://{HOST}:{port}   (Ctrl-C stops it)")
        output.say("in another terminal: game-events produce (the sensor kafka_lag does the rest within a minute)")
        code = server.wait()
        raise TransientError(f"Dagster ended by itself with code {code}; its messages are above")
    except KeyboardInterrupt:
        output.say("stopping")
    finally:
        # A second Ctrl-C must not leave half of it behind; all of this is bounded in time.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if server is not None:
            _stop(server)
        if warm is not None:
            warm.end()
        if stack:
            local_stack.down(settings.state_dir)
        output.say("stopped")


def _require_ui(port: int) -> None:
    """Raise ConfigurationError if the Dagster UI cannot be started on a port."""
    if find_spec(WEBSERVER) is None:  # the process that needs it says less
        raise ConfigurationError(f"the plug-in local needs the package {WEBSERVER}: pip install 'game-events[local]'")
    if not is_free(port):
        raise ConfigurationError(f"port {port} is busy: stop what listens there, or choose another one with --port")


def _start(settings: Settings, port: int, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Webserver, daemon and code server, in a process group of their own: a Ctrl-C reaches only this process.

    `more`: further variables of their environment.
    """
    environment = os.environ | {
        "DAGSTER_HOME": str(dagster_home(settings)),
        "GAME_EVENTS_LAKEHOUSE": settings.lakehouse if "://" in settings.lakehouse else str(Path(settings.lakehouse).resolve()),
        "GAME_EVENTS_STATE_DIR": str(settings.state_dir.resolve()),
        # Alerts link to it.
        "GAME_EVENTS_DAGSTER_URL": settings.dagster_url or f"http://{HOST}:{port}",
        **more,
    }
    quiet = ["-W", "ignore:Function `dev_command` is superseded:FutureWarning"]
    dagster = ["-m", "game_events.plugins.local.webserver", "dev", "-w", str(dagster_file(WORKSPACE_FILE))]
    options = ["-h", HOST, "-p", str(port), "--log-level", "warning"]
    return subprocess.Popen([sys.executable, *quiet, *dagster, *options], env=environment, start_new_session=True)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ask `dagster dev` to stop; end what is left of its group after that (its code server would wait for a heartbeat)."""
    server.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_TIMEOUT_S)
    group = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == server.pid:
                group.append(process)
                process.terminate()
    for process in psutil.wait_procs(group, timeout=STOP_TIMEOUT_S)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()


def _status(url: str, seconds: float, headers: Mapping[str, str] | None = None) -> int:
    with bounded(httpx2.Client(timeout=seconds), seconds) as client, client.stream("GET", url, headers=headers) as answer:
        return answer.status_code


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    url = f"http://{HOST}:{port}/server_info"
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise TransientError(f"Dagster ended with code {server.returncode} while starting; its messages are above")
        try:
            if _status(url, 2) == httpx2.codes.OK:
                break
        except httpx2.HTTPError:
            pass
        time.sleep(0.3)
    else:
        raise TransientError(f"the Dagster UI did not answer on port {port} within {START_DEADLINE_S} s")
    if _status(url, 30, {"Host": "not-its-name.invalid"}) != httpx2.codes.FORBIDDEN:
        raise ConfigurationError(
            "this version of Dagster starts its webserver without the guard of `game-events up`: use the locked one"
        )


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
        with suppress(OSError, ValidationError):  # one that a killed `up` has left behind
            stop([ServerProcess.model_validate_json(self._file.read_bytes())])
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


stack_app = typer.Typer(help="The local Apache Kafka broker and schema registry.", no_args_is_help=True, add_completion=False)


@stack_app.command("up")
def start_stack(
    kafka_port: Annotated[int | None, typer.Option(help="Port of the broker; default: a free one.")] = None,
    registry_port: Annotated[int | None, typer.Option(help="Port of the registry; default: a free one.")] = None,
    as_json: Json = False,
) -> None:
    """Start what is not running yet, and print the addresses. Data of earlier runs are there again."""
    output = Output(as_json=as_json)
    state = local_stack.up(load_settings().state_dir, kafka_port, registry_port, on_progress=output.say)
    servers = state.kafka_bootstrap_servers
    url = state.schema_registry_url
    output.say(f"kafka:    {servers}")
    output.say(f"registry: {url}")
    output.result({"running": True, "kafka_bootstrap_servers": servers, "schema_registry_url": url})


@stack_app.command("down")
def stop_stack(
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Also delete topics and schemas.")] = False,
    as_json: Json = False,
) -> None:
    """Stop both; topics and schemas stay for the next start, unless deleted by option."""
    output = Output(as_json=as_json)
    stopped = local_stack.down(load_settings().state_dir, delete_data=delete_data)
    output.say("stopped" if stopped else "nothing was running")
    output.result({"running": False, "stopped": stopped})


@stack_app.command("status")
def show_stack(as_json: Json = False) -> None:
    """Say what is running; exit code 1 if not everything is."""
    output = Output(as_json=as_json)
    stack = local_stack.status(load_settings().state_dir)
    servers = stack.state.kafka_bootstrap_servers if stack.state else None
    url = stack.state.schema_registry_url if stack.state else None
    output.say(f"kafka:    {servers or '-'} {'running' if stack.kafka_healthy else 'not running'}")
    output.say(f"registry: {url or '-'} {'running' if stack.registry_healthy else 'not running'}")
    body = {"running": stack.healthy, "kafka_bootstrap_servers": servers, "schema_registry_url": url}
    output.result(body, success=stack.healthy)
