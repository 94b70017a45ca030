"""Offsets of records in files: partition 0, ``number of the file in the log << 32 | position in the file``.

Micro-batches begin and end between files, so everything that depends on offsets (commits, restores, the checks) holds for files
as for a topic.
"""

from dataclasses import dataclass

from game_events.sources.core.source import Gap

PARTITION = 0
#: Offsets of one file.
FILE_ROWS = 2**32


def first_offset(number: int) -> int:
    """Offset of the first record of a file; also the end of the files before it."""
    return number * FILE_ROWS


def number_of(offset: int) -> int:
    """Number of the file that contains an offset."""
    return offset // FILE_ROWS


@dataclass(frozen=True)
class FileGap(Gap):
    """A file that was deleted before it was read; a gap from a commit's info has its number, not its path."""

    path: str = ""

    @property
    def offsets(self) -> int | None:
        """None: the number of records is unknown."""
        return None

    def __str__(self) -> str:
        return f"file {self.path}" if self.path else f"file number {number_of(self.start)} of source_files"
