"""Keeps the baseline's process alive and warm between turns; requests and answers are lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arena import WARM_EVENTS, Arena
from benchmarks.baseline.environment import environment
from benchmarks.layers import whole_topic
from game_events.producer.message_type import BUILT_IN, compile_text
from game_events.sources.core.source import MicroBatch

JOB = Path(__file__).parent / "job.py"
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Result:
    """Seconds of bronze, seconds of the games done, rows of bronze."""

    bronze_s: float
    games_s: float
    bronze_rows: int


@dataclass(frozen=True)
class Decoded:
    """Seconds of reading the file alone, and of reading and decoding it."""

    scan_s: float
    decode_s: float


@dataclass(frozen=True)
class Job:
    """The running process."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def decode(self, payloads: Path, descriptor: Path, message: str) -> Decoded:
        """Decode column `payload` of a Parquet file."""
        paths = {"payloads": str(payloads), "descriptor": str(descriptor)}
        return Decoded(**self.ask({"kind": "decode", "message": message, **paths}))

    def ask(self, request: dict[str, object]) -> dict[str, Any]:
        """One request, one answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the baseline's process ended: {self.log.read_text()[-2000:]}")
        return dict(json.loads(line))


@dataclass(frozen=True)
class Baseline:
    """The job and what its runs of the graph have in common."""

    job: Job
    servers: str
    descriptor: Path

    @property
    def pid(self) -> int:
        return self.job.pid

    def run(self, part: MicroBatch, games: list[str], root: Path) -> Result:
        """Do the baseline's work on a slice."""
        topic = min(part.end).topic
        request: dict[str, object] = {
            "kind": "graph",
            "servers": self.servers,
            "assign": json.dumps({topic: sorted(p.partition for p in part.end)}),
            "start": json.dumps({topic: {str(p.partition): o for p, o in part.start.items()}}),
            "end": json.dumps({topic: {str(p.partition): o for p, o in part.end.items()}}),
            "descriptor": str(self.descriptor),
            "message": BUILT_IN.message_name,
            "games": games,
            "root": str(root),
        }
        return Result(**self.job.ask(request))


@contextmanager
def job(arena: Arena, master: str) -> Iterator[Job]:
    """Start the process and end it afterwards."""
    made = environment(arena.say)
    log = arena.folder / "baseline.log"
    # Its workers, if any, must be its own interpreter; ours is named in this process's environment.
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    command = [str(made.python), str(JOB), ",".join(map(str, made.jars)), master]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=own, cwd=arena.folder
        )
    arena.foreign.add(process.pid)
    try:
        yield Job(process, log)
    finally:
        # The end of its input ends it, JVM included.
        with suppress(OSError):
            process.communicate(timeout=STOP_TIMEOUT_S)
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def baseline(arena: Arena) -> Iterator[Baseline]:
    """The process with all cores, warmed up for the graph."""
    descriptor = arena.folder / "version2.desc"
    descriptor.write_bytes(compile_text(BUILT_IN.text(2)).SerializeToString())
    with job(arena, "local[*]") as process:
        warm = arena.topic(10, min(WARM_EVENTS, arena.events))
        with arena.lakehouse() as unused:
            pipeline = arena.pipeline(warm, unused)
        plain = Baseline(process, pipeline.settings.kafka_bootstrap_servers, descriptor)
        arena.say("warming up the baseline")
        for _ in range(2):
            with arena.lakehouse() as root:
                plain.run(whole_topic(pipeline), [f"game_{number:04d}" for number in range(1, 11)], root)
        yield plain
