"""Protobuf messages one behind the other, each after its length as a varint.

Format: what protobuf's own `writeDelimitedTo` (Java), `SerializeDelimitedToOstream` (C++) and `serialize_length_prefixed`
(Python) write. Positions count the messages from 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from game_events.decoding.core.reasons import KEPT_BYTES, Reason
from game_events.sources.files.limits import DecompressedFile, FileLimits
from game_events.sources.files.record_batches import BATCH_BYTES, BATCH_ROWS, FilePart, binary_slices, records, unreadable

#: A length has no more bytes than this.
_LENGTH_BYTES = 5
#: Longer messages than protobuf itself allows are damage.
MAX_MESSAGE = 2**31 - 1


def read_delimited(
    source: pa.NativeFile | DecompressedFile, file: FilePart, identity: bytes | None, bounds: FileLimits
) -> Iterator[pa.RecordBatch]:
    """Batches of a file's messages, then a row for what is left behind a length that cannot be right.

    A message that is too large is a row of its own, and passed over without being held in memory.
    """
    held, position = b"", 0
    # A compressed file does not tell how much is in it.
    most = MAX_MESSAGE + _LENGTH_BYTES if isinstance(source, DecompressedFile) else file.size
    while True:
        chunk = source.read(BATCH_BYTES)
        buffer = held + chunk
        starts, ends, at, needed = _lengths(buffer)
        if starts:
            first = np.asarray(starts, dtype=np.int64)
            last = np.asarray(ends, dtype=np.int64)
            for begin in range(0, len(first), BATCH_ROWS):
                part = slice(begin, begin + BATCH_ROWS)
                positions = position + np.arange(begin, begin + len(first[part]), dtype=np.int64)
                yield records(file, positions, binary_slices(buffer, first[part], last[part]), identity)
            position += len(first)
        held = buffer[at:]
        if needed is None or not chunk or needed > most:
            break
        if needed > bounds.record + _LENGTH_BYTES:
            missing = _pass_over(source, needed - len(held))
            if missing:
                held = held[:KEPT_BYTES]
                detail = f"{position:,}: a message of {needed:,} bytes is announced, {needed - missing:,} are left of the file"
                yield unreadable(file, position, f"record {detail}", held)
                return
            yield unreadable(file, position, bounds.too_large(needed), held[:KEPT_BYTES], Reason.TOO_LARGE)
            held, position = b"", position + 1
        # One message larger than a batch: read as much as it wants at once, not chunk by chunk.
        elif needed > len(held) + BATCH_BYTES:
            held += source.read(needed - len(held) - BATCH_BYTES)
    if held:
        wrong = "no length" if needed is None else f"a message of {needed:,} bytes is announced"
        rest = len(held) + (0 if isinstance(source, DecompressedFile) else source.size() - source.tell())
        yield unreadable(
            file, position, f"record {position:,}: {wrong}, {rest:,} bytes are left of the file", held[:KEPT_BYTES]
        )


def _pass_over(source: pa.NativeFile | DecompressedFile, size: int) -> int:
    """Read so many bytes and forget them; returns how many of them there are not."""
    while size and (chunk := source.read(min(size, BATCH_BYTES))):
        size -= len(chunk)
    return size


def _lengths(buffer: bytes) -> tuple[list[int], list[int], int, int | None]:
    """Where the whole messages of a buffer begin and end, where they stop, and how many bytes the next one wants.

    None: what stands there is no length. A loop, as where a message begins is only known from the one before.
    """
    starts: list[int] = []
    ends: list[int] = []
    at, size = 0, len(buffer)
    while at < size:
        octet = buffer[at]
        begin, length = at + 1, octet & 0x7F
        shift = 7
        while octet > 0x7F:
            if begin == size:
                return starts, ends, at, begin - at + 1
            if begin - at == _LENGTH_BYTES:
                return starts, ends, at, None
            octet = buffer[begin]
            length |= (octet & 0x7F) << shift
            begin, shift = begin + 1, shift + 7
        if length > MAX_MESSAGE:
            return starts, ends, at, None
        if begin + length > size:
            return starts, ends, at, begin - at + length
        starts.append(begin)
        ends.append(begin + length)
        at = begin + length
    return starts, ends, at, 1
