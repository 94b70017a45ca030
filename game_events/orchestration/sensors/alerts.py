"""The sensor that tells a webhook of failed runs and failed checks."""

import time
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from pydantic import BaseModel, ValidationError

from game_events.config.settings import Settings, load_settings
from game_events.errors import GameEventsError
from game_events.orchestration.keys import JOB as CONTINUOUS_JOB
from game_events.orchestration.runs.alerts import CheckMemory, alert_of_check, alert_of_run, evaluated_at, history, turns
from game_events.orchestration.runs.tags import OWN_ALERTS
from game_events.orchestration.sensors.masked import masked
from game_events.pipeline.observability.alerts import send

#: Failed runs looked at in one tick, besides those told already, and alerts sent in one: each may take 10 s, and Dagster ends
#: a tick after 60 s.
RUNS, ALERTS = 100, 4
#: A run may be written later than one that ended after it: so far back each tick looks again.
OVERLAP_S = 60.0
#: Runs remembered as told.
REMEMBERED = 500


class Told(BaseModel):
    """The sensor's cursor.

    Attributes:
        born: first tick, in seconds since 1970: what happened before it is nobody's news.
        since: newest failed run seen.
        runs: failed runs that were told.
        checks: each check's state.
    """

    born: float
    since: float
    runs: list[str] = []
    checks: dict[str, CheckMemory] = {}

    @classmethod
    def read(cls, cursor: str | None) -> "Told":
        """A cursor's memory; a new one if it is none."""
        try:
            return cls.model_validate_json(cursor or "")
        except ValidationError:
            now = time.time()
            return cls(born=now, since=now)


def tell_of_runs(instance: DagsterInstance, settings: Settings, told: Told, left: int) -> int:
    """Send an alert for each run that failed since; returns how many more may be sent in this tick."""
    after = datetime.fromtimestamp(told.since - OVERLAP_S, UTC)
    # Those that were told are found again: as many failures within a minute must not hide the ones behind them.
    limit = RUNS + len(told.runs)
    records = instance.get_run_records(
        RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=after), limit, "update_timestamp", ascending=True
    )
    for record in records:
        run, ended = record.dagster_run, record.end_time or record.update_timestamp.timestamp()
        if run.run_id not in told.runs and ended >= told.born:
            alert = alert_of_run(instance, settings, run) if run.tags.get(OWN_ALERTS) != "true" else None
            if alert is not None:
                if not left or not send(settings, alert):
                    return 0
                left -= 1
            told.runs = [*told.runs, run.run_id][-REMEMBERED:]
        told.since = max(told.since, record.update_timestamp.timestamp())
    return left


def tell_of_checks(instance: DagsterInstance, settings: Settings, keys: list[dg.AssetCheckKey], told: Told, left: int) -> int:
    """Send an alert for each check that began to fail or passes again; returns how many more may be sent in this tick."""
    for key in keys:
        name = key.to_user_string()
        memory = told.checks.get(name)
        # By the time of the evaluations, not by Dagster's record of them: a run has one record for a check, made when the run
        # was planned, and overwritten by each evaluation of the run. A continuous run makes many.
        records = history(instance, key)
        if memory is None:
            # Seen for the first time: evaluations of before the first tick are no news, their result is.
            old = [r for r in records if evaluated_at(r) < told.born]
            memory = CheckMemory.of(settings, old[-1]) if old else CheckMemory()
        new = [r for r in records if evaluated_at(r) > memory.seen]
        for record in turns(settings, new, memory):
            run = instance.get_run_by_id(record.run_id) if record.run_id else None
            # A continuous run of the command line lasts for days, and tells of its checks only at its end (with the same id).
            if run is None or run.tags.get(OWN_ALERTS) != "true" or run.job_name == CONTINUOUS_JOB:
                if not left or not send(settings, alert_of_check(settings, record, run.job_name if run else None, memory)):
                    return 0
                left -= 1
            memory = CheckMemory.of(settings, record)
            told.checks[name] = memory
        told.checks[name] = CheckMemory.of(settings, new[-1]) if new else memory
    return left


@dg.sensor(
    name="alerts",
    description="Tells the webhook of the settings when a run fails, and when a check begins to fail or passes again.",
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
@masked
def alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Look at what has happened since the last tick; what could not be sent is sent by the next."""
    try:
        settings = load_settings()
    except GameEventsError as error:
        return dg.SkipReason(str(error))
    if settings.alert_webhook_url is None:
        context.update_cursor("")
        return dg.SkipReason("GAME_EVENTS_ALERT_WEBHOOK_URL is not set: nobody wants alerts")
    told = Told.read(context.cursor)
    keys = sorted(context.repository_def.asset_graph.asset_check_keys) if context.repository_def else []
    left = tell_of_runs(context.instance, settings, told, ALERTS)
    left = tell_of_checks(context.instance, settings, keys, told, left) if left else 0
    context.update_cursor(told.model_dump_json())
    said = f"{ALERTS - left} alerts sent" if left else "the webhook did not take an alert, or there are many: going on"
    unknown = sorted(settings.alert_severity.keys() - {key.name for key in keys}) if keys else []
    if unknown:
        said += f"; GAME_EVENTS_ALERT_SEVERITY names no check: {', '.join(unknown)}"
    return dg.SkipReason(said)
