"""What one file may take at most: records, bytes once it is unpacked, bytes of a record, memory while a part of it is decoded.

A handful of bytes can announce any amount of each. At a bound the file's records so far stand, and one row of quarantine says
what is left; other files are none the wiser.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from game_events.decoding.core.reasons import too_large


class LimitExceededError(Exception):
    """A file asks for more than it may have; the text says what and which setting allows more."""


@dataclass(frozen=True)
class FileLimits:
    """The bounds of the settings; picklable.

    Attributes:
        rows: records of a file, by their positions.
        unpacked: bytes of a packed file once it is unpacked.
        record: bytes of a record.
    """

    rows: int
    unpacked: int
    record: int

    def too_many(self) -> LimitExceededError:
        """A file has more records."""
        return LimitExceededError(f"it has more than {self.rows:,} records (GAME_EVENTS_FILES_MAX_ROWS)")

    def too_much(self) -> LimitExceededError:
        """A file has more bytes."""
        return LimitExceededError(
            f"it is more than {self.unpacked:,} bytes once unpacked (GAME_EVENTS_FILES_MAX_UNPACKED_BYTES)"
        )

    def too_large(self, size: int) -> str:
        """What is said of a record of so many bytes."""
        return too_large(f"{size:,}", self.record)


class DecompressedFile:
    """A compressed file as it is unpacked, up to the bound: a megabyte may hold a terabyte, of blank lines too."""

    def __init__(self, source: pa.NativeFile, bounds: FileLimits) -> None:
        """Nothing is read yet."""
        self._source, self._bounds, self._size = source, bounds, 0

    def read(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            LimitExceededError: there are too many in all.
        """
        found: bytes = self._source.read(size)
        self._size += len(found)
        if self._size > self._bounds.unpacked:
            raise self._bounds.too_much()
        return found


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """So many bytes more than this process has now; who asks for others gets a MemoryError (`pa.ArrowMemoryError`).

    It holds for the whole process, so for as short as can be. Linux keeps to it; elsewhere it is no bound.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held = _held()
    most = min((n for n in (before, hard) if n != resource.RLIM_INFINITY), default=None)
    if held is None or (most is not None and most <= held + more):
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (held + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _held() -> int | None:
    """Bytes of data that this process has, as Linux counts them; None: nobody says."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - not by its length: it has none
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return None
