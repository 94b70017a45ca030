"""Whether bronze is as new as it should be, and if not, whose doing that is: the pipeline's or the producers'."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.errors import GameEventsError
from game_events.pipeline.check_result import CheckResult
from game_events.pipeline.commit_notes import bronze_commit
from game_events.pipeline.context import Pipeline
from game_events.pipeline.topic_identity import next_offsets

FRESH = "fresh"
#: Commits without records (redecode, maintenance) behind which the last one with some is still found.
HISTORY = 50


def fresh(pipeline: Pipeline) -> CheckResult:
    """Bronze's last commit of records is not older than the setting `freshness_s` (0: the check is off)."""
    allowed = pipeline.settings.freshness_s
    if not allowed:
        return CheckResult(FRESH, "bronze", True, "off: GAME_EVENTS_FRESHNESS_S is 0")
    handle = pipeline.bronze.open()
    committed = _last_commit(handle) if handle is not None else None
    if handle is None or committed is None:
        return CheckResult(FRESH, "bronze", False, "nothing has ever been committed to bronze: run `game-events run`")
    now = time.time()
    age = max(0.0, now - committed.timestamp())
    newest = _newest_record(handle)
    counts: dict[str, int | float | str] = {"seconds_since_last_commit": round(age, 1), "freshness_s": allowed}
    if newest is not None:
        counts["seconds_since_newest_record"] = round(now - newest.timestamp(), 1)
    if age <= allowed:
        return CheckResult(FRESH, "bronze", True, f"the last records came {age:,.0f} s ago", counts, version=handle.version())
    try:
        seen = pipeline.look()
        read = next_offsets(handle, seen.latest)
        unread = sum(max(0, end - read.get(p, seen.earliest[p])) for p, end in seen.latest.items()) // seen.unit
    except GameEventsError as error:
        why = f"the topic cannot be asked why: {error}"
    else:
        counts["unread_records"] = unread
        why = (
            f"{unread:,} records are waiting in the topic: does anything run? (sensor, schedule, `game-events run`)"
            if unread
            else "the topic has nothing new: do its producers send?"
        )
    return CheckResult(
        FRESH,
        "bronze",
        False,
        f"the last records came {age:,.0f} s ago, {allowed} s are allowed; {why}",
        counts,
        version=handle.version(),
    )


def _last_commit(handle: DeltaTable) -> datetime | None:
    """When records came last, as far back as the history is looked at; else when the table was made."""
    for entry in handle.history(HISTORY):
        note = bronze_commit(entry)
        if note is not None and note.batch > 0:
            return datetime.fromtimestamp(note.time_ms / 1000, UTC)
    return None


def _newest_record(handle: DeltaTable) -> datetime | None:
    """The latest Kafka timestamp, by the files' statistics."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    if "max._kafka_timestamp" not in actions.column_names or not actions.num_rows:
        return None
    newest: datetime | None = pc.max(actions.column("max._kafka_timestamp")).as_py()
    return newest if newest is None or newest.tzinfo else newest.replace(tzinfo=UTC)
