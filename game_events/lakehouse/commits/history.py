"""A table's versions as their commits have them: what each one added and removed, and what it says of itself.

Source: Delta Lake protocol, "Actions". Reads the log's own files, the newest first; what was cleaned up is not there any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from game_events.lakehouse.commits.restores import COMMIT_ID, LOG, LOOKED_AT, MAINTENANCE_INFO
from game_events.lakehouse.data.snapshot import BATCH_INFO
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import Table

#: Key of a commit's information -> what kind of commit it is; the first that is there decides.
_KINDS = {
    MAINTENANCE_INFO: "maintenance",
    LOOKED_AT: "restore looked at",
    "redecode": "redecode",
    "erasure": "erasure",
    "full_refresh": "full refresh",
    "full_refresh_of": "full refresh",
    "replay_of": "replay",
    "rejected_rows": "rejections",
    "batch": "rows",
    BATCH_INFO: "rows",
}
#: Operations of commits that say nothing more of themselves.
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
        version, time: which, and when it was committed.
        kind: what sort of commit it was, in a word or two.
        added, removed: rows of the files it added and removed, by their statistics; None: a file has none.
        files_added, files_removed: so many files.
        batch: bronze's batch that it brought, or that the table has come to.
        offsets: of bronze: the offsets it stands for.
        run_id: the run that made it.
        mark: the commit's own mark, by which its outcome is told.
        info: all that it says of itself.
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
    """The newest versions of a table, backwards, as far as its log reaches.

    Args:
        table: the table.
        newest: the version to begin with.
        limit: so many.
    """
    system, prefix = file_system(table)
    for number in range(newest, max(-1, newest - limit), -1):
        try:
            with system.open_input_file(f"{prefix}{LOG}/{number:020}.json") as source:
                actions = [json.loads(line) for line in source.read().splitlines() if line.strip()]
        except FileNotFoundError:  # older entries are cleaned up
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
    found = next((kind for key, kind in _KINDS.items() if key in info), None)
    if found is not None:
        return found if found != "rows" or adds or removes else "no rows"
    operation = str(info.get("operation", ""))
    if operation in _OPERATIONS:
        return _OPERATIONS[operation]
    if COMMIT_ID in info:
        return "rows" if adds or removes else "no rows"
    return operation.lower() or "unknown"


def _rows(files: list[dict[str, Any]]) -> int | None:
    """Rows of files; a removed file need not say how many it had."""
    counts = [json.loads(f["stats"]).get("numRecords") if f.get("stats") else None for f in files]
    known = [int(count) for count in counts if count is not None]
    return sum(known) if len(known) == len(files) else None
