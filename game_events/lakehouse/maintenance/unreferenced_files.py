"""Files that no version of a table needs any more: found in its log, deleted when nobody can be reading them.

A file is deleted only if the log says that it was removed, and when, and that is long enough ago; so files that are staged for
a commit to come are never touched. Delta-rs' own vacuum counts in whole hours, and writes two commits each time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile

import pyarrow.fs as pafs
from deltalake import DeltaTable

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import paths
from game_events.lakehouse.commits.delta_log import Removed, TableLog
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import Table


@dataclass
class ReplacedFiles:
    """What one table's log says was removed; each entry of the log is read once.

    Attributes:
        table: the table.
        waiting: removed, and not deleted yet, oldest first.
        entries: log entries that were read.
    """

    table: Table
    waiting: deque[Removed] = field(default_factory=deque)
    entries: int = 0
    _read_until: int | None = None

    def look(self, handle: DeltaTable) -> None:
        """Read what the log has got since the last time; at first all that it still has."""
        log = TableLog(self.table)
        newest = handle.version()
        if self._read_until is None:
            versions = [v for v in log.versions() if v <= newest]
            found = log.removed_before_checkpoint()
        else:
            versions = list(range(self._read_until + 1, newest + 1))
            found = []
        for version in versions:
            found += log.removed_by(version)
        self.waiting.extend(sorted(set(found), key=lambda removed: removed.at_ms))
        self.entries += len(versions)
        self._read_until = newest

    def delete(self, older_than_s: float) -> int:
        """Delete files that were removed so long ago; returns how many there were. One that a restore brought back stays."""
        before = time.time() * 1000 - older_than_s * 1000
        due = [removed.path for removed in takewhile(lambda removed: removed.at_ms <= before, self.waiting)]
        if not due:
            return 0
        newest = self.table.open()
        if newest is None:
            return 0
        deleted = delete_files(self.table, sorted(set(due) - set(paths(newest))))
        # Not before: what could not be deleted is tried again.
        for _ in due:
            self.waiting.popleft()
        return deleted


def delete_files(table: Table, names: list[str]) -> int:
    """Delete files of a table; returns how many were there."""
    system, prefix = file_system(table)
    deleted = 0
    for name in names:
        try:
            system.delete_file(prefix + name)
        except FileNotFoundError:
            continue
        deleted += 1
        failpoints.reach("file_deleted", table.name)
    return deleted


@dataclass(frozen=True)
class Orphans:
    """What was found: files and their bytes."""

    files: list[str]
    bytes: int


def orphans(table: Table, older_than_s: float, known: ReplacedFiles, keep: Collection[str] = ()) -> Orphans:
    """Parquet files that the table's newest version does not have, and that were not in it lately.

    Args:
        table: the table.
        older_than_s: seconds since they were written.
        known: what its log says was removed: that has a time of its own.
        keep: names that stay: listed for a commit to come.
    """
    system, prefix = file_system(table)
    # First the listing, then the version: what is committed in between is in the version.
    found = system.get_file_info(pafs.FileSelector(prefix.rstrip("/"), recursive=False, allow_not_found=True))
    handle = table.open()
    if handle is None:
        return Orphans([], 0)
    known.look(handle)
    live = set(paths(handle)) | {removed.path for removed in known.waiting} | set(keep)
    before = time.time() - older_than_s
    old = [
        info
        for info in found
        if info.type == pafs.FileType.File
        and info.base_name.endswith(".parquet")
        and info.base_name not in live
        and info.mtime is not None
        and info.mtime.timestamp() < before
    ]
    return Orphans(sorted(info.base_name for info in old), sum(info.size for info in old))


def delete_orphans(table: Table, found: Orphans) -> int:
    """Delete them; returns how many were there still."""
    return delete_files(table, found.files)
