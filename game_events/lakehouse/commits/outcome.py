"""Outcome of a commit that raised: it is visible, it is known to have failed, or its outcome is unknown.

Each commit has a unique mark in its information. Its files are no proof: a concurrent commit may have removed them again, and
some commits have none.
"""

import uuid
from enum import StrEnum

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.errors import GameEventsError
from game_events.lakehouse.log_entries import COMMIT_ID
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
    """Whether delta-rs reports that another commit has taken the version."""
    return isinstance(error, CommitFailedError) or "already exists" in str(error)


def outcome_of(
    table: Table, before: DeltaTable | None, mark: str, error: Exception, *, sent: bool
) -> tuple[CommitOutcome, str]:
    """Determine the outcome of a commit.

    Returns the outcome, and why it is unknown if it is. `before`: the version it follows; None: it was to create the table.
    `sent`: whether the commit was handed to the storage.
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
    # A local file exists, or not, when the call has returned. A request to an object store without an answer may still be
    # carried out, unless the answer was a refusal.
    if table.is_local or is_refusal(error):
        return CommitOutcome.FAILED, ""
    return CommitOutcome.UNKNOWN, "the storage may still carry it out"


def _holds(now: DeltaTable, before: int, mark: str) -> bool:
    """Whether one of the versions after `before` has the mark."""
    versions = now.version() - before
    return versions > 0 and any(entry.get(COMMIT_ID) == mark for entry in now.history(versions))
