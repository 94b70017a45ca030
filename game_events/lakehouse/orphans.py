"""Files in a table's folder that no commit has ever named, or whose removal the log has forgotten: left by crashes.

Only old ones: a file that was staged lately may be committed yet.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow.fs as pafs

from game_events.lakehouse.commits import paths
from game_events.lakehouse.replaced_files import ReplacedFiles, delete_files
from game_events.lakehouse.staging import file_system
from game_events.lakehouse.tables import Table


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
