"""Result of an erasure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from game_events.pipeline.reporting.counts import PluginResult


@dataclass
class Erasure(PluginResult):
    """Result of `game-events erase`.

    Attributes:
        hashes: prefixes of the keyed hashes of the data subjects.
        dry_run: nothing was changed; `rows` are those that would be removed.
        rows: table -> rows removed; gold and unified: rows of the aggregates.
        unsearchable: rows of quarantine that do not decode, so that their data subject is unknown.
        undecoded: rows of bronze of a message type that is not selected, so that their data subject is unknown.
        lost_ids: data subjects of a resumed erasure with a key that no row has; only undecodable bytes may be left of them.
        finished: every table was searched, and holds no row of them.
        vacuumed: old files were searched too.
        removed_files: table -> removed files of older versions with rows of them.
        kept_files: table -> files with rows of them that no version names, and that a run may be about to commit.
        cleaned_logs: tables with older log entries that named one of them, and were removed.
    """

    key: ClassVar[str] = "erasure"

    hashes: list[str] = field(default_factory=list)
    dry_run: bool = False
    rows: Counter[str] = field(default_factory=Counter)
    unsearchable: int = 0
    undecoded: int = 0
    lost_ids: int = 0
    finished: bool = False
    vacuumed: bool = False
    kept_files: Counter[str] = field(default_factory=Counter)
    removed_files: Counter[str] = field(default_factory=Counter)
    cleaned_logs: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {name: dict(sorted(v.items())) if isinstance(v, Counter) else v for name, v in vars(self).items()}

    def event_rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the event log: of the erasure, then of each table."""
        status = "dry run" if self.dry_run else "finished" if self.finished else "unfinished"
        row, detail = {"kind": "erased", "status": status}, {"hashes": self.hashes}
        files = {"removed_files": self.removed_files.total(), "unsearchable": self.unsearchable}
        yield row | {"rows": self.rows.total(), "detail": detail | {"vacuumed": self.vacuumed} | files}
        for table, rows in sorted(self.rows.items()):
            yield row | {"table": table, "rows": rows, "detail": detail}
