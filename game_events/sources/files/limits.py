"""Limits of one file: records, decompressed bytes, bytes of a record, memory of decoding.

A few bytes can announce any amount of each. At a limit the records so far are kept, one quarantine row describes the rest, and
other files are not affected.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from game_events.decoding.core.reasons import too_large

#: Bytes of a batch: large files are divided.
BATCH_BYTES = 32 * 1024 * 1024
#: Bytes that decoding a batch may allocate.
MEMORY = 1024 * 1024 * 1024


class LimitExceededError(Exception):
    """A file exceeds a limit; the message names the limit and its setting."""


@dataclass(frozen=True)
class FileLimits:
    """The limits of reading a file; picklable.

    Attributes:
        rows, unpacked, record: of the settings: records of a file (by position), its decompressed bytes, bytes of a record.
        batch: bytes of a batch of records.
        memory: bytes that decoding a batch of Parquet may allocate, besides the compressed row group.
    """

    rows: int
    unpacked: int
    record: int
    batch: int = BATCH_BYTES
    memory: int = MEMORY

    def too_many(self) -> LimitExceededError:
        """Error for a file with too many records."""
        return LimitExceededError(f"it has more than {self.rows:,} records (GAME_EVENTS_FILES_MAX_ROWS)")

    def too_much(self) -> LimitExceededError:
        """Error for a file with too many bytes."""
        return LimitExceededError(
            f"it is more than {self.unpacked:,} bytes once unpacked (GAME_EVENTS_FILES_MAX_UNPACKED_BYTES)"
        )

    def too_large(self, size: int) -> str:
        """Quarantine detail of a record of so many bytes."""
        return too_large(f"{size:,}", self.record)


class DecompressedFile:
    """A compressed file, decompressed up to the limit: a megabyte may hold a terabyte."""

    def __init__(self, source: pa.NativeFile, bounds: FileLimits) -> None:
        self._source, self._bounds, self._size = source, bounds, 0

    def read(self, size: int) -> bytes:
        """The next bytes; raises LimitExceededError if there are too many in all."""
        found: bytes = self._source.read(size)
        self._size += len(found)
        if self._size > self._bounds.unpacked:
            raise self._bounds.too_much()
        return found


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Limit this process to so many more bytes in the block; beyond them it gets a MemoryError (`pa.ArrowMemoryError`).

    It holds for all threads, so keep the block short. Without effect except on Linux.
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
    """Bytes of data of this process, as Linux counts them; None: unknown."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - not by its length: it has none
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return None
