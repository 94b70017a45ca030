"""Check that bronze is fresh, and if not, whether the pipeline lags or the producers send nothing."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.errors import GameEventsError
from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.tables import Table, add_actions
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.steps import CheckResult
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.pipeline.state.offsets import next_offsets

FRESH = "fresh"
#: Newest commits that are searched for one with records.
HISTORY = 50


@dataclass(frozen=True)
class LastRecords:
    """When bronze's last commit of records was made; `known`: what is known of that time, with a place for its age."""

    time: datetime
    known: str = "the last records came {} ago"

    def __str__(self) -> str:
        return self.known.format(f"{self.age():,.0f} s")

    def age(self) -> float:
        """Seconds since `time`."""
        return max(0.0, time.time() - self.time.timestamp())


def fresh(pipeline: Pipeline) -> CheckResult:
    """Check that bronze's last commit of records is not older than GAME_EVENTS_FRESHNESS_S (0: the check is off)."""
    allowed = pipeline.settings.freshness_s
    if not allowed:
        return CheckResult(FRESH, "bronze", True, "off: GAME_EVENTS_FRESHNESS_S is 0")
    handle = pipeline.bronze.open()
    last = last_records(pipeline.bronze, handle.version()) if handle is not None else None
    if handle is None or last is None:
        return CheckResult(FRESH, "bronze", False, "nothing has ever been committed to bronze: run `game-events run`")
    newest = _newest_record(handle)
    counts: dict[str, int | float | str] = {"seconds_since_last_commit": round(last.age(), 1), "freshness_s": allowed}
    if newest is not None:
        counts["seconds_since_newest_record"] = round(time.time() - newest.timestamp(), 1)
    if last.age() <= allowed:
        return CheckResult(FRESH, "bronze", True, str(last), counts, version=handle.version())
    why = _likely_cause(pipeline, handle, counts)
    summary = f"{last}, {allowed} s are allowed; {why}"
    return CheckResult(FRESH, "bronze", False, summary, counts, version=handle.version())


def _likely_cause(pipeline: Pipeline, handle: DeltaTable, counts: dict[str, int | float | str]) -> str:
    try:
        seen = pipeline.source_snapshot()
        read = next_offsets(handle, seen.latest)
        unread = sum(max(0, end - read.get(p, seen.earliest[p])) for p, end in seen.latest.items()) // seen.unit
    except GameEventsError as error:
        return f"the topic cannot be read: {error}"
    counts["unread_records"] = unread
    if unread:
        return f"{unread:,} unread records in the topic: is the pipeline running? (sensor, schedule, `game-events run`)"
    return "the topic has nothing new: do its producers send?"


def last_records(bronze: Table, version: int) -> LastRecords | None:
    """Time of the last commit of records up to a version; None: unknown."""
    oldest: datetime | None = None
    for info in TableLog(bronze).infos(version, version - HISTORY):
        if "timestamp" in info:
            oldest = datetime.fromtimestamp(int(info["timestamp"]) / 1000, UTC)
        note = bronze_commit(info)
        if note is None or oldest is None:
            continue
        # A replay adds rows of quarantine, the repair of a restored table none: the producers sent nothing.
        read = note.offsets is not None and note.rows + note.quarantined + note.suppressed > 0
        if read:
            return LastRecords(oldest)
        if note.batch == 0:
            return LastRecords(oldest, "no records were read since the table was created {} ago")
    # Maintenance deletes old log entries: without new records also that of the last commit with records.
    return None if oldest is None else LastRecords(oldest, "no records came for {} or longer")


def _newest_record(handle: DeltaTable) -> datetime | None:
    """The latest Kafka timestamp, by the files' statistics."""
    actions = add_actions(handle, flatten=True)
    if "max._kafka_timestamp" not in actions.column_names or not actions.num_rows:
        return None
    newest: datetime | None = pc.max(actions.column("max._kafka_timestamp")).as_py()
    return newest if newest is None or newest.tzinfo else newest.replace(tzinfo=UTC)
