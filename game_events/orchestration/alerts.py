"""Alerts of failed runs, failed checks and lost records."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from deltalake.exceptions import DeltaError
from pydantic import BaseModel

from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.orchestration.events import plain
from game_events.orchestration.keys import (
    FAILED_GAMES,
    JOB,
    AssetCheckExecutionRecordStatus,
    DagsterAssetCheckFailedError,
    Keys,
    report_in,
)
from game_events.orchestration.runs import OWN_ALERTS
from game_events.pipeline.checks.table_checks import LOST, Loss, gaps_in_words, losses
from game_events.pipeline.monitoring import LONGEST_ERROR, Alert, Severity, run_url, send, severity_of

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
    """Message and report of the failed step with the whole report, else of the first one, else of the run.

    None: a blocking check failed.
    """
    entries = instance.all_logs(run.run_id, of_type={DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE})
    events = [entry.get_dagster_event() for entry in entries]
    steps = [_step_failure(event) for event in events if event.event_type == DagsterEventType.STEP_FAILURE]
    if steps:
        # A layer's step that failed for single tables names these alone.
        return next((found for found in steps if found is not None and found[1].get("rows")), steps[0])
    return next((event.message for event in reversed(events) if event.message), NO_MESSAGE), {}


def _step_failure(event: dg.DagsterEvent) -> tuple[str, dict[str, Any]] | None:
    """As `_failure`; other libraries' errors by their class only, as their messages may quote data."""
    data = event.step_failure_data
    cause = data.error.cause if data.error else None
    named = cause or data.error
    by_class = f"{named.cls_name if named else 'an error'}: {SEE_LOG}"
    if data.user_failure_data is None:
        blocked = named is not None and named.cls_name == DagsterAssetCheckFailedError.__name__
        return None if blocked else (by_class, {})
    own = cause is None or cause.cls_name in _own_errors()
    return (data.user_failure_data.description or NO_MESSAGE) if own else by_class, report_in(data.user_failure_data.metadata)


def _own_errors(of: type[GameEventsError] = GameEventsError) -> set[str | None]:
    """Names of this project's error classes; their messages have no data."""
    return {of.__name__}.union(*(_own_errors(kind) for kind in of.__subclasses__()))


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


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a check, by a run or (no id) a sensor; `at` in seconds since 1970."""

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
    """State of a check after the evaluation of the time `seen` (seconds since 1970); `games`: those that it failed for."""

    seen: float = 0.0
    failing: bool = False
    severity: Severity = "error"
    games: list[str] = []

    @classmethod
    def after(cls, settings: Settings, evaluations: Sequence[Evaluation]) -> Self:
        """State after the last of some evaluations."""
        if not evaluations:
            return cls()
        last = evaluations[-1]
        bad = last.failure(settings)
        return cls(seen=last.at) if bad is None else cls(seen=last.at, failing=True, severity=bad, games=last.games)


def turns(settings: Settings, evaluations: Sequence[Evaluation], before: CheckMemory) -> list[Evaluation]:
    """The new evaluations (oldest first) that get an alert: the first new failure, and the last one if it ends failures."""

    def is_new(found: Evaluation) -> bool:
        new = not before.failing or not set(found.games) <= set(before.games)
        return new and found.failure(settings) is not None

    first = list(filter(is_new, evaluations))[:1]
    ended = evaluations[-1:] if before.failing or first else []
    return [*first, *(found for found in ended if found.result.passed)]


def alert_of_check(settings: Settings, found: Evaluation, job: str | None, before: CheckMemory) -> Alert:
    """Alert of a check that failed, or passes again."""
    name = f"{found.key.asset_key.to_user_string()}/{found.key.name}"
    counts = {k: v.value for k, v in found.result.metadata.items() if isinstance(v, dg.IntMetadataValue)}
    failed = Alert(
        id=f"check_failed:{name}:{found.run_id}:{found.at:.6f}",
        event="check_failed",
        severity=found.failure(settings) or before.severity,
        summary=f"check {name} failed",
        run_id=found.run_id or None,
        job=job,
        url=run_url(settings, found.run_id) if found.run_id else None,
        games=found.games,
        check=name,
        error=plain(found.result.description or "")[:LONGEST_ERROR] or None,
        counts={k: v for k, v in counts.items() if v is not None},
    )
    if found.failure(settings) is not None:
        return failed
    over = {"id": f"recovered:{failed.id}", "event": "recovered", "of": "check_failed", "error": None}
    return failed.model_copy(update=over | {"summary": f"check {name} passes again"})


def history(instance: DagsterInstance, key: dg.AssetCheckKey, most: int = HISTORY) -> list[Evaluation]:
    """The newest evaluations of a check, oldest first; the last one of each run."""
    records = instance.event_log_storage.get_asset_check_execution_history(key, most, status=EVALUATED)
    # Not a record's own time, which is that of the run's plan.
    found = [Evaluation(key, r.run_id, r.event.timestamp, r.evaluation) for r in records if r.event and r.evaluation]
    return sorted(found, key=lambda evaluation: evaluation.at)


def sends_own_alerts(settings: Settings, run: DagsterRun | None) -> bool:
    """Whether a run sends its alerts at its end: one of the command line. For a continuous one that is days later."""
    return run is not None and run.tags.get(OWN_ALERTS) == "true" and run.job_name != Keys.of(settings).named(JOB)


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
    for key in {found.asset_check_key for entry in events if (found := entry.asset_check_evaluation)}:
        records = history(instance, key)
        mine = [r for r in records if r.run_id == run_id]
        memory = CheckMemory.after(settings, [r for r in records if r.run_id != run_id])
        for turned in turns(settings, mine, memory):
            send(settings, alert_of_check(settings, turned, run.job_name, memory))
            memory = CheckMemory.after(settings, [turned])
    _send_losses(settings, run_id, record.start_time or record.create_timestamp.timestamp())


def _send_losses(settings: Settings, run_id: str, since: float) -> None:
    severity = severity_of(settings, LOST)
    if severity is None:
        return
    try:
        bronze = Lakehouse.of(settings).table(BRONZE)
        handle = bronze.open_to_read()
        found = losses(bronze, handle.version(), -1, int(since * 1000)) if handle is not None else ()
        mine = [loss for loss in found if loss.run_id == run_id]
    except (GameEventsError, DeltaError, OSError) as error:
        # The run's own work met the same storage error, and reported it.
        log.warning("losses_not_reported=true run_id=%s error=%s", run_id, type(error).__name__)
        return
    for loss in mine:
        send(settings, alert_of_loss(settings, loss, severity))
