"""`game-events up`: local stack, Dagster's webserver and daemon, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import httpx2
import typer

from game_events.cli.dagster_run import dagster_home
from game_events.cli.output import Output
from game_events.errors import ConfigurationError, TransientError
from game_events.producer.kafka_client import ensure_topic
from game_events.settings import load_settings
from game_events.stack import local_stack

HOST = "127.0.0.1"
START_DEADLINE_S = 120


def up(
    port: Annotated[int, typer.Option(help="Port of the Dagster UI.")] = 3000,
    stack: Annotated[bool, typer.Option(help="Start the local stack; off: use the Kafka and registry of the settings.")] = True,
) -> None:
    """Start the local stack, the Dagster UI and the daemon that runs sensors; Ctrl-C stops all of it."""
    output = Output(as_json=False)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise ConfigurationError(
                f"port {port} is busy: stop what listens there, or choose another one with --port"
            ) from None
    settings = load_settings()
    if stack:
        local_stack.up(settings.state_dir, on_progress=output.say)
        settings = load_settings()
        ensure_topic(settings, 4)
    environment = os.environ | {
        "DAGSTER_HOME": str(dagster_home(settings)),
        "GAME_EVENTS_LAKEHOUSE": settings.lakehouse if "://" in settings.lakehouse else str(Path(settings.lakehouse).resolve()),
        "GAME_EVENTS_STATE_DIR": str(settings.state_dir.resolve()),
    }
    command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", HOST, "-p", str(port)]
    server = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
    signal.signal(signal.SIGTERM, lambda *_: server.send_signal(signal.SIGINT))
    try:
        _wait(server, port)
        output.say(f"Dagster UI: http://{HOST}:{port}   (Ctrl-C stops it)")
        output.say("in another terminal: .venv/bin/game-events produce && .venv/bin/game-events run")
        server.wait()
    except KeyboardInterrupt:
        server.wait()
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
            server.wait()
        if stack:
            local_stack.down(settings.state_dir)
            output.say("stopped")


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise TransientError(f"Dagster ended with code {server.returncode} while starting; its messages are above")
        try:
            if httpx2.get(f"http://{HOST}:{port}/server_info", timeout=2).status_code == httpx2.codes.OK:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.3)
    raise TransientError(f"the Dagster UI did not answer on port {port} within {START_DEADLINE_S} s")
