"""JSON lines: one document in each line. Positions are line numbers from 0; empty lines count and are no records."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from game_events.decoding.core.reasons import KEPT_BYTES, Reason
from game_events.sources.files.limits import DecompressedFile, FileLimits
from game_events.sources.files.record_batches import BATCH_BYTES, FilePart, RowNumbers, records, unreadable

_BLANK = (9, 13, 32)


def read_lines(
    source: pa.NativeFile | DecompressedFile, file: FilePart, identity: bytes, bounds: FileLimits
) -> Iterator[pa.RecordBatch]:
    """Batches of a file's lines; the last one needs no line break. A line that is too large is skipped; its size is counted."""
    held, position = b"", 0
    large = 0  # bytes so far of a line that is too large; `held` is how it begins
    while chunk := source.read(BATCH_BYTES):
        if large:
            end = chunk.find(b"\n")
            if end < 0:
                large += len(chunk)
                continue
            yield unreadable(file, position, bounds.too_large(large + end), held, Reason.TOO_LARGE)
            held, large, position, chunk = b"", 0, position + 1, chunk[end + 1 :]
        buffer = held + chunk
        breaks = np.flatnonzero(np.frombuffer(buffer, dtype=np.uint8) == 10)
        if len(breaks):
            yield from _batches(buffer, breaks, file, position, identity)
            position += len(breaks)
            held = buffer[int(breaks[-1]) + 1 :]
        else:
            held = buffer
        if len(held) > bounds.record:
            held, large = held[:KEPT_BYTES], len(held)
    if large:
        yield unreadable(file, position, bounds.too_large(large), held, Reason.TOO_LARGE)
    elif held.strip():
        yield from _batches(held, np.array([len(held)]), file, position, identity)


def _batches(buffer: bytes, breaks: RowNumbers, file: FilePart, position: int, identity: bytes) -> Iterator[pa.RecordBatch]:
    octets = np.frombuffer(buffer, dtype=np.uint8)
    ends = breaks.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    # An empty line, a blank or a carriage return; longer blank lines are rejected by the parser.
    blank = (ends == starts) | ((ends == starts + 1) & np.isin(octets[np.minimum(starts, len(octets) - 1)], _BLANK))
    return records(file, position + np.flatnonzero(~blank), buffer, starts[~blank], ends[~blank], identity)
