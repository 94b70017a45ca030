"""Cycles' reports -> events at intervals: Dagster's storage and its automation work event by event.

A table has one a minute at most; of many games each has one at longer intervals, so that a day's events stay below 100 MB.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from game_events.lakehouse.tables import BRONZE
from game_events.orchestration.events.materializations import EVENTS
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.tables import TableReport

#: Seconds between two events of one table, and, of many games' tables, by their number.
EVENT_S, EVENT_S_BY_GAME = 60.0, 7.0
#: Events handed out at a time: with very many games each has to wait longer, and Dagster's storage keeps up.
EVENTS_AT_ONCE = EVENTS


class EventThrottle:
    """Collects the cycles' reports and hands out what is due; used by two threads.

    Guarantee: every row is in one event, the next one of its table.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, at_once: int = EVENTS_AT_ONCE) -> None:
        self._clock, self._at_once = clock, at_once
        self._lock = threading.Lock()
        self._pending = RunResult()
        self._reported_at: dict[str, float] = {}

    def add(self, report: RunResult) -> None:
        """Note a cycle."""
        with self._lock:
            self._pending = self._pending.merge(report)

    def due(self, *, everything: bool = False) -> RunResult | None:
        """What is due now (or everything) as one report; None if there is nothing.

        What belongs to no single table (offsets, reasons, latencies) is in the report that has bronze's event.
        """
        now = self._clock()
        with self._lock:
            waiting = sorted(self._pending.tables, key=self._last_event)
            due = [t for t in waiting if everything or now - self._last_event(t) >= self._interval(t)]
            due = due if everything else due[: self._at_once]
            if not due:
                return None
            names = {t.table for t in due}
            due, rest = [[t for t in waiting if (t.table in names) == now_due] for now_due in (True, False)]
            report, left = self._pending, RunResult()
            if not any(_group(t) == BRONZE for t in due):
                # What belongs to no single table waits for bronze's event.
                report, left = RunResult(seconds=report.seconds), report
            self._pending = replace(left, tables=rest)
            self._reported_at |= {_group(t): now for t in due}
            return replace(report, tables=due)

    def give_back(self, report: RunResult) -> None:
        """Take back what was handed out and could not be reported."""
        with self._lock:
            self._pending = report.merge(self._pending)

    def _interval(self, entry: TableReport) -> float:
        tables = sum(1 for name in self._reported_at if name != BRONZE)
        return EVENT_S if entry.game is None else max(EVENT_S, EVENT_S_BY_GAME * tables)

    def _last_event(self, entry: TableReport) -> float:
        return self._reported_at.get(_group(entry), float("-inf"))


def _group(entry: TableReport) -> str:
    """Group of tables with one event time: quarantine and bronze; every other table alone."""
    return BRONZE if entry.layer in ("bronze", "quarantine") else entry.table
