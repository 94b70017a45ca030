"""Results of single steps of a run: archive, maintenance of a table, OpenLineage."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from types import NoneType

from game_events.pipeline.reporting.merging import latest, merged


@dataclass(frozen=True)
class ArchiveResult:
    """Result of `game-events archive`.

    Attributes:
        to: location of the archive.
        rows: records added; `files`, `bytes`: number and size of their files.
        without_raw: rows of bronze without a raw value, which cannot be archived.
        batch: last bronze batch in the archive.
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
        table: name.
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
