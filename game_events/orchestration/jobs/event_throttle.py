"""Cycles' reports -> at most one event a minute for each table: Dagster's storage and its automation work event by event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.reporting.merge import report_sum
from game_events.pipeline.reporting.report import RunReport, TableReport

#: Seconds between two events of one table.
EVENT_S = 60.0
#: Events handed out at a time: with very many games each has to wait longer, and Dagster's storage keeps up.
EVENTS_AT_ONCE = 200


class EventPacing:
    """Collects what cycles did, and hands out what may be told; used by two threads.

    Guarantee: every row is told once, in the event of its table that comes next.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the clock that paces."""
        self._clock = clock
        self._lock = threading.Lock()
        self._owed = RunReport()
        self._told_at: dict[str, float] = {}

    def add(self, report: RunReport) -> None:
        """Note a cycle."""
        with self._lock:
            self._owed = report_sum([self._owed, report])

    def due(self, *, everything: bool = False) -> RunReport | None:
        """What may be told now (or all that is owed) as one report; None if there is nothing.

        What belongs to no single table (offsets, reasons, latencies) is in the report that has bronze's event.
        """
        now = self._clock()
        with self._lock:
            waiting = sorted(self._owed.tables, key=self._told)
            told = [t for t in waiting if everything or now - self._told(t) >= EVENT_S]
            told = told if everything else told[:EVENTS_AT_ONCE]
            if not told:
                return None
            names = {t.table for t in told}
            report, rest = self._owed, RunReport(tables=[t for t in self._owed.tables if t.table not in names])
            if not any(_group(t) == BRONZE for t in told):
                # What belongs to no single table waits for bronze's event.
                report, rest = RunReport(seconds=dict(report.seconds)), replace(report, tables=rest.tables)
            report.tables = told
            self._owed = rest
            self._told_at |= {_group(t): now for t in told}
            return report

    def give_back(self, report: RunReport) -> None:
        """What was handed out and could not be told: it is owed again."""
        with self._lock:
            self._owed = report_sum([report, self._owed])

    def _told(self, entry: TableReport) -> float:
        return self._told_at.get(_group(entry), float("-inf"))


def _group(entry: TableReport) -> str:
    """Tables whose events go together: quarantine's with bronze's."""
    return BRONZE if entry.layer in ("bronze", "quarantine") else entry.table
