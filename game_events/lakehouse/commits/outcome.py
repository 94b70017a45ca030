"""Outcome of a commit that raised: it is visible, another commit has its version, it failed otherwise, or it is unknown.

Each commit has a unique mark in its information. Its files are no proof: a concurrent commit may have removed them again, and
some commits have none.
"""

import uuid
from enum import StrEnum

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.errors import GameEventsError
from game_events.lakehouse.handle import Handle
from game_events.lakehouse.log_entries import COMMIT_ID, Entry
from game_events.lakehouse.tables import Table, table_id


class CommitOutcome(StrEnum):
    """The outcomes. After `OVERTAKEN` the same plan may be compared with the newer version."""

    LANDED = "landed"
    OVERTAKEN = "overtaken"
    FAILED = "failed"
    UNKNOWN = "unknown"


def new_mark() -> str:
    """A mark that no other commit has."""
    return uuid.uuid4().hex


def is_refusal(error: Exception, before: DeltaTable | None, now: DeltaTable | None) -> bool:
    """Whether a commit was refused because another one has taken its version: the log has one that it had not before.

    `before`: the version that the commit follows; None: it was to create the table. `now`: the newest version.
    """
    if not _is_answer(error):
        return False
    if before is None or now is None:
        return True
    if (table_id(before), before.version()) != (table_id(now), now.version()):
        return True
    # The log entry of a local table has an identity, too: a copy of the folder may have been put in its place.
    return len({_entry(handle) for handle in (before, now)} - {None}) > 1


def _entry(handle: DeltaTable) -> Entry | None:
    """The identity of a version's log entry in a local table, if it is known."""
    noted = handle.entry if isinstance(handle, Handle) and handle.store is None else None
    return noted[1] if noted is not None and noted[0] == handle.version() else None


def outcome_of(
    table: Table, before: DeltaTable | None, mark: str, error: Exception, *, sent: bool
) -> tuple[CommitOutcome, str]:
    """Determine the outcome of a commit.

    Returns the outcome, and why it is unknown if it is. `before`: the version it follows; None: it was to create the table.
    `sent`: whether the commit was handed to the storage.
    """
    if not sent and not _is_answer(error):
        return CommitOutcome.FAILED, ""
    try:
        now = table.open_to_read()
        landed = sent and now is not None and _holds(now, before.version() if before is not None else -1, mark)
        if landed:
            return CommitOutcome.LANDED, ""
        if is_refusal(error, before, now):
            return CommitOutcome.OVERTAKEN, ""
    except (GameEventsError, DeltaError, OSError) as second:
        return (CommitOutcome.UNKNOWN if sent else CommitOutcome.FAILED), str(second)
    # A local file exists, or not, when the call has returned. A request to an object store without an answer may still be
    # carried out, unless the answer was that it is not.
    if not sent or table.is_local or _is_answer(error):
        return CommitOutcome.FAILED, ""
    return CommitOutcome.UNKNOWN, "the storage may still carry it out"


def _is_answer(error: Exception) -> bool:
    """Whether delta-rs says that it has not made the commit, for whatever reason; else it may not know."""
    return isinstance(error, CommitFailedError) or "already exists" in str(error)


def _holds(now: DeltaTable, before: int, mark: str) -> bool:
    """Whether one of the versions after `before` has the mark."""
    versions = now.version() - before
    return versions > 0 and any(entry.get(COMMIT_ID) == mark for entry in now.history(versions))
