"""State of continuous mode: the merged results of its cycles, and the loop's own figures."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from game_events.pipeline.reporting.latency import Histogram
from game_events.pipeline.reporting.report import RunReport

#: States of the loop.
STARTING, RUNNING, IDLE, PAUSED, WAITING, STOPPED = "starting", "running", "idle", "paused", "waiting", "stopped"
#: Cycles in the mean time that is shown as the latest.
RECENT_CYCLES = 30


@dataclass
class LoopReport:
    """One continuous run.

    Attributes:
        total: result of all cycles.
        state: starting, running, idle, paused (other work first), waiting (for a broker, registry or storage), stopped.
        why: what it is paused or waiting for.
        cycles: cycles that committed something.
        looks: polls of the topic that found no records.
        retries: attempts that failed and were repeated.
        cycle_s: time of a cycle.
        memory: MiB by part.
        handed_over: it ended at its time limit, and another run continues.
    """

    total: RunReport = field(default_factory=RunReport)
    state: str = STARTING
    why: str = ""
    cycles: int = 0
    looks: int = 0
    retries: int = 0
    cycle_s: Histogram = field(default_factory=Histogram)
    memory: dict[str, float] = field(default_factory=dict)
    handed_over: bool = False
    began_s: float = field(default_factory=time.time)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_CYCLES), repr=False)

    def add_cycle(self, report: RunReport, seconds: float) -> None:
        """Add a cycle; it counts if it committed something."""
        self.total.add(report)
        if not report.tables:
            return
        self.cycles += 1
        self.cycle_s.add(seconds)
        self._recent.append(seconds)

    @property
    def recent_cycle_s(self) -> float | None:
        """Mean time of the latest cycles."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def loop_dict(self) -> dict[str, object]:
        """The loop's own figures: plain types only."""
        cycles, recent = self.cycle_s.to_dict(), self.recent_cycle_s
        return {
            "state": self.state,
            "why": self.why,
            "seconds": round(time.time() - self.began_s, 1),
            "cycles": self.cycles,
            "looks": self.looks,
            "retries": self.retries,
            "cycle_s": {"p50": cycles["p50_s"], "p95": cycles["p95_s"], "latest": None if recent is None else round(recent, 2)},
            "memory_mib": self.memory,
            "handed_over": self.handed_over,
        }

    def to_dict(self) -> dict[str, object]:
        """The result of all cycles, with the loop's own figures under `continuous`."""
        return self.total.to_dict() | {"continuous": self.loop_dict()}

    def summary(self) -> str:
        """One line."""
        parts = [f"{self.total.rows('bronze'):,} rows in {self.cycles:,} cycles", f"lag {sum(self.total.lag.values()):,}"]
        for layer in ("silver", "gold"):
            times = self.total.latency.get(layer)
            if times is not None and times.total:
                parts.append(f"produce to {layer} p50 {times.percentile(0.5):.1f} s, p95 {times.percentile(0.95):.1f} s")
        state = f"{self.state}: {self.why}" if self.why else self.state
        return f"{state}; " + ", ".join(parts)
