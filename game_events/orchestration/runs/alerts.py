"""Alerts of failed runs, of failed checks and of lost records; and those that a run sends itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from deltalake.exceptions import DeltaError
from pydantic import BaseModel

from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.orchestration.dagster_private import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
    DagsterAssetCheckFailedError,
)
from game_events.orchestration.keys import FAILED_GAMES, report_in
from game_events.pipeline.checks.gaps import LOST, Loss, gaps_in_words, losses
from game_events.pipeline.observability.alerts import LONGEST_ERROR, Alert, Severity, run_url, send, severity_of

log = logging.getLogger(__name__)

#: Evaluations of one check that are read: more than a tick's worth.
HISTORY = 50
EVALUATED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


def alert_of_run(instance: DagsterInstance, settings: Settings, run: DagsterRun) -> Alert | None:
    """A failed run: what failed, in the words of this project's errors; of other errors only their class.

    Returns:
        None if it failed only because a blocking check did: that is an alert of its own.
    """
    error, report = "the run ended without an error message: see its log in the Dagster UI", {}
    kinds = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE}
    for entry in instance.all_logs(run.run_id, of_type=kinds):
        event = entry.dagster_event
        if event is None:
            continue
        if event.event_type == DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            if data.user_failure_data is not None:
                report = report_in(data.user_failure_data.metadata)
                error = data.user_failure_data.description or error
                origin = data.error.cause if data.error else None
                if origin is not None and origin.cls_name not in _own_errors():
                    error = f"{origin.cls_name}: see the run's log in the Dagster UI"
            else:
                # Its message may repeat the data it stumbled over.
                cause = data.error.cause or data.error if data.error else None
                if cause is not None and cause.cls_name == DagsterAssetCheckFailedError.__name__:
                    return None
                error = f"{cause.cls_name if cause else 'an error'}: see the run's log in the Dagster UI"
            break
        error = event.message or error
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


def _own_errors(of: type[GameEventsError] = GameEventsError) -> set[str | None]:
    """Names of this project's classes of errors: their words hold no data."""
    return {of.__name__}.union(*(_own_errors(kind) for kind in of.__subclasses__()))


def failure(settings: Settings, record: AssetCheckExecutionRecord) -> Severity | None:
    """Severity of an evaluation; None: it passed, or gets no alert."""
    found = _evaluation(record)
    # Lost records have an alert for each commit (`alert_of_loss`); the check covers several commits.
    if found is None or found.passed or record.key.name == LOST:
        return None
    return severity_of(settings, record.key.name, wrong_rows=found.severity == dg.AssetCheckSeverity.ERROR)


def _evaluation(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation | None:
    event = record.event.dagster_event if record.event is not None else None
    data = event.event_specific_data if event is not None else None
    return data if isinstance(data, dg.AssetCheckEvaluation) else None


class CheckMemory(BaseModel):
    """What is known of a check.

    Attributes:
        seen: when the last evaluation that was seen was made (seconds since 1970).
        failing: whether it failed.
        severity: how bad that was.
        games: those that it failed for, of a check of each game by itself.
    """

    seen: float = 0.0
    failing: bool = False
    severity: Severity = "error"
    games: list[str] = []

    @classmethod
    def of(cls, settings: Settings, record: AssetCheckExecutionRecord) -> CheckMemory:
        """After an evaluation."""
        bad = failure(settings, record)
        if bad is None:
            return cls(seen=evaluated_at(record))
        return cls(seen=evaluated_at(record), failing=True, severity=bad, games=failed_games(record))


def failed_games(record: AssetCheckExecutionRecord) -> list[str]:
    """The games that an evaluation failed for, of a check of each game by itself."""
    found = _evaluation(record)
    value = found.metadata.get(FAILED_GAMES) if found is not None else None
    games = value.data if isinstance(value, dg.JsonMetadataValue) else None
    return [str(game) for game in games] if isinstance(games, list) else []


def turns(
    settings: Settings, records: Iterable[AssetCheckExecutionRecord], before: CheckMemory
) -> list[AssetCheckExecutionRecord]:
    """The evaluations worth an alert.

    These are the first failure after passes, or for a game that did not fail before; and the pass that ends the failures, if
    it lasts.

    Args:
        settings: which failures get an alert.
        records: new evaluations, oldest first.
        before: what was known of the check.
    """

    def is_news(record: AssetCheckExecutionRecord) -> bool:
        new = not before.failing or not set(failed_games(record)) <= set(before.games)
        return new and failure(settings, record) is not None

    evaluated = list(records)
    first = next((r for r in evaluated if is_news(r)), None)
    last = evaluated[-1] if evaluated and _passed(evaluated[-1]) and (before.failing or first is not None) else None
    return [record for record in (first, last) if record is not None]


def _passed(record: AssetCheckExecutionRecord) -> bool:
    found = _evaluation(record)
    return found is not None and found.passed


def alert_of_check(settings: Settings, record: AssetCheckExecutionRecord, job: str | None, before: CheckMemory) -> Alert:
    """A check that failed, or passes again."""
    name = f"{record.key.asset_key.to_user_string()}/{record.key.name}"
    found = _evaluation(record)
    bad = failure(settings, record)
    counts = {k: v.value for k, v in found.metadata.items() if isinstance(v, dg.IntMetadataValue)} if found else {}
    # An evaluation by a sensor has no run.
    run_id = record.run_id or None
    return Alert(
        id=f"{'' if bad else 'recovered:'}check_failed:{name}:{record.run_id}:{evaluated_at(record):.6f}",
        event="check_failed" if bad else "recovered",
        severity=bad or before.severity,
        of=None if bad else "check_failed",
        summary=f"check {name} {'failed' if bad else 'passes again'}",
        run_id=run_id,
        job=job,
        url=run_url(settings, run_id) if run_id else None,
        games=failed_games(record),
        check=name,
        error=(found.description or "")[:LONGEST_ERROR] or None if bad and found else None,
        counts={k: v for k, v in counts.items() if v is not None},
    )


def alert_of_loss(settings: Settings, loss: Loss, severity: Severity) -> Alert:
    """Records that were gone before bronze read them, and that a run went on without."""
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


def history(instance: DagsterInstance, key: dg.AssetCheckKey) -> list[AssetCheckExecutionRecord]:
    """The last evaluations of a check, oldest first; of each run its last one."""
    found = instance.event_log_storage.get_asset_check_execution_history(key, HISTORY, status=EVALUATED)
    return sorted(found, key=evaluated_at)


def evaluated_at(record: AssetCheckExecutionRecord) -> float:
    """When an evaluation was made, in seconds since 1970; the record's own time is that of the run's plan."""
    return record.event.timestamp if record.event is not None else record.create_timestamp


def send_own_alerts(instance: DagsterInstance, settings: Settings, run_id: str) -> None:
    """Send a run's own alerts at its end, where no daemon may be running: failure, checks that turned, lost records."""
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
        log.warning("losses_not_told=true run_id=%s error=%s", run_id, type(error).__name__)
        return
    for loss in found:
        if loss.run_id == run_id:
            send(settings, alert_of_loss(settings, loss, severity))
