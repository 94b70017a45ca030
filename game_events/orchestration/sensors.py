"""The sensors that start work: new records, schema versions and games; and what all sensors share.

The sensor that reads the topic when there is something to read; its decision (`decide`) takes plain values only.

The sensor that reports new schema versions, and starts a run for them.

The sensor that makes partitions of games which the lakehouse knows and this Dagster instance does not.

What sensors share: how they are declared, cursors, and errors.

Dagster keeps the reason of each skipped tick, and the traceback of each that fails.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Any, NamedTuple, Self, TypeVar, cast

import dagster as dg
from dagster import DagsterInstance, DagsterRun
from deltalake.exceptions import DeltaError
from pydantic import BaseModel, Field, ValidationError

from game_events.config.masking import mask, masked_traceback, settings_to_mask
from game_events.config.settings import Settings
from game_events.decoding.columns import kept_columns
from game_events.errors import DataError, GameEventsError, TransientError
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.system_tables import ProgressTable
from game_events.lakehouse.tables import BRONZE, Lakehouse, is_game
from game_events.orchestration.events import as_text, one_line, partition_table, table
from game_events.orchestration.keys import DEFAULT, Keys, schema_key, source_key
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import REASON, OwnRuns, unfinished_runs, unused_run_key
from game_events.pipeline.monitoring import Alert, PipelineLag, digest, read_lag, send
from game_events.pipeline.schemas.history import CHANGE_COLUMNS, SchemaHistory, as_line, as_rows
from game_events.schema_registry import SchemaLimits, SchemaRegistry, SubjectVersion
from game_events.sources.factory import subjects
from game_events.sources.source import Partition

Result = TypeVar("Result")

Evaluate = Callable[[dg.SensorEvaluationContext], Result]

#: Names that a reason has.
SHOWN = 10


def sensor(
    graph: Graph, description: str, interval_s: int, job: str | None = None
) -> Callable[[Evaluate[Result]], dg.SensorDefinition]:
    """Decorator that makes a sensor of a function, under its name; it runs unless the settings say that nothing does.

    `masked` guards it. `job`: the one that it starts.
    """

    def sensor_of(evaluate: Evaluate[Result]) -> dg.SensorDefinition:
        decorate = dg.sensor(
            name=graph.keys.named(evaluate.__name__),
            description=description,
            job_name=None if job is None else graph.keys.named(job),
            minimum_interval_seconds=interval_s,
            default_status=graph.sensor_status,
        )
        return decorate(masked(evaluate, graph.source.given))  # type: ignore[arg-type]

    return sensor_of


def own_runs(context: dg.SensorEvaluationContext, settings: Settings) -> OwnRuns:
    """The runs of the settings' lakehouse, and those of this code location that no process has tagged yet."""
    location = context.code_location_origin
    return OwnRuns.of(settings, None if location is None else f"{context.repository_name}@{location.location_name}")


def masked(evaluate: Evaluate[Result], given: Settings | None = None) -> Evaluate[Result]:
    """Skip a sensor's tick where settings, a table or a server cannot be read; mask secrets in its reasons and errors.

    Raises:
        GameEventsError: with the masked traceback of another error that holds a secret; every other error as it is.
    """

    @wraps(evaluate)
    def without_secrets(context: dg.SensorEvaluationContext) -> Result:
        try:
            said = evaluate(context)
        except (GameEventsError, DeltaError, OSError) as error:
            said = cast(Result, dg.SkipReason(str(error)))
        except Exception as error:
            text = masked_traceback(error, given or settings_to_mask())
            if text is None:
                raise
            raise GameEventsError(text) from None
        if isinstance(said, dg.SkipReason) and said.skip_message is not None:
            return cast(Result, dg.SkipReason(one_line(mask(said.skip_message, given or settings_to_mask()))))
        return said

    return without_secrets


def some(names: Iterable[object]) -> str:
    """The first names, and how many more there are."""
    every = list(map(str, names))
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


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
    assets: dict[dg.AssetKey, list[Partition]] = defaultdict(list)
    for partition in sorted(lag.seen.latest):
        assets[source_key(settings, partition.topic)].append(partition)
    events = [_event(lag, key, partitions) for key, partitions in assets.items()]
    return events, memory.model_copy(update={"reported": offsets, "reported_at": now})


def _event(lag: PipelineLag, key: dg.AssetKey, partitions: Sequence[Partition]) -> dg.AssetObservation:
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


#: Versions with their changes in one event: a tick has to stay short.
MAX_DIFFS = 10

#: Seconds after which a tick begins with no further subject, and for the versions of one: Dagster ends a tick after 60 s, and
#: its cursor is lost then.
SEARCH_S = 20.0

#: Subject -> version number -> schema id.
Cursor = dict[str, dict[int, int]]


def read_cursor(cursor: str | None, subjects: Sequence[str]) -> Cursor:
    """What was seen, those that waited longest first; nothing, if it is no cursor.

    A cursor of when there was one subject only had its versions.
    """
    try:
        found = json.loads(cursor or "{}")
        if found and not any(isinstance(versions, dict) for versions in found.values()):
            found = {subjects[0]: found} if subjects else {}
        return {name: {int(number): int(i) for number, i in versions.items()} for name, versions in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


class Difference(NamedTuple):
    """What a version changed against the one before it: in one line, as rows of a table, and what these leave out."""

    line: str
    rows: Sequence[Mapping[str, str]] = ()
    left_out: str = ""

    def metadata(self, number: int) -> dict[str, dg.MetadataValue[Any]]:
        """Metadata of the version with that number."""
        name = f"changes_in_version_{number}"
        if not self.rows:
            return {name: dg.MetadataValue.text(one_line(self.line))}
        found: dict[str, dg.MetadataValue[Any]] = {name: table(CHANGE_COLUMNS, self.rows)}
        return found | ({f"left_out_of_version_{number}": dg.MetadataValue.text(self.left_out)} if self.left_out else {})


def changes_by_version(
    history: SchemaHistory, versions: list[SubjectVersion], new: list[SubjectVersion]
) -> dict[int, Difference]:
    """Version -> what it changed; of a flood of versions the newest."""
    texts = {}
    before = {later.version: earlier for earlier, later in pairwise(versions)}
    for version in new[-MAX_DIFFS:]:
        if version.version in before:
            try:
                compared = before[version.version], version
                changes = history.changes(*compared)
                texts[version.version] = Difference(as_line(changes), as_rows(changes), history.left_out(*compared))
            except DataError as error:
                texts[version.version] = Difference(f"not comparable: {error}")
    return texts


@dataclass
class NewVersions:
    """What one tick has found: events of subjects, their new versions in words and for the run's key, and errors."""

    events: list[dg.AssetMaterialization] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    keys: list[object] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def search(self, settings: Settings, names: Sequence[str], seen: Cursor, clock: Callable[[], float]) -> Cursor:
        """Search the subjects that waited longest for new versions, for `SEARCH_S` seconds; returns the next cursor.

        One that cannot be read waits as long as the others. An outage ends the search: the registry is left in peace then.
        """
        registry = SchemaRegistry(settings, limits=SchemaLimits(schema_s=SEARCH_S))
        until, wanted = clock() + SEARCH_S, set(names)
        order = [*(name for name in names if name not in seen), *(name for name in seen if name in wanted)]
        waiting = {name: seen.get(name, {}) for name in order}
        for subject, known in list(waiting.items()):
            if clock() > until:
                break
            waiting[subject] = waiting.pop(subject)
            try:
                waiting[subject] = self._search_one(settings, registry, subject, known) or known
            except TransientError as error:
                self.errors.append(str(error))
                break
            except GameEventsError as error:
                self.errors.append(str(error))
        return waiting

    def _search_one(
        self, settings: Settings, registry: SchemaRegistry, subject: str, known: Mapping[int, int]
    ) -> dict[int, int]:
        """Versions of a subject; none, if it is not there."""
        if registry.newest(subject) == max(known.items(), default=None):
            return dict(known)
        versions = registry.versions(subject)
        # A number with another schema (a recreated registry) is new.
        new = [v for v in versions if known.get(v.version) != v.schema_id]
        if new:
            history = SchemaHistory(registry, Lakehouse.of(settings), subject, kept_columns(settings))
            changes = changes_by_version(history, versions, new)
            self.events.append(_version_event(schema_key(settings, subject), new, changes, registry.url))
            self.texts.append(f"{subject} version {new[-1].version}")
            self.keys.append([subject, new[-1].version, *(v.schema_id for v in new)])
        return {v.version: v.schema_id for v in versions}


def build_schema_versions(graph: Graph, clock: Callable[[], float] = time.monotonic) -> dg.SensorDefinition:
    """The sensor: it asks the registry once for each subject. `clock`: seconds."""

    @sensor(
        graph, "A new version of a topic's subject becomes an event of its asset, and starts the job `refresh`.", 30, "refresh"
    )
    def schema_versions(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings, found = graph.source.read(), NewVersions()
        names = subjects(settings, TIMEOUT_S)
        seen = found.search(settings, names, read_cursor(context.cursor, names), clock)
        cursor = json.dumps(seen)
        if not found.events:
            context.update_cursor(cursor)
            known = some(f"subject {s} still has {len(seen[s])} versions" for s in names)
            return dg.SkipReason("; ".join([*found.errors[:SHOWN], f"no new version: {known}"]))
        request = dg.RunRequest(
            run_key=unused_run_key(context.instance, f"schemas-{digest(found.keys)}"),
            tags={REASON: f"schema: {', '.join(found.texts)}"[:200]},
        )
        return dg.SensorResult(asset_events=found.events, run_requests=[request], cursor=cursor)

    return schema_versions


def _version_event(
    key: dg.AssetKey, new: list[SubjectVersion], changes: Mapping[int, Difference], registry: str
) -> dg.AssetMaterialization:
    newest = new[-1]
    metadata: dict[str, Any] = {
        "subject": newest.subject,
        "versions": [v.version for v in new],
        "schema_ids": [v.schema_id for v in new],
        "registry": registry,
    }
    for number, found in changes.items():
        metadata |= found.metadata(number)
    said = as_text("; ".join(f"version {number}: {found.line}" for number, found in changes.items()))
    return dg.AssetMaterialization(
        key, description=said or None, metadata=metadata, tags={"dagster/data_version": f"{newest.version}-{newest.schema_id}"}
    )


def games_of(settings: Settings) -> tuple[set[str], set[str]]:
    """Games that the pipeline has let in, and all names with a silver table.

    Raises:
        GameEventsError: a table cannot be read.
    """
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open_to_read()
    admitted = set(ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key).games) if bronze is not None else set()
    return admitted, set(lakehouse.games())


def to_add(settings: Settings, known: set[str], admitted: set[str], tables: set[str]) -> list[str]:
    """Names that become partitions: valid, allowed, and of those with no more than a folder only `max_games` in all."""

    def allowed(game: str) -> bool:
        return is_game(game) and (not settings.games or game in settings.games)

    sure = {g for g in admitted - known if allowed(g)}
    room = max(0, settings.max_games - len(known | sure))
    return sorted(sure) + sorted(g for g in tables - known - sure if allowed(g))[:room]


class Seen(SensorCursor):
    """The sensor's cursor: all names that were partitions when it looked. What is not one any more, a person has removed."""

    games: list[str] = Field(default_factory=list)


def build_new_games(graph: Graph) -> dg.SensorDefinition:
    """The sensor: it compares the lakehouse with the partitions; nothing is ever removed.

    A partition that a person has deleted is not added again: the next run that writes rows of the game does that.
    """

    @sensor(
        graph,
        "Games with tables made elsewhere (another Dagster instance, a restored lakehouse) become partitions. One that was "
        "deleted by hand stays away until the game has new rows.",
        60,
    )
    def new_games(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings, partitions = graph.source.read(), graph.keys.partitions
        known, seen = set(context.instance.get_dynamic_partitions(str(partitions.name))), set(Seen.read(context.cursor).games)
        admitted, tables = games_of(settings)
        names = to_add(settings, known, admitted - seen, tables - seen)
        context.update_cursor(Seen(games=sorted(seen | known)).model_dump_json())
        if not names:
            deleted = sorted((admitted | tables) & seen - known)
            without = f", but for those that were deleted by hand: {some(deleted)}" if deleted else ""
            return dg.SkipReason(f"every game of the lakehouse is a partition{without}")
        context.log.info("new_games=%s", ",".join(names))
        return dg.SensorResult(dynamic_partitions_requests=[partitions.build_add_request(names)])

    return new_games
