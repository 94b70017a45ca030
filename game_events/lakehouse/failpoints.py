"""The named places where a crash must not lose or double a row; tests trip them.

``GAME_EVENTS_CRASH_AT=name`` (or ``name:detail``) ends this process with SIGKILL there, as a power cut would: no handler,
no clean-up runs. ``name@3`` ends it when it comes there for the third time. Without the variable this costs one dictionary
look-up. docs/guarantees.md has a paragraph for each.
"""

from __future__ import annotations

import os
import signal
from itertools import count

VARIABLE = "GAME_EVENTS_CRASH_AT"

#: name -> what has happened before it, and not yet.
CRASH_POINTS = {
    "file_open": "a file is being written, by a worker or by the driver (detail: the table)",
    "files_taken_in": "files that are the source have their numbers, nothing of them is read",
    "bronze_staged": "files of bronze and quarantine are written, nothing is committed",
    "schemas_archived": "texts of new schemas are kept, nothing of the slice is committed",
    "quarantine_announced": "bronze says that a slice is about to commit to quarantine, neither has its rows",
    "quarantine_committed": "quarantine is committed, bronze is not",
    "columns_added": "a table has new columns, their rows are not committed (detail: the table)",
    "bronze_committed": "bronze is committed, silver has not begun",
    "replay_staged": "rows of quarantine are decoded and written, nothing is committed",
    "replay_committed": "replayed rows are committed to bronze, quarantine does not say so yet",
    "replay_noted": "quarantine says which rows were replayed, the rows that did not decode are not counted",
    "redecode_staged": "bronze's new files are written, the old ones are still the table",
    "redecode_committed": "bronze's columns are rebuilt, no other layer has followed",
    "reset_staged": "all of the topic is decoded and written anew, the old rows are still bronze",
    "reset_committed": "bronze is replaced, quarantine still has the rows from before",
    "reset_finished": "quarantine is replaced too, the list of its new files still lies beside it",
    "archive_staged": "files of the archive are written, no commit of it names them",
    "silver_staged": "files of all games are written, none is committed",
    "silver_replanned": "files of games planned from their own progress are written, none is committed",
    "rejections_decided": "quarantine holds the rows that rules reject, no silver table has taken that pass",
    "game_committed": "one game's silver is committed, others are not (detail: number of games committed)",
    "silver_committed": "all games are committed, the floor has not moved",
    "before_create": "a table is about to be made by its first commit (detail: the table)",
    "gold_staged": "files of all aggregates are written, none is committed",
    "gold_game_committed": "one game's gold is committed, others are not (detail: number of games committed)",
    "gold_committed": "gold is committed, its floor has not moved",
    "forget_listed": "a forgotten gamer is on the list of whom to keep out, no row is gone yet",
    "forget_staged": "files without the gamer's rows are written, the old ones are still the tables",
    "forget_quarantine_committed": "the rows are gone from quarantine, bronze still has its own",
    "forget_bronze_committed": "the rows are gone from bronze, silver still has its own",
    "forget_game_committed": "the rows are gone from one game's silver, others still have theirs (detail: number of games)",
    "forget_silver_committed": "the rows are gone from silver, gold still counts them",
    "unified_staged": "files of the unified table are written, not committed",
    "unified_committed": "the unified table is committed, its floor has not moved",
    "progress_moved": "a floor or a note of `progress` is committed, what it is about may go on",
    "joined_staged": "small files are written as one, they are still the table (detail: the table)",
    "joined_committed": "the joined file is the table, those that it stands for still lie beside it (detail: the table)",
    "file_deleted": "an old file is deleted, others that are to go with it are still there (detail: the table)",
    "checkpoint_written": "maintenance has written a checkpoint, no old entry of the log has gone (detail: the table)",
    "rest_staged": "chunks of rows to export are written, not committed: no call was made",
    "rest_planned": "the chunks are fixed, no call was made",
    "rest_answered": "calls of a task are answered, the ledger does not say so (detail: the task)",
    "rest_settled": "the ledger says what became of every chunk, their rows still wait in the outbox",
    "events_due": "a run has done its work, the event log does not have it",
}

_arrivals = count(1)


def reach(name: str, detail: object = None) -> None:
    """Marks a crash point; ends the process if a test asked for it."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    place, _, times = wanted.partition("@")
    if place in (name, f"{name}:{detail}") and next(_arrivals) >= int(times or 1):
        os.kill(os.getpid(), signal.SIGKILL)
