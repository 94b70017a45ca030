"""Refusal of a bronze or quarantine table that was restored by hand (`RESTORE`).

A restore takes rows back but no `txn`: offsets of rows that are gone stay committed, so no run would read those rows again.
"""

from contextlib import suppress

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.errors import ConflictError, DataError
from game_events.lakehouse.commits.commit import commit, without_rows
from game_events.lakehouse.commits.incarnations import erasures
from game_events.lakehouse.commits.restores import RESTORE_CHECKED, marks_of, restored_lately, version_before_restores
from game_events.lakehouse.tables import QUARANTINE, Table
from game_events.lakehouse.unsupported import REBUILD


def refuse_restored(table: Table, handle: DeltaTable, rebuild: str | None = None) -> DeltaTable:
    """Return a version of the table that lacks no row because of a restore; one small file is read.

    Commits that are planned from it compare its version (`Commit.seen`). A restore that was undone is acknowledged by a commit
    without rows.

    `rebuild`: the way out where the restore cannot be undone; None: the table's usual one.

    Raises:
        DataError: the table was restored; the message names table, version and command.
    """
    while restored_lately(table, marks_of(table), handle.version()):
        version = version_before_restores(table, handle.version(), marks_of(table))
        before = _before(table, handle, version)
        if before is None or set(before.file_uris()) != set(handle.file_uris()):
            raise DataError(_refusal(table, version if before is not None else None, rebuild))
        with suppress(ConflictError):  # another process was first, or the table was restored again
            commit(without_rows(table, handle, {RESTORE_CHECKED: "nothing was lost"}, {}, {}))
        handle = table.open() or handle
    return handle


def _before(table: Table, handle: DeltaTable, version: int) -> DeltaTable | None:
    """The table before the restore; None: the log does not reach back, or it has rows that were erased since."""
    with suppress(DeltaError, OSError):
        before = DeltaTable(table.uri, version=version, storage_options=table.options)
        return before if erasures(before) == erasures(handle) else None
    return None


def _refusal(table: Table, version: int | None, rebuild: str | None) -> str:
    ways = [rebuild or f"delete the table and run {REBUILD}" if table.key == QUARANTINE else rebuild or f"run {REBUILD}"]
    if version is not None:
        undo = f"RESTORE TABLE delta.`{table.uri}` TO VERSION AS OF {version}"
        ways.insert(0, f'undo the restore ({undo}; or in Python deltalake.DeltaTable("{table.uri}").restore({version}))')
    return (
        f"{table.name} was restored to an older version: rows that came since are gone, and no run reads them again, as their "
        f"offsets are committed. Nothing was done. To go on, {', or '.join(ways)}"
    )
