"""What `game-events run` starts: nothing if there is nothing to do, Spark's JVM only where `game-events up` has none for it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pytest

from game_events.cli.shared_spark import publish
from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError
from game_events.jvm.private_folders import private_folder, process_temporary_folder
from game_events.plugins.local.servers.connect_server import PrivateSocket
from game_events.plugins.local.servers.server_process import ServerProcess
from game_events.plugins.local.up import WarmSpark
from game_events.spark.config import DAEMON
from game_events.spark.connect import CONNECT_MODE, close_session
from game_events.spark.session import new_session
from game_events_tests.support.servers.small_jvm import OF_A_COMMAND
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import Event, send_events

#: A command in a process of its own; its last line says what the process has loaded.
PROGRAM = """
import json, sys
from game_events.spark import connect
connect.RETRIES = 2
from game_events.cli.main import main
try:
    main()
except SystemExit as ended:
    from pyspark.core.context import SparkContext
    print(json.dumps([ended.code or 0, SparkContext._gateway is not None, "dagster" in sys.modules, "pandas" in sys.modules]))
"""


class Ended(NamedTuple):
    """How a command ended: its result, and whether its process had a JVM of its own, Dagster, and pandas."""

    result: dict[str, Any]
    jvm: bool
    dagster: bool
    pandas: bool
    err: str


@pytest.fixture
def settings(environment: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of this process and of the commands."""
    monkeypatch.setenv("GAME_EVENTS_SPARK_CONF", json.dumps(OF_A_COMMAND))
    private_folder(environment.state_dir / "spark")
    return load_settings()


def run(command: str = "run") -> Ended:
    done = subprocess.run([sys.executable, "-c", PROGRAM, command, "--json"], capture_output=True, text=True, check=True)
    *_, result, loaded = done.stdout.splitlines()
    code, jvm, dagster, pandas = json.loads(loaded)
    assert code == 0, done.stdout + done.stderr
    return Ended(json.loads(result), jvm, dagster, pandas, done.stderr)


@contextmanager
def server_that_died(settings: Settings) -> Iterator[None]:
    """As it is for a while when `game-events up` has lost its server: connections are accepted, and closed."""
    socket = PrivateSocket(process_temporary_folder().path / f"died-{os.getpid()}", lambda: None)
    publish(settings, socket.address, "token")
    try:
        yield
    finally:
        socket.close()


def daemons(server: ServerProcess) -> list[psutil.Process]:
    """The processes that fork Python workers for a JVM."""
    started = psutil.Process(server.pid).children()
    return [process for process in started if process.status() != psutil.STATUS_ZOMBIE and DAEMON in process.cmdline()]


def value_in_workers(warm: WarmSpark, folder: Path, value: str) -> str:
    """What a worker finds in a file that a run's session ships, as the file is now."""
    file = folder / "shipped_by_the_user.py"
    is_edited = file.exists()
    file.write_text(f"VALUE = {value!r}")
    if not is_edited:  # it was there before the server
        os.utime(file, (1, 1))

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        module = importlib.import_module("shipped_by_the_user")
        yield from (pa.RecordBatch.from_pydict({"value": [module.VALUE]}) for _ in batches)

    with pytest.MonkeyPatch.context() as patch:
        for name, text in warm.environment.items():
            patch.setenv(name, text)
        patch.setenv("GAME_EVENTS_SPARK_PY_FILES", str(file))
        patch.setenv(CONNECT_MODE, os.environ.get(CONNECT_MODE, ""))
        session = new_session(load_settings())
        try:
            (row,) = session.range(0, 1, 1, 1).mapInArrow(look, "value string").collect()
        finally:
            close_session(session)
    return str(row["value"])


@pytest.mark.scenario
def test_a_run_has_its_own_jvm_the_shared_one_or_none(settings: Settings, tmp_path: Path) -> None:
    send_events(settings, [Event("uno", 1), Event("go", 1)])
    first = run()
    assert (first.jvm, first.dagster, first.result["rows"]["silver"]) == (True, True, 2)

    idle = run()
    assert (idle.jvm, idle.dagster, idle.pandas) == (False, False, False)
    assert idle.result.keys() == first.result.keys()
    assert (idle.result["success"], idle.result["run_id"], idle.result["tables"]) == (True, None, {})

    doctor = run("doctor")
    assert (doctor.result["success"], doctor.jvm, doctor.dagster, doctor.pandas) == (True, False, False, False)

    warm = WarmSpark(settings, print)
    warm.start()
    try:
        # A run waits for a server that starts, but for longer than these have patience.
        files = settings.state_dir / "spark"
        until((files / "connect.ready").exists, 120)
        server = ServerProcess.model_validate_json((files / "connect.json").read_text())
        for _ in range(2):
            send_events(settings, [Event("uno", 2)])
            shared = run()
            assert (shared.jvm, shared.dagster, shared.result["rows"]["silver"]) == (False, True, 1)
        assert len(daemons(server)) == 1, "each run leaves processes on the server"
        assert value_in_workers(warm, tmp_path, "first") == "first"
        with pytest.raises(ConfigurationError, match=r"shipped_by_the_user\.py was edited after"):
            value_in_workers(warm, tmp_path, "other")
        assert len(daemons(server)) == 1
    finally:
        warm.end()

    send_events(settings, [Event("uno", 3)])
    with server_that_died(settings):
        alone = run()
    assert (alone.jvm, alone.result["rows"]["silver"]) == (True, 1)
    assert "goes on without the shared Spark server" in alone.err
