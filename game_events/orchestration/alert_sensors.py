"""The sensors that watch: alerts, silent producers, the status, runs without a process.

The sensor that sends a webhook alerts of failed runs and of checks that turned.

Not Dagster's `run_failure_sensor` (1.13): it moves its cursor past a run also when its function fails, so an alert is lost
while the webhook is away; it skips runs without a remote origin, as those of the command line are; and it knows no checks.

The sensor for what runs cannot check: producers and games that fell silent, and alerts of lost records.

A run makes its checks only when it has changed a table: without new records nothing is checked. A tick costs one small request
while bronze does not change; once an hour it opens bronze and reads the last weeks of the event log.

The asset `status` with its check `all_is_well`, one look at everything that may need a person; and the sensor that looks.

The sensor that ends runs without a process, and deletes those that ended long ago.
"""

import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import Field

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.lakehouse.commits.log import TableLog
from game_events.orchestration.alerts import (
    CheckMemory,
    alert_of_check,
    alert_of_loss,
    alert_of_run,
    history,
    sends_own_alerts,
    turns,
)
from game_events.orchestration.checks import check_evaluation, check_result
from game_events.orchestration.events import as_text, plain
from game_events.orchestration.keys import OWNERS, AssetCheckExecutionRecordStatus, Keys
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import OWN_ALERTS, OwnRuns, drop_old_runs, end_dead_runs, repository_of
from game_events.orchestration.sensors import SensorCursor, own_runs, sensor, some
from game_events.pipeline.checks.audits import volume
from game_events.pipeline.checks.table_checks import LOST, Loss, fresh, last_records, losses
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.monitoring import read_lag, send, severity_of

#: Failed runs read in one tick, and alerts sent in one: each may take 10 s, and Dagster ends a tick after 60 s.
RUNS, ALERTS = 100, 4

#: A run may be written later than one that ended after it: each tick reads so many seconds again.
OVERLAP_S = 60.0

#: Runs remembered as sent.
REMEMBERED = 500


class AlertCursor(SensorCursor):
    """The sensor's cursor.

    Attributes:
        born: first tick, in seconds since 1970: what happened before it is not reported.
        since: newest failed run seen.
        runs: failed runs with an alert already.
        checks: each check's state.
    """

    born: float = Field(default_factory=time.time)
    since: float = Field(default_factory=time.time)
    runs: list[str] = Field(default_factory=list)
    checks: dict[str, CheckMemory] = Field(default_factory=dict)


def send_run_alerts(
    instance: DagsterInstance, settings: Settings, own: OwnRuns, cursor: AlertCursor, left: int, *, at_once: int = RUNS
) -> int:
    """Send an alert for each own run that failed since; returns how many more may be sent in this tick.

    `at_once`: runs that are read, besides those already sent. No alert for a run that another code location on the same
    lakehouse has started: that location's sensor sends it.
    """
    after = datetime.fromtimestamp(cursor.since - OVERLAP_S, UTC)
    # Those already sent are found again: as many failures within a minute must not hide the ones behind them.
    limit = at_once + len(cursor.runs)
    records = own.records(instance, limit, by_update=True, statuses=[DagsterRunStatus.FAILURE], updated_after=after)
    for record in records:
        run, ended = record.dagster_run, record.end_time or record.update_timestamp.timestamp()
        if run.run_id not in cursor.runs and ended >= cursor.born:
            elsewhere = None not in (own.repository, repository_of(run)) and own.repository != repository_of(run)
            mine = run.tags.get(OWN_ALERTS) != "true" and not elsewhere
            alert = alert_of_run(instance, settings, run) if mine else None
            if alert is not None:
                if not left or not send(settings, alert):
                    return 0
                left -= 1
            cursor.runs = [*cursor.runs, run.run_id][-REMEMBERED:]
        cursor.since = max(cursor.since, record.update_timestamp.timestamp())
    return left


def send_check_alerts(
    instance: DagsterInstance, settings: Settings, keys: list[dg.AssetCheckKey], cursor: AlertCursor, left: int
) -> int:
    """Send an alert for each check that began to fail or passes again; returns how many more may be sent in this tick."""
    for key in keys:
        name = key.to_user_string()
        memory = cursor.checks.get(name)
        # By the time of the evaluations, not by Dagster's record of them: a run has one record for a check, made when the run
        # was planned, and overwritten by each evaluation of the run. A continuous run makes many.
        records = history(instance, key)
        if memory is None:
            # Seen for the first time: evaluations from before the first tick are not reported, later changes of the result are.
            memory = CheckMemory.after(settings, [r for r in records if r.at < cursor.born])
        new = [r for r in records if r.at > memory.seen]
        for record in turns(settings, new, memory):
            run = instance.get_run_by_id(record.run_id) if record.run_id else None
            # An alert that a continuous run of the command line sends at its end, too, has the same id.
            if not sends_own_alerts(settings, run):
                if not left or not send(settings, alert_of_check(settings, record, run.job_name if run else None, memory)):
                    return 0
                left -= 1
            memory = CheckMemory.after(settings, [record])
            cursor.checks[name] = memory
        cursor.checks[name] = CheckMemory.after(settings, new) if new else memory
    return left


def build_alerts(graph: Graph) -> dg.SensorDefinition:
    """The sensor; what could not be sent is sent by the next tick."""

    @sensor(
        graph,
        "Sends the webhook of the settings an alert when a run of this lakehouse fails, and when a check begins to fail or "
        "passes again.",
        15,
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        settings = graph.source.read()
        if settings.alert_webhook_url is None:
            context.update_cursor("")
            return dg.SkipReason("GAME_EVENTS_ALERT_WEBHOOK_URL is not set: no alerts are sent")
        cursor = AlertCursor.read(context.cursor)
        left = send_run_alerts(context.instance, settings, own_runs(context, settings), cursor, ALERTS)
        checks = own_checks(graph, context)
        left = send_check_alerts(context.instance, settings, checks, cursor, left) if left else 0
        context.update_cursor(cursor.model_dump_json())
        said = f"{ALERTS - left} alerts sent" if left else "the webhook did not take an alert, or there are many: going on"
        unknown = sorted(settings.alert_severity.keys() - {key.name for key in checks}) if checks else []
        if unknown:
            said += f"; GAME_EVENTS_ALERT_SEVERITY names no check: {', '.join(unknown)}"
        return dg.SkipReason(said)

    return alerts


def own_checks(graph: Graph, context: dg.SensorEvaluationContext) -> list[dg.AssetCheckKey]:
    """The checks of the pipeline's assets, sorted; not those of other assets in the same code location."""
    known = context.repository_def.asset_graph.asset_check_keys if context.repository_def else ()
    layers = set(graph.keys.by_layer.values())
    return sorted(key for key in known if key.asset_key in layers)


#: Seconds between two checks of everything; what may have changed is checked in each tick.
ALL_S = 3600.0

#: Commits of bronze read in one tick, and alerts sent in one: each may take 10 s, and Dagster ends a tick after 60 s.
COMMITS, DATA_ALERTS = 2_000, 4


class Watch(SensorCursor):
    """The sensor's cursor.

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


def check(pipeline: Pipeline, watch: Watch, now: float, instance: DagsterInstance) -> list[dg.AssetCheckEvaluation]:
    """The results of checks that are due or have turned; sends alerts of what was lost since. The cursor moves on.

    Raises:
        GameEventsError: a table or the topic cannot be read.
    """
    everything = now >= watch.all_at + ALL_S
    if everything or TableLog(pipeline.bronze).has(watch.version + 1):
        handle = pipeline.open_bronze()
        if handle is None:
            return []
        _read_bronze(pipeline, handle, watch, instance)
    allowed = pipeline.settings.freshness_s
    stale = bool(allowed) and now - watch.came > allowed
    found = []
    if everything or stale != watch.stale:
        found.append(fresh(pipeline, now))
    if everything:
        found.append(volume(pipeline, datetime.fromtimestamp(now, UTC)))
        watch.all_at = now
    watch.stale = stale
    keys = Keys.of(pipeline.settings)
    return [check_evaluation(result, keys) for result in found]


def _read_bronze(pipeline: Pipeline, handle: DeltaTable, watch: Watch, instance: DagsterInstance) -> None:
    """Read the time of the newest record, and send an alert of each loss since the last tick."""
    version, table = handle.version(), str(handle.metadata().id)
    if watch.table != table:
        # Losses from before the first tick are not reported; a table that was made since may have begun with a loss.
        watch.version = -1 if watch.table else version
        watch.table, watch.sent = table, []
    last = last_records(pipeline.bronze, version)
    watch.came = last.time.timestamp() if last is not None else 0.0
    lost = list(losses(pipeline.bronze, version, max(watch.version, version - COMMITS)))
    if _send_alerts(pipeline, watch.sent, lost[::-1], instance):
        watch.version, watch.sent = version, []


def _send_alerts(pipeline: Pipeline, sent: list[str], lost: list[Loss], instance: DagsterInstance) -> bool:
    """Send an alert of each loss that is not among `sent`; whether all were: the others are sent by the next tick."""
    severity, left = severity_of(pipeline.settings, LOST), DATA_ALERTS
    for loss in lost:
        run = instance.get_run_by_id(loss.run_id) if loss.run_id is not None else None
        if severity is None or loss.key in sent or sends_own_alerts(pipeline.settings, run):
            continue
        if not left or not send(pipeline.settings, alert_of_loss(pipeline.settings, loss, severity)):
            return False
        left -= 1
        sent.append(loss.key)
    return True


def build_data_alarms(graph: Graph, clock: Callable[[], float] = time.time) -> dg.SensorDefinition:
    """The sensor; without a bronze there is nothing to check. `clock`: seconds since 1970."""

    @sensor(
        graph,
        "Checks, also without any run, for producers and games that fell silent (checks `fresh`, `volume`), and sends the "
        "webhook an alert of records that were lost before they were read.",
        60,
    )
    def data_alarms(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        watch = Watch.read(context.cursor)
        found = check(Pipeline(graph.source.read(), no_spark), watch, clock(), context.instance)
        if found:
            return dg.SensorResult(asset_events=found, cursor=watch.model_dump_json())
        context.update_cursor(watch.model_dump_json())
        return dg.SkipReason("nothing has turned since the last tick" if watch.table else "there is no bronze yet")

    return data_alarms


CHECK = "all_is_well"

#: Longest wait for one answer of the broker.
TIMEOUT_S = 5.0

#: Jobs with a failed newest run that is worth a look.
JOBS = ("refresh", "continuous", "replay", "redecode", "maintain")

#: The sensor logs the same result again after so many seconds.
AGAIN_S = 3600.0


def read_status(
    settings: Settings, keys: Keys, instance: DagsterInstance, own: OwnRuns, checks: Collection[dg.AssetCheckKey]
) -> dg.AssetCheckEvaluation:
    """Look at source, tables, checks and runs; what cannot be reached is a trouble, and each trouble a part of the result."""
    troubles: list[str] = []
    numbers: dict[str, int] = {}
    try:
        lag = read_lag(settings, TIMEOUT_S)
        numbers = {"lag": lag.total_lag, "failed_or_waiting": len(lag.failed)}
        if lag.failed:
            troubles.append(f"{settings.names.entities} that failed or wait: {some(lag.failed)}")
        if lag.ahead:
            troubles.append(f"{some(lag.ahead)} end before what bronze has read")
        if settings.alert_lag_records and lag.total_lag >= settings.alert_lag_records:
            troubles.append(f"{lag.total_lag:,} records are not read yet")
    except (GameEventsError, DeltaError, OSError) as error:
        troubles.append(without_secrets(str(error), settings))
    mine = [key for key in checks if key.name != CHECK and key.asset_key in keys.by_layer.values()]
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(mine)
    failed = [k.name for k, record in newest.items() if record.status == AssetCheckExecutionRecordStatus.FAILED]
    if failed:
        troubles.append(f"checks that fail: {some(sorted(failed))}")
    for job in JOBS:
        runs = own.runs(instance, 1, job_name=keys.named(job))
        if runs and runs[0].status == DagsterRunStatus.FAILURE:
            troubles.append(f"the newest run of {job} failed ({runs[0].run_id[:8]})")
    text = "\n".join(f"- {as_text(trouble)}" for trouble in troubles) or "Everything is well."
    return dg.AssetCheckEvaluation(
        asset_key=_key(keys),
        check_name=CHECK,
        passed=not troubles,
        severity=dg.AssetCheckSeverity.WARN,
        description=as_text("; ".join(troubles) or "everything is well"),
        metadata={"status": dg.MetadataValue.md(text), **numbers, "checks_that_fail": len(failed)},
    )


def build_status(graph: Graph, checks: Iterable[dg.AssetChecksDefinition]) -> tuple[dg.AssetSpec, dg.AssetChecksDefinition]:
    """The asset, which is no table, and its check (of the sensor `status`, or by a click); `checks`: those of the layers."""
    entities = graph.settings.names.entities
    known = {key for check in checks for key in check.check_keys}
    spec = dg.AssetSpec(
        _key(graph.keys),
        deps=[graph.keys.unified],
        description=f"Is everything well? Lag, {entities} that failed, checks that fail, failed runs: the check `all_is_well` "
        "has them in one list. The sensor `status` looks each minute.",
        group_name="operations",
        kinds={"dagster"},
        owners=OWNERS,
    )

    @dg.asset_check(
        asset=spec.key,
        name=CHECK,
        description=f"Nothing needs a person: none of the {entities} failed, no check fails, no newest run failed, the source "
        "answers.",
    )
    def all_is_well(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        settings = graph.source.read()
        return check_result(read_status(settings, graph.keys, context.instance, OwnRuns.of(settings), known))

    return spec, all_is_well


class Seen(SensorCursor):
    """The sensor's cursor: the last result in words, and when it was logged (seconds since 1970)."""

    summary: str = ""
    at: float = 0.0


def build_status_sensor(graph: Graph) -> dg.SensorDefinition:
    """The sensor; it starts nothing."""

    @sensor(graph, "Logs the check `all_is_well` of the asset `status` when its result changes, and once an hour.", 60)
    def status(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings, seen, now = graph.source.read(), Seen.read(context.cursor), time.time()
        known = context.repository_def.asset_graph.asset_check_keys if context.repository_def else ()
        found = read_status(settings, graph.keys, context.instance, own_runs(context, settings), known)
        summary = plain(found.description or "")
        if summary == seen.summary and now - seen.at < AGAIN_S:
            return dg.SkipReason(summary)
        cursor = Seen(summary=summary, at=now).model_dump_json()
        return dg.SensorResult(asset_events=[found], skip_reason=summary, cursor=cursor)

    return status


def _key(keys: Keys) -> dg.AssetKey:
    return dg.AssetKey([keys.named("status")])


def build_dead_runs(graph: Graph) -> dg.SensorDefinition:
    """The sensor; it never starts a run, and looks at no run of another lakehouse."""

    @sensor(
        graph,
        "Runs of this lakehouse and machine with a killed process are marked as failed, and their pool slots given back; those "
        "that ended more than `RUN_HISTORY_H` ago are deleted from Dagster's storage.",
        30,
    )
    def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        own = own_runs(context, graph.settings)
        ended = end_dead_runs(context.instance, own)
        checks = context.repository_def.asset_graph.asset_check_keys if context.repository_def else ()
        try:
            dropped = drop_old_runs(context.instance, own, graph.source.read().run_history_h, checks)
            said = f"; deleted {dropped} that ended long ago" if dropped else ""
        except GameEventsError as error:  # dead runs are ended whatever the settings are now
            said = f"; those that ended long ago stay: {error}"
        if not ended:
            return dg.SkipReason(f"every unfinished run has its process{said}")
        return dg.SkipReason(f"ended {len(ended)} runs without a process: {', '.join(run.run_id[:8] for run in ended)}{said}")

    return dead_runs
