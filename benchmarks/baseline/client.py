"""Keeps the baseline's process alive and warm between turns; requests and answers are lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arena import WARM_EVENTS, Arena
from benchmarks.baseline.environment import environment
from benchmarks.layers import whole_topic
from game_events.producer.schema_versions import MESSAGE_NAME, compile_text, schema_text
from game_events.sources.kafka import Slice

JOB = Path(__file__).parent / "job.py"
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Result:
    """Seconds of bronze, seconds of the games done, rows of bronze."""

    bronze_s: float
    games_s: float
    bronze_rows: int


@dataclass(frozen=True)
class Baseline:
    """The running process."""

    process: subprocess.Popen[str]
    log: Path
    servers: str
    descriptor: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def run(self, part: Slice, games: list[str], root: Path) -> Result:
        """Do the baseline's work on a slice."""
        request = {
            "servers": self.servers,
            "assign": json.dumps({part.topic: sorted(part.end)}),
            "start": json.dumps({part.topic: {str(p): o for p, o in part.start.items()}}),
            "end": json.dumps({part.topic: {str(p): o for p, o in part.end.items()}}),
            "descriptor": str(self.descriptor),
            "message": MESSAGE_NAME,
            "games": games,
            "root": str(root),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the baseline's process ended: {self.log.read_text()[-2000:]}")
        return Result(**json.loads(line))


@contextmanager
def baseline(arena: Arena) -> Iterator[Baseline]:
    """Start the process, warm it up, and end it afterwards."""
    made = environment(arena.say)
    log, descriptor = arena.folder / "baseline.log", arena.folder / "version2.desc"
    descriptor.write_bytes(compile_text(schema_text(2)).SerializeToString())
    # Its workers, if any, must be its own interpreter; ours is named in this process's environment.
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    command = [str(made.python), str(JOB), ",".join(map(str, made.jars))]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=own, cwd=arena.folder
        )
    arena.foreign.add(process.pid)
    try:
        warm = arena.topic(10, min(WARM_EVENTS, arena.events))
        with arena.lakehouse() as unused:
            pipeline = arena.pipeline(warm, unused)
        plain = Baseline(process, log, pipeline.settings.kafka_bootstrap_servers, descriptor)
        arena.say("warming up the baseline")
        for _ in range(2):
            with arena.lakehouse() as root:
                plain.run(whole_topic(pipeline), [f"game_{number:04d}" for number in range(1, 11)], root)
        yield plain
    finally:
        # The end of its input ends it, JVM included.
        with suppress(OSError):
            process.communicate(timeout=STOP_TIMEOUT_S)
        if process.poll() is None:
            process.kill()
            process.wait()
