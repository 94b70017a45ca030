"""Failpoints: the named steps at which a crash must neither lose nor duplicate a row (docs/guarantees.md has a paragraph each).

Production code calls `reach` at each of them, which does nothing. Tests replace `handler` to end the process there.
"""

from __future__ import annotations

#: name -> what is done and what is not.
FAILPOINTS = {
    "file_open": "a file is being written, by a worker or by the driver (detail: the table)",
    "files_taken_in": "source files are numbered, none is read",
    "bronze_staged": "files of bronze and quarantine are written, nothing is committed",
    "schemas_archived": "texts of new schemas are archived, nothing of the micro-batch is committed",
    "quarantine_announced": "bronze's log announces a micro-batch's commit to quarantine, neither table has its rows",
    "quarantine_committed": "quarantine is committed, bronze is not",
    "columns_added": "a table has new columns, their rows are not committed (detail: the table)",
    "bronze_committed": "bronze is committed, silver has not begun",
    "replay_staged": "rows of quarantine are decoded and written, nothing is committed",
    "replay_committed": "replayed rows are committed to bronze, quarantine does not mark them yet",
    "replay_noted": "quarantine marks the replayed rows, the rows that did not decode are not counted",
    "redecode_staged": "bronze's new files are written, the old ones are still the table",
    "redecode_committed": "bronze's columns are rebuilt, no other layer has followed",
    "reset_staged": "the whole topic is decoded and written, the old rows are still bronze",
    "reset_committed": "bronze is replaced, quarantine still has the old rows",
    "reset_finished": "quarantine is replaced too, the manifest of its new files still exists",
    "archive_staged": "files of the archive are written, no commit of it names them",
    "silver_staged": "files of all games are written, none is committed",
    "silver_replanned": "files of games planned from their own progress are written, none is committed",
    "rejections_decided": "quarantine holds the rows that rules reject, no silver table has taken that pass",
    "game_committed": "one game's silver is committed, others are not (detail: number of games committed)",
    "silver_committed": "all games are committed, the low watermark has not moved",
    "before_create": "a table is about to be created by its first commit (detail: the table)",
    "gold_staged": "files of all aggregates are written, none is committed",
    "gold_game_committed": "one game's gold is committed, others are not (detail: number of games committed)",
    "gold_committed": "gold is committed, its low watermark has not moved",
    "forget_listed": "an erased data subject is suppressed, no row is deleted",
    "forget_staged": "files without the data subject's rows are written, the old ones are still the tables",
    "forget_quarantine_committed": "the rows are deleted from quarantine, not from bronze",
    "forget_bronze_committed": "the rows are deleted from bronze, not from silver",
    "forget_game_committed": "the rows are deleted from one game's silver, not from others' (detail: number of games)",
    "forget_silver_committed": "the rows are deleted from silver, gold still counts them",
    "unified_staged": "files of the unified table are written, not committed",
    "unified_committed": "the unified table is committed, its low watermark has not moved",
    "progress_moved": "a low watermark or an entry of `progress` is committed",
    "joined_staged": "small files are compacted, they are still the table (detail: the table)",
    "joined_committed": "the compacted file is the table, the small ones still exist (detail: the table)",
    "file_deleted": "an unreferenced file is deleted, others still exist (detail: the table)",
    "checkpoint_written": "maintenance has written a checkpoint, no old log entry is deleted (detail: the table)",
    "rest_staged": "chunks of rows to export are written, not committed: no call was made",
    "rest_planned": "the chunks are fixed, no call was made",
    "rest_answered": "calls of a task are answered, the delivery log does not have it (detail: the task)",
    "rest_settled": "the delivery log has every chunk's outcome, their rows are still in the outbox",
    "events_due": "a run has finished, the event log does not have it",
}


def handler(_name: str, _detail: object) -> None:
    """Do nothing."""


def reach(name: str, detail: object = None) -> None:
    """Call the handler."""
    handler(name, detail)
