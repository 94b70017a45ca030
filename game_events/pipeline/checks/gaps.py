"""Whether records were gone from Kafka before bronze read them, by what bronze's commits say of themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.check_result import CheckResult
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.sources.core.source import Gap

LOST = "offsets_lost"
#: Gaps that a result names.
SHOWN = 5


def offsets_lost(pipeline: Pipeline, recent: int | None = None) -> CheckResult:
    """Gaps that runs went on past (`on_data_loss`): nothing is wrong with the tables, and somebody should know.

    Args:
        pipeline: the parts.
        recent: only so many of the newest commits; None: all that Delta's log still has.
    """
    handle = pipeline.bronze.open()
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
        return CheckResult(LOST, "bronze", True, f"the last {len(notes):,} commits passed over nothing", counts)
    return CheckResult(LOST, "bronze", False, gaps_in_words(gaps), counts, version=handle.version())


def gaps_in_words(gaps: Sequence[Gap]) -> str:
    """Gaps in words; of many the first ones."""
    more = f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else ""
    return f"gone before they were read: {'; '.join(map(str, gaps[:SHOWN]))}{more}"


@dataclass(frozen=True)
class Loss:
    """A commit of bronze that passed over gaps.

    Attributes:
        gaps: what is lost.
        run_id: the run that made it, if it says so.
    """

    gaps: tuple[Gap, ...]
    run_id: str | None

    @property
    def key(self) -> str:
        """The same for the same loss, whoever looks and whenever."""
        parts = [[g.topic, g.topic_id, g.partition, g.start, g.end] for g in self.gaps]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def losses(bronze: Table, version: int, above: int, since_ms: int = 0) -> Iterator[Loss]:
    """Losses that the commits of some versions tell of, the newest first.

    Args:
        bronze: the table.
        version: the last of the versions.
        above: the one before the first of them.
        since_ms: it ends at a commit that is older than this, in milliseconds since 1970.
    """
    for info in TableLog(bronze).infos(version, above):
        if int(info.get("timestamp") or 0) < since_ms:
            return
        note = bronze_commit(info)
        if note is not None and note.gaps:
            yield Loss(note.gaps, str(info["run_id"]) if "run_id" in info else None)
