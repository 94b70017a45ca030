"""What an erasure did: counts and beginnings of hashes, never an id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Erasure:
    """One `game-events forget`.

    Attributes:
        hashes: beginnings of the gamers' keyed hashes.
        dry_run: nothing was changed: rows are those that would go.
        rows: table -> rows of theirs that went; gold and unified: rows of the aggregates.
        unsearchable: rows of quarantine that decode under nothing: nobody can say whose they are.
        undecoded: rows of bronze whose message type is not selected, and which do not tell whose they are.
        lost_ids: gamers of an erasure that was resumed whose id no row has: nothing but undecodable bytes may be left of them.
        finished: every table was looked at, and holds nothing of them any more.
        vacuumed: old files were looked at, too.
        removed_files: table -> files of older versions that held rows of theirs, removed from the storage.
        kept_files: table -> files with rows of theirs that no version names, so young that a run may be about to commit them.
        cleaned_logs: tables whose older log entries named one of them, and were removed.
    """

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
        return {
            "hashes": self.hashes,
            "dry_run": self.dry_run,
            "rows": dict(sorted(self.rows.items())),
            "unsearchable": self.unsearchable,
            "undecoded": self.undecoded,
            "lost_ids": self.lost_ids,
            "finished": self.finished,
            "vacuumed": self.vacuumed,
            "removed_files": dict(sorted(self.removed_files.items())),
            "kept_files": dict(sorted(self.kept_files.items())),
            "cleaned_logs": self.cleaned_logs,
        }

    def event_rows(self) -> Iterator[dict[str, Any]]:
        """For the event log: the whole, then each table."""
        status = "dry run" if self.dry_run else "finished" if self.finished else "unfinished"
        files = {"removed_files": self.removed_files.total(), "unsearchable": self.unsearchable}
        yield {
            "kind": "erased",
            "rows": self.rows.total(),
            "status": status,
            "detail": {"hashes": self.hashes, "vacuumed": self.vacuumed, **files},
        }
        for table, rows in sorted(self.rows.items()):
            yield {"kind": "erased", "table": table, "rows": rows, "status": status, "detail": {"hashes": self.hashes}}
