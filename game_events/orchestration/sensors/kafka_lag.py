"""The sensor that reads the topic when there is something to read; its decision (`decide`) takes plain values only."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterInstance, DagsterRun

from game_events.config.settings import Settings
from game_events.orchestration.events.metadata import partition_table
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import DEFAULT, Keys, source_key
from game_events.orchestration.runs.dead_runs import unfinished_runs
from game_events.orchestration.runs.own_runs import OwnRuns
from game_events.orchestration.runs.tags import REASON, unused_run_key
from game_events.orchestration.sensors.ticks import Cursor, own_runs, sensor, some
from game_events.pipeline.observability.alerts import Alert, send
from game_events.pipeline.observability.lag import PipelineLag, digest, read_lag
from game_events.sources.core.source import Split

#: Longest wait for one answer of the broker; a tick asks three times, and Dagster ends it after 60 s.
TIMEOUT_S = 5.0
#: The job that it starts.
REFRESH = "refresh"
#: Jobs that write bronze: no second one is started beside them.
WRITERS = (REFRESH, "layers", "continuous", "replay", "redecode")
#: Seconds before a run without progress is retried, doubled each time, and the longest ones.
FIRST_WAIT_S = 30.0
LONGEST_WAIT_S = 900.0
#: Seconds that layers with a lag are left to automation, or to a materialization by hand.
GRACE_S = 60.0
#: Events of the topic's asset are at least so far apart, unless the lag is gone.
EVENT_EVERY_S = 60.0
#: Partitions in one of them, those with most lag first: nothing deletes events without a run, and 1,000 partitions are 127 KB.
PARTITIONS_SHOWN = 50


class Memory(Cursor):
    """The sensor's cursor.

    Attributes:
        asked: offsets at the last request, `attempts`: requests made at it, `asked_at`: when (seconds since 1970).
        seen: offsets at the last tick, `seen_at`: when it was first seen.
        reported: offsets of the last event of the topic's asset, `reported_at`: when.
        lag_is_high: an alert was sent, and none yet that it is over.
    """

    asked: str = ""
    attempts: int = 0
    asked_at: float = 0.0
    seen: str = ""
    seen_at: float = 0.0
    reported: str = ""
    reported_at: float = 0.0
    lag_is_high: bool = False


@dataclass(frozen=True)
class LagDecision:
    """Whether to ask for a run (its key; None: no run), why or why not, and the next cursor."""

    why: str
    run_key: str | None
    memory: Memory


def wait_s(attempts: int) -> float:
    """Seconds to wait after so many requests at the same offsets."""
    return min(FIRST_WAIT_S * 2.0 ** min(attempts - 1, 20), LONGEST_WAIT_S) if attempts else 0.0


def decide(lag: PipelineLag, memory: Memory, now: float) -> LagDecision:
    """A run if there is something to do, unless the last runs for it made no progress and the wait is not over."""
    position = lag.progress_digest
    if memory.asked_at > now:  # the clock was set back, or the cursor set by hand: that time may be years away
        memory = memory.model_copy(update={"asked_at": now})
    if position != memory.seen or memory.seen_at > now:
        memory = memory.model_copy(update={"seen": position, "seen_at": now})
    why = reason(lag)
    if why is None:
        return LagDecision(f"nothing to do: bronze has every record of {lag.name}", None, memory)
    attempts = memory.attempts if memory.asked == position else 0
    due = memory.asked_at + wait_s(attempts) if attempts else 0.0
    if not lag.to_read:
        due = max(due, memory.seen_at + GRACE_S)
    if now < due:
        tried = f"; {attempts} runs made no progress" if attempts else ""
        return LagDecision(f"{why}{tried}; the next run is due in {due - now:.0f} s", None, memory)
    key = f"{position}-{attempts + 1}"
    return LagDecision(why, key, memory.model_copy(update={"asked": position, "attempts": attempts + 1, "asked_at": now}))


def reason(lag: PipelineLag) -> str | None:
    """What there is to do, in words."""
    found = (
        (lag.ahead, f"{', '.join(map(str, lag.ahead))} end before what bronze has read"),
        (lag.total_lag, f"{lag.name}: {lag.total_lag:,} records to read"),
        (not lag.made, f"{lag.name}: where bronze starts is not settled yet"),
        (lag.failed, f"games that failed or wait: {some(lag.failed)}"),
        (lag.let_in, "the settings let in games that they left out before"),
        (lag.behind, f"behind the layer before: {', '.join(lag.behind)}"),
    )
    return next((why for is_so, why in found if is_so), None)


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
    most = sorted(partitions, key=lambda p: (-lag.lag[p], p))[:PARTITIONS_SHOWN]
    numbers = {p: (lag.next[p], lag.seen.latest[p], lag.lag[p]) for p in most}
    return dg.AssetObservation(
        key,
        metadata={
            "lag": sum(lag.lag[p] for p in partitions),
            "partitions": len(partitions),
            "topic_id": ", ".join(dict.fromkeys(p.topic_id for p in partitions)),
            "offsets": partition_table(("bronze", "end", "lag"), numbers),
        },
    )


def build_kafka_lag(graph: Graph) -> dg.SensorDefinition:
    """The sensor: it asks the broker and the tables' logs."""

    @sensor(
        graph,
        "Starts the job `refresh` when the topic has records that bronze has not, or a layer or game was left behind; waits "
        "while a run is under way, and longer after each run without progress.",
        15,
        job=REFRESH,
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
        request = dg.RunRequest(run_key=key, tags={REASON: decision.why[:200]})
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
