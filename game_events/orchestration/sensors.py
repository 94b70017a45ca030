"""The sensors, in one table (`SENSORS`), and what a tick of each does; cursors between ticks, and errors.

Dagster keeps the reason of each skipped tick, and the traceback of each that fails.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import dagster as dg
from dagster import DagsterInstance, DagsterRun
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, Field, ValidationError

from game_events.config.masking import mask, masked_traceback, settings_to_mask
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.lakehouse.commits.transactions import BronzeIdentity, games_of
from game_events.lakehouse.system_tables import ProgressTable
from game_events.lakehouse.tables import BRONZE, Lakehouse, is_game
from game_events.orchestration import continuous
from game_events.orchestration.checks import read_status
from game_events.orchestration.continuous import Decision
from game_events.orchestration.events import one_line, partition_table, plain, some
from game_events.orchestration.keys import DEFAULT, JOB, Keys, source_key
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import REASON, RUNS_READ, UNFINISHED, OwnRuns, drop_old_runs, end_dead_runs, unused_run_key
from game_events.pipeline.runs.pending import PipelineLag, digest, read_lag
from game_events.sources.source import Partition

Result = dg.SensorResult | dg.RunRequest | dg.SkipReason

#: Seconds since 1970.
Clock = Callable[[], float]


@dataclass(frozen=True)
class Tick:
    """What a sensor decides from."""

    graph: Graph
    context: dg.SensorEvaluationContext
    clock: Clock = time.time

    @cached_property
    def settings(self) -> Settings:
        """The settings of now.

        Raises:
            ConfigurationError: they are invalid.
        """
        return self.graph.source.read()

    def own_runs(self, settings: Settings | None = None) -> OwnRuns:
        """The runs of the lakehouse (of now), and those of this code location that no process has tagged yet."""
        location = self.context.code_location_origin
        repository = None if location is None else f"{self.context.repository_name}@{location.location_name}"
        return OwnRuns.of(settings or self.settings, repository)

    @property
    def checks(self) -> Collection[dg.AssetCheckKey]:
        """All checks of the code location."""
        repository = self.context.repository_def
        return repository.asset_graph.asset_check_keys if repository else ()


@dataclass(frozen=True)
class Sensor:
    """The declaration of a sensor, which runs from the beginning unless the settings say that nothing does.

    `interval_s`: between two ticks. `decide`: what a tick does. `job`: the one that it starts.
    """

    name: str
    interval_s: int
    decide: Callable[[Tick], Result]
    description: str
    job: str | None = None

    def build(self, graph: Graph, clock: Clock = time.time) -> dg.SensorDefinition:
        """Dagster's sensor: its tick is skipped where settings, a table or a server cannot be read.

        Secrets are masked in its reasons; another error that holds some is raised as a GameEventsError with its traceback.
        """

        def evaluate(context: dg.SensorEvaluationContext) -> Result:
            try:
                said = self.decide(Tick(graph, context, clock))
            except (GameEventsError, DeltaError, OSError) as error:
                said = dg.SkipReason(str(error))
            except Exception as error:
                text = masked_traceback(error, graph.source.given or settings_to_mask())
                if text is None:
                    raise
                raise GameEventsError(text) from None
            if isinstance(said, dg.SkipReason) and said.skip_message is not None:
                return dg.SkipReason(one_line(mask(said.skip_message, graph.source.given or settings_to_mask())))
            return said

        return dg.SensorDefinition(
            name=graph.keys.named(self.name),
            evaluation_fn=evaluate,
            description=self.description,
            job_name=None if self.job is None else graph.keys.named(self.job),
            minimum_interval_seconds=self.interval_s,
            default_status=graph.sensor_status,
        )


class SensorCursor(BaseModel):
    """State of a sensor between two ticks, kept by Dagster as JSON."""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Parse a cursor; an empty or invalid one gives a new one."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()


#: Longest wait for one answer of the broker; a tick asks three times at most, and Dagster ends it after 60 s.
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


class Memory(SensorCursor):
    """The sensor's cursor.

    Attributes:
        asked: offsets at the last request, `attempts`: requests made at it, `asked_at`: when (seconds since 1970).
        seen: offsets at the last tick, `seen_at`: when it was first seen.
        reported: offsets of the last event of the topic's asset, `reported_at`: when.
    """

    asked: str = ""
    attempts: int = 0
    asked_at: float = 0.0
    seen: str = ""
    seen_at: float = 0.0
    reported: str = ""
    reported_at: float = 0.0


def wait_s(attempts: int) -> float:
    """Seconds to wait after so many requests at the same offsets."""
    return min(FIRST_WAIT_S * 2.0 ** min(attempts - 1, 20), LONGEST_WAIT_S) if attempts else 0.0


def decide(lag: PipelineLag, memory: Memory, now: float) -> Decision:
    """A run if there is something to do, unless the last runs for it made no progress and the wait is not over.

    The memory moves on.
    """
    position = lag.progress_digest
    # The clock was set back, or the cursor set by hand: that time may be years away.
    memory.asked_at = min(memory.asked_at, now)
    if position != memory.seen or memory.seen_at > now:
        memory.seen = position
        memory.seen_at = now
    why = reason(lag)
    if why is None:
        return Decision(f"nothing to do: bronze has every record of {lag.name}")
    attempts = memory.attempts if memory.asked == position else 0
    due = memory.asked_at + wait_s(attempts) if attempts else 0.0
    if not lag.to_read:
        due = max(due, memory.seen_at + GRACE_S)
    if now < due:
        tried = f"; {attempts} runs made no progress" if attempts else ""
        return Decision(f"{why}{tried}; the next run is due in {due - now:.0f} s")
    memory.asked = position
    memory.attempts = attempts + 1
    memory.asked_at = now
    return Decision(why, f"{position}-{memory.attempts}")


def reason(lag: PipelineLag) -> str | None:
    """What there is to do, in words."""
    reasons = (
        (lag.ahead, f"{', '.join(map(str, lag.ahead))} end before what bronze has read"),
        (lag.total_lag, f"{lag.name}: {lag.total_lag:,} records to read"),
        (not lag.made, f"{lag.name}: where bronze starts is not settled yet"),
        (lag.failures, f"sources that do not answer: {some(lag.failures)}"),
        (lag.failed, f"games that failed or wait: {some(lag.failed)}"),
        (lag.let_in, "the settings let in games that they left out before"),
        (lag.behind, f"behind the layer before: {', '.join(lag.behind)}"),
    )
    return next((why for is_so, why in reasons if is_so), None)


def writer_of_bronze(instance: DagsterInstance, own: OwnRuns, keys: Keys = DEFAULT) -> DagsterRun | None:
    """An own run that writes bronze, or waits for its turn to."""
    writers = set(map(keys.named, WRITERS))
    end_dead_runs(instance, own)
    for run in own.runs(instance, RUNS_READ, statuses=UNFINISHED):
        if run.job_name in writers or keys.bronze in (run.asset_selection or ()):
            return run
    return None


def lag_events(settings: Settings, lag: PipelineLag, memory: Memory, now: float) -> list[dg.AssetObservation]:
    """Offsets and lag as an event of each topic's asset, if they changed and the last one is not just now."""
    offsets = digest([sorted(lag.seen.latest.items()), sorted(lag.next.items())])
    if offsets == memory.reported or (lag.total_lag and now < memory.reported_at + EVENT_EVERY_S):
        return []
    memory.reported = offsets
    memory.reported_at = now
    # With a pattern one event is about several topics.
    assets: dict[dg.AssetKey, list[Partition]] = defaultdict(list)
    for partition in sorted(lag.seen.latest):
        assets[source_key(settings, partition.place)].append(partition)
    events = []
    for key, partitions in assets.items():
        most = sorted(partitions, key=lambda p: (-lag.lag[p], p))[:PARTITIONS_SHOWN]
        metadata: dict[str, Any] = {
            "lag": sum(lag.lag[p] for p in partitions),
            "partitions": len(partitions),
            "topic_id": ", ".join(dict.fromkeys(p.topic_id for p in partitions)),
            "offsets": partition_table(
                ("bronze", "end", "lag"), {p: (lag.next[p], lag.seen.latest[p], lag.lag[p]) for p in most}
            ),
        }
        events.append(dg.AssetObservation(key, metadata=metadata))
    return events


def start_runs(tick: Tick) -> dg.SensorResult:
    """A tick of the sensor `kafka_lag`: it asks the broker and the tables' logs."""
    settings = tick.settings
    now = tick.clock()
    lag = read_lag(settings, TIMEOUT_S)
    memory = Memory.read(tick.context.cursor)
    events = lag_events(settings, lag, memory, now)
    writer = writer_of_bronze(tick.context.instance, tick.own_runs(), tick.graph.keys)
    if writer is None:
        decision = decide(lag, memory, now)
    else:
        run = f"run {writer.run_id[:8]} of {writer.job_name} is {writer.status.value.lower()}"
        decision = Decision(f"{lag.total_lag:,} records wait: {run}")
    requests = [_request(tick, decision.run_key, decision.why)] if decision.run_key else []
    why_not = None if requests else "; ".join([decision.why, *(f"source {n} fails: {why}" for n, why in lag.failures.items())])
    return dg.SensorResult(requests, skip_reason=why_not, asset_events=events, cursor=memory.model_dump_json())


def _request(tick: Tick, key: str, why: str) -> dg.RunRequest:
    return dg.RunRequest(run_key=unused_run_key(tick.context.instance, key), tags={REASON: why[:200]})


def to_add(settings: Settings, known: set[str], admitted: set[str], tables: set[str]) -> list[str]:
    """Names that become partitions: valid, allowed, and of those with no more than a folder only `max_games` in all."""

    def allowed(game: str) -> bool:
        return is_game(game) and (not settings.games or game in settings.games)

    sure = {g for g in admitted - known if allowed(g)}
    room = max(0, settings.max_games - len(known | sure))
    return sorted(sure) + sorted(g for g in tables - known - sure if allowed(g))[:room]


class SeenGames(SensorCursor):
    """The cursor of the sensor `new_games`: all names that were partitions when it looked.

    What is not one any more, a person has removed.
    """

    games: list[str] = Field(default_factory=list)


def add_partitions(tick: Tick) -> dg.SensorResult | dg.SkipReason:
    """A tick of the sensor `new_games`: it compares the lakehouse with the partitions; nothing is ever removed.

    A partition that a person has deleted is not added again: the next run that writes rows of the game does that.
    """
    partitions = tick.graph.keys.partitions
    known = set(tick.context.instance.get_dynamic_partitions(str(partitions.name)))
    seen = set(SeenGames.read(tick.context.cursor).games)
    lakehouse = Lakehouse.of(tick.settings)
    bronze = lakehouse.table(BRONZE).open_to_read()
    admitted = set(ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key).games) if bronze is not None else set()
    tables = set(games_of(lakehouse))
    names = to_add(tick.settings, known, admitted - seen, tables - seen)
    tick.context.update_cursor(SeenGames(games=sorted(seen | known)).model_dump_json())
    if not names:
        deleted = sorted((admitted | tables) & seen - known)
        without = f", but for those that were deleted by hand: {some(deleted)}" if deleted else ""
        return dg.SkipReason(f"every game of the lakehouse is a partition{without}")
    tick.context.log.info("new_games=%s", ",".join(names))
    return dg.SensorResult(dynamic_partitions_requests=[partitions.build_add_request(names)])


def start_again(tick: Tick) -> dg.RunRequest | dg.SkipReason:
    """A tick of the sensor `continuous_mode`: it decides from the newest runs."""
    job = tick.graph.keys.named(JOB)
    decision = continuous.decide(continuous.past_runs(tick.context.instance, tick.own_runs(), job), tick.clock(), job)
    if decision.run_key is None:
        return dg.SkipReason(decision.why)
    return dg.RunRequest(run_key=decision.run_key, tags={REASON: decision.why[:200]})


#: The sensor `status` logs the same result again after so many seconds.
AGAIN_S = 3600.0


class LastStatus(SensorCursor):
    """The cursor of the sensor `status`: the last result in words, and when it was logged (seconds since 1970)."""

    summary: str = ""
    at: float = 0.0


def report_status(tick: Tick) -> dg.SensorResult | dg.SkipReason:
    """A tick of the sensor `status`; it starts nothing."""
    settings = tick.settings
    last = LastStatus.read(tick.context.cursor)
    now = tick.clock()
    status = read_status(settings, tick.graph.keys, tick.context.instance, tick.own_runs(), tick.checks)
    summary = plain(status.description or "")
    if summary == last.summary and now - last.at < AGAIN_S:
        return dg.SkipReason(summary)
    cursor = LastStatus(summary=summary, at=now).model_dump_json()
    return dg.SensorResult(asset_events=[status], skip_reason=summary, cursor=cursor)


def end_runs(tick: Tick) -> dg.SkipReason:
    """A tick of the sensor `dead_runs`; it never starts a run, and looks at no run of another lakehouse."""
    own = tick.own_runs(tick.graph.settings)
    ended = end_dead_runs(tick.context.instance, own)
    try:
        dropped = drop_old_runs(tick.context.instance, own, tick.settings.run_history_h, tick.checks)
        said = f"; deleted {dropped} that ended long ago" if dropped else ""
    except GameEventsError as error:  # dead runs are ended whatever the settings are now
        said = f"; those that ended long ago stay: {error}"
    if not ended:
        return dg.SkipReason(f"every unfinished run has its process{said}")
    return dg.SkipReason(f"ended {len(ended)} runs without a process: {', '.join(run.run_id[:8] for run in ended)}{said}")


SENSORS = (
    Sensor(
        "kafka_lag",
        15,
        start_runs,
        "Starts the job `refresh` when the topic has records that bronze has not, or a layer or game was left behind; waits "
        "while a run is under way, and longer after each run without progress.",
        job=REFRESH,
    ),
    Sensor(
        "new_games",
        60,
        add_partitions,
        "Games with tables made elsewhere (another Dagster instance, a restored lakehouse) become partitions. One that was "
        "deleted by hand stays away until the game has new rows.",
    ),
    Sensor(
        "dead_runs",
        30,
        end_runs,
        "Runs of this lakehouse and machine with a killed process are marked as failed, and their pool slots given back; those "
        "that ended more than `RUN_HISTORY_H` ago are deleted from Dagster's storage.",
    ),
    Sensor(
        "continuous_mode",
        10,
        start_again,
        "Starts continuous mode again if its run failed or its process vanished; does nothing before it was started once, or "
        "after it was terminated.",
        job=JOB,
    ),
    Sensor(
        "status",
        60,
        report_status,
        "Logs the check `all_is_well` of the asset `status` when its result changes, and once an hour.",
    ),
)
