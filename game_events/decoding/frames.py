"""The Confluent wire format, read for a whole Arrow batch at once.

Frame: magic byte ``00``, schema id (4 bytes, big endian), message indexes (zig-zag varints: how many, then each; the one
byte ``00`` means ``[0]``), payload. Source: Confluent documentation, "Wire format" and "Protobuf serializer".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.reasons import Reason

MAGIC = 0
PREFIX = 5  # magic byte and schema id
#: A path longer than this is damage, not nesting.
MAX_INDEXES = 32
_SINGLE_BYTE = 0x80

IndexPath = tuple[int, ...]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FrameGroup:
    """Rows of one batch that share schema id, message index path and length of the prefix."""

    schema_id: int
    path: IndexPath
    prefix: int
    rows: Rows


@dataclass(frozen=True)
class BadFrames:
    """Rows that have no readable frame, all for the same reason."""

    reason: Reason
    rows: Rows
    schema_id: int | None = None


def split(values: pa.BinaryArray) -> tuple[list[FrameGroup], list[BadFrames]]:
    """Group a batch of record values by their frames.

    Args:
        values: the records' values, shape (n,), NULL for tombstones.

    Returns:
        groups of readable frames, and the rows without one; together every row exactly once.
    """
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
    data = values.buffers()[2]
    # One byte at least, so that indexing an all-empty batch stays legal.
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(1, dtype=np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    null = np.asarray(values.is_null().to_numpy(zero_copy_only=False))

    def byte(rows: Rows, at: int) -> npt.NDArray[np.int64]:
        return raw[starts[rows] + at].astype(np.int64)

    everything = np.arange(count, dtype=np.int64)
    bad: list[BadFrames] = []

    def take_out(rows: Rows, is_bad: npt.NDArray[np.bool_], reason: Reason) -> Rows:
        if is_bad.any():
            bad.append(BadFrames(reason, rows[is_bad]))
        return rows[~is_bad]

    rows = take_out(everything, null, Reason.TOMBSTONE)
    rows = take_out(rows, lengths[rows] == 0, Reason.TOO_SHORT)
    rows = take_out(rows, byte(rows, 0) != MAGIC, Reason.BAD_MAGIC)
    rows = take_out(rows, lengths[rows] <= PREFIX, Reason.TOO_SHORT)
    ids = (byte(rows, 1) << 24) | (byte(rows, 2) << 16) | (byte(rows, 3) << 8) | byte(rows, 4)
    first = byte(rows, PREFIX)

    groups: list[FrameGroup] = []
    plain = first == 0
    _group(groups, rows[plain], ids[plain], (0,), PREFIX + 1)

    rest, rest_ids = rows[~plain], ids[~plain]
    room = lengths[rest] - PREFIX
    for announced in np.unique(first[~plain]).tolist():
        # Nearly every path is a handful of one-byte varints: those rows are grouped as a matrix.
        width = 1 + announced // 2
        mine = first[~plain] == announced
        short = mine & (room >= width) & (announced % 2 == 0) & (announced < 2 * MAX_INDEXES)
        candidates = rest[short]
        heads = raw[(starts[candidates] + PREFIX)[:, None] + np.arange(width)]
        one_byte = (heads < _SINGLE_BYTE).all(axis=1)
        keys = np.column_stack([rest_ids[short][one_byte], heads[one_byte].astype(np.int64)])
        for key, members in _distinct(keys):
            _add(groups, bad, int(key[0]), bytes(key[1:].astype(np.uint8)), candidates[one_byte][members])
        # Indexes past 63, and damage: one row after another.
        odd = np.concatenate([np.flatnonzero(mine & ~short), np.flatnonzero(short)[~one_byte]])
        for at in odd.tolist():
            begin = int(starts[rest[at]]) + PREFIX
            head = _index_bytes(raw[begin : begin + min(int(room[at]), 2 + 2 * MAX_INDEXES)].tobytes())
            _add(groups, bad, int(rest_ids[at]), head, rest[at : at + 1])
    return groups, bad


def payloads(values: pa.BinaryArray, group: FrameGroup) -> pa.BinaryArray:
    """The group's values without their frames, in the order of ``group.rows``."""
    whole = len(group.rows) == len(values)
    taken = values if whole else values.take(pa.array(group.rows))
    # A `stop` is required by pyarrow 26, or it raises.
    return pc.binary_slice(taken, group.prefix, stop=2**31 - 1)


def parse_indexes(head: bytes) -> IndexPath | None:
    """Message indexes from their bytes (count, then each as zig-zag varint); None if they are damaged."""
    numbers: list[int] = []
    value = shift = 0
    for octet in head:
        value |= (octet & 0x7F) << shift
        shift += 7
        if not octet & _SINGLE_BYTE:
            numbers.append((value >> 1) ^ -(value & 1))
            value = shift = 0
    if not numbers or shift:
        return None
    declared, path = numbers[0], tuple(numbers[1:])
    if declared == 0 and not path:
        return (0,)
    if declared != len(path) or not 0 < declared <= MAX_INDEXES or min(path) < 0:
        return None
    return path


def _group(groups: list[FrameGroup], rows: Rows, ids: Rows, path: IndexPath, prefix: int) -> None:
    for schema_id in np.unique(ids):
        groups.append(FrameGroup(int(schema_id), path, prefix, rows[ids == schema_id]))


def _distinct(keys: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Each distinct row of a matrix, with the positions that hold it."""
    if len(keys):
        found, inverse = np.unique(keys, axis=0, return_inverse=True)
        for number, key in enumerate(found):
            yield key, np.flatnonzero(inverse.reshape(-1) == number)


def _add(groups: list[FrameGroup], bad: list[BadFrames], schema_id: int, head: bytes, rows: Rows) -> None:
    path = parse_indexes(head)
    if path is None:
        bad.append(BadFrames(Reason.BAD_INDEX, rows, schema_id))
    else:
        groups.append(FrameGroup(schema_id, path, PREFIX + len(head), rows))


def _index_bytes(chunk: bytes) -> bytes:
    """The bytes that hold the indexes: as many varints as the first one announces, or all there are."""
    ends = [i + 1 for i, octet in enumerate(chunk) if not octet & _SINGLE_BYTE]
    if not ends:
        return chunk
    count = 0
    for position, octet in enumerate(chunk[: ends[0]]):
        count |= (octet & 0x7F) << (7 * position)
    wanted = (count >> 1) ^ -(count & 1)
    if wanted < 0 or wanted > MAX_INDEXES:
        return chunk[: ends[0]]
    return chunk[: ends[wanted]] if wanted < len(ends) else chunk
