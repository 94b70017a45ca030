"""Detection of restored tables (`RESTORE`), from the information of their newest commits.

A restore takes rows back and leaves every `txn` unchanged: progress then counts rows that are gone.
"""

from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable

from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.handle import Handle
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.log_entries import COMMIT_ID
from game_events.lakehouse.parts import Part
from game_events.lakehouse.tables import QUARANTINE, Table, layer_of

#: Key in the commit information of maintenance: such a commit changes no row.
MAINTENANCE_INFO = "maintenance"
#: Keys in the information of the layers' commits that are made only after a check for restores.
BATCHES = frozenset({"bronze_batch", "batch"})
#: Of tables without batches: any commit of a run.
ANY_COMMIT = frozenset({COMMIT_ID})
#: Key in the information of a commit without changes: the restores before it were checked.
RESTORE_CHECKED = "restore_looked_at"
#: Operations that take rows back, or replace them all, and leave every `txn` unchanged.
REPLACING = frozenset({"RESTORE", "CREATE OR REPLACE TABLE"})
#: Commits (maintenance, erasures) behind which a restore is still found.
LOOK_BACK = 200
#: Newest commits that are searched for one of this project's own, in steps: nearly always the first one is it.
RESTORE_HISTORY = (1, 8, 100)


def _is_checked(info: Mapping[str, Any], marks: frozenset[str]) -> bool:
    """Whether a commit was made after a check for restores; maintenance makes none."""
    return MAINTENANCE_INFO not in info and (RESTORE_CHECKED in info or not marks.isdisjoint(info))


def restored_lately(table: Table, marks: frozenset[str] = BATCHES, version: int | None = None) -> bool:
    """Whether a table was restored since the newest commit that was made after a check for restores.

    `marks`: keys in the information of such commits. `version`: the version to begin with; None: the newest, found by listing
    the log, which may be long.
    """
    if version is None:
        # A local folder that is not there has no versions.
        version = max(TableLog(table).versions(), default=-1) if table.is_local or table.exists() else -1
    for info in TableLog(table).infos(version, version - LOOK_BACK) if version >= 0 else ():
        if _is_checked(info, marks):
            return False
        if info.get("operation") == "RESTORE":
            return True
    return False


def restored(handle: DeltaTable) -> bool:
    """Whether a table was restored or replaced since this project's newest commit of rows; mostly reads one log entry."""
    if isinstance(handle, Part) and counter(handle, Txn.RESTORED):
        return True
    if isinstance(handle, Part) and handle.whole.version() == handle.version():
        whole = handle.whole
        if whole.restored[0] != whole.version():
            whole.restored = whole.version(), restored(whole)
        return whole.restored[1]
    if isinstance(handle, Handle) and _is_checked(handle.newest_commit(), BATCHES):
        return False
    for limit in RESTORE_HISTORY:
        for entry in handle.history(limit):
            if _is_checked(entry, BATCHES):
                return False
            if entry.get("operation") in REPLACING:
                return True
    return False


def marks_of(table: Table) -> frozenset[str]:
    """Keys in the information of the table's commits that are made only after a check for restores."""
    return ANY_COMMIT if table.key == QUARANTINE else BATCHES


def restored_between(table: Table, seen: int, version: int) -> bool:
    """Whether a restore is among the versions after `seen` up to `version`; mostly there are none, then nothing is read.

    By the files of the log: delta-rs' history of a handle also has entries of later versions.
    """
    return version > seen and any(info.get("operation") == "RESTORE" for info in TableLog(table).infos(version, seen))


def unchecked_restore(table: Table, handle: DeltaTable) -> str | None:
    """Why maintenance skips a table that was restored and that no run has checked yet, in words; None: it does not skip it.

    Maintenance would delete the files that an undo needs, and in time the log's entry of the restore. Tables that no run
    compares with others (`event_log`, `schemas`, `progress`) are not skipped.
    """
    if layer_of(table.key) is Layer.OWN:
        return None
    return "it was restored: a run has to check it first" if restored_lately(table, marks_of(table), handle.version()) else None


def version_before_restores(table: Table, version: int, marks: frozenset[str] = BATCHES) -> int:
    """The version before the first of the unchecked restores up to a version; without any, that version."""
    found = version
    for number, info in enumerate(TableLog(table).infos(version, -1)):
        if _is_checked(info, marks):
            break
        if info.get("operation") == "RESTORE":
            found = version - number - 1
    return found
