"""Entries of a table's Delta log, read from its files: commits without opening the table, and times of removals.

Opening 2,000 small tables took 11 s with any number of threads, as delta-rs replays each log; listing the logs and reading the
newest commit of each took 1.2 s on the same machine. Delta-rs does not return when a file was removed.

Source: Delta Lake protocol, "Delta Log Entries", "Commit Provenance Information", "Remove File", "Checkpoints".
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.log_entries import UNFINISHED
from game_events.lakehouse.storage.durability import WRITTEN_OUT_S, write_out
from game_events.lakehouse.tables import BRONZE, Table

FOLDER = "_delta_log"
CHECKPOINT = ".checkpoint.parquet"
#: Key in the information of bronze's commits: all topics of the source. By the newest one a deleted topic is found.
SOURCES = "sources"
_DIGITS = 20


@dataclass(frozen=True)
class Removed:
    """A file that a commit has removed.

    `path`: below the table's folder. `at_ms`: when, in milliseconds since 1970.
    """

    path: str
    at_ms: int


class TableLog:
    """The log of one existing table. Entries that were cleaned up are missing."""

    def __init__(self, table: Table) -> None:
        self._uri = table.uri
        self._system, prefix = file_system(table)
        self._prefix = f"{prefix}{FOLDER}/"
        self._is_bronze = table.key == BRONZE

    def versions(self) -> list[int]:
        """Versions with an entry, sorted; one listing."""
        return sorted(int(name[:_DIGITS]) for name in self._listed() if name[_DIGITS:] == ".json")

    def has(self, version: int) -> bool:
        """Whether a version has an entry; one small request."""
        return bool(self._system.get_file_info(f"{self._prefix}{version:020}.json").type == pafs.FileType.File)

    def actions(self, version: int) -> list[dict[str, Any]]:
        """Actions of one version; none if its entry is missing."""
        return [json.loads(line) for line in self._lines(version) or () if line.strip()]

    def infos(self, newest: int, above: int) -> Iterator[dict[str, Any]]:
        """Commit information of a version and those before it, down to another one (excluded) or the first missing entry."""
        for version in range(newest, max(-1, above), -1):
            lines = self._lines(version)
            if lines is None:
                return
            # Spark and delta-rs write it first, the protocol leaves the order open.
            found = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
            yield next((dict(info) for info in found if info is not None), {})

    def removed_by(self, version: int) -> list[Removed]:
        """What one version removed; nothing if its entry is missing."""
        return _below_the_table([action["remove"] for action in self.actions(version) if "remove" in action])

    def removed_before_checkpoint(self) -> list[Removed]:
        """Removals in the newest checkpoint (`delta.deletedFileRetentionDuration`); their entries may be missing."""
        # By the listing: `_last_checkpoint` may name an older one. One in several parts is another writer's, and is left out.
        newest = max((name for name in self._listed() if name[_DIGITS:] == CHECKPOINT), default=None)
        if newest is None:
            return []
        try:
            with self._system.open_input_file(self._prefix + newest) as source:
                rows = pq.ParquetFile(source).read(columns=["remove"]).column("remove")
        except FileNotFoundError:  # another run has deleted it, and made a newer one
            return []
        return _below_the_table([row for row in rows.to_pylist() if row is not None and row["path"] is not None])

    def delete_expired(self, kept_s: float) -> int:
        """Delete the entries before the newest checkpoint that is older than `kept_s` seconds; returns how many.

        Versions that were the newest one at some time since then stay readable, also by whoever has opened them. So does
        bronze's newest version that names the topics. The checkpoint is on the disk first.
        """
        before = time.time() - kept_s
        files = self._files()
        named = {info.base_name: info for info in files if info.base_name[:_DIGITS].isdigit()}
        for info in files:
            if info.base_name.startswith(UNFINISHED) and info.mtime is not None and info.mtime.timestamp() < before:
                self._delete(info)  # a crash has left it
        old = [
            int(name[:_DIGITS])
            for name, info in named.items()
            if name[_DIGITS:] == CHECKPOINT and info.mtime is not None and info.mtime.timestamp() < before
        ]
        if old and self._is_bronze:
            needed = self._newest_with_sources(max(int(name[:_DIGITS]) for name in named))
            old = [version for version in old if version <= needed]
        # The oldest first: if this process is killed, no gap is left.
        expired = sorted(name for name in named if int(name[:_DIGITS]) < max(old, default=0))
        if expired and kept_s < WRITTEN_OUT_S:
            write_out(self._uri)
        for name in expired:
            self._delete(named[name])
        return len(expired)

    def _delete(self, file: pafs.FileInfo) -> None:
        with suppress(FileNotFoundError):  # another run has deleted it
            self._system.delete_file(file.path)

    def _newest_with_sources(self, newest: int) -> int:
        """The newest version that names the topics; `newest`: if no entry that is left does."""
        infos = enumerate(self.infos(newest, -1))
        return next((newest - number for number, info in infos if SOURCES in info), newest)

    def _listed(self) -> dict[str, pafs.FileInfo]:
        """Entries and checkpoints, by name."""
        return {info.base_name: info for info in self._files() if info.base_name[:_DIGITS].isdigit()}

    def _files(self) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self._prefix.rstrip("/"), recursive=False, allow_not_found=True)
        return list(self._system.get_file_info(selector))

    def _lines(self, version: int) -> list[bytes] | None:
        content = self._read(f"{version:020}.json")
        return None if content is None else content.splitlines()

    def _read(self, name: str) -> bytes | None:
        try:
            with self._system.open_input_file(self._prefix + name) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return None


def _below_the_table(removes: list[dict[str, Any]]) -> list[Removed]:
    """Removals without files that are elsewhere, as those of a clone are."""
    found = [Removed(unquote(str(r["path"])), int(r.get("deletionTimestamp") or 0)) for r in removes]
    return [removed for removed in found if "://" not in removed.path and not removed.path.startswith("/")]
