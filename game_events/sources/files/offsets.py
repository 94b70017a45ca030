"""Where a record of a file stands, in the two numbers that Kafka's records have: partition and offset.

A file has a number in the file log and a record a position in its file. Together they are one 64-bit offset of the one
partition 0: ``number << 32 | position``. Slices begin and end between files, so everything that counts on offsets (commits,
crashes, restores, the checks) holds for files as it does for a topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from game_events.sources.core.source import Gap

PARTITION = 0
#: Positions of one file.
FILE_ROWS = 2**32


def first_offset(number: int) -> int:
    """Offset of the first record of a file; also the end of the files before it."""
    return number * FILE_ROWS


def number_of(offset: int) -> int:
    """The file that an offset is in, or begins."""
    return offset // FILE_ROWS


@dataclass(frozen=True)
class FileGap(Gap):
    """A file that was gone before it was read; without its path as a commit's note has it, which names its number."""

    path: str = ""

    @property
    def offsets(self) -> int | None:
        """How many records: nobody knows."""
        return None

    def __str__(self) -> str:
        return f"file {self.path}" if self.path else f"file number {number_of(self.start)} of source_files"
