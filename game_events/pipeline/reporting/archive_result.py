"""What an archive run did."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Archived:
    """Counts of one run.

    Attributes:
        to: where the archive is.
        rows: records added.
        files, bytes: that hold them.
        without_raw: rows of bronze in this part that have no raw value, and so cannot be archived.
        batch: bronze's batch that the archive has come to.
    """

    to: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    without_raw: int = 0
    batch: int = 0

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)
