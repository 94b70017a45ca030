"""A driver in a process of its own on the Spark session of the tests, so that killing it costs no start of a JVM.

It dies as a driver of a cluster does: its Python is gone at once, a Spark job under way goes on for nobody. What a kill does to
a driver with a JVM of its own is tried apart, with the command line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from game_events.lakehouse import crash_points
from game_events.pipeline.archive import archive
from game_events.pipeline.bronze_reset import replace_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure import forget
from game_events.pipeline.event_log import recorded
from game_events.pipeline.loop import Loop
from game_events.pipeline.redecode import redecode
from game_events.pipeline.refresh import refresh, refresh_downstream
from game_events.pipeline.replay import Selection
from game_events.pipeline.replay_rejected import replay_and_refresh
from game_events.pipeline.report import RunReport
from game_events.settings import Settings, load_settings

MEET = "GAME_EVENTS_TESTS_MEET"
#: Whom the work `forget` forgets, where it is not told in words.
GAMER = "GAME_EVENTS_TESTS_GAMER"
#: Where rivals hold files that are not committed.
MEETINGS = ("bronze_staged", "silver_staged", "gold_staged", "unified_staged")
#: A driver that lost every row to a rival comes to no later meeting: the others go on without it.
MEETING_S = 5.0


def start_driver(
    settings: Settings,
    spark: SparkSession,
    log: Path,
    crash_at: str = "",
    work: str = "run",
    meet: str = "",
    gamer: str = "",
    **more: str,
) -> subprocess.Popen[str]:
    """Start one.

    Args:
        settings: whose topic and tables.
        spark: the session whose JVM it uses.
        log: its output.
        crash_at: where SIGKILL ends it.
        work: a name of `WORK`.
        meet: ``folder:number``: at each point of `MEETINGS` it waits for so many drivers.
        gamer: whom to forget.
        more: further settings.
    """
    gateway = spark.sparkContext._gateway.gateway_parameters
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
    environment |= {
        crash_points.VARIABLE: crash_at,
        MEET: meet,
        GAMER: gamer,
        "PYSPARK_GATEWAY_PORT": str(gateway.port),
        "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
    }
    with log.open("w") as out:
        command = [sys.executable, "-m", "game_events_tests.guarantees.attached_driver", work]
        return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True)


@cache
def attached() -> SparkSession:
    """A session of its own in the JVM whose address stands in the environment: no setting of it is left to the tests."""
    gateway = launch_gateway()
    context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    return SparkSession(SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))).newSession()


def run(pipeline: Pipeline, report: RunReport) -> None:
    """What `game-events run` does, its event log too."""
    with recorded(pipeline, report, "refresh"):
        refresh(pipeline, report)


def loop(pipeline: Pipeline, _: RunReport) -> None:
    """Continuous mode, until SIGTERM."""
    live = Loop(pipeline)
    signal.signal(signal.SIGTERM, lambda *_: live.stop.set())
    live.run()


def meet_at_points(folder: Path, number: int) -> None:
    """Wait at each meeting, when this driver first comes there, until as many have."""
    reach = crash_points.reach
    met: set[str] = set()

    def meeting(name: str, detail: object = None) -> None:
        if name in MEETINGS and name not in met:
            met.add(name)
            (folder / f"{name}-{os.getpid()}").touch()
            until = time.monotonic() + MEETING_S
            while len(list(folder.glob(f"{name}-*"))) < number and time.monotonic() < until:
                time.sleep(0.01)
        reach(name, detail)

    crash_points.reach = meeting


WORK = {
    "run": run,
    "replace_bronze": replace_bronze,
    "redecode": redecode,
    "replay": lambda pipeline, report: replay_and_refresh(pipeline, report, Selection()),
    "archive": lambda pipeline, report: archive(pipeline, report, f"{pipeline.settings.state_dir}/archive"),
    "forget": lambda pipeline, report: forget(pipeline, report, frozenset({os.environ[GAMER]})),
    "loop": loop,
    "replace_silver": lambda pipeline, report: refresh_downstream(pipeline, report, full=True),
}


if __name__ == "__main__":
    if os.environ[MEET]:
        place, _, drivers = os.environ[MEET].rpartition(":")
        meet_at_points(Path(place), int(drivers))
    WORK[sys.argv[1]](Pipeline(load_settings(), attached), RunReport())
