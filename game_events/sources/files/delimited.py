"""Readers of records that follow one another: JSON lines, and length-delimited protobuf messages.

JSON lines: one document in each line; positions are line numbers from 0, empty lines count and are no records. Messages: each
after its length as a varint, as written by protobuf's `writeDelimitedTo` (Java), `SerializeDelimitedToOstream` (C++) and
`serialize_length_prefixed` (Python); positions count them from 0.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from game_events.decoding.core.reasons import KEPT_BYTES, Reason
from game_events.sources.files.limits import DecompressedFile, FileLimits
from game_events.sources.files.record_batches import FilePart, RowNumbers, records, unreadable

_BLANK = (9, 13, 32)
#: Bytes of a message's length at most.
_LENGTH_BYTES = 5
#: Protobuf's own limit of a message.
MAX_MESSAGE = 2**31 - 1


def read_lines(
    source: pa.NativeFile | DecompressedFile, file: FilePart, identity: bytes, bounds: FileLimits
) -> Iterator[pa.RecordBatch]:
    """Batches of a file's lines; the last one needs no line break. A line that is too large is skipped; its size is counted."""
    held, position = b"", 0
    large = 0  # bytes so far of a line that is too large; `held` is how it begins
    while chunk := source.read(bounds.batch):
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


def read_delimited(
    source: pa.NativeFile | DecompressedFile, file: FilePart, identity: bytes | None, bounds: FileLimits
) -> Iterator[pa.RecordBatch]:
    """Batches of a file's messages, then a row for the rest after an impossible length.

    A message that is too large becomes a quarantine row and is skipped without being held in memory.
    """
    held, position = b"", 0
    # The decompressed size is unknown.
    most = MAX_MESSAGE + _LENGTH_BYTES if isinstance(source, DecompressedFile) else file.size
    while True:
        chunk = source.read(bounds.batch)
        buffer = held + chunk
        starts, ends, at, needed = _lengths(buffer)
        positions = position + np.arange(len(starts), dtype=np.int64)
        yield from records(file, positions, buffer, np.array(starts, np.int64), np.array(ends, np.int64), identity)
        position += len(starts)
        held = buffer[at:]
        if needed is None or not chunk or needed > most:
            break
        if needed > bounds.record + _LENGTH_BYTES:
            missing = _skip(source, needed - len(held), bounds.batch)
            if missing:
                held = held[:KEPT_BYTES]
                detail = f"{position:,}: a message of {needed:,} bytes is announced, {needed - missing:,} are left of the file"
                yield unreadable(file, position, f"record {detail}", held)
                return
            yield unreadable(file, position, bounds.too_large(needed), held[:KEPT_BYTES], Reason.TOO_LARGE)
            held, position = b"", position + 1
        # One message larger than a batch: read it at once, not chunk by chunk.
        elif needed > len(held) + bounds.batch:
            held += source.read(needed - len(held) - bounds.batch)
    if held:
        wrong = "no length" if needed is None else f"a message of {needed:,} bytes is announced"
        rest = len(held) + (0 if isinstance(source, DecompressedFile) else source.size() - source.tell())
        yield unreadable(
            file, position, f"record {position:,}: {wrong}, {rest:,} bytes are left of the file", held[:KEPT_BYTES]
        )


def _skip(source: pa.NativeFile | DecompressedFile, size: int, at_once: int) -> int:
    """Skip so many bytes, some at a time; returns how many are missing at the end of the file."""
    while size and (chunk := source.read(min(size, at_once))):
        size -= len(chunk)
    return size


def _lengths(buffer: bytes) -> tuple[list[int], list[int], int, int | None]:
    """Starts and ends of the complete messages of a buffer, where they stop, and bytes that the next one needs.

    None: no valid length there. A loop, as the start of a message depends on the one before.
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
