"""Files that no version of a table needs any more: found in its log, deleted when nobody can be reading them.

A file is deleted only if the log says that it was removed, and when, and that is long enough ago; so files that are staged for
a commit to come are never touched. Delta-rs' own vacuum counts in whole hours, and writes two commits each time.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake import DeltaTable

from game_events.lakehouse.commits import paths
from game_events.lakehouse.staging import file_system
from game_events.lakehouse.tables import Table

LOG = "_delta_log"


@dataclass(frozen=True)
class Removed:
    """A file that a commit has removed.

    Attributes:
        path: below the table's folder.
        at_ms: when, in milliseconds since 1970.
    """

    path: str
    at_ms: int


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
        """Read what the log has got since the last time (Delta protocol, "Remove File"); at first all that it still has."""
        system, prefix = file_system(self.table)
        newest = handle.version()
        if self._read_until is None:
            versions = [v for v in _log_versions(system, prefix) if v <= newest]
        else:
            versions = list(range(self._read_until + 1, newest + 1))
        for version in versions:
            try:
                with system.open_input_file(f"{prefix}{LOG}/{version:020}.json") as source:
                    lines = source.read().splitlines()
            except FileNotFoundError:  # cleaned up meanwhile: what it removed is an orphan by now
                continue
            for line in lines:
                remove = json.loads(line).get("remove")
                if remove is not None and not _elsewhere(remove["path"]):
                    self.waiting.append(Removed(unquote(remove["path"]), int(remove.get("deletionTimestamp") or 0)))
        self.entries += len(versions)
        self._read_until = newest

    def delete(self, handle: DeltaTable, older_than_s: float) -> int:
        """Delete files that were removed so long ago; returns how many there were.

        Args:
            handle: the newest version: a file that is in it again (a restore) stays.
            older_than_s: seconds since they were removed.
        """
        before = time.time() * 1000 - older_than_s * 1000
        due: list[str] = []
        while self.waiting and self.waiting[0].at_ms <= before:
            due.append(self.waiting.popleft().path)
        if not due:
            return 0
        return delete_files(self.table, sorted(set(due) - set(paths(handle))))


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
    return deleted


def _log_versions(system: pafs.FileSystem, prefix: str) -> list[int]:
    """Versions whose commits are in the log as JSON, in their order."""
    found = system.get_file_info(pafs.FileSelector(f"{prefix}{LOG}", recursive=False, allow_not_found=True))
    names = (info.base_name.removesuffix(".json") for info in found if info.base_name.endswith(".json"))
    return sorted(int(name) for name in names if name.isdigit())


def _elsewhere(path: str) -> bool:
    """Whether a path is not below the table's folder: of a clone, say."""
    return "://" in path or path.startswith("/")
