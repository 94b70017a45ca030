"""The sensor that sends a webhook alerts of failed runs and of checks that turned.

Not Dagster's `run_failure_sensor` (1.13): it moves its cursor past a run also when its function fails, so an alert is lost
while the webhook is away; it skips runs without a remote origin, as those of the command line are; and it knows no checks.
"""

import time
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus
from pydantic import Field

from game_events.config.settings import Settings
from game_events.orchestration.graph import Graph
from game_events.orchestration.runs.alerts import CheckMemory, alert_of_check, alert_of_run, history, sends_own_alerts, turns
from game_events.orchestration.runs.own_runs import OwnRuns, repository_of
from game_events.orchestration.runs.tags import OWN_ALERTS
from game_events.orchestration.sensors.ticks import Cursor, own_runs, sensor
from game_events.pipeline.observability.alerts import send

#: Failed runs read in one tick, and alerts sent in one: each may take 10 s, and Dagster ends a tick after 60 s.
RUNS, ALERTS = 100, 4
#: A run may be written later than one that ended after it: each tick reads so many seconds again.
OVERLAP_S = 60.0
#: Runs remembered as sent.
REMEMBERED = 500


class AlertCursor(Cursor):
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
