"""Two workers of a standalone cluster against one, each held to one core, over the same records in turns.

Driver, broker and registry are held to the cores of the workers, too. Otherwise they would have a core of their own beside one
worker, and none beside two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from benchmarks.arena import Arena, make_spark, settings_for
from benchmarks.figures import Figure, Step, Target, ratio
from game_events.config.settings import Settings
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.refresh import refresh
from game_events.spark.config import ship_code
from game_events_tests.support.servers.standalone import StandaloneCluster

GAMES = 10
#: Rounds that are left out: the executors compile what they run often.
WARM = 2
COUNTS = (1, 2)
EXECUTOR = {"spark.executor.cores": "1", "spark.executor.memory": "1g", "spark.authenticate": "true"}


def workers(arena: Arena) -> list[Figure]:
    """The whole graph on a new lakehouse each time."""
    topic = arena.topic(GAMES)
    with ExitStack() as stack:
        drivers = {count: stack.enter_context(_driver(arena, topic, count)) for count in COUNTS}
        for pair in range(-WARM, arena.pairs):
            for count, driver in drivers.items():
                _hold([*arena.servers, driver.pid], set(range(count)))
                with arena.lakehouse() as root:
                    seconds = _refreshed(driver, root, arena.events)
                arena.add(Step(_name(count), GAMES, pair, arena.events, seconds, 0.0, 0.0))
    one, two = (arena.measured.seconds([_name(count)], GAMES) for count in COUNTS)
    figures = [arena.measured.rate(_name(count), GAMES) for count in COUNTS]
    return [*figures, ratio(f"one worker's time / two workers', {GAMES} games", one, two, Target(">=", 1.8))]


def _name(count: int) -> str:
    return f"whole graph, {count} worker{'s' if count > 1 else ''} of one core"


def _hold(roots: Sequence[int], cores: Set[int]) -> None:
    """Hold processes and all below them to some cores; what their threads start is held, too."""
    for root in roots:
        for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)


@contextmanager
def _driver(arena: Arena, topic: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """A cluster with so many workers, and the process of its driver, which waits for requests."""
    folder = arena.folder / f"cluster-{count}"
    cluster = StandaloneCluster.start(folder, count)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        for core, worker in enumerate(cluster.workers):
            _hold([worker.pid], {core})
        command = [sys.executable, "-m", "benchmarks.workers", str(arena.folder), topic, cluster.url]
        environment = os.environ | {"SPARK_CONF_DIR": str(cluster.conf)}
        errors = stack.enter_context((folder / "driver.log").open("w"))
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        arena.foreign.add(process.pid)
        try:
            yield process
        finally:
            # The end of its input ends it.
            process.communicate(timeout=60)


def _refreshed(driver: subprocess.Popen[str], root: Path, events: int) -> float:
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write(f"{root}\n")
    driver.stdin.flush()
    answer = driver.stdout.readline()
    assert answer, "the driver has ended"
    result = json.loads(answer)
    assert result["silver"] == events, f"silver has {result['silver']} of {events} rows"
    return float(result["seconds"])


def main(folder: Path, topic: str, master: str) -> None:
    """The driver: a refresh for each line of the input, which names a lakehouse."""

    def settings(root: str) -> Settings:
        own = settings_for(folder, topic, Path(root))
        return own.model_copy(update={"spark_master": master, "spark_conf": EXECUTOR})

    @cache
    def spark() -> SparkSession:
        own = settings("unused")
        session = make_spark(own)
        ship_code(session, own)
        return session

    for line in sys.stdin:
        report = refresh(Pipeline(settings(line.strip()), spark))
        assert report.success, report.errors
        print(json.dumps({"silver": report.rows("silver"), "seconds": sum(report.seconds.values())}), flush=True)
    spark().stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
