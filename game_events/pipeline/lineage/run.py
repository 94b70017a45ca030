"""Telling OpenLineage of a run: that it began, what it did, how it ended; nothing if the settings name no receiver.

The client is loaded only then: it costs every process a fifth of a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from game_events.config.masking import without_secrets
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.lineage_result import LineageAccount
from game_events.pipeline.reporting.report import RunReport

if TYPE_CHECKING:
    from game_events.pipeline.lineage.client import Sender
    from game_events.pipeline.lineage.events import LineageRun

log = logging.getLogger(__name__)
#: Seconds left for it where somebody waits for the run to stop.
STOPPED_S = 2.0


class Lineage:
    """What a receiver is told of one run. Raises nothing."""

    def __init__(self, pipeline: Pipeline, job: str, *, streaming: bool = False) -> None:
        """Tells that the run begins."""
        self.account = LineageAccount()
        self._run: LineageRun | None = None
        self._sender: Sender | None = None
        self._since = datetime.now(UTC)
        self._part = 0
        self._pipeline = pipeline
        if pipeline.settings.openlineage_url is None:
            return
        with self._never_failing():
            from game_events.pipeline.lineage.client import Sender  # noqa: PLC0415
            from game_events.pipeline.lineage.events import LineageRun  # noqa: PLC0415 - see above

            self._run = LineageRun(pipeline, job, self._since, streaming)
            self._sender = Sender(pipeline.settings)
            self.account.add(self._sender.send([self._run.started()]))

    def part(self, report: RunReport) -> None:
        """What a run that goes on did since the last time."""
        if self._run is None or self._sender is None:
            return
        now = datetime.now(UTC)
        with self._never_failing():
            self._sender.again()
            events = [*self._run.tables(report, self._since, now, str(self._part)), self._run.running(now)]
            self._tell(report, self._sender.send(events))
        self._since, self._part = now, self._part + 1

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """What is left, and how the run ended."""
        if self._run is None or self._sender is None:
            return
        now = datetime.now(UTC)
        with self._never_failing():
            if self._part:
                self._sender.again()
            if stopped:
                self._sender.hurry(STOPPED_S)
            ended = self._run.ended(now, report, error, stopped=stopped)
            events = [*self._run.tables(report, self._since, now, str(self._part)), ended]
            self._tell(report, self._sender.send(events))

    @contextmanager
    def _never_failing(self) -> Iterator[None]:
        """What goes wrong while events are made is a line in the log."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
            why = without_secrets(str(error), self._pipeline.settings)
            log.warning("lineage_not_told=true run_id=%s error=%s why=%r", self._pipeline.run_id, type(error).__name__, why)

    def _tell(self, report: RunReport, found: LineageAccount) -> None:
        self.account.add(found)
        report.lineage, self.account = self.account, LineageAccount()
        if report.lineage.notice is not None:
            report.notices.append(report.lineage.notice)
