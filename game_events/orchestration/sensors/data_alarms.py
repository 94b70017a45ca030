"""The sensor for what runs cannot check: producers and games that fell silent, and alerts of lost records.

A run makes its checks only when it has changed a table: without new records nothing is checked. A tick costs one small request
while bronze does not change; once an hour it opens bronze and reads the last weeks of the event log.
"""

import time
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance
from deltalake import DeltaTable
from pydantic import Field

from game_events.lakehouse.commits.delta_log import TableLog
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import JOB as CONTINUOUS_JOB
from game_events.orchestration.keys import Keys
from game_events.orchestration.runs.alerts import alert_of_loss
from game_events.orchestration.runs.tags import OWN_ALERTS
from game_events.orchestration.sensors.ticks import Cursor, sensor
from game_events.pipeline.checks.history import volume
from game_events.pipeline.checks.source import LOST, Loss, fresh, last_records, losses
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.observability.alerts import send, severity_of

#: Seconds between two checks of everything; what may have changed is checked in each tick.
ALL_S = 3600.0
#: Commits of bronze read in one tick, and alerts sent in one: each may take 10 s, and Dagster ends a tick after 60 s.
COMMITS, ALERTS = 2_000, 4


class Watch(Cursor):
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


def check(
    pipeline: Pipeline, watch: Watch, now: float, instance: DagsterInstance
) -> tuple[list[dg.AssetCheckEvaluation], Watch]:
    """The results of checks that are due or have turned; sends alerts of what was lost since.

    Raises:
        GameEventsError: a table or the topic cannot be read.
    """
    everything = now >= watch.all_at + ALL_S
    if everything or TableLog(pipeline.bronze).has(watch.version + 1):
        handle = pipeline.bronze.open()
        if handle is None:
            return [], watch
        watch = _read_bronze(pipeline, handle, watch, instance)
    allowed = pipeline.settings.freshness_s
    stale = bool(allowed) and now - watch.came > allowed
    found = []
    if everything or stale != watch.stale:
        found.append(fresh(pipeline))
    if everything:
        found.append(volume(pipeline, datetime.fromtimestamp(now, UTC)))
        watch = watch.model_copy(update={"all_at": now})
    keys = Keys.of(pipeline.settings)
    return [check_evaluation(result, keys) for result in found], watch.model_copy(update={"stale": stale})


def _read_bronze(pipeline: Pipeline, handle: DeltaTable, watch: Watch, instance: DagsterInstance) -> Watch:
    """Read the time of the newest record, and send an alert of each loss since the last tick."""
    version, table = handle.version(), str(handle.metadata().id)
    if watch.table != table:
        # Losses from before the first tick are not reported; a table that was made since may have begun with a loss.
        watch = watch.model_copy(update={"table": table, "version": -1 if watch.table else version, "sent": []})
    last = last_records(pipeline.bronze, version)
    watch = watch.model_copy(update={"came": last.time.timestamp() if last is not None else 0.0})
    lost = list(losses(pipeline.bronze, version, max(watch.version, version - COMMITS)))
    return _send_alerts(pipeline, watch, version, lost[::-1], instance)


def _send_alerts(pipeline: Pipeline, watch: Watch, version: int, lost: list[Loss], instance: DagsterInstance) -> Watch:
    """Send an alert of each loss; those that cannot be sent now are sent by the next tick."""
    severity, sent = severity_of(pipeline.settings, LOST), list(watch.sent)
    left = ALERTS
    for loss in lost:
        if severity is None or loss.key in sent or _sends_itself(pipeline, instance, loss.run_id):
            continue
        if not left or not send(pipeline.settings, alert_of_loss(pipeline.settings, loss, severity)):
            return watch.model_copy(update={"sent": sent})
        left -= 1
        sent.append(loss.key)
    return watch.model_copy(update={"version": version, "sent": []})


def _sends_itself(pipeline: Pipeline, instance: DagsterInstance, run_id: str | None) -> bool:
    """Whether a run sends its own alerts: one of the command line, at its end; a continuous one lasts too long."""
    run = instance.get_run_by_id(run_id) if run_id is not None else None
    return (
        run is not None
        and run.tags.get(OWN_ALERTS) == "true"
        and run.job_name != Keys.of(pipeline.settings).named(CONTINUOUS_JOB)
    )


def build_data_alarms(graph: Graph) -> dg.SensorDefinition:
    """The sensor; without a bronze there is nothing to check."""

    @sensor(
        graph,
        "data_alarms",
        "Checks, also without any run, for producers and games that fell silent (checks `fresh`, `volume`), and sends the "
        "webhook an alert of records that were lost before they were read.",
        60,
    )
    def data_alarms(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        watch = Watch.read(context.cursor)
        found, watch = check(Pipeline(graph.source.read(), no_spark), watch, time.time(), context.instance)
        if found:
            return dg.SensorResult(asset_events=found, cursor=watch.model_dump_json())
        context.update_cursor(watch.model_dump_json())
        return dg.SkipReason("nothing has turned since the last tick" if watch.table else "there is no bronze yet")

    return data_alarms
