"""Check for records that expired or were deleted before bronze read them, by the gaps that its commits record."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from game_events.errors import first_few
from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.steps import NEW, WHOLE, CheckResult
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.sources.core.source import Gap

LOST = "offsets_lost"
#: Gaps in a summary.
SHOWN = 5


def offsets_lost(pipeline: Pipeline, recent: int | None = None) -> CheckResult:
    """Check that no records expired, or were deleted with their topic, before they were read.

    With GAME_EVENTS_ON_DATA_LOSS=record_gap runs skip them: the tables are right, but records are lost.

    `recent`: check this number of the newest commits; None: all of Delta's log.
    """
    handle, covers = pipeline.bronze.open(), WHOLE if recent is None else NEW
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
