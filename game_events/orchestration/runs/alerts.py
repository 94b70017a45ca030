"""Alerts of failed runs, failed checks and lost records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from deltalake.exceptions import DeltaError
from pydantic import BaseModel

from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.orchestration.dagster_private import (
    AssetCheckExecutionRecordStatus,
    DagsterAssetCheckFailedError,
)
from game_events.orchestration.keys import FAILED_GAMES, report_in
from game_events.pipeline.checks.gaps import LOST, Loss, gaps_in_words, losses
from game_events.pipeline.observability.alerts import LONGEST_ERROR, Alert, Severity, run_url, send, severity_of

log = logging.getLogger(__name__)
SEE_LOG = "see the run's log in the Dagster UI"
NO_MESSAGE = f"the run ended without an error message: {SEE_LOG}"

#: Newest evaluations of one check that are read: more than there are between two ticks.
HISTORY = 50
EVALUATED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


def alert_of_run(instance: DagsterInstance, settings: Settings, run: DagsterRun) -> Alert | None:
    """Alert of a failed run; None: only a blocking check failed, which has its own alert."""
    failed = _failure(instance, run)
    if failed is None:
        return None
    error, report = failed
    failures = [e for e in report.get("errors", []) if isinstance(e, dict)]
    tables = [str(e["table"]) for e in failures]
    if tables:
        error = f"{len(tables)} tables failed; why is in the run's log"
    return Alert(
        id=f"run_failed:{run.run_id}",
        event="run_failed",
        summary=f"run {run.run_id[:8]} of {run.job_name} failed",
        run_id=run.run_id,
        job=run.job_name,
        url=run_url(settings, run.run_id),
        games=sorted({str(e["game"]) for e in failures if e.get("game")}),
        tables=tables,
        error=error[:LONGEST_ERROR],
        counts={f"{layer}_rows": int(n) for layer, n in report.get("rows", {}).items()},
    )


def _failure(instance: DagsterInstance, run: DagsterRun) -> tuple[str, dict[str, Any]] | None:
    """Message and report of the first failed step, else of the run; None: a blocking check failed."""
    error = NO_MESSAGE
    for entry in instance.all_logs(run.run_id, of_type={DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE}):
        event = entry.dagster_event
        if event is not None and event.event_type == DagsterEventType.STEP_FAILURE:
            return _step_failure(event)
        error = (event.message if event is not None else None) or error
    return error, {}


def _step_failure(event: dg.DagsterEvent) -> tuple[str, dict[str, Any]] | None:
    """As `_failure`; other libraries' errors by their class only, as their messages may quote data."""
    data = event.step_failure_data
    cause = data.error.cause if data.error else None
    if data.user_failure_data is not None:
        foreign = cause is not None and cause.cls_name not in _own_errors()
        error = f"{cause.cls_name}: {SEE_LOG}" if cause and foreign else data.user_failure_data.description or NO_MESSAGE
        return error, report_in(data.user_failure_data.metadata)
    kind = (cause or data.error).cls_name if data.error else "an error"
    return None if kind == DagsterAssetCheckFailedError.__name__ else (f"{kind}: {SEE_LOG}", {})


def _own_errors(of: type[GameEventsError] = GameEventsError) -> set[str | None]:
    """Names of this project's error classes; their messages have no data."""
    return {of.__name__}.union(*(_own_errors(kind) for kind in of.__subclasses__()))


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a check.

    Attributes:
        key: the check.
        run_id: id of the run; empty: it was evaluated by a sensor.
        at: time in seconds since 1970.
        result: its result.
    """

    key: dg.AssetCheckKey
    run_id: str
    at: float
    result: dg.AssetCheckEvaluation

    @property
    def games(self) -> list[str]:
        """The games that it failed for, if the check is per game."""
        value = self.result.metadata.get(FAILED_GAMES)
        games = value.data if isinstance(value, dg.JsonMetadataValue) else None
        return [str(game) for game in games] if isinstance(games, list) else []

    def failure(self, settings: Settings) -> Severity | None:
        """Severity of the failure; None: it passed, or gets no alert."""
        # Lost records have an alert for each commit (`alert_of_loss`); the check covers several commits.
        if self.result.passed or self.key.name == LOST:
            return None
        return severity_of(settings, self.key.name, wrong_rows=self.result.severity == dg.AssetCheckSeverity.ERROR)


class CheckMemory(BaseModel):
    """State of a check after the last processed evaluation.

    Attributes:
        seen: time of the evaluation, in seconds since 1970.
        failing: whether it failed.
        severity: severity of the failure.
        games: games that it failed for, if the check is per game.
    """

    seen: float = 0.0
    failing: bool = False
    severity: Severity = "error"
    games: list[str] = []

    @classmethod
    def of(cls, settings: Settings, last: Evaluation) -> CheckMemory:
        """State after an evaluation."""
        bad = last.failure(settings)
        return cls(seen=last.at) if bad is None else cls(seen=last.at, failing=True, severity=bad, games=last.games)


def turns(settings: Settings, evaluations: Sequence[Evaluation], before: CheckMemory) -> list[Evaluation]:
    """The evaluations that get an alert: the first new failure, and the last evaluation if it ends failures.

    Args:
        settings: settings of the alerts.
        evaluations: new evaluations, oldest first.
        before: the check's state before them.
    """

    def is_new(found: Evaluation) -> bool:
        new = not before.failing or not set(found.games) <= set(before.games)
        return new and found.failure(settings) is not None

    first = [found for found in evaluations if is_new(found)][:1]
    ended = evaluations[-1:] if before.failing or first else []
    return [*first, *(found for found in ended if found.result.passed)]


def alert_of_check(settings: Settings, found: Evaluation, job: str | None, before: CheckMemory) -> Alert:
    """Alert of a check that failed, or passes again."""
    name = f"{found.key.asset_key.to_user_string()}/{found.key.name}"
    bad, result = found.failure(settings), found.result
    counts = {k: v.value for k, v in result.metadata.items() if isinstance(v, dg.IntMetadataValue)}
    return Alert(
        id=f"{'' if bad else 'recovered:'}check_failed:{name}:{found.run_id}:{found.at:.6f}",
        event="check_failed" if bad else "recovered",
        severity=bad or before.severity,
        of=None if bad else "check_failed",
        summary=f"check {name} {'failed' if bad else 'passes again'}",
        run_id=found.run_id or None,
        job=job,
        url=run_url(settings, found.run_id) if found.run_id else None,
        games=found.games,
        check=name,
        error=(result.description or "")[:LONGEST_ERROR] or None if bad else None,
        counts={k: v for k, v in counts.items() if v is not None},
    )


def alert_of_loss(settings: Settings, loss: Loss, severity: Severity) -> Alert:
    """Alert of records that were lost before bronze read them."""
    known = [gap.offsets for gap in loss.gaps if gap.offsets is not None]
    return Alert(
        id=f"data_lost:{loss.key}",
        event="data_lost",
        severity=severity,
        summary=f"records were lost before they were read, in {len(loss.gaps):,} places",
        run_id=loss.run_id,
        url=run_url(settings, loss.run_id) if loss.run_id else None,
        error=gaps_in_words(loss.gaps)[:LONGEST_ERROR],
        counts={"gaps": len(loss.gaps), "offsets_lost": sum(known), "gaps_of_unknown_length": len(loss.gaps) - len(known)},
    )


def history(instance: DagsterInstance, key: dg.AssetCheckKey) -> list[Evaluation]:
    """The newest evaluations of a check, oldest first; the last one of each run."""
    records = instance.event_log_storage.get_asset_check_execution_history(key, HISTORY, status=EVALUATED)
    # Not a record's own time, which is that of the run's plan.
    events = [(record.run_id, record.event) for record in records if record.event is not None]
    results = [(run_id, e.timestamp, e.dagster_event.event_specific_data) for run_id, e in events if e.dagster_event]
    found = [Evaluation(key, run, at, result) for run, at, result in results if isinstance(result, dg.AssetCheckEvaluation)]
    return sorted(found, key=lambda evaluation: evaluation.at)


def send_own_alerts(instance: DagsterInstance, settings: Settings, run_id: str) -> None:
    """Send a run's alerts at its end, as no daemon may be running: its failure, changed checks, lost records."""
    record = instance.get_run_record_by_id(run_id)
    if settings.alert_webhook_url is None or record is None:
        return
    run = record.dagster_run
    alert = alert_of_run(instance, settings, run) if run.status == DagsterRunStatus.FAILURE else None
    if alert is not None:
        send(settings, alert)
    events = instance.all_logs(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION)
    data = (e.dagster_event.event_specific_data for e in events if e.dagster_event is not None)
    for key in {e.asset_check_key for e in data if isinstance(e, dg.AssetCheckEvaluation)}:
        records = history(instance, key)
        before = [r for r in records if r.run_id != run_id]
        mine = [r for r in records if r.run_id == run_id]
        memory = CheckMemory.of(settings, before[-1]) if before else CheckMemory()
        for turned in turns(settings, mine, memory):
            send(settings, alert_of_check(settings, turned, run.job_name, memory))
            memory = CheckMemory.of(settings, turned)
    _send_losses(settings, run_id, record.start_time or record.create_timestamp.timestamp())


def _send_losses(settings: Settings, run_id: str, since: float) -> None:
    severity = severity_of(settings, LOST)
    if severity is None:
        return
    try:
        bronze = Lakehouse.of(settings).table(BRONZE)
        handle = bronze.open()
        found = list(losses(bronze, handle.version(), -1, int(since * 1000))) if handle is not None else []
    except (GameEventsError, DeltaError, OSError) as error:
        # The run's own work met the same storage error, and reported it.
        log.warning("losses_not_reported=true run_id=%s error=%s", run_id, type(error).__name__)
        return
    for loss in found:
        if loss.run_id == run_id:
            send(settings, alert_of_loss(settings, loss, severity))
