"""The sensor that sees what no run sees: producers and games that fell silent; and that tells of records that were lost.

A run makes its checks only when it has changed a table: where nothing comes nothing is checked. A tick costs one small request
while bronze does not change; once an hour it opens bronze and reads the last weeks of the event log.
"""

import time
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, ValidationError

from game_events.config.settings import load_settings
from game_events.errors import GameEventsError
from game_events.lakehouse.commits.restores import has_commit
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.keys import JOB as CONTINUOUS_JOB
from game_events.orchestration.keys import Keys
from game_events.orchestration.runs.alerts import alert_of_loss
from game_events.orchestration.runs.tags import OWN_ALERTS
from game_events.orchestration.sensors.masked import masked
from game_events.pipeline.checks.freshness import fresh, last_records
from game_events.pipeline.checks.gaps import LOST, Loss, losses
from game_events.pipeline.checks.volume import volume
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.observability.alerts import send, severity_of

#: Seconds between two looks at everything; what may have changed is looked at in each tick.
ALL_S = 3600.0
#: Commits of bronze looked at in one tick, and alerts sent in one: each may take 10 s, and Dagster ends a tick after 60 s.
COMMITS, ALERTS = 2_000, 4


class Watch(BaseModel):
    """The sensor's cursor.

    Attributes:
        version: bronze's version up to which losses were told.
        table: id of that table; empty: nobody has looked yet.
        came: when records came last (seconds since 1970).
        stale: what was found of that at the last look.
        all_at: when everything was looked at last.
        told: losses behind `version` that were told already.
    """

    version: int = -1
    table: str = ""
    came: float = 0.0
    stale: bool = False
    all_at: float = 0.0
    told: list[str] = []

    @classmethod
    def read(cls, cursor: str | None) -> "Watch":
        """A cursor's memory; an empty one if it is none."""
        try:
            return cls.model_validate_json(cursor or "{}")
        except ValidationError:
            return cls()


def look(
    pipeline: Pipeline, watch: Watch, now: float, instance: DagsterInstance
) -> tuple[list[dg.AssetCheckEvaluation], Watch]:
    """The results of checks that are due or have turned; what was lost since is told.

    Raises:
        GameEventsError: a table or the topic cannot be read.
    """
    everything = now >= watch.all_at + ALL_S
    if everything or has_commit(pipeline.bronze, watch.version + 1):
        handle = pipeline.bronze.open()
        if handle is None:
            return [], watch
        watch = _look_at_bronze(pipeline, handle, watch, instance)
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


def _look_at_bronze(pipeline: Pipeline, handle: DeltaTable, watch: Watch, instance: DagsterInstance) -> Watch:
    """When records came last; and of each loss since the last look an alert."""
    version, table = handle.version(), str(handle.metadata().id)
    if watch.table != table:
        # What a table had lost before the first look is nobody's news; one that was made since may have begun with a loss.
        watch = watch.model_copy(update={"table": table, "version": -1 if watch.table else version, "told": []})
    last = last_records(pipeline.bronze, version)
    watch = watch.model_copy(update={"came": last.time.timestamp() if last is not None else 0.0})
    lost = list(losses(pipeline.bronze, version, max(watch.version, version - COMMITS)))
    return _tell(pipeline, watch, version, lost[::-1], instance)


def _tell(pipeline: Pipeline, watch: Watch, version: int, lost: list[Loss], instance: DagsterInstance) -> Watch:
    """Send an alert of each loss; those that cannot be sent now are looked for again by the next tick."""
    severity, told = severity_of(pipeline.settings, LOST), list(watch.told)
    left = ALERTS
    for loss in lost:
        if severity is None or loss.key in told or _tells_itself(instance, loss.run_id):
            continue
        if not left or not send(pipeline.settings, alert_of_loss(pipeline.settings, loss, severity)):
            return watch.model_copy(update={"told": told})
        left -= 1
        told.append(loss.key)
    return watch.model_copy(update={"version": version, "told": []})


def _tells_itself(instance: DagsterInstance, run_id: str | None) -> bool:
    """A run of the command line does so at its end, which of a continuous one nobody waits for."""
    run = instance.get_run_by_id(run_id) if run_id is not None else None
    return run is not None and run.tags.get(OWN_ALERTS) == "true" and run.job_name != CONTINUOUS_JOB


@dg.sensor(
    name="data_alarms",
    description="Looks, whether anything runs or not, for producers and games that fell silent (checks `fresh`, `volume`), and "
    "tells the webhook of records that were lost before they were read.",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
@masked
def data_alarms(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """One look; without a bronze there is nothing to be silent or lost."""
    watch = Watch.read(context.cursor)
    try:
        pipeline = Pipeline(load_settings(), no_spark)
        found, watch = look(pipeline, watch, time.time(), context.instance)
    except (GameEventsError, DeltaError, OSError) as error:
        return dg.SkipReason(str(error))
    if found:
        return dg.SensorResult(asset_events=found, cursor=watch.model_dump_json())
    context.update_cursor(watch.model_dump_json())
    return dg.SkipReason("nothing has turned since the last look" if watch.table else "there is no bronze yet")
