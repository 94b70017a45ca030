"""Writer of `event_log`: one commit at the end of each run, also of failed ones; in continuous mode at most one a minute.

Guarantee: a run's events are written once, or a warning is logged. A failure to write them does not fail the run.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from game_events.config.masking import without_secrets
from game_events.lakehouse import failpoints
from game_events.lakehouse.system_tables.event_log import append_events
from game_events.pipeline.context import Pipeline
from game_events.pipeline.lineage.run import Lineage
from game_events.pipeline.metastore import register_tables
from game_events.pipeline.observability.event_rows import RunFacts, event_rows
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult

log = logging.getLogger(__name__)
#: Seconds between two commits in continuous mode.
INTERVAL_S = 60.0


@contextmanager
def recorded(pipeline: Pipeline, report: RunReport, job: str, attempt: int = 0, *, lineage: bool = True) -> Iterator[None]:
    """At the end of the block, also after an error: register tables, send lineage, write the report to the event log.

    Run id, `job` and `attempt` (number of earlier attempts under this run id) identify the events.
    """
    began = time.monotonic()
    sender = Lineage(pipeline, job) if lineage else None
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        facts = RunFacts(job, time.monotonic() - began, error)
        if not facts.stopped:
            register_tables(pipeline, report)
        if sender is not None:
            sender.close(report, error, stopped=facts.stopped)
        write_events(pipeline, report, facts, str(attempt))


def write_events(pipeline: Pipeline, report: RunResult, run: RunFacts, part: str = "0") -> bool:
    """Append a run's events, each `part` of a run once; returns False after a failure, which is logged as a warning."""
    failpoints.reach("events_due")
    try:
        rows = event_rows(report, run, pipeline.settings)
        append_events(pipeline.lakehouse, rows, pipeline.run_id, f"{run.job}#{part}")
    except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
        why = without_secrets(str(error), pipeline.settings)
        log.warning("event_log_not_written=true run_id=%s error=%s why=%r", pipeline.run_id, type(error).__name__, why)
        return False
    return True


class RunLog:
    """The event log of continuous mode: the merged results of its cycles, a commit a minute; none while nothing happens.

    A part that could not be written is kept and written with the next one.
    """

    def __init__(self, pipeline: Pipeline, job: str, attempt: int = 0, interval_s: float = INTERVAL_S) -> None:
        self._pipeline, self._job, self._attempt, self._interval_s = pipeline, job, attempt, interval_s
        self._pending = RunReport()
        #: Cycles since lineage was sent: what the event log could not take is not sent a second time.
        self._unsent = RunReport()
        self._part = 0
        self._began = time.monotonic()
        self._lineage = Lineage(pipeline, job, streaming=True)
        #: Tables that were registered, lineage that was sent, and failures of either.
        self.extra = RunReport()

    def add(self, report: RunResult) -> None:
        """Add a cycle; write if the interval has passed."""
        if report.tables or report.checks:
            self._pending.add(report)
            self._unsent.add(report)
        if (self._pending.tables or self._pending.checks) and time.monotonic() - self._began >= self._interval_s:
            self._write(None, end=False)

    def close(self, error: BaseException | None = None) -> None:
        """Write what is left, and how the run ended."""
        self._write(error, end=True)

    def _write(self, error: BaseException | None, *, end: bool) -> None:
        """Register the tables and send the lineage of the cycles since the last time, then write the events."""
        news, self._unsent = self._unsent, RunReport()
        facts = RunFacts(self._job, time.monotonic() - self._began, error)
        if not facts.stopped:
            register_tables(self._pipeline, news)
        if end:
            self._lineage.close(news, error, stopped=facts.stopped)
        else:
            self._lineage.part(news)
        extra = RunResult(registered=news.registered, lineage=news.lineage, checks=news.checks, notices=news.notices)
        self.extra.add(extra)
        self._pending.add(extra)
        if write_events(self._pipeline, self._pending, facts, f"{self._attempt}.{self._part}"):
            self._pending, self._part = RunReport(), self._part + 1
        self._began = time.monotonic()
