"""The sensor for what runs cannot check: producers and games that fell silent, and alerts of lost records.

A run makes its checks only when it has changed a table: without new records nothing is checked. A tick costs one small request
while bronze does not change; once an hour it opens bronze and reads the last weeks of the event log.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance
from deltalake import DeltaTable
from pydantic import Field

from game_events.lakehouse.commits.delta_log import TableLog
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import Keys
from game_events.orchestration.runs.alerts import alert_of_loss, sends_own_alerts
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
    severity, left = severity_of(pipeline.settings, LOST), ALERTS
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
