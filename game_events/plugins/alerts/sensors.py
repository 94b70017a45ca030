"""What alerts are sent of: failed runs, checks that turned, lost records, lag; by two sensors, and by the command line's runs.

What a tick could not send is sent by the next one.

Not Dagster's `run_failure_sensor` (1.13): it moves its cursor past a run also when its function fails, so an alert is lost
while the webhook is away; it skips runs without a remote origin, as those of the command line are; and it knows no checks.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, Field

from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.orchestration.checks import Evaluation, check_evaluation, history
from game_events.orchestration.events import plain
from game_events.orchestration.keys import JOB, DagsterAssetCheckFailedError, Keys, report_in
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import OWN_ALERTS, OwnRuns, repository_of
from game_events.orchestration.sensors import TIMEOUT_S, Sensor, SensorCursor, Tick
from game_events.pipeline.checks.audits import VOLUME, volume
from game_events.pipeline.checks.table_checks import FRESH, LOST, Loss, fresh, gaps_in_words, last_records, losses
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.runs.pending import PipelineLag, read_lag
from game_events.plugins.alerts.settings import AlertSettings
from game_events.plugins.alerts.webhook import LONGEST_ERROR, Alert, Severity, send, send_all

log = logging.getLogger(__name__)

#: Checks that raise an alert although no row is wrong: no other check fails if a producer stops.
DEFAULT_SEVERITY: Mapping[str, Severity] = {FRESH: "error", LOST: "error", VOLUME: "warning"}

SEE_LOG = "see the run's log in the Dagster UI"

NO_MESSAGE = f"the run ended without an error message: {SEE_LOG}"


def severity_of(settings: Settings, check: str, *, wrong_rows: bool = False) -> Severity | None:
    """Severity of a failed check by the setting `alert_severity`, or the default; None: no alert."""
    chosen = AlertSettings.of(settings).alert_severity.get(check)
    chosen = chosen or ("error" if wrong_rows else DEFAULT_SEVERITY.get(check, "none"))
    return None if chosen == "none" else chosen


def alert_of_run(instance: DagsterInstance, run: DagsterRun) -> Alert | None:
    """Alert of a failed run; None: only a blocking check failed, which has its own alert."""
    entries = instance.all_logs(run.run_id, of_type={DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE})
    failure = _failure([entry.get_dagster_event() for entry in entries])
    if failure is None:
        return None
    error, report = failure
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
        games=sorted({str(e["game"]) for e in failures if e.get("game")}),
        tables=tables,
        error=error[:LONGEST_ERROR],
        counts={f"{layer}_rows": int(n) for layer, n in report.get("rows", {}).items()},
    )


def _failure(events: Sequence[dg.DagsterEvent]) -> tuple[str, dict[str, Any]] | None:
    """Message and report of a failed run, by its events; None: only a blocking check failed."""
    steps = [_step_failure(event) for event in events if event.event_type == DagsterEventType.STEP_FAILURE]
    if not steps:
        return next((event.message for event in reversed(events) if event.message), NO_MESSAGE), {}
    # A layer's step that failed for single tables names these alone: the whole report is another step's.
    return next((step for step in steps if step is not None and step[1].get("rows")), steps[0])


def _step_failure(event: dg.DagsterEvent) -> tuple[str, dict[str, Any]] | None:
    """Message and report of a failed step; None: a blocking check failed.

    Of other libraries' errors the class alone, as their messages may quote data.
    """
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


def alert_of_loss(loss: Loss, severity: Severity) -> Alert:
    """Alert of records that were lost before bronze read them."""
    known = [gap.offsets for gap in loss.gaps if gap.offsets is not None]
    return Alert(
        id=f"data_lost:{loss.key}",
        event="data_lost",
        severity=severity,
        summary=f"records were lost before they were read, in {len(loss.gaps):,} places",
        run_id=loss.run_id,
        error=gaps_in_words(loss.gaps)[:LONGEST_ERROR],
        counts={"gaps": len(loss.gaps), "offsets_lost": sum(known), "gaps_of_unknown_length": len(loss.gaps) - len(known)},
    )


def failure_of(settings: Settings, evaluation: Evaluation) -> Severity | None:
    """Severity of a check's failure; None: it passed, or gets no alert."""
    # Lost records have an alert for each commit (`alert_of_loss`); the check covers several commits.
    if evaluation.result.passed or evaluation.key.name == LOST:
        return None
    wrong_rows = evaluation.result.severity == dg.AssetCheckSeverity.ERROR
    return severity_of(settings, evaluation.key.name, wrong_rows=wrong_rows)


class CheckMemory(BaseModel):
    """State of a check after the evaluation of the time `seen` (seconds since 1970); `games`: those that it failed for."""

    seen: float = 0.0
    failing: bool = False
    severity: Severity = "error"
    games: list[str] = []

    def note(self, settings: Settings, evaluation: Evaluation) -> None:
        """Take over the next evaluation."""
        severity = failure_of(settings, evaluation)
        self.seen = evaluation.at
        self.failing = severity is not None
        self.severity = severity or "error"
        self.games = evaluation.games if self.failing else []


def turns(
    instance: DagsterInstance, settings: Settings, evaluations: Iterable[Evaluation], memory: CheckMemory, *, own: bool
) -> Iterator[Alert]:
    """Alerts of a check's new evaluations (oldest first): of the first new failure, and of the last if it ends failures.

    A check that turns many times while nobody looks has two alerts. The memory moves on with each. `own`: also of runs that
    send their alerts by themselves.
    """
    new = list(evaluations)
    failed = next((made for made in new if _is_new_failure(settings, memory, made)), None)
    ends_failures = bool(new) and (memory.failing or failed is not None) and new[-1].result.passed
    turned = [made for made in (failed, new[-1] if ends_failures else None) if made is not None]
    for evaluation in turned:
        severity = failure_of(settings, evaluation)
        run = _run_of(instance, evaluation.run_id)
        if own or not sends_own_alerts(settings, run):
            alert = alert_of_check(evaluation, run, severity or memory.severity)
            yield alert if severity is not None else _recovery(alert)
        memory.note(settings, evaluation)
    if new:
        memory.note(settings, new[-1])


def _is_new_failure(settings: Settings, memory: CheckMemory, evaluation: Evaluation) -> bool:
    """Whether a check that passed fails, or one that failed does so for more games."""
    is_new = not memory.failing or not set(evaluation.games) <= set(memory.games)
    return is_new and failure_of(settings, evaluation) is not None


def _recovery(alert: Alert) -> Alert:
    """The alert that the check of a failure passes again."""
    over = {"id": f"recovered:{alert.id}", "event": "recovered", "of": "check_failed", "error": None}
    return alert.model_copy(update=over | {"summary": f"check {alert.check} passes again"})


def alert_of_check(evaluation: Evaluation, run: DagsterRun | None, severity: Severity) -> Alert:
    """Alert of a check that failed."""
    name = f"{evaluation.key.asset_key.to_user_string()}/{evaluation.key.name}"
    numbers = evaluation.result.metadata.items()
    return Alert(
        id=f"check_failed:{name}:{evaluation.run_id}:{evaluation.at:.6f}",
        event="check_failed",
        severity=severity,
        summary=f"check {name} failed",
        run_id=evaluation.run_id or None,
        job=run.job_name if run else None,
        games=evaluation.games,
        check=name,
        error=plain(evaluation.result.description or "")[:LONGEST_ERROR] or None,
        counts={k: v.value for k, v in numbers if isinstance(v, dg.IntMetadataValue) and v.value is not None},
    )


def _run_of(instance: DagsterInstance, run_id: str | None) -> DagsterRun | None:
    return instance.get_run_by_id(run_id) if run_id else None


def sends_own_alerts(settings: Settings, run: DagsterRun | None) -> bool:
    """Whether a run sends its alerts at its end: one of the command line. For a continuous one that is days later."""
    return run is not None and run.tags.get(OWN_ALERTS) == "true" and run.job_name != Keys.of(settings).named(JOB)


def send_own_alerts(instance: DagsterInstance, settings: Settings, run_id: str) -> None:
    """Send the alerts of a run of the command line at its end, as no daemon may be running."""
    record = instance.get_run_record_by_id(run_id)
    if AlertSettings.of(settings).alert_webhook_url is None or record is None:
        return
    for alert in _own_alerts(instance, settings, record):
        send(settings, alert)


def _own_alerts(instance: DagsterInstance, settings: Settings, record: dg.RunRecord) -> Iterator[Alert]:
    """The run's failure, checks that turned in it, what it lost."""
    run = record.dagster_run
    alert = alert_of_run(instance, run) if run.status == DagsterRunStatus.FAILURE else None
    if alert is not None:
        yield alert
    yield from _turns_in(instance, settings, run.run_id)
    severity = severity_of(settings, LOST)
    if severity is None:
        return
    for loss in _losses_since(settings, record.start_time or record.create_timestamp.timestamp()):
        if loss.run_id == run.run_id:
            yield alert_of_loss(loss, severity)


def _turns_in(instance: DagsterInstance, settings: Settings, run_id: str) -> Iterator[Alert]:
    """Alerts of the checks that turned in a run, each compared with its last evaluation in another one."""
    events = instance.all_logs(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION)
    for key in {made.asset_check_key for entry in events if (made := entry.asset_check_evaluation)}:
        evaluations = history(instance, key)
        memory = CheckMemory()
        for other in [made for made in evaluations if made.run_id != run_id][-1:]:
            memory.note(settings, other)
        yield from turns(instance, settings, (made for made in evaluations if made.run_id == run_id), memory, own=True)


def _losses_since(settings: Settings, since: float) -> list[Loss]:
    try:
        bronze = Lakehouse.of(settings).table(BRONZE)
        handle = bronze.open_to_read()
        return [] if handle is None else list(losses(bronze, handle.version(), -1, int(since * 1000)))
    except (GameEventsError, DeltaError, OSError) as error:
        # The run's own work met the same storage error, and reported it.
        log.warning("losses_not_reported=true error=%s", type(error).__name__)
        return []


#: Failed runs read in one tick.
RUNS = 100

#: A run may be written later than one that ended after it: each tick reads so many seconds again.
OVERLAP_S = 60.0

#: Runs remembered as sent.
REMEMBERED = 500


class AlertCursor(SensorCursor):
    """The cursor of the sensor `alerts`.

    Attributes:
        born: first tick, in seconds since 1970: what happened before it is not reported.
        since: newest failed run seen.
        runs: failed runs with an alert already.
        checks: each check's state.
        lag_is_high: an alert was sent, and none yet that it is over.
    """

    born: float = Field(default_factory=time.time)
    since: float = Field(default_factory=time.time)
    runs: list[str] = Field(default_factory=list)
    checks: dict[str, CheckMemory] = Field(default_factory=dict)
    lag_is_high: bool = False


def run_alerts(instance: DagsterInstance, own: OwnRuns, cursor: AlertCursor) -> Iterator[Alert]:
    """An alert for each own run that failed since; the cursor moves on with each.

    No alert for a run that another code location on the same lakehouse has started: that location's sensor sends it.
    """
    after = datetime.fromtimestamp(cursor.since - OVERLAP_S, UTC)
    # Those already sent are read again: as many failures within a minute must not hide the ones behind them.
    limit = RUNS + len(cursor.runs)
    records = own.records(instance, limit, by_update=True, statuses=[DagsterRunStatus.FAILURE], updated_after=after)
    for record in records:
        run = record.dagster_run
        updated = record.update_timestamp.timestamp()
        if run.run_id not in cursor.runs and (record.end_time or updated) >= cursor.born:
            elsewhere = None not in (own.repository, repository_of(run)) and own.repository != repository_of(run)
            by_itself = run.tags.get(OWN_ALERTS) == "true"
            alert = None if elsewhere or by_itself else alert_of_run(instance, run)
            if alert is not None:
                yield alert
            cursor.runs = [*cursor.runs, run.run_id][-REMEMBERED:]
        cursor.since = max(cursor.since, updated)


def check_alerts(
    instance: DagsterInstance, settings: Settings, keys: Sequence[dg.AssetCheckKey], cursor: AlertCursor
) -> Iterator[Alert]:
    """An alert for each check that began to fail or passes again; the cursor moves on with each."""
    for key in keys:
        # By the time of the evaluations, not by Dagster's record of them: a run has one record for a check, made when the run
        # was planned, and overwritten by each evaluation of the run. A continuous run makes many.
        evaluations = history(instance, key)
        memory = cursor.checks.setdefault(key.to_user_string(), CheckMemory())
        if not memory.seen:
            # Evaluations from before the first tick are not reported, later changes of the result are.
            for old in [made for made in evaluations if made.at < cursor.born][-1:]:
                memory.note(settings, old)
        yield from turns(instance, settings, [made for made in evaluations if made.at > memory.seen], memory, own=False)


def lag_alert(lag: PipelineLag, threshold: int, cursor: AlertCursor) -> Iterator[Alert]:
    """One alert when the lag reaches `alert_lag_records`, and one when it has fallen below half of that."""
    records = lag.total_lag
    # Of the same alert, sent again, the receiver gets the same id.
    ids = sorted({p.topic_id for p in lag.seen.latest})
    at = f"lag_high:{'+'.join(ids[:1])}:{sum(lag.seen.latest.values())}"
    counts = {"lag": records, "threshold": threshold, "partitions": len(lag.seen.latest)}
    if not cursor.lag_is_high and records >= threshold:
        text = f"{lag.name}: {records:,} records are not read yet (alert at {threshold:,})"
        by_source = Counter[str]()
        for partition, waiting in lag.lag.items():
            by_source[partition.source] += waiting if partition.source else 0
        counts |= {f"lag_{name}": waiting for name, waiting in sorted((+by_source).items())}
        yield Alert(id=at, event="lag_high", severity="warning", summary=text, counts=counts)
        cursor.lag_is_high = True
    elif cursor.lag_is_high and records * 2 < threshold:
        text = f"{lag.name}: lag is down to {records:,} records"
        yield Alert(id=f"recovered:{at}", event="recovered", of="lag_high", severity="warning", summary=text, counts=counts)
        cursor.lag_is_high = False


def _lag_alerts(settings: Settings, cursor: AlertCursor) -> Iterator[Alert]:
    if settings.alert_lag_records:
        yield from lag_alert(read_lag(settings, TIMEOUT_S), settings.alert_lag_records, cursor)
    else:
        cursor.lag_is_high = False


def send_alerts(tick: Tick) -> dg.SkipReason:
    """A tick of the sensor `alerts`: of failed runs, of the checks of the pipeline's own assets, and of lag."""
    settings = tick.settings
    if AlertSettings.of(settings).alert_webhook_url is None:
        tick.context.update_cursor("")
        return dg.SkipReason("GAME_EVENTS_ALERT_WEBHOOK_URL is not set: no alerts are sent")
    cursor = AlertCursor.read(tick.context.cursor)
    layers = set(tick.graph.keys.by_layer.values())
    checks = sorted(key for key in tick.checks if key.asset_key in layers)
    alerts = chain(
        run_alerts(tick.context.instance, tick.own_runs(), cursor),
        check_alerts(tick.context.instance, settings, checks, cursor),
        _lag_alerts(settings, cursor),
    )
    try:
        sent, all_sent = send_all(settings, alerts)
    finally:
        # Also where the lag cannot be read: what was sent is not sent again.
        tick.context.update_cursor(cursor.model_dump_json())
    said = f"{sent} alerts sent" if all_sent else "the webhook did not take an alert, or there are many: going on"
    unknown = sorted(AlertSettings.of(settings).alert_severity.keys() - {key.name for key in checks}) if checks else []
    if unknown:
        said += f"; GAME_EVENTS_ALERT_SEVERITY names no check: {', '.join(unknown)}"
    return dg.SkipReason(said)


#: Seconds between two checks of everything; what may have changed is checked in each tick.
ALL_S = 3600.0

#: Commits of bronze read in one tick.
COMMITS = 2_000


class Watch(SensorCursor):
    """The cursor of the sensor `data_alarms`.

    Attributes:
        version: bronze's version up to which losses were reported.
        table: id of that table; empty: not read yet.
        came: time of the newest record (seconds since 1970).
        stale: result of that check at the last tick.
        all_at: when everything was checked last.
        sent: losses behind `version` with an alert already.
    """

    version: int = -1
    table: str = ""
    came: float = 0.0
    stale: bool = False
    all_at: float = 0.0
    sent: list[str] = Field(default_factory=list)


def watch_data(tick: Tick) -> dg.SensorResult | dg.SkipReason:
    """A tick of the sensor `data_alarms`: what runs cannot check, as one makes its checks only when it has changed a table.

    It costs one small request while bronze does not change; once an hour it opens bronze and reads the last weeks of the event
    log. Without a bronze there is nothing to check.
    """
    watch = Watch.read(tick.context.cursor)
    evaluations = _checks_due(Pipeline(tick.settings, no_spark), watch, tick.clock(), tick.context.instance)
    if evaluations:
        return dg.SensorResult(asset_events=evaluations, cursor=watch.model_dump_json())
    tick.context.update_cursor(watch.model_dump_json())
    return dg.SkipReason("nothing has turned since the last tick" if watch.table else "there is no bronze yet")


def _checks_due(pipeline: Pipeline, watch: Watch, now: float, instance: DagsterInstance) -> list[dg.AssetCheckEvaluation]:
    """The results of checks that are due or have turned; sends alerts of what was lost since. The cursor moves on."""
    everything = now >= watch.all_at + ALL_S
    if everything or TableLog(pipeline.bronze).has(watch.version + 1):
        handle = pipeline.open_bronze()
        if handle is None:
            return []
        send_all(pipeline.settings, _loss_alerts(pipeline, handle, watch, instance))
        last = last_records(pipeline.bronze, handle.version())
        watch.came = last.time.timestamp() if last is not None else 0.0
    allowed = pipeline.settings.freshness_s
    stale = bool(allowed) and now - watch.came > allowed
    results = []
    if everything or stale != watch.stale:
        results.append(fresh(pipeline, now))
    if everything:
        results.append(volume(pipeline, datetime.fromtimestamp(now, UTC)))
        watch.all_at = now
    watch.stale = stale
    keys = Keys.of(pipeline.settings)
    return [check_evaluation(result, keys) for result in results]


def _loss_alerts(pipeline: Pipeline, handle: DeltaTable, watch: Watch, instance: DagsterInstance) -> Iterator[Alert]:
    """An alert of each loss since the last tick, the oldest first."""
    version = handle.version()
    table = str(handle.metadata().id)
    if watch.table != table:
        # Losses from before the first tick are not reported; a table that was made since may have begun with a loss.
        watch.version = -1 if watch.table else version
        watch.table = table
        watch.sent = []
    severity = severity_of(pipeline.settings, LOST)
    lost = [] if severity is None else list(losses(pipeline.bronze, version, max(watch.version, version - COMMITS)))
    for loss in reversed(lost):
        has_alert = loss.key in watch.sent or sends_own_alerts(pipeline.settings, _run_of(instance, loss.run_id))
        if severity is not None and not has_alert:
            yield alert_of_loss(loss, severity)
            watch.sent.append(loss.key)
    watch.version = version
    watch.sent = []


ALERTS = Sensor(
    "alerts",
    15,
    send_alerts,
    "Sends the webhook of the settings an alert when a run of this lakehouse fails, when a check begins to fail or passes "
    "again, and when the lag is high.",
)

DATA_ALARMS = Sensor(
    "data_alarms",
    60,
    watch_data,
    "Checks, also without any run, for producers and games that fell silent (checks `fresh`, `volume`), and sends the "
    "webhook an alert of records that were lost before they were read.",
)


def build_alerts(graph: Graph) -> dg.Definitions:
    """The two sensors."""
    return dg.Definitions(sensors=[ALERTS.build(graph), DATA_ALARMS.build(graph)])
