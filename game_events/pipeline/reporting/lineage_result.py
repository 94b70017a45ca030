"""What became of a run's OpenLineage events, for everybody who tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LineageAccount:
    """Events of one run, or of a part of it.

    Attributes:
        sent: taken by the receiver.
        lost: not taken.
        why: of the first that was not.
    """

    sent: int = 0
    lost: int = 0
    why: str = ""

    def add(self, other: LineageAccount) -> None:
        """Add up."""
        self.sent, self.lost, self.why = self.sent + other.sent, self.lost + other.lost, self.why or other.why

    @property
    def notice(self) -> str | None:
        """What a person should know."""
        return f"{self.lost:,} OpenLineage events were not taken by the receiver: {self.why}" if self.lost else None
