"""Writing `event_log`: one commit at the end of each run, failed runs too; of a run without an end, one a minute at most.

Guarantee: a run's events are there once, or a warning says why not. What the run did never depends on it.
"""

from __future__ import annotations

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
from game_events.pipeline.reporting.merge import report_sum
from game_events.pipeline.reporting.report import RunReport

log = logging.getLogger(__name__)
#: Seconds between two commits of a run without an end.
INTERVAL_S = 60.0


@contextmanager
def recorded(pipeline: Pipeline, report: RunReport, job: str, attempt: int = 0, *, lineage: bool = True) -> Iterator[None]:
    """Whatever happens inside, and what is in the report by then, is in the event log afterwards.

    Before that its tables are registered in the catalog, and OpenLineage is told, where the settings say so.

    Args:
        pipeline: the parts; its run id is the events'.
        report: filled inside.
        job: what was started: with the run id and the attempt it tells these events from all others.
        attempt: 0, or how often it was tried before under the same run id.
        lineage: False: it makes no table, nobody is told.
    """
    began = time.monotonic()
    told = Lineage(pipeline, job) if lineage else None
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        facts = _facts(job, began, error)
        if not facts.stopped:
            register_tables(pipeline, report)
        if told is not None:
            told.close(report, error, stopped=facts.stopped)
        write_events(pipeline, report, facts, str(attempt))


def _facts(job: str, began: float, error: BaseException | None) -> RunFacts:
    stopped = error is not None and not isinstance(error, Exception)
    return RunFacts(job, time.monotonic() - began, error, stopped)


def write_events(pipeline: Pipeline, report: RunReport, run: RunFacts, part: str = "0") -> bool:
    """Append a run's events; what keeps them from being written is a warning.

    Args:
        pipeline: the parts; its run id is the events'.
        report: what was done.
        run: what the report does not know.
        part: tells several writings of one job under one run id apart; the same one is written once.

    Returns:
        whether they are in the table.
    """
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
    """The event log of a run that goes on until it is stopped: the reports of its cycles, added up, a commit a minute.

    A minute in which nothing happened is not written. Each commit is a part of the run; a part that could not be written is
    kept and goes with the next one.
    """

    def __init__(self, pipeline: Pipeline, job: str, attempt: int = 0, interval_s: float = INTERVAL_S) -> None:
        """Nothing is written before there is a report."""
        self._pipeline, self._job, self._attempt, self._interval_s = pipeline, job, attempt, interval_s
        self._reports: list[RunReport] = []
        #: The reports since the last time that others were told: what the event log could not take is told no second time.
        self._untold: list[RunReport] = []
        self._part = 0
        self._began = time.monotonic()
        self._lineage = Lineage(pipeline, job, streaming=True)
        #: What was told of the reports besides: tables that were registered, lineage, and what kept either from it.
        self.told = RunReport()

    def add(self, report: RunReport) -> None:
        """Note a cycle, and write if it is time to."""
        if report.tables or report.checks:
            self._reports.append(report)
            self._untold.append(report)
        if self._reports and time.monotonic() - self._began >= self._interval_s:
            self._write(None, end=False)

    def close(self, error: BaseException | None = None) -> None:
        """Write what is left; at the latest now there is a row that says that the run ended, and how."""
        self._write(error, end=True)

    def _tell(self, whole: RunReport, error: BaseException | None, *, end: bool) -> None:
        """Catalog and lineage of what was not told of yet."""
        news, self._untold = report_sum(self._untold), []
        facts = _facts(self._job, self._began, error)
        if not facts.stopped:
            register_tables(self._pipeline, news)
        if end:
            self._lineage.close(news, error, stopped=facts.stopped)
        else:
            self._lineage.part(news)
        besides = RunReport(registered=news.registered, lineage=news.lineage, checks=news.checks, notices=news.notices)
        self.told = report_sum([self.told, besides])
        whole.checks, whole.notices = news.checks or whole.checks, list(dict.fromkeys([*whole.notices, *news.notices]))
        whole.registered, whole.lineage = news.registered, news.lineage

    def _write(self, error: BaseException | None, *, end: bool) -> None:
        whole = report_sum(self._reports)
        self._tell(whole, error, end=end)
        part = f"{self._attempt}.{self._part}"
        if write_events(self._pipeline, whole, _facts(self._job, self._began, error), part):
            self._reports, self._part, self._began = [], self._part + 1, time.monotonic()
        else:
            # One report instead of a growing list, and another minute before the next attempt. Two batches are what is logged.
            del whole.batches[1:-1]
            self._reports = [whole]
            self._began = time.monotonic()
