"""Whether bronze is as new as it should be, and if not, whose doing that is: the pipeline's or the producers'."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.errors import GameEventsError
from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.check_result import CheckResult
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.pipeline.state.offsets import next_offsets

FRESH = "fresh"
#: Commits without records (redecode, maintenance) behind which the last one with some is still found.
HISTORY = 50


@dataclass(frozen=True)
class LastRecords:
    """When bronze's last commit of records was made.

    Attributes:
        time: when.
        exact: False: it may be longer ago, as the log does not reach back so far any more.
        none_yet: there was no such commit: the table was made then.
    """

    time: datetime
    exact: bool = True
    none_yet: bool = False

    def __str__(self) -> str:
        age = f"{self.age():,.0f} s"
        if self.none_yet:
            return f"no records came since the table was made {age} ago"
        return f"the last records came {age} ago" if self.exact else f"no records came for {age} or longer"

    def age(self) -> float:
        """Seconds since then."""
        return max(0.0, time.time() - self.time.timestamp())


def fresh(pipeline: Pipeline) -> CheckResult:
    """Bronze's last commit of records is not older than the setting `freshness_s` (0: the check is off)."""
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
        seen = pipeline.look()
        read = next_offsets(handle, seen.latest)
        unread = sum(max(0, end - read.get(p, seen.earliest[p])) for p, end in seen.latest.items()) // seen.unit
    except GameEventsError as error:
        return f"the topic cannot be asked why: {error}"
    counts["unread_records"] = unread
    if unread:
        return f"{unread:,} records are waiting in the topic: does anything run? (sensor, schedule, `game-events run`)"
    return "the topic has nothing new: do its producers send?"


def last_records(bronze: Table, version: int) -> LastRecords | None:
    """When records came last, by the newest commits up to a version; None: its log says nothing."""
    oldest: datetime | None = None
    for info in TableLog(bronze).infos(version, version - HISTORY):
        if "timestamp" in info:
            oldest = datetime.fromtimestamp(int(info["timestamp"]) / 1000, UTC)
        note = bronze_commit(info)
        if note is None or oldest is None:
            continue
        # A replay brings rows of quarantine, a mended restore none: nobody sent anything.
        came = note.offsets is not None and note.rows + note.quarantined + note.suppressed > 0
        if came or note.batch == 0:
            return LastRecords(oldest, none_yet=not came)
    # Maintenance deletes the log's old entries: of a topic that fell silent that is the very commit that is looked for.
    return None if oldest is None else LastRecords(oldest, exact=False)


def _newest_record(handle: DeltaTable) -> datetime | None:
    """The latest Kafka timestamp, by the files' statistics."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    if "max._kafka_timestamp" not in actions.column_names or not actions.num_rows:
        return None
    newest: datetime | None = pc.max(actions.column("max._kafka_timestamp")).as_py()
    return newest if newest is None or newest.tzinfo else newest.replace(tzinfo=UTC)
