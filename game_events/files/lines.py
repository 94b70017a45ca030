"""JSON lines: one document in each line. Positions are line numbers from 0; empty lines count and are no records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from game_events.files.delimited import KEPT_BYTES
from game_events.files.rows import BATCH_BYTES, BATCH_ROWS, FilePart, records, refused, slices

#: A longer line is no line.
MAX_LINE = 256 * 1024 * 1024
_BLANK = (9, 13, 32)


def read_lines(source: pa.NativeFile, file: FilePart, identity: bytes) -> Iterator[pa.RecordBatch]:
    """Batches of a file's lines; the last one needs no line break."""
    held, position = b"", 0
    while chunk := source.read(BATCH_BYTES):
        buffer = held + chunk
        breaks = np.flatnonzero(np.frombuffer(buffer, dtype=np.uint8) == 10)
        if len(breaks):
            yield from _batches(buffer, breaks, file, position, identity)
            position += len(breaks)
            held = buffer[int(breaks[-1]) + 1 :]
        else:
            held = buffer
        if len(held) > MAX_LINE:
            yield refused(file, position, f"line {position:,} is longer than {MAX_LINE:,} bytes", held[:KEPT_BYTES])
            return
    if held.strip():
        yield from _batches(held, np.array([len(held)]), file, position, identity)


def _batches(
    buffer: bytes, breaks: np.ndarray[tuple[int], np.dtype[np.int64]], file: FilePart, position: int, identity: bytes
) -> Iterator[pa.RecordBatch]:
    octets = np.frombuffer(buffer, dtype=np.uint8)
    ends = breaks.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    # A line of nothing but a blank or a carriage return; longer blank ones do not parse, and say so.
    blank = (ends == starts) | ((ends == starts + 1) & np.isin(octets[np.minimum(starts, len(octets) - 1)], _BLANK))
    positions = position + np.flatnonzero(~blank)
    starts, ends = starts[~blank], ends[~blank]
    for begin in range(0, len(starts), BATCH_ROWS):
        part = slice(begin, begin + BATCH_ROWS)
        yield records(file, positions[part], slices(buffer, starts[part], ends[part]), identity)
