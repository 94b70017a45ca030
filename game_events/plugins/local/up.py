"""`game-events up`: local stack, a warm Spark server, Dagster's webserver and daemon, until Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import httpx2
import psutil
import typer

from game_events.cli.dagster_run import WORKSPACE_FILE, dagster_file, dagster_home, share_dagster_home
from game_events.cli.output import Output
from game_events.config.http_bounds import bounded
from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.server_process import HOST, is_free
from game_events.plugins.local.spark_server import WarmSpark
from game_events.sources.kafka.client import ensure_topic

START_DEADLINE_S = 120
#: `dagster dev` takes 1 to 5 s; with a run under way longer.
STOP_TIMEOUT_S = 15


def up(
    port: Annotated[int, typer.Option(help="Port of the Dagster UI.")] = 3000,
    stack: Annotated[bool, typer.Option(help="Start the local stack; off: use the Kafka and registry of the settings.")] = True,
) -> None:
    """Start the local stack, the Dagster UI and the daemon that runs sensors; Ctrl-C stops all of it."""
    output = Output(as_json=False)
    if not is_free(port):
        raise ConfigurationError(f"port {port} is busy: stop what listens there, or choose another one with --port")
    # Whoever stops a service sends SIGTERM: the same as Ctrl-C, from the first moment on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = load_settings()
    share_dagster_home(settings)
    server: subprocess.Popen[bytes] | None = None
    warm: WarmSpark | None = None
    try:
        if stack:
            _start_stack(settings, output)
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


def _start_stack(settings: Settings, output: Output) -> None:
    local_stack.up(settings.state_dir, on_progress=output.say)
    local = load_settings()
    for topic in local.kafka_topics:
        ensure_topic(local, 4, topic)


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
    workspace = str(dagster_file(WORKSPACE_FILE))
    dagster = ["game_events.plugins.local.dagster_dev", "-w", workspace, "-h", HOST, "-p", str(port), "--log-level", "warning"]
    return subprocess.Popen([sys.executable, *quiet, "-m", *dagster], env=environment, start_new_session=True)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ask `dagster dev` to stop; end what is left of its group after that (its code server would wait for a heartbeat)."""
    server.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_TIMEOUT_S)
    group = [p for p in psutil.process_iter() if _group(p) == server.pid]
    for process in group:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(group, timeout=STOP_TIMEOUT_S)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


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
