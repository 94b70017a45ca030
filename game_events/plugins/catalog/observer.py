"""What the plug-in does with each run: its tables are registered in a catalog, its lineage is sent to an OpenLineage receiver.

The registration is in `catalogs.registration`. Lineage is the start of a run, its changed tables, and its end; sending takes at
most `openlineage_timeout_s` per run (in continuous mode: per part). Guarantee: a catalog or a receiver that does not answer
costs no row and fails no run; the run reports it, and the next one registers the missing tables.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import add
from typing import TYPE_CHECKING, ClassVar, Self

from game_events.config.masking import without_secrets
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import PluginResult, RunResult
from game_events.plugins.catalog.catalogs.registration import register_tables
from game_events.plugins.catalog.catalogs.views import TypeViews
from game_events.plugins.catalog.settings import CatalogSettings
from game_events.workers.results import merge, merged

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

    from game_events.plugins.catalog.openlineage_events import LineageRun

log = logging.getLogger(__name__)

#: Seconds for sending after the run was cancelled.
STOPPED_S = 2.0


@dataclass(frozen=True)
class LineageResult(PluginResult):
    """Number of OpenLineage events that the receiver took (`sent`) and did not take (`lost`), and why the first was lost."""

    key: ClassVar[str] = "lineage"

    sent: int = merged(add, int)
    lost: int = merged(add, int)
    why: str = merged(lambda first, second: first or second, str)

    def merged_with(self, later: Self) -> Self:
        """All events of both."""
        return merge(self, later)


class CatalogObserver:
    """Registers the tables of a run in the catalog, and sends its lineage. Never raises: failures are logged."""

    def __init__(self, pipeline: Pipeline, job: str, is_streaming: bool) -> None:
        """Send the start of the run."""
        self._pipeline = pipeline
        self._result = LineageResult()
        self._run: LineageRun | None = None
        self._since = datetime.now(UTC)
        self._part = 0
        self._views = TypeViews(pipeline.lakehouse)
        settings = CatalogSettings.of(pipeline.settings)
        self._timeout_s = settings.openlineage_timeout_s
        self._left_s = self._timeout_s
        if settings.openlineage_url is None:
            return
        with self._never_failing():
            from game_events.plugins.catalog.openlineage_events import LineageRun  # noqa: PLC0415 - its client, if it is used

            self._run = LineageRun(pipeline, job, is_streaming)
            self._deliver([self._run.whole("START", self._since)])

    def part(self, report: RunReport) -> None:
        """Register and send what a continuous run did since the last time."""
        register_tables(self._pipeline, report, self._views)
        self._left_s = self._timeout_s
        self._send(report, lambda run, now: run.whole("RUNNING", now))
        self._part += 1

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """Register and send what is left, and how the run ended."""
        if not stopped:
            register_tables(self._pipeline, report, self._views)
        left_s = self._timeout_s if self._part else self._left_s
        self._left_s = min(left_s, STOPPED_S) if stopped else left_s
        self._send(report, lambda run, now: run.ended(now, report, error, stopped=stopped))

    def _send(self, report: RunReport, last: Callable[[LineageRun, datetime], RunEvent]) -> None:
        """Send the tables since the last time and a last event, and add the delivery to the report."""
        if self._run is None:
            return
        now = datetime.now(UTC)
        with self._never_failing():
            self._deliver([*self._run.tables(report, self._since, now, self._part), last(self._run, now)])
            sent = self._result
            self._result = LineageResult()
            report.add(RunResult(parts={sent.key: sent}))
            if sent.lost:
                report.warn(f"{sent.lost:,} OpenLineage events were not taken by the receiver: {sent.why}")
        self._since = now

    def _deliver(self, events: list[RunEvent]) -> None:
        from game_events.plugins.catalog.openlineage_events import send  # noqa: PLC0415 - see above

        began = time.monotonic()
        sent = LineageResult(*send(self._pipeline.settings, events, self._left_s))
        self._result = merge(self._result, sent)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began))

    @contextmanager
    def _never_failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
            why = without_secrets(str(error), self._pipeline.settings)
            log.warning("lineage_not_sent=true run_id=%s error=%s why=%r", self._pipeline.run_id, type(error).__name__, why)
