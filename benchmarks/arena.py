"""Where a run happens: a temporary folder, a local stack, topics, one warm Spark session; all gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from benchmarks.figures import Measured, Step
from benchmarks.memory import peak_of
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings, settings_class
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.plugins.local.servers import local_stack
from game_events.spark.config import spark_config

PARTITIONS = 8
WARM_EVENTS = 200_000
#: Of topics with distinct events: gamers of each game, and events that are made at a time.
DISTINCT_GAMERS, DISTINCT_PART = 100_000, 125_000
#: A user's settings must not reach a benchmark; these two say where things are, not what runs.
_KEPT = (f"{ENV_PREFIX}CACHE",)


def settings_for(folder: Path, topic: str, lakehouse: Path) -> Settings:
    """Defaults but for the places: neither the environment nor files of the working directory change them."""
    for key in [k for k in os.environ if k.startswith(ENV_PREFIX) and k not in _KEPT]:
        del os.environ[key]
    nothing = folder / "no-settings.yaml"
    nothing.touch()
    os.environ[f"{ENV_PREFIX}CONFIG"] = str(nothing)
    return settings_class()(_env_file=None, state_dir=folder / "state", kafka_topic=topic, lakehouse=str(lakehouse))


def make_spark(settings: Settings) -> SparkSession:
    """A session as the project makes it."""
    builder = SparkSession.builder
    for key, value in spark_config(settings).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@dataclass
class Arena:
    """Parts that scenarios share.

    Attributes:
        folder: everything written is below it.
        events, pairs: size and repetitions.
        say: called with what is under way.
        servers: process ids of broker and registry, which no figure counts.
        closing: what must be closed at the end.
        seconds: how long events arrive in continuous mode.
    """

    folder: Path
    events: int
    pairs: int
    say: Callable[[str], None]
    servers: tuple[int, ...]
    closing: ExitStack
    seconds: float = 300.0
    measured: Measured = field(default_factory=Measured)
    #: Name -> bad records.
    _topics: dict[str, int] = field(default_factory=dict)

    def topic(
        self,
        games: int,
        events: int | None = None,
        hot_share: float | None = None,
        bad_share: float = 0.0,
        *,
        distinct: bool = False,
        more_bytes: int = 0,
    ) -> str:
        """A topic with that many events of two schema versions; made at the first call.

        Args:
            games, events: how many; events: as many as the scenarios' by default.
            hot_share, bad_share, more_bytes: as `BulkSimulation` has them.
            distinct: each event is another one, of 100,000 gamers a game; otherwise 100,000 events of 100 gamers are repeated.
        """
        count = events or self.events
        name = f"bench_{games}_games_{count}" + ("_distinct" if distinct else "") + (f"_{more_bytes}" if more_bytes else "")
        for what, share in (("hot", hot_share), ("bad", bad_share)):
            name += f"_{what}_{share:g}".replace(".", "_") if share else ""
        if name not in self._topics:
            shares: dict[str, Any] = {"hot_share": hot_share, "bad_share": bad_share}
            self._topics[name] = self.produce(name, count, games, distinct=distinct, **shares, more_bytes=more_bytes)
        return name

    def produce(self, topic: str, count: int, games: int, seed: int = 0, *, distinct: bool = False, **more: Any) -> int:  # noqa: ANN401 - fields of the simulation
        """Send so many events, `more` as `BulkSimulation` has it; returns how many of them nobody can decode.

        The same seed sends the same events. Distinct ones are made part by part, as a part is in memory, by several processes.
        """
        self.say(f"producing {count:,} events of {games:,} games" + (", each another one" if distinct else ""))
        settings = settings_for(self.folder, topic, self.folder / "unused")
        part = min(count, DISTINCT_PART) if distinct else count
        if distinct:
            more |= {"gamers_per_game": DISTINCT_GAMERS, "pool_per_version": part}
        parts = [
            BulkSimulation(records=min(part, count - start), games=games, versions=2, seed=seed + start, **more)
            for start in range(0, count, part)
        ]
        # The first part makes the topic.
        bad = _send(settings, parts[0])
        if len(parts) > 1:
            processes = ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("forkserver"))
            with processes:
                bad += sum(processes.map(_send, repeat(settings), parts[1:]))
        return bad

    def bad_records(self, topic: str) -> int:
        """How many records of a topic nobody can decode."""
        return self._topics[topic]

    @cached_property
    def spark(self) -> SparkSession:
        """The session, warmed up: JVM, Python workers, and every layer's code paths."""
        topic = self.topic(10, min(WARM_EVENTS, self.events))
        self.say("warming up Spark")
        session = make_spark(settings_for(self.folder, topic, self.folder / "unused"))
        self.closing.callback(_stop, session)
        for _ in range(2):
            with self.lakehouse() as root:
                refresh(Pipeline(settings_for(self.folder, topic, root), lambda: session))
        return session

    @contextmanager
    def lakehouse(self) -> Iterator[Path]:
        """A fresh root, removed afterwards."""
        root = self.folder / f"lake-{uuid4().hex[:8]}"
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def pipeline(self, topic: str, lakehouse: Path, **settings: object) -> Pipeline:
        """New parts, as a new run has them; only the session is shared."""
        chosen = settings_for(self.folder, topic, lakehouse).model_copy(update=settings)
        return Pipeline(chosen, lambda: self.spark)

    def timed(self, name: str, games: int, pair: int, work: Callable[[], object], events: int | None = None) -> Step:
        """Measure a step that runs in this process's session."""
        _ = self.spark  # made and warmed before the clock runs
        with peak_of(os.getpid(), self.excluded) as peak:
            began = time.monotonic()
            work()
            seconds = time.monotonic() - began
        return self.add(Step(name, games, pair, events or self.events, seconds, peak.mib, peak.cpu_s))

    def add(self, step: Step) -> Step:
        """Note a step, unless it is of a round that warms up (a negative number)."""
        if step.pair >= 0:
            self.measured.steps.append(step)
        peak = f", peak {step.peak_mib:,.0f} MiB" if step.peak_mib else ""
        self.say(f"  {step.label}: {step.seconds:.2f} s, processor {step.cpu_s:.1f} s{peak}")
        return step

    @property
    def excluded(self) -> set[int]:
        """Processes below this one that are not what is measured."""
        return {*self.servers, *self.foreign}

    @cached_property
    def foreign(self) -> set[int]:
        """Further processes to leave out (the peers')."""
        return set()


@contextmanager
def arena(events: int, pairs: int, say: Callable[[str], None], seconds: float = 300.0) -> Iterator[Arena]:
    """Set everything up, and take it down whatever happens."""
    with ExitStack() as closing:
        folder = Path(tempfile.mkdtemp(prefix="game-events-bench-"))
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        closing.callback(_down, folder)
        state = local_stack.up(folder / "state", on_progress=say)
        servers = tuple(server.pid for server in (state.kafka, state.registry) if server is not None)
        yield Arena(folder, events, pairs, say, servers, closing, seconds)


def _send(settings: Settings, simulation: BulkSimulation) -> int:
    """Send a simulation's events; returns how many nobody can decode."""
    manifest = produce_bulk(settings, simulation, partitions=PARTITIONS)
    assert manifest.records_total == simulation.records, f"{manifest.records_total} of {simulation.records} were produced"
    return sum(manifest.poison.values())


def _down(folder: Path) -> None:
    with suppress(OSError):
        local_stack.down(folder / "state", delete_data=True)


def _stop(session: SparkSession) -> None:
    """A signal to the whole process group has ended the JVM already; that must not hide why."""
    with suppress(OSError, Py4JError):
        session.stop()
