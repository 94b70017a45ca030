"""What the plug-in does with each run: the tables that have changed get an Iceberg snapshot (docs/iceberg.md).

All runs pass here, whatever they change: refreshes, maintenance, erasures, redecodes. What others have committed to a table is
found, too, as each table's newest version is looked at. Guarantee: a catalog that does not answer costs no row and fails no
run; the run says so, and the next one catches up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from game_events.errors import first_few
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import CheckResult, RunResult
from game_events.plugins.iceberg import PLUGIN
from game_events.plugins.iceberg.current import KnownTables, tables_of, why
from game_events.plugins.iceberg.settings import IcebergSettings

if TYPE_CHECKING:
    from game_events.plugins.iceberg.work import CatchUp

log = logging.getLogger(__name__)

CURRENT = "iceberg_is_current"

#: Runs that delete files of older versions: their snapshots are expired first, and after an erasure none is left.
MAINTENANCE, ERASURE = "maintain", "erase"

#: Tables that a message names.
SHOWN = 3


class IcebergObserver:
    """Commits to Iceberg what a run has changed. Never raises: failures are in the report."""

    def __init__(self, pipeline: Pipeline, job: str, is_streaming: bool) -> None:  # noqa: ARG002 - as all observers are made
        """Before files of older versions are deleted, snapshots that name them are expired."""
        settings = IcebergSettings.of(pipeline.settings)
        self._is_on = settings.iceberg and not pipeline.read_only
        self._pipeline = pipeline
        self._job = job
        self._timeout_s = settings.iceberg_timeout_s
        self._known: KnownTables | None = None
        self._working: threading.Thread | None = None
        self._before = RunReport()
        if self._is_on and job == MAINTENANCE:
            self._work(self._before)

    def part(self, report: RunReport) -> None:
        """Commit what a continuous run did since the last time."""
        if self._is_on:
            self._work(report)

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:  # noqa: ARG002 - as all
        """Commit what is left; after a signal the next run does it."""
        if self._is_on:
            report.add(RunResult(parts=self._before.parts, notices=self._before.notices, checks=self._before.checks))
            if not stopped:
                self._work(report)

    def _work(self, report: RunReport) -> None:
        """Commit in a thread, which is left alone if it takes too long: it may end at any time without harm."""
        if self._working is not None and self._working.is_alive():
            report.warn(f"Iceberg's catalog does not answer for more than {self._timeout_s:.0f} s: the next run catches up")
            return
        results: list[RunReport] = []
        self._working = threading.Thread(target=lambda: results.append(self._caught_up()), name="iceberg", daemon=True)
        self._working.start()
        self._working.join(self._timeout_s)
        if results:
            report.add(results[0])
        else:
            summary = f"Iceberg's catalog did not answer within {self._timeout_s:.0f} s: the next run catches up"
            report.warn(summary)
            report.add_checks(CheckResult(CURRENT, "bronze", False, summary))

    def _caught_up(self) -> RunReport:
        report = RunReport()
        try:
            self._catch_up(report, forget=self._job == ERASURE)
        except Exception as error:  # noqa: BLE001 - the rows are committed: no error here may fail the run
            cause = why(error, self._pipeline.settings)
            log.warning("iceberg_failed=true run_id=%s why=%r", self._pipeline.run_id, cause)
            summary = f"nothing was committed to Iceberg, the next run catches up: {cause}"
            report.warn(summary)
            report.add_checks(CheckResult(CURRENT, "bronze", False, summary))
        return report

    def _catch_up(self, report: RunReport, *, forget: bool) -> None:
        lakehouse = self._pipeline.lakehouse
        if self._known is None:
            self._known = KnownTables(self._pipeline.settings, lakehouse)
        tables = tables_of(lakehouse)
        due = tables if forget else self._known.due(tables)
        if not due:
            return
        # Half a second, if there is something to do; without the extra the error says which one it is.
        catch_up: CatchUp = PLUGIN.load("game_events.plugins.iceberg.work:catch_up")
        result = catch_up(self._pipeline, self._known, due, forget=forget)
        report.add(RunResult(parts={result.key: result}))
        _say(report, result.failed, "tables are behind in Iceberg, the next run catches up")
        _say(report, result.refused, "tables cannot be Iceberg tables, so the catalog has none of them")
        done = len(due) - len(result.failed) - len(result.refused)
        text = f"{done:,} of {len(due):,} changed tables are in Iceberg"
        text += f", {len(result.refused):,} cannot be" if result.refused else ""
        report.add_checks(CheckResult(CURRENT, "bronze", not result.failed, text))


def _say(report: RunReport, tables: Mapping[str, str], what: str) -> None:
    if tables:
        report.warn(f"{len(tables):,} {what}: {first_few([f'{name} ({cause})' for name, cause in tables.items()], SHOWN)}")
