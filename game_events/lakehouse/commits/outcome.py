"""What became of a commit that raised: it landed, it is known to have failed, or nobody can say yet.

Each commit carries a mark of its own in its commit information. Files cannot tell: a rival or a compaction may have taken them
out of the newest version again, and some commits have none.
"""

from __future__ import annotations

import uuid
from enum import StrEnum

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.errors import GameEventsError
from game_events.lakehouse.commits.restores import COMMIT_ID
from game_events.lakehouse.tables import Table


class CommitOutcome(StrEnum):
    """The three outcomes."""

    LANDED = "landed"
    FAILED = "failed"
    UNKNOWN = "unknown"


def new_mark() -> str:
    """A mark that no other commit has."""
    return uuid.uuid4().hex


def is_refusal(error: Exception) -> bool:
    """Whether delta-rs says that somebody else's commit stands where this one was to be."""
    return isinstance(error, CommitFailedError) or "already exists" in str(error)


def outcome_of(
    table: Table, before: DeltaTable | None, mark: str, error: Exception, *, sent: bool
) -> tuple[CommitOutcome, str]:
    """Find out what became of a commit.

    Args:
        table: the table.
        before: the version it was made for; None: it was to make the table.
        mark: the commit's own.
        error: what was raised.
        sent: whether the commit was handed to the storage at all.

    Returns:
        the outcome, and what is in the way of a better answer if it is unknown.
    """
    if not sent:
        return CommitOutcome.FAILED, ""
    try:
        now = table.open()
        landed = now is not None and _holds(now, before.version() if before is not None else -1, mark)
    except (GameEventsError, DeltaError, OSError) as second:
        return CommitOutcome.UNKNOWN, str(second)
    if landed:
        return CommitOutcome.LANDED, ""
    # A local file is there, or it is not, when the call is over. A request to an object store whose answer did not come may
    # still be on its way, unless the answer was that the place is taken.
    if table.local_path is not None or is_refusal(error):
        return CommitOutcome.FAILED, ""
    return CommitOutcome.UNKNOWN, "the storage may still carry it out"


def _holds(now: DeltaTable, before: int, mark: str) -> bool:
    """Whether one of the versions behind `before` has the mark."""
    versions = now.version() - before
    return versions > 0 and any(entry.get(COMMIT_ID) == mark for entry in now.history(versions))
