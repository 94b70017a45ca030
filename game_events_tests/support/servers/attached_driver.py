"""A driver in a process of its own on the Spark JVM of the tests, so that killing it costs no start of a JVM.

It dies as a driver of a cluster does: its Python is gone at once, a Spark job under way goes on for nobody. What a kill does to
a driver with a JVM of its own is tried apart, with the command line. Drivers are forked off a process that has imported
everything and done nothing (multiprocessing's fork server): one comes up in a tenth of a second, not in six.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from pyspark.sql import SparkSession

from game_events.cli.main import main
from game_events.config.settings import Settings, load_settings
from game_events.lakehouse import failpoints
from game_events.lakehouse.storage import spark_options
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.loop import Loop
from game_events.pipeline.runs.refresh import refresh, refresh_downstream, replay_and_refresh
from game_events.plugins.export.run import export_rows
from game_events.plugins.files.archive import archive
from game_events.plugins.governance.run import erase
from game_events_tests.support.killing.sitecustomize import VARIABLE, kill_at
from game_events_tests.support.servers.shared_servers import Gateway, attached

MEET = "GAME_EVENTS_TESTS_MEET"
#: Whom the work `forget` forgets, where it is not told in words.
GAMER = "GAME_EVENTS_TESTS_GAMER"
#: Where rivals hold files that are not committed.
MEETINGS = ("bronze_staged", "silver_staged", "gold_staged", "unified_staged")
#: A driver that lost every row to a rival comes to no later meeting: the others go on without it. To the first one all come.
MEETING_S = 5.0
FIRST_MEETING_S = 600.0
_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload([__name__])


class Driver:
    """A driver that was started, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid
        self.kill = process.kill

    def poll(self) -> int | None:
        """Its exit code; minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("driver", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """As `os.kill`."""
        assert self.pid is not None
        os.kill(self.pid, number)


def start_driver(
    settings: Settings,
    spark: SparkSession | None,
    log: Path,
    crash_at: str = "",
    work: str = "run",
    meet: str = "",
    gamer: str = "",
    **more: str,
) -> Driver:
    """Start one.

    Args:
        settings: whose topic and tables.
        spark: the session whose JVM it uses; None: the work needs none.
        log: its output.
        crash_at: where SIGKILL ends it.
        work: a name of `WORK`.
        meet: ``folder:number``: at each point of `MEETINGS` it waits for so many drivers.
        gamer: whom to forget.
        more: further settings.
    """
    gateway = None
    if spark is not None:
        found = spark.sparkContext._gateway.gateway_parameters
        gateway = Gateway(port=found.port, token=found.auth_token)
    named = {
        "kafka_bootstrap_servers": settings.kafka_bootstrap_servers,
        "schema_registry_url": settings.schema_registry_url,
        "kafka_topic": settings.kafka_topic,
        "lakehouse": settings.lakehouse,
        "state_dir": str(settings.state_dir),
        "max_records_per_batch": str(settings.max_records_per_batch),
        "allow_bronze_full_refresh": str(settings.allow_bronze_full_refresh),
        **more,
    }
    environment = os.environ | {f"GAME_EVENTS_{key.upper()}": value for key, value in named.items()}
    environment |= {VARIABLE: crash_at, MEET: meet, GAMER: gamer}
    process = _fork_server.Process(target=_drive, args=(gateway, environment, log, work))
    process.start()
    return Driver(process)


def _drive(gateway: Gateway | None, environment: dict[str, str], log: Path, work: str) -> None:
    """What the driver's process does."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("wb", buffering=0) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    if os.environ[VARIABLE]:
        kill_at(os.environ[VARIABLE])
    if os.environ[MEET]:
        place, _, drivers = os.environ[MEET].rpartition(":")
        meet_at_points(Path(place), int(drivers))

    settings = load_settings()

    @cache
    def session() -> SparkSession:
        assert gateway is not None, "no Spark is needed"
        spark = attached(gateway).__enter__()
        # The shared JVM is told of the test's object store as one of the driver's own would be from the start.
        for key, value in spark_options(settings).items():
            spark.conf.set(key.removeprefix("spark.hadoop."), value)
        return spark

    WORK[work](Pipeline(settings, session), RunReport())


def run(pipeline: Pipeline, report: RunReport) -> None:
    """What `game-events run` does, its event log too."""
    with recorded(pipeline, report, "refresh"):
        refresh(pipeline, report)


def loop(pipeline: Pipeline, _: RunReport) -> None:
    """Continuous mode, until SIGTERM."""
    live = Loop(pipeline)
    signal.signal(signal.SIGTERM, lambda *_: live.stop.set())
    live.run()


def command(pipeline: Pipeline, _: RunReport, arguments: Sequence[str]) -> None:
    """A command of `game-events`."""
    assert pipeline.spark, "it is the one that commands find"
    sys.argv = ["game-events", *arguments]
    main()


def meet_at_points(folder: Path, number: int) -> None:
    """Wait at each meeting, when this driver first comes there, until as many have."""
    handler = failpoints.handler
    met: set[str] = set()

    def meeting(name: str, detail: object) -> None:
        if name in MEETINGS and name not in met:
            met.add(name)
            (folder / f"{name}-{os.getpid()}").touch()
            until = time.monotonic() + (FIRST_MEETING_S if name == MEETINGS[0] else MEETING_S)
            while len(list(folder.glob(f"{name}-*"))) < number and time.monotonic() < until:
                time.sleep(0.01)
        handler(name, detail)

    failpoints.handler = meeting


WORK = {
    "run": run,
    "replace_bronze": replace_bronze,
    "redecode": redecode,
    "export": export_rows,
    "maintain": partial(maintain, layout=True),
    "replay": lambda pipeline, report: replay_and_refresh(pipeline, report, ReplaySelection()),
    "archive": lambda pipeline, report: archive(pipeline, report, f"{pipeline.settings.state_dir}/archive"),
    "forget": lambda pipeline, report: erase(pipeline, report, frozenset({os.environ[GAMER]})),
    "loop": loop,
    "continuous_command": partial(command, arguments=("run", "--continuous")),
    "replace_silver": lambda pipeline, report: refresh_downstream(pipeline, report, full=True),
}
