"""The sensor that reads the topic when there is something to read."""

import time
from collections import defaultdict
from collections.abc import Sequence

import dagster as dg
from dagster import DagsterInstance, DagsterRun

from game_events.config.settings import Settings
from game_events.orchestration.events.metadata import partition_table
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import DEFAULT, Keys, source_key
from game_events.orchestration.runs.dead_runs import unfinished_runs
from game_events.orchestration.runs.own_runs import OwnRuns
from game_events.orchestration.runs.tags import REASON, unused_run_key
from game_events.orchestration.sensors.lag_decision import EVENT_EVERY_S, Memory, decide
from game_events.orchestration.sensors.ticks import Jobs, own_runs, sensor
from game_events.pipeline.observability.alerts import Alert, send
from game_events.pipeline.observability.lag import PipelineLag, digest, read_lag
from game_events.sources.core.source import Split

#: Longest wait for one answer of the broker; a tick asks three times, and Dagster ends it after 60 s.
TIMEOUT_S = 5.0
#: Jobs that write bronze: no second one is started beside them.
WRITERS = ("refresh", "layers", "continuous", "replay", "redecode")


def writer_of_bronze(instance: DagsterInstance, own: OwnRuns, keys: Keys = DEFAULT) -> DagsterRun | None:
    """An own run that writes bronze, or waits for its turn to."""
    writers = set(map(keys.named, WRITERS))
    for run in unfinished_runs(instance, own):
        if run.job_name in writers or keys.bronze in (run.asset_selection or ()):
            return run
    return None


def lag_event(settings: Settings, lag: PipelineLag, memory: Memory, now: float) -> tuple[list[dg.AssetObservation], Memory]:
    """Offsets and lag as an event of each topic's asset, if they changed and the last one is not just now."""
    offsets = digest([sorted(lag.seen.latest.items()), sorted(lag.next.items())])
    if offsets == memory.reported or (lag.total_lag and now < memory.reported_at + EVENT_EVERY_S):
        return [], memory
    assets: dict[dg.AssetKey, list[Split]] = defaultdict(list)
    for partition in sorted(lag.seen.latest):
        assets[source_key(settings, partition.topic)].append(partition)
    events = [_event(lag, key, partitions) for key, partitions in assets.items()]
    return events, memory.model_copy(update={"reported": offsets, "reported_at": now})


def _event(lag: PipelineLag, key: dg.AssetKey, partitions: Sequence[Split]) -> dg.AssetObservation:
    """With a pattern one event is about several topics."""
    numbers = {p: (lag.next[p], lag.seen.latest[p], lag.lag[p]) for p in partitions}
    return dg.AssetObservation(
        key,
        metadata={
            "lag": sum(lag.lag[p] for p in partitions),
            "partitions": len(partitions),
            "topic_id": ", ".join(dict.fromkeys(p.topic_id for p in partitions)),
            "offsets": partition_table(("bronze", "end", "lag"), numbers),
        },
    )


def build_kafka_lag(graph: Graph, jobs: Jobs) -> dg.SensorDefinition:
    """The sensor: it asks the broker and the tables' logs; `jobs`: the job that it starts first."""

    @sensor(
        graph,
        "kafka_lag",
        "Starts the job `refresh` when the topic has records that bronze has not, or a layer or game was left behind; waits "
        "while a run is under way, and longer after each run without progress.",
        15,
        jobs=jobs,
    )
    def kafka_lag(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        memory, now, settings = Memory.read(context.cursor), time.time(), graph.source.read()
        lag = read_lag(settings, TIMEOUT_S)
        events, memory = lag_event(settings, lag, memory, now)
        memory = alert_on_lag(settings, lag, memory)
        writer = writer_of_bronze(context.instance, own_runs(context, settings), graph.keys)
        if writer is not None:
            run = f"run {writer.run_id[:8]} of {writer.job_name} is {writer.status.value.lower()}"
            why = f"{lag.total_lag:,} records wait: {run}"
            return dg.SensorResult(skip_reason=why, asset_events=events, cursor=memory.model_dump_json())
        decision = decide(lag, memory, now)
        cursor = decision.memory.model_dump_json()
        if decision.run_key is None:
            return dg.SensorResult(skip_reason=decision.why, asset_events=events, cursor=cursor)
        key = unused_run_key(context.instance, decision.run_key)
        refresh = graph.keys.named("refresh")
        request = dg.RunRequest(run_key=key, job_name=refresh, tags={REASON: decision.why[:200]})
        return dg.SensorResult(run_requests=[request], asset_events=events, cursor=cursor)

    return kafka_lag


def alert_on_lag(settings: Settings, lag: PipelineLag, memory: Memory) -> Memory:
    """Send one alert when the lag reaches `alert_lag_records`, and one when it has fallen below half of that.

    Returns:
        the memory with the alert noted; unchanged if the receiver did not take it, so that the next tick retries.
    """
    threshold, records, topic = settings.alert_lag_records, lag.total_lag, lag.name
    if not threshold or settings.alert_webhook_url is None:
        return memory.model_copy(update={"lag_is_high": False})
    # Of the same alert, sent again, the receiver gets the same id.
    ids = sorted({p.topic_id for p in lag.seen.latest})
    at = f"{'+'.join(ids[:1])}:{sum(lag.seen.latest.values())}"
    counts = {"lag": records, "threshold": threshold, "partitions": len(lag.seen.latest)}
    if not memory.lag_is_high and records >= threshold:
        text = f"{topic}: {records:,} records are not read yet (alert at {threshold:,})"
        alert = Alert(id=f"lag_high:{at}", event="lag_high", summary=text, counts=counts)
    elif memory.lag_is_high and records * 2 < threshold:
        text = f"{topic}: lag is down to {records:,} records"
        alert = Alert(id=f"recovered:lag_high:{at}", event="recovered", of="lag_high", summary=text, counts=counts)
    else:
        return memory
    return memory.model_copy(update={"lag_is_high": alert.event == "lag_high"}) if send(settings, alert) else memory
