"""Checks of what bronze's commits tell of its source: how long no records came, and which were gone before they were read."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.errors import GameEventsError, first_few
from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.tables import Table, add_actions
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.steps import NEW, WHOLE, CheckResult
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.pipeline.state.offsets import next_offsets
from game_events.sources.core.source import Gap

FRESH, LOST = "fresh", "offsets_lost"
#: Newest commits that are searched for one with records.
HISTORY = 50
#: Gaps in a summary.
SHOWN = 5


@dataclass(frozen=True)
class LastRecords:
    """When bronze's last commit of records was made; `known`: what is known of that time, with a place for its age."""

    time: datetime
    known: str = "the last records came {} ago"

    def age_at(self, now: float) -> float:
        """Seconds from `time` to `now` (seconds since 1970)."""
        return max(0.0, now - self.time.timestamp())

    def text_at(self, now: float) -> str:
        """What is known, with the age at `now`."""
        return self.known.format(f"{self.age_at(now):,.0f} s")


def fresh(pipeline: Pipeline, now: float | None = None) -> CheckResult:
    """Check that bronze's last commit of records is not older than GAME_EVENTS_FRESHNESS_S (0: the check is off).

    `now`: seconds since 1970; None: the clock.
    """
    now = time.time() if now is None else now
    allowed = pipeline.settings.freshness_s
    if not allowed:
        return CheckResult(FRESH, "bronze", True, "off: GAME_EVENTS_FRESHNESS_S is 0")
    handle = pipeline.open_bronze()
    last = last_records(pipeline.bronze, handle.version()) if handle is not None else None
    if handle is None or last is None:
        return CheckResult(FRESH, "bronze", False, "nothing has ever been committed to bronze: run `game-events run`")
    newest = _newest_record(handle)
    counts: dict[str, int | float | str] = {"seconds_since_last_commit": round(last.age_at(now), 1), "freshness_s": allowed}
    if newest is not None:
        counts["seconds_since_newest_record"] = round(now - newest.timestamp(), 1)
    if last.age_at(now) <= allowed:
        return CheckResult(FRESH, "bronze", True, last.text_at(now), counts, version=handle.version())
    why = _likely_cause(pipeline, handle, counts)
    summary = f"{last.text_at(now)}, {allowed} s are allowed; {why}"
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
    actions = add_actions(handle)
    if "max._kafka_timestamp" not in actions.column_names or not actions.num_rows:
        return None
    newest: datetime | None = pc.max(actions.column("max._kafka_timestamp")).as_py()
    return newest if newest is None or newest.tzinfo else newest.replace(tzinfo=UTC)


def offsets_lost(pipeline: Pipeline, recent: int | None = None) -> CheckResult:
    """Check that no records expired, or were deleted with their topic, before they were read.

    With GAME_EVENTS_ON_DATA_LOSS=record_gap runs skip them: the tables are right, but records are lost.

    `recent`: check this number of the newest commits; None: all of Delta's log.
    """
    handle, covers = pipeline.open_bronze(), WHOLE if recent is None else NEW
    if handle is None:
        return CheckResult(LOST, "bronze", True, "there is no bronze table yet")
    notes = [note for entry in handle.history(recent) if (note := bronze_commit(entry)) is not None]
    gaps = [gap for note in notes for gap in note.gaps]
    counts = {
        "commits": len(notes),
        "gaps": len(gaps),
        "offsets_lost": sum(gap.offsets or 0 for gap in gaps),
        "gaps_of_unknown_length": sum(gap.offsets is None for gap in gaps),
    }
    if not gaps:
        return CheckResult(LOST, "bronze", True, f"the last {len(notes):,} commits skipped nothing", counts, covers=covers)
    return CheckResult(LOST, "bronze", False, gaps_in_words(gaps), counts, version=handle.version(), covers=covers)


def gaps_in_words(gaps: Sequence[Gap]) -> str:
    """Text that names the first gaps."""
    return f"gone before they were read: {first_few(gaps, SHOWN)}"


@dataclass(frozen=True)
class Loss:
    """Gaps that a commit of bronze skipped.

    `gaps`: what is lost. `run_id`: the run that committed it, if known.
    """

    gaps: tuple[Gap, ...]
    run_id: str | None

    @property
    def key(self) -> str:
        """Identity of the loss, for deduplication."""
        parts = [[g.topic, g.topic_id, g.partition, g.start, g.end] for g in self.gaps]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def losses(bronze: Table, version: int, above: int, since_ms: int = 0) -> Iterator[Loss]:
    """Losses of a range of versions, the newest first.

    They are the versions after `above`, with commits not older than `since_ms` (milliseconds since 1970).
    """
    for info in TableLog(bronze).infos(version, above):
        if int(info.get("timestamp") or 0) < since_ms:
            return
        note = bronze_commit(info)
        if note is not None and note.gaps:
            yield Loss(note.gaps, str(info["run_id"]) if "run_id" in info else None)
