"""Results of single steps of a run: archive, maintenance of a table, OpenLineage, an erasure, a check."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import add
from types import NoneType
from typing import Any

from game_events.pipeline.reporting.merging import latest, merged

#: What a check covers.
WHOLE, NEW = "whole tables", "what is new"


@dataclass(frozen=True)
class ArchiveResult:
    """Result of `game-events archive`.

    `rows`: records added; `files`, `bytes`: number and size of their files. `without_raw`: rows of bronze without a raw value,
    which cannot be archived. `batch`: last bronze batch in the archive.
    """

    to: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    without_raw: int = 0
    batch: int = 0


@dataclass(frozen=True)
class LineageResult:
    """Number of OpenLineage events that the receiver took (`sent`) and did not take (`lost`), and why the first was lost."""

    sent: int = merged(add, int)
    lost: int = merged(add, int)
    why: str = merged(lambda first, second: first or second, str)

    @property
    def notice(self) -> str | None:
        """Warning for the user, if events were lost."""
        return f"{self.lost:,} OpenLineage events were not taken by the receiver: {self.why}" if self.lost else None


@dataclass
class TableMaintenance:
    """Result of the maintenance of one table.

    Attributes:
        joined: small files that were compacted; `into`: files that replace them; `joined_bytes`: bytes of these.
        replaced: deleted files that no current version uses, older than the retention.
        orphans: deleted files that no version uses, left by crashes; `orphan_bytes`: their bytes.
        waiting: replaced files within the retention, which readers may still use.
        files: data files of the table afterwards.
        skipped: why work was left for the next time: a concurrent writer, or a restore that has to be checked first.
        error: why the maintenance failed.
    """

    table: str
    joined: int = merged(add, int)
    into: int = merged(add, int)
    joined_bytes: int = merged(add, int)
    replaced: int = merged(add, int)
    orphans: int = merged(add, int)
    orphan_bytes: int = merged(add, int)
    waiting: int = merged(latest, int)
    files: int = merged(latest, int)
    skipped: str | None = merged(latest, NoneType)
    error: str | None = merged(latest, NoneType)

    @property
    def anything(self) -> bool:
        """Whether files changed, or work was skipped or failed."""
        return bool(self.joined or self.replaced or self.orphans or self.skipped or self.error)


@dataclass
class Erasure:
    """Result of `game-events forget`.

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


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: the check's name; `layer`: layer of its asset.
        passed: nothing is wrong.
        summary: one sentence: the finding, and where.
        counts: numbers and short texts for display; no values of events.
        wrong_rows: a failure means that rows are wrong, missing or duplicated (severity ERROR); otherwise WARN.
        version: Delta version of the layer's table that was checked.
        games: failed games, if each is checked by itself.
        covers: what was looked at: `WHOLE`, or `NEW`, which passes over faults of earlier commits.
    """

    name: str
    layer: str
    passed: bool
    summary: str
    counts: Mapping[str, int | float | str] = field(default_factory=dict)
    wrong_rows: bool = False
    version: int | None = None
    games: tuple[str, ...] = ()
    covers: str = WHOLE
