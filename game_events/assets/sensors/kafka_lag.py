"""The sensor that reads the topic when there is something to read."""

import json
import time

import dagster as dg
from dagster import DagsterInstance, DagsterRun
from deltalake.exceptions import DeltaError

from game_events.assets.keys import DEFAULT, Keys, topic_key
from game_events.assets.run_hygiene import unfinished_runs
from game_events.assets.run_tags import REASON
from game_events.assets.sensors.lag_alerts import alert_on_lag
from game_events.assets.sensors.lag_decision import TELL_EVERY_S, Memory, decide
from game_events.assets.sensors.run_keys import unused_run_key
from game_events.errors import GameEventsError
from game_events.pipeline.standing import Standing, look
from game_events.settings import load_settings

#: Longest wait for one answer of the broker; a tick asks three times, and Dagster ends it after 60 s.
TIMEOUT_S = 5.0
#: Jobs that write bronze: no second one is started beside them.
WRITERS = ("refresh", "continuous", "replay", "redecode")


def writer_of_bronze(instance: DagsterInstance, keys: Keys = DEFAULT) -> DagsterRun | None:
    """A run that writes bronze, or waits for its turn to."""
    for run in unfinished_runs(instance):
        if run.job_name in WRITERS or keys.bronze in (run.asset_selection or ()):
            return run
    return None


def lag_event(standing: Standing, memory: Memory, now: float) -> tuple[list[dg.AssetObservation], Memory]:
    """The topic's offsets and lag as an event of its asset, if they changed and the last one is not just now."""
    offsets = json.dumps([standing.topic.topic_id, sorted(standing.topic.latest.items()), sorted(standing.next.items())])
    if offsets == memory.told or (standing.total_lag and now < memory.told_at + TELL_EVERY_S):
        return [], memory
    rows = [
        dg.TableRecord({"partition": p, "bronze": standing.next[p], "end": end, "lag": standing.lag[p]})
        for p, end in sorted(standing.topic.latest.items())
    ]
    columns = dg.TableSchema([dg.TableColumn(c, type="int") for c in ("partition", "bronze", "end", "lag")])
    event = dg.AssetObservation(
        topic_key(standing.topic.topic),
        metadata={
            "lag": standing.total_lag,
            "partitions": len(standing.topic.latest),
            "topic_id": standing.topic.topic_id,
            "offsets": dg.MetadataValue.table(rows, schema=columns),
        },
    )
    return [event], memory.model_copy(update={"told": offsets, "told_at": now})


@dg.sensor(
    name="kafka_lag",
    description="Starts the job `refresh` when the topic has records that bronze has not, or a layer or game was left behind; "
    "waits while a run is under way, and longer after each run that got nowhere.",
    job_name="refresh",
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def kafka_lag(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Ask the broker and the tables' logs."""
    memory = Memory.read(context.cursor)
    now = time.time()
    try:
        settings = load_settings()
        standing = look(settings, TIMEOUT_S)
    except (GameEventsError, DeltaError, OSError) as error:
        return dg.SkipReason(str(error))
    events, memory = lag_event(standing, memory, now)
    memory = alert_on_lag(settings, standing, memory)
    writer = writer_of_bronze(context.instance, Keys.of(settings))
    if writer is not None:
        run = f"run {writer.run_id[:8]} of {writer.job_name} is {writer.status.value.lower()}"
        why = f"{standing.total_lag:,} records wait: {run}"
        return dg.SensorResult(skip_reason=why, asset_events=events, cursor=memory.model_dump_json())
    decision = decide(standing, memory, now)
    cursor = decision.memory.model_dump_json()
    if decision.run_key is None:
        return dg.SensorResult(skip_reason=decision.why, asset_events=events, cursor=cursor)
    request = dg.RunRequest(run_key=unused_run_key(context.instance, decision.run_key), tags={REASON: decision.why[:200]})
    return dg.SensorResult(run_requests=[request], asset_events=events, cursor=cursor)
