"""Continuous mode: a producer at a steady rate, the command line's loop in a process of its own, and an independent reader.

Latency is computed from the tables alone: from each silver row's `_kafka_timestamp` to the timestamp in Delta's log of the
commit that brought it, and of the first gold commit that contains its batch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from deltalake import DeltaTable

from benchmarks.arena import Arena, settings_for
from benchmarks.commit_watch import CommitWatch
from benchmarks.figures import Figure, Step, Target
from benchmarks.memory import MEASURE, tree_cpu_s, tree_handles, tree_parts_mib
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings
from game_events.pipeline.offsets import next_offsets
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.sources.factory import make_source
from game_events.sources.source import Source
from game_events_tests.support.commands import GAME_EVENTS

GAMES = 10
RATE = 5_000
GOLD_INTERVAL_S = 1
#: Hours that old files and log entries stay: so short that what stays the same after that time shows within half an hour.
RETENTION_H = 0.1
WARM_EVENTS = 20_000
WARM_S = 20.0
SAMPLE_S = 5.0
START_S = STOP_S = 180.0


@dataclass
class Samples:
    """What was seen every few seconds while events arrived."""

    mib: dict[str, list[float]] = field(default_factory=dict)
    handles: list[int] = field(default_factory=list)
    log_mib: list[float] = field(default_factory=list)
    lag: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    @property
    def total_mib(self) -> list[float]:
        """Of all processes together."""
        return [sum(parts) for parts in zip(*self.mib.values(), strict=True)]


@dataclass(frozen=True)
class Stream:
    """What arrives: events of so many games, each of so many gamers."""

    games: int
    gamers: int = 100

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.games:,} games, {self.games * self.gamers:,} gamers"


FEW, MANY = Stream(GAMES), Stream(200, 1_000)
#: Goals of the few.
CORES, P50, P95 = Target("<=", 0.4), Target("<=", 0.8), Target("<=", 1.3)


def continuous(arena: Arena) -> list[Figure]:
    """Latency, cores, lag, memory and the time of a cycle while 5,000 events arrive each second."""
    found = _followed(arena, FEW)
    return [*_speed(found, (CORES, P50, P95)), *_behaviour(found)]


def continuous_many(arena: Arena) -> list[Figure]:
    """Latency, cores and memory with many games and gamers."""
    found = _followed(arena, MANY)
    memory = Figure(
        "memory", "GiB", [mib / 1024 for mib in found.samples.total_mib], note=f"{MEASURE} of driver, JVM and workers"
    )
    return [*_speed(found, (None, None, None)), memory]


@dataclass
class Followed:
    """What a loop did while events arrived: latencies (s), times between bronze's commits (s), cores, samples, its report."""

    stream: Stream
    silver: np.ndarray
    gold: np.ndarray
    cycles: np.ndarray
    cores: float
    samples: Samples
    report: dict[str, Any]


def _followed(arena: Arena, stream: Stream) -> Followed:
    topic = f"steady_{stream.games}_games"
    with arena.lakehouse() as root:
        settings = settings_for(arena.folder, topic, root)
        simulation = BulkSimulation(records=WARM_EVENTS, games=stream.games, versions=2, gamers_per_game=stream.gamers)
        warm = produce_bulk(settings, simulation, partitions=8)
        arena.say(f"continuous mode: {RATE:,} events/s of {stream.label} for {arena.seconds:.0f} s")
        with loop_process(arena, settings) as loop:
            until(lambda: rows_of(root, "silver") == WARM_EVENTS and rows_of(root, "gold"), "the warm-up", loop)
            time.sleep(min(WARM_S, arena.seconds / 4))
            # Whatever is stamped from now on is what is followed: the producer's first events are sent before the clock runs.
            watch = CommitWatch(root, time.time())
            with steady_producer(arena, settings, RATE, arena.seconds, stream) as producer:
                spent, began = tree_cpu_s(loop.pid), time.time()
                sent, samples = _produced(arena, settings, loop, watch, producer)
            ended, processor = time.time(), tree_cpu_s(loop.pid) - spent
            until(lambda: rows_of(root, "silver") == sent + warm.records_total, "the last rows in silver", loop)
            time.sleep(3 * GOLD_INTERVAL_S)
            loop.send_signal(signal.SIGINT)
            out, _ = loop.communicate(timeout=STOP_S)
        assert loop.returncode == 0, (arena.folder / "loop.err").read_text()[-2000:]
        report = json.loads(out.splitlines()[-1])
        assert report["rows"]["silver"] == sent + warm.records_total
        watch.look()
        silver, gold = watch.latencies()
        assert len(silver) == len(gold) == sent, f"{len(silver)} and {len(gold)} of {sent} rows were found"
        cycles = np.diff(np.array(sorted(at for at in watch.bronze if began <= at <= ended)))
    peak = max(samples.total_mib)
    arena.add(Step("continuous", stream.games, 0, sent, ended - began, peak, processor, f"{len(cycles)} cycles"))
    return Followed(stream, silver, gold, cycles, processor / (ended - began), samples, report)


def _speed(found: Followed, goals: tuple[Target | None, Target | None, Target | None]) -> list[Figure]:
    """Latency and cores."""
    inside, (cores, p50, p95), figures = found.report["latency"], goals, list[Figure]()
    note = f"{found.stream.label}; {found.cores / RATE * 1e6:.0f} us an event"
    figures.append(Figure(f"cores used at {RATE:,} events/s", "cores", [found.cores], cores, note))
    for layer, seconds in (("silver", found.silver), ("gold", found.gold)):
        spread = np.percentile(seconds, range(1, 100)).tolist()
        own = f"the loop's own figures: p50 {inside[layer]['p50_s']}, p95 {inside[layer]['p95_s']}"
        middle = f"produce to {layer}, p50 (samples: percentiles 1 to 99)"
        figures.append(Figure(middle, "s", spread, p50 if layer == "gold" else None, own))
        late = [float(np.percentile(seconds, 95))]
        figures.append(Figure(f"produce to {layer}, p95", "s", late, p95 if layer == "gold" else None))
    return figures


def _behaviour(found: Followed) -> list[Figure]:
    """What may grow while a loop runs for long."""
    figures, cycles, samples = list[Figure](), found.cycles, found.samples
    thirds = np.array_split(cycles, 3)
    for name, part in zip(("first", "middle", "last"), thirds, strict=True):
        figures.append(Figure(f"time between bronze's commits, {name} third", "s", part.tolist()))
    early, late = (float(np.median(part)) for part in (thirds[0], thirds[2]))
    figures.append(Figure("time of a cycle, last third / first third", "x", [late / early]))
    figures.append(Figure("lag while events arrive", "k records", [n / 1000 for n in samples.lag]))
    figures += _thirds("memory", "GiB", [m / 1024 for m in samples.total_mib], f"{MEASURE} of driver, JVM and workers")
    for owner, mib in samples.mib.items():
        figures += _thirds(f"memory of the {owner}", "GiB", [m / 1024 for m in mib])
    note = f"logs included; retention {RETENTION_H} h"
    figures += _thirds("files below the lakehouse", "files", [float(n) for n in samples.files], note)
    figures += _thirds("open files and sockets", "handles", [float(n) for n in samples.handles])
    figures += _thirds("log and Dagster's storage", "MiB", samples.log_mib)
    return figures


def _mib(files: list[Path]) -> float:
    total = 0
    for file in files:
        with suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total / 2**20


def _thirds(name: str, unit: str, values: list[float], note: str = "") -> list[Figure]:
    """All samples, and how the last third of the time compares with the middle one."""
    _, middle, last = (float(np.median(part)) for part in np.array_split(np.array(values), 3))
    return [Figure(name, unit, values, note=note), Figure(f"{name}, last third / middle third", "x", [last / middle])]


@contextmanager
def loop_process(arena: Arena, settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """`game-events run --continuous` as a user starts it, with these settings and defaults otherwise."""
    environment = os.environ | {
        f"{ENV_PREFIX}GOLD_INTERVAL_S": str(GOLD_INTERVAL_S),
        f"{ENV_PREFIX}EVERY_VERSION_H": str(RETENTION_H),
        f"{ENV_PREFIX}REPLACED_FILES_H": str(RETENTION_H),
        f"{ENV_PREFIX}DERIVED_REPLACED_FILES_H": str(RETENTION_H),
        "DAGSTER_HOME": str(arena.folder / "dagster"),
        **{
            f"{ENV_PREFIX}{key.upper()}": str(getattr(settings, key))
            for key in ("kafka_bootstrap_servers", "schema_registry_url", "kafka_topic", "lakehouse", "state_dir")
        },
    }
    (arena.folder / "dagster").mkdir(exist_ok=True)
    command = [*GAME_EVENTS, "run", "--continuous", "--json"]
    with (arena.folder / "loop.err").open("w") as err:
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()


@contextmanager
def steady_producer(
    arena: Arena, settings: Settings, rate: int, seconds: float, stream: Stream = FEW
) -> Iterator[subprocess.Popen[str]]:
    """A process that sends so many events a second from now on; the last line that it prints is how many."""
    shape = [str(stream.games), str(stream.gamers)]
    command = [
        sys.executable,
        "-m",
        "benchmarks.steady",
        str(arena.folder),
        settings.kafka_topic,
        *shape,
        str(rate),
        str(seconds),
    ]
    producer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert producer.stdin is not None
    assert producer.stdout is not None
    try:
        assert producer.stdout.readline() == "ready\n", "the producer did not start"
        producer.stdin.write("go\n")
        producer.stdin.flush()
        yield producer
    finally:
        if producer.poll() is None:
            producer.terminate()
            producer.wait()


def _produced(
    arena: Arena, settings: Settings, loop: subprocess.Popen[str], watch: CommitWatch, producer: subprocess.Popen[str]
) -> tuple[int, Samples]:
    """Look at the loop while the producer works. Returns the records it sent."""
    samples, topic = Samples(), make_source(settings)
    while producer.poll() is None:
        time.sleep(SAMPLE_S)
        assert loop.poll() is None, "the loop has ended"
        for part, mib in tree_parts_mib(loop.pid).items():
            samples.mib.setdefault(part, []).append(mib)
        samples.handles.append(tree_handles(loop.pid))
        watch.look()
        samples.lag.append(lag_of(topic, settings))
        samples.files.append(sum(len(files) for _, _, files in os.walk(settings.lakehouse)))
        samples.log_mib.append(_mib([arena.folder / "loop.err", *(arena.folder / "dagster").rglob("*")]))
    out, _ = producer.communicate()
    return int(out.splitlines()[-1]), samples


def lag_of(topic: Source, settings: Settings) -> int:
    """Records of the topic that are not in bronze yet."""
    now = topic.snapshot()
    read = next_offsets(DeltaTable(f"{settings.lakehouse}/bronze_events"), now.latest)
    return sum(end - read[p] for p, end in now.latest.items())


def rows_of(root: Path, layer: str) -> int:
    """Rows of a layer's tables, from their logs."""
    folders = [f for f in root.glob(f"{layer}_*") if DeltaTable.is_deltatable(str(f))]
    return sum(sum(DeltaTable(str(f)).get_add_actions().column("num_records").to_pylist()) for f in folders)


def until(condition: object, what: str, loop: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():  # type: ignore[operator]
        assert loop.poll() is None, "the loop has ended"
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.5)
