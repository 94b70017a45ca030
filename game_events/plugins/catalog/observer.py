"""OpenLineage events of a run: start, changed tables, end. Nothing is sent if the settings name no receiver.

Sending takes at most `openlineage_timeout_s` per run (in continuous mode: per part). The client is imported only if a receiver
is configured, because the import takes a fifth of a second.
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
from game_events.pipeline.hooks import RunObserver
from game_events.pipeline.reporting.counts import PluginResult
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult
from game_events.plugins.catalog.registration import register_tables
from game_events.plugins.catalog.settings import LineageSettings
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


def observe(pipeline: Pipeline, job: str, is_streaming: bool) -> RunObserver:
    """Registers the tables of a run in the catalog, and sends its lineage."""
    return CatalogObserver(pipeline, job, streaming=is_streaming)


class CatalogObserver:
    """Registration of the tables of a run, then its lineage."""

    def __init__(self, pipeline: Pipeline, job: str, *, streaming: bool = False) -> None:
        """Send the start of the run."""
        self._pipeline = pipeline
        self._lineage = Lineage(pipeline, job, streaming=streaming)

    def part(self, report: RunReport) -> None:
        """Register and send what a continuous run did since the last time."""
        register_tables(self._pipeline, report)
        self._lineage.part(report)

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """Register what is left, and send how the run ended."""
        if not stopped:
            register_tables(self._pipeline, report)
        self._lineage.close(report, error, stopped=stopped)


class Lineage:
    """Sends the events of one run. Never raises: failures are logged."""

    def __init__(self, pipeline: Pipeline, job: str, *, streaming: bool = False) -> None:
        """Send the start of the run."""
        self._pipeline = pipeline
        self._result = LineageResult()
        self._run: LineageRun | None = None
        self._since, self._part = datetime.now(UTC), 0
        self._left_s = LineageSettings.of(pipeline.settings).openlineage_timeout_s
        if LineageSettings.of(pipeline.settings).openlineage_url is None:
            return
        with self._never_failing():
            from game_events.plugins.catalog.openlineage_events import LineageRun  # noqa: PLC0415 - see above

            self._run = LineageRun(pipeline, job, self._since, streaming)
            self._deliver([self._run.started()])

    def part(self, report: RunReport) -> None:
        """Send what a continuous run did since the last time, and add the delivery to the report."""
        self._left_s = LineageSettings.of(self._pipeline.settings).openlineage_timeout_s
        self._send(report, lambda run, now: run.running(now))
        self._part += 1

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """Send what is left and how the run ended, and add the delivery to the report."""
        left_s = LineageSettings.of(self._pipeline.settings).openlineage_timeout_s if self._part else self._left_s
        self._left_s = min(left_s, STOPPED_S) if stopped else left_s
        self._send(report, lambda run, now: run.ended(now, report, error, stopped=stopped))

    def _send(self, report: RunReport, last: Callable[[LineageRun, datetime], RunEvent]) -> None:
        """Send the tables since the last time, and a last event."""
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
        """Log errors while events are made."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
            why = without_secrets(str(error), self._pipeline.settings)
            log.warning("lineage_not_sent=true run_id=%s error=%s why=%r", self._pipeline.run_id, type(error).__name__, why)
