"""Deletion of files that no version of a table needs: removed ones, by their time in the log, and orphans of killed runs.

A removed file is deleted when its removal is old enough, so staged files are never touched. Why not delta-rs':
docs/decisions/0021-own-compaction-and-deletion.md.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow.fs as pafs
from deltalake import DeltaTable

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.storage.durability import WRITTEN_OUT_S, write_out
from game_events.lakehouse.tables import UNIFIED, Table, paths


@dataclass
class ReplacedFiles:
    """Removals in one table's log; each log entry is read once.

    `waiting`: path of a removed file that is not deleted yet -> time of its last removal, in milliseconds since 1970: a restore
    may have brought it back before that. `entries`: number of log entries that were read.
    """

    table: Table
    waiting: dict[str, int] = field(default_factory=dict)
    entries: int = 0
    _read_until: int | None = None

    def read_log(self, handle: DeltaTable) -> None:
        """Read the log entries since the last call; the first call reads all that are left, and the checkpoint."""
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
        for removed in found:
            self.waiting[removed.path] = max(removed.at_ms, self.waiting.get(removed.path, 0))
        self.entries += len(versions)
        self._read_until = newest

    def due(self, older_than_s: float) -> list[str]:
        """Paths of the waiting files that were removed so long ago."""
        before = time.time() * 1000 - older_than_s * 1000
        return [path for path, at_ms in self.waiting.items() if at_ms <= before]

    def delete(self, older_than_s: float) -> int:
        """Delete files that were removed so long ago, but for those that a restore brought back; returns their number."""
        due = self.due(older_than_s)
        newest = self.table.open() if due else None
        if newest is None:
            return 0
        deleted = delete_files(self.table, sorted(set(due) - set(paths(newest))), older_than_s)
        # Not before: what could not be deleted is tried again.
        for path in due:
            del self.waiting[path]
        return deleted


def delete_files(table: Table, names: list[str], removed_s: float) -> int:
    """Delete files of a table; returns how many existed.

    `removed_s`: for so many seconds at least no version has named them. Those versions are on the disk first.
    """
    table.require_writable()
    if names and removed_s < WRITTEN_OUT_S:
        write_out(table.uri)
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


def orphans(table: Table, older_than_s: float, known: ReplacedFiles, keep: Collection[str] = ()) -> dict[str, int]:
    """Parquet files that neither the newest version nor a known removal names: path -> bytes.

    `known`: removals in its log: those files have a retention of their own. `keep`: names that stay: listed for a commit to
    come.
    """
    system, prefix = file_system(table)
    # First the listing, then the version: what is committed in between is in the version.
    partitioned = table.key == UNIFIED or table.by is not None
    found = system.get_file_info(pafs.FileSelector(prefix.rstrip("/"), recursive=partitioned, allow_not_found=True))
    handle = table.open()
    if handle is None:
        return {}
    known.read_log(handle)
    live = {*paths(handle), *known.waiting, *keep}
    before = time.time() - older_than_s
    return {
        path: info.size
        for info in found
        if info.type == pafs.FileType.File
        and (path := info.path.removeprefix(prefix)).endswith(".parquet")
        and path not in live
        and not path.startswith("_delta_log/")
        and info.mtime is not None
        and info.mtime.timestamp() < before
    }
