"""Whether records were gone from Kafka before bronze read them, by what bronze's commits say of themselves."""

from __future__ import annotations

from game_events.pipeline.check_result import CheckResult
from game_events.pipeline.commit_notes import bronze_commit
from game_events.pipeline.context import Pipeline

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
    more = f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else ""
    summary = f"gone before they were read: {'; '.join(map(str, gaps[:SHOWN]))}{more}"
    return CheckResult(LOST, "bronze", False, summary, counts, version=handle.version())
