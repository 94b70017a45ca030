"""Result of a run of the export, and of each of its Spark tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, ClassVar

from game_events.pipeline.reporting.counts import PluginResult

#: Latencies that a task of an export reports.
LATENCIES_REPORTED = 200


@dataclass
class TaskAccount:
    """Result of one Spark task of an export.

    Attributes:
        began, ended: seconds since 1970.
        delivered, failed: rows, by outcome; `delivered_calls`, `failed_calls`: their chunks.
        calls: attempts made.
        answers: status, or kind of failure -> attempts.
        latencies: seconds of some of its answered calls.
        stopped: why it stopped before its chunks were sent, if so.
        kind: class of that error.
    """

    began: float = 0.0
    ended: float = 0.0
    delivered: int = 0
    failed: int = 0
    delivered_calls: int = 0
    failed_calls: int = 0
    calls: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    stopped: str | None = None
    kind: str = "TransientError"


@dataclass
class Export(PluginResult):
    """Result of one run of the export over HTTP.

    Attributes:
        planned_rows, planned_chunks: planned by this run.
        delivered_rows, delivered_chunks: accepted by the receiver.
        dead_rows, dead_chunks: failed, and in `export_failed_calls`.
        waiting_chunks: left for the next run.
        calls: attempts; `answers`: status, or kind of failure -> attempts.
        held: game -> why nothing of it was planned.
        tasks, at_once: Spark tasks that sent, and the most of them that ran at the same time.
        seconds: of sending alone.
        latency_s: median and 95th percentile of answered calls.
    """

    key: ClassVar[str] = "export"

    planned_rows: int = 0
    planned_chunks: int = 0
    delivered_rows: int = 0
    delivered_chunks: int = 0
    dead_rows: int = 0
    dead_chunks: int = 0
    waiting_chunks: int = 0
    calls: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    held: dict[str, str] = field(default_factory=dict)
    tasks: int = 0
    at_once: int = 0
    seconds: float = 0.0
    latency_s: tuple[float, float] | None = None
    _latencies: list[float] = field(default_factory=list, repr=False)

    def add(self, tasks: Sequence[TaskAccount]) -> None:
        """Add the tasks of one micro-batch."""
        for task in tasks:
            self.delivered_rows += task.delivered
            self.delivered_chunks += task.delivered_calls
            self.dead_rows += task.failed
            self.dead_chunks += task.failed_calls
            self.calls += task.calls
            self.answers.update(task.answers)
            self._latencies += task.latencies
        moments = sorted([(t.began, 1) for t in tasks] + [(t.ended, -1) for t in tasks])
        running = 0
        for _, change in moments:
            running += change
            self.at_once = max(self.at_once, running)
        self.tasks = max(self.tasks, len(tasks))
        if len(self._latencies) > 1:
            cuts = quantiles(self._latencies, n=20)
            self.latency_s = (cuts[9], cuts[18])

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        found = {name: value for name, value in vars(self).items() if name not in ("at_once", "latency_s", "_latencies")}
        return found | {
            "answers": dict(sorted(self.answers.items())),
            "tasks_at_once": self.at_once,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.delivered_rows / self.seconds, 1) if self.seconds else None,
            "calls_per_s": round(self.calls / self.seconds, 1) if self.seconds else None,
            "latency_ms": {n: round(s * 1000, 1) for n, s in zip(("p50", "p95"), self.latency_s or (), strict=False)},
        }

    def event_rows(self) -> Iterator[dict[str, Any]]:
        """Row of the event log."""
        if self.planned_chunks or self.calls or self.held:
            states = {"held": self.held, "waiting": self.waiting_chunks, "failed calls": self.dead_chunks, "done": True}
            status = next(state for state, applies in states.items() if applies)
            counts = {"rows": self.delivered_rows, "seconds": round(self.seconds, 3)}
            yield {"kind": "exported", "layer": "rest", "status": status, "detail": self.to_dict()} | counts
