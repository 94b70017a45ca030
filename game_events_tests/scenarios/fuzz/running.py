"""Runs sequences of steps, each in a world of its own, and makes those shorter that fail."""

from __future__ import annotations

import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.scenarios.fuzz.feeds import Feed, Files, Topic
from game_events_tests.scenarios.fuzz.steps import DifferenceError, Step
from game_events_tests.scenarios.fuzz.world import World, tiny

FILES, KAFKA = SOURCES = ("files", "kafka")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A sequence after which the tables are not what they must be.

    Attributes:
        steps: up to the one that found it.
        difference: what is wrong; the traceback of an error that is none of the project's own.
        log: what has happened.
    """

    steps: Sequence[Step]
    difference: str
    log: Sequence[str]

    def __str__(self) -> str:
        replayed = " ".join(map(str, self.steps))
        happened = "\n".join(self.log)
        return f"{happened}\n\n{self.difference}\n\nagain: --replay '{replayed}'"


class Fuzz:
    """Worlds of one source on one session; `stack`: for Kafka; `killed`, `met`: those of all worlds."""

    def __init__(self, spark: SparkSession, source: str, stack: StackState | None, say: Say = lambda _: None) -> None:
        self.killed, self.met = Counter[str](), Counter[str]()
        self._spark, self._source, self._stack, self._say = spark, source, stack, say

    def failure(self, steps: Sequence[Step], until: float = float("inf")) -> Failure | None:
        """Do the steps in a new world, as long as there is time (`time.monotonic`); None: all was right."""
        folder = Path(tempfile.mkdtemp(prefix="game_events_fuzz_"))
        world = World(folder, self._spark, self._feed(folder), self._say)
        done: list[Step] = []
        try:
            with tiny():
                for step in steps:
                    if time.monotonic() > until:
                        break
                    done.append(step)
                    step.do(world)
        except DifferenceError as difference:
            return Failure(done, str(difference), world.log)
        except Exception:  # noqa: BLE001 - it is what is looked for
            return Failure(done, traceback.format_exc(), world.log)
        finally:
            self.killed += world.killed
            self.met += world.met
            world.close()
        return None

    def _feed(self, folder: Path) -> Feed:
        if self._source == FILES:
            return Files(folder)
        assert self._stack is not None
        return Topic(self._stack, f"fuzz_{uuid.uuid4().hex[:8]}")

    def shorter(self, failure: Failure, until: float) -> Failure:
        """A shorter sequence that fails, too: ever smaller parts of it are left out, while there is time."""
        size = len(failure.steps) // 2
        while size and time.monotonic() < until:
            begin = 0
            while begin < len(failure.steps) - 1 and time.monotonic() < until:
                end = min(begin + size, len(failure.steps) - 1)  # the last one finds it
                found = self.failure([*failure.steps[:begin], *failure.steps[end:]])
                failure, begin = (found, begin) if found is not None else (failure, end)
            size //= 2
        return failure
