"""What upkeep did to tables, for everybody who tells it."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class TableUpkeep:
    """One table.

    Attributes:
        table: its name.
        joined: small files that were joined; `into`: files they became; `joined_bytes`: bytes of those.
        replaced: files deleted that the table had replaced long enough ago.
        orphans: files deleted that no version names, left by crashes; `orphan_bytes`: their bytes.
        waiting: replaced files that stay for the time, for readers still at work.
        files: data files of the table afterwards.
        skipped: why something was left for the next time: a rival run was at work on it, or has to look at it first.
        error: what kept it from being done.
    """

    table: str
    joined: int = 0
    into: int = 0
    joined_bytes: int = 0
    replaced: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    waiting: int = 0
    files: int = 0
    skipped: str | None = None
    error: str | None = None

    @property
    def anything(self) -> bool:
        """Whether something was done, or could not be."""
        return bool(self.joined or self.replaced or self.orphans or self.skipped or self.error)

    def add(self, other: TableUpkeep) -> None:
        """A later upkeep of the same table: counts are sums, what is left is the newest."""
        for name in ("joined", "into", "joined_bytes", "replaced", "orphans", "orphan_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waiting, self.files = other.waiting, other.files
        self.skipped, self.error = other.skipped, other.error

    def to_dict(self) -> dict[str, object]:
        """Plain types only."""
        return asdict(self)
