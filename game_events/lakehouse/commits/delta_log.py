"""What a table's log says was removed, and when: which no library tells (Delta protocol, "Remove File", "Checkpoints")."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import Table

FOLDER = "_delta_log"


@dataclass(frozen=True)
class Removed:
    """A file that a commit has removed.

    Attributes:
        path: below the table's folder.
        at_ms: when, in milliseconds since 1970.
    """

    path: str
    at_ms: int


class TableLog:
    """One table's log, as files."""

    def __init__(self, table: Table) -> None:
        self._system, prefix = file_system(table)
        self._prefix = f"{prefix}{FOLDER}/"

    def versions(self) -> list[int]:
        """Versions whose entries are there, in their order."""
        selector = pafs.FileSelector(self._prefix.rstrip("/"), recursive=False, allow_not_found=True)
        found = self._system.get_file_info(selector)
        names = (info.base_name.removesuffix(".json") for info in found if info.base_name.endswith(".json"))
        return sorted(int(name) for name in names if name.isdigit())

    def removed_by(self, version: int) -> list[Removed]:
        """What one version removed; nothing if its entry is gone."""
        lines = self._read(f"{version:020}.json").splitlines()
        return _below_the_table([remove for line in lines if (remove := json.loads(line).get("remove")) is not None])

    def removed_before_checkpoint(self) -> list[Removed]:
        """What the newest checkpoint still knows of removals (`delta.deletedFileRetentionDuration`); entries may be gone."""
        last = self._read("_last_checkpoint")
        if not last:
            return []
        try:
            with self._system.open_input_file(f"{self._prefix}{json.loads(last)['version']:020}.checkpoint.parquet") as source:
                rows = pq.ParquetFile(source).read(columns=["remove"]).column("remove")
        except FileNotFoundError:  # in several parts, as other writers make them: then the entries have to do
            return []
        return _below_the_table([row for row in rows.to_pylist() if row is not None and row["path"] is not None])

    def _read(self, name: str) -> bytes:
        try:
            with self._system.open_input_file(self._prefix + name) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return b""


def _below_the_table(removes: list[dict[str, object]]) -> list[Removed]:
    """Without files that are elsewhere, as those of a clone are."""
    found = [Removed(unquote(str(r["path"])), int(str(r.get("deletionTimestamp") or 0))) for r in removes]
    return [removed for removed in found if "://" not in removed.path and not removed.path.startswith("/")]
