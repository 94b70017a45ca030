"""Whether somebody restored a table, from the first line of its newest commit: what a look at thousands of tables can afford.

Opening 2,000 small tables took 11 s, whatever number of threads (delta-rs replays each log); listing their logs and reading
the newest commit of each took 1.2 s on the same busy machine. Format of a commit: Delta Lake protocol, "Delta Log Entries" and
"Commit Provenance Information".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Table

LOG = "_delta_log"
#: Key in the information of every commit, with a value of its own for each.
COMMIT_ID = "game_events_commit"
#: Key in the commit information of maintenance: such a commit changes no row.
MAINTENANCE_INFO = "maintenance"
#: Keys in the information of the layers' own commits, which are made only after a look for restores; of bronze: its batches.
BATCHES = frozenset({"bronze_batch", "batch"})
#: Of tables whose commits note no batch: any commit of a run.
ANY_COMMIT = frozenset({COMMIT_ID})
#: Key in the information of a commit that changes nothing and says that the restores before it were looked at.
LOOKED_AT = "restore_looked_at"
#: Commits by others (maintenance, erasures) behind which a restore is still found.
LOOK_BACK = 200

#: Newest commits that are looked through for one of this project's own: nearly always one small file is read.
RESTORE_HISTORY = (1, 8, 100)


def settles(info: Mapping[str, Any], marks: frozenset[str] = BATCHES) -> bool:
    """Whether what came before a commit, by its own information, was looked at: maintenance takes a table as it finds it."""
    return MAINTENANCE_INFO not in info and (LOOKED_AT in info or not marks.isdisjoint(info))


def restored_lately(table: Table, marks: frozenset[str] = BATCHES, version: int | None = None) -> bool:
    """Whether the newest commits of a table that is there are a restore, and what others (maintenance) did since.

    A restore takes the rows back and leaves every `txn` where it was: progress then speaks of rows that are gone.

    Args:
        table: the table.
        marks: keys of the commits that are made only after a look for restores.
        version: as of this version, of a table that was opened: its log, which may be long, is not listed then.
    """
    for info in _from_newest(table) if version is None else commits_from(table, version, version - LOOK_BACK):
        if settles(info, marks):
            return False
        if info.get("operation") == "RESTORE":
            return True
    return False


def marks_of(table: Table) -> frozenset[str]:
    """Keys of the table's commits that are made only after a check for restores."""
    return ANY_COMMIT if table.key == QUARANTINE else BATCHES


def waits_for_a_look(table: Table, handle: DeltaTable) -> str | None:
    """Why maintenance skips a table that was restored and that no run has checked yet, in words; else None.

    Maintenance would delete the files that an undo needs, and in time the log's entry of the restore. Tables that no run
    compares with others (`event_log`, `schemas`, `progress`) are as they are.
    """
    if table.key not in {BRONZE, QUARANTINE} and not table.key.startswith(("silver_", "gold_")):
        return None
    return (
        "it was restored: a run has to look at it first" if restored_lately(table, marks_of(table), handle.version()) else None
    )


def restored_between(table: Table, seen: int, version: int) -> bool:
    """Whether a restore is among the versions behind `seen` up to `version`; mostly there are none, then nothing is read.

    By the files of the log: delta-rs' history of a handle has the newest entries of the log, also those that came since.
    """
    return any(info.get("operation") == "RESTORE" for info in commits_from(table, version, seen))


def version_before_restores(table: Table, version: int, marks: frozenset[str] = BATCHES) -> int:
    """The version before the first restore that no run has checked yet, as of a version; without any, that version."""
    found = version
    for number, info in enumerate(commits_from(table, version, -1)):
        if settles(info, marks):
            break
        if info.get("operation") == "RESTORE":
            found = version - number - 1
    return found


def _from_newest(table: Table) -> Iterator[dict[str, Any]]:
    if table.local_path is not None and not (table.local_path / LOG).is_dir():
        return
    system, prefix = file_system(table)
    listed = system.get_file_info(FileSelector(prefix + LOG, allow_not_found=True))
    commits = sorted((f.path for f in listed if f.base_name.endswith(".json") and f.base_name[:20].isdigit()), reverse=True)
    for path in commits[:LOOK_BACK]:
        with system.open_input_file(path) as source:
            yield _info(source.read())


def commits_from(table: Table, version: int, above: int) -> Iterator[dict[str, Any]]:
    """Information of the commits of a version and those before it, above another one; it ends where the log was cleaned up."""
    system, prefix = file_system(table)
    for number in range(version, max(-1, above), -1):
        try:
            with system.open_input_file(f"{prefix}{LOG}/{number:020}.json") as source:
                yield _info(source.read())
        except FileNotFoundError:  # older entries are cleaned up
            return


def has_commit(table: Table, version: int) -> bool:
    """Whether a version is in the log: one small request, where opening a table replays what it holds."""
    system, prefix = file_system(table)
    return bool(system.get_file_info(f"{prefix}{LOG}/{version:020}.json").type == FileType.File)


def _info(commit: bytes) -> dict[str, Any]:
    """The commit's own information: Spark and delta-rs write it first, the protocol leaves the order open."""
    for line in commit.splitlines():
        action = json.loads(line) if b'"commitInfo"' in line else {}
        if "commitInfo" in action:
            return dict(action["commitInfo"])
    return {}


def restored(handle: DeltaTable) -> bool:
    """Whether somebody restored the table since this project's last commit to it.

    A restore takes the rows back and leaves every `txn` where it was: progress then speaks of rows that are gone.
    """
    for limit in RESTORE_HISTORY:
        for entry in handle.history(limit):
            if settles(entry):
                return False
            if entry.get("operation") == "RESTORE":
                return True
    return False
