"""Versions of a table by its log, and the refusal of what was restored.

Versions of a table, from its log: kind of each commit, rows and files that it added and removed, its information.

Refusal of a bronze or quarantine table that was restored by hand (`RESTORE`).

A restore takes rows back but no `txn`: offsets of rows that are gone stay committed, so no run would read those rows again.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.errors import ConflictError, DataError
from game_events.lakehouse.commits.commit import commit, without_rows
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import (
    MAINTENANCE_INFO,
    RESTORE_CHECKED,
    erasures,
    marks_of,
    restored_lately,
    version_before_restores,
)
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.open_table import COMMIT_ID
from game_events.lakehouse.table_properties import REBUILD
from game_events.lakehouse.tables import QUARANTINE, Table

#: Key of a commit's information -> kind of commit; the first key that a commit has decides.
_KINDS = {
    MAINTENANCE_INFO: "maintenance",
    RESTORE_CHECKED: "restore looked at",
    "redecode": "redecode",
    "erasure": "erasure",
    "full_refresh": "full refresh",
    "full_refresh_of": "full refresh",
    "replay_of": "replay",
    "rejected_rows": "rejections",
    "batch": "rows",
    BATCH_INFO: "rows",
}

#: Operation -> kind, of commits without such a key.
_OPERATIONS = {
    "RESTORE": "restore",
    "ADD COLUMN": "columns",
    "UPDATE COLUMN METADATA": "comments",
    "UPDATE TABLE METADATA": "description",
    "VACUUM END": "maintenance",
    "VACUUM START": "maintenance",
    "OPTIMIZE": "maintenance",
    "CREATE TABLE": "created",
}


@dataclass(frozen=True)
class Version:
    """One version of a table.

    Attributes:
        version, time: number, and when it was committed.
        kind: sort of commit, in a word or two.
        added, removed: rows of the files it added and removed, by their statistics; None: a file has none.
        files_added, files_removed: numbers of files.
        batch: batch of bronze that it added, or up to which the table has rows.
        offsets: of bronze: the offsets of its rows.
        run_id: the run that made it.
        mark: the commit's unique mark.
        info: its whole information.
    """

    version: int
    time: datetime
    kind: str
    added: int | None
    removed: int | None
    files_added: int
    files_removed: int
    batch: int | None = None
    offsets: str | None = None
    run_id: str | None = None
    mark: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


def versions(table: Table, newest: int, limit: int) -> Iterator[Version]:
    """The newest versions of a table, the newest first, as far as its log reaches."""
    log = TableLog(table)
    for number in range(newest, max(-1, newest - limit), -1):
        actions = log.actions(number)
        if not actions:  # older entries are cleaned up
            return
        yield _version(number, actions)


def _version(number: int, actions: list[dict[str, Any]]) -> Version:
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    adds = [a["add"] for a in actions if "add" in a]
    removes = [a["remove"] for a in actions if "remove" in a]
    batch = info.get("batch", info.get(BATCH_INFO))
    return Version(
        number,
        datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1_000, UTC),
        _kind(info, adds, removes),
        _rows(adds),
        _rows(removes),
        len(adds),
        len(removes),
        int(batch) if batch is not None else None,
        info.get("offsets"),
        info.get("run_id"),
        info.get(COMMIT_ID),
        info,
    )


def _kind(info: Mapping[str, Any], adds: list[Any], removes: list[Any]) -> str:
    operation = str(info.get("operation", ""))
    kind = next((kind for key, kind in _KINDS.items() if key in info), None) or _OPERATIONS.get(operation)
    if kind is None:
        kind = "rows" if COMMIT_ID in info else operation.lower() or "unknown"
    return "no rows" if kind == "rows" and not (adds or removes) else kind


def _rows(files: list[dict[str, Any]]) -> int | None:
    """Rows of files; a removed file need not say how many it had."""
    counts = [json.loads(f["stats"]).get("numRecords") if f.get("stats") else None for f in files]
    known = [int(count) for count in counts if count is not None]
    return sum(known) if len(known) == len(files) else None


def refuse_restored(table: Table, handle: DeltaTable, rebuild: str | None = None) -> DeltaTable:
    """Return a version of the table that lacks no row because of a restore; one small file is read.

    Commits that are planned from it compare its version (`Commit.from_version`). A restore that was undone is acknowledged by a
    commit without rows.

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
