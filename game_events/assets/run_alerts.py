"""Failed runs and failed checks as alerts; and those of a run that tells of itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.errors import DagsterAssetCheckFailedError
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord, AssetCheckExecutionRecordStatus

from game_events.assets.jobs import REPORT
from game_events.errors import GameEventsError
from game_events.pipeline.alerts import LONGEST_ERROR, Alert, run_url, send
from game_events.settings import Settings

#: Evaluations of one check that are looked at: more than a tick's worth.
HISTORY = 50
EVALUATED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


def alert_of_run(instance: DagsterInstance, settings: Settings, run: DagsterRun) -> Alert | None:
    """A failed run: what failed, in the words of this project's errors; of other errors only their class.

    Returns:
        None if it failed only because a blocking check did: that is an alert of its own.
    """
    error, report = "the run ended without a word: see its log in the Dagster UI", {}
    kinds = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE}
    for entry in instance.all_logs(run.run_id, of_type=kinds):
        event = entry.dagster_event
        if event is None:
            continue
        if event.event_type == DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            if data.user_failure_data is not None:
                report = _report(data.user_failure_data.metadata)
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


def _report(metadata: Any) -> dict[str, Any]:  # noqa: ANN401 - Dagster's metadata values
    value = (metadata or {}).get(REPORT)
    return dict(value.data) if isinstance(value, dg.JsonMetadataValue) and isinstance(value.data, dict) else {}


def is_failure(record: AssetCheckExecutionRecord) -> bool:
    """Whether an evaluation failed as an error; warnings are for people who look."""
    evaluation = _evaluation(record)
    return evaluation is not None and not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR


def _evaluation(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation | None:
    event = record.event.dagster_event if record.event is not None else None
    data = event.event_specific_data if event is not None else None
    return data if isinstance(data, dg.AssetCheckEvaluation) else None


def turns(records: Iterable[AssetCheckExecutionRecord], failing: bool) -> list[AssetCheckExecutionRecord]:
    """The evaluations worth an alert: the first failure after passes, and the pass that ends the failures, if it lasts.

    Args:
        records: new evaluations, oldest first.
        failing: whether the one before them failed.
    """
    evaluated = list(records)
    first = next((r for r in evaluated if is_failure(r)), None) if not failing else None
    last = evaluated[-1] if evaluated and not is_failure(evaluated[-1]) and (failing or first is not None) else None
    return [record for record in (first, last) if record is not None]


def alert_of_check(settings: Settings, record: AssetCheckExecutionRecord, job: str | None) -> Alert:
    """A check that failed, or passes again."""
    name = f"{record.key.asset_key.to_user_string()}/{record.key.name}"
    found = _evaluation(record)
    failed = is_failure(record)
    counts = {k: v.value for k, v in found.metadata.items() if isinstance(v, dg.IntMetadataValue)} if found else {}
    return Alert(
        id=f"{'' if failed else 'recovered:'}check_failed:{name}:{record.run_id}:{evaluated_at(record):.6f}",
        event="check_failed" if failed else "recovered",
        of=None if failed else "check_failed",
        summary=f"check {name} {'failed' if failed else 'passes again'}",
        run_id=record.run_id,
        job=job,
        url=run_url(settings, record.run_id),
        check=name,
        error=(found.description or "")[:LONGEST_ERROR] or None if failed and found else None,
        counts={k: v for k, v in counts.items() if v is not None},
    )


def history(instance: DagsterInstance, key: dg.AssetCheckKey) -> list[AssetCheckExecutionRecord]:
    """The last evaluations of a check, oldest first; of each run its last one."""
    found = instance.event_log_storage.get_asset_check_execution_history(key, HISTORY, status=EVALUATED)
    return sorted(found, key=evaluated_at)


def evaluated_at(record: AssetCheckExecutionRecord) -> float:
    """When an evaluation was made, in seconds since 1970; the record's own time is that of the run's plan."""
    return record.event.timestamp if record.event is not None else record.create_timestamp


def send_own_alerts(instance: DagsterInstance, settings: Settings, run_id: str) -> None:
    """At the end of a run that has no daemon to speak for it: that it failed, and checks that turned with it."""
    run = instance.get_run_by_id(run_id)
    if settings.alert_webhook_url is None or run is None:
        return
    alert = alert_of_run(instance, settings, run) if run.status == DagsterRunStatus.FAILURE else None
    if alert is not None:
        send(settings, alert)
    events = instance.all_logs(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION)
    data = (e.dagster_event.event_specific_data for e in events if e.dagster_event is not None)
    for key in {e.asset_check_key for e in data if isinstance(e, dg.AssetCheckEvaluation)}:
        records = history(instance, key)
        before = [r for r in records if r.run_id != run_id]
        mine = [r for r in records if r.run_id == run_id]
        for record in turns(mine, bool(before) and is_failure(before[-1])):
            send(settings, alert_of_check(settings, record, run.job_name))
