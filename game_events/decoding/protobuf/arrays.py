"""Buffers of the native decoder's arrays, conversion to stored types, and sizes of values in the canonical encoding."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import EnumDescriptor

from game_events.decoding.core.column_types import UINT64
from game_events.decoding.core.wire_format import Mask, Rows

#: One size for all values, or one for each.
Sizes = int | npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]

#: The smallest number with a varint of two bytes.
_TWO_BYTES = 128


def numbers_of(array: pa.Array, kind: npt.DTypeLike) -> npt.NDArray[np.int64]:
    """The buffer of numbers, or of offsets."""
    buffer = array.buffers()[1]
    # The native decoder returns no slices.
    return np.frombuffer(buffer, dtype=kind) if buffer is not None and buffer.size else np.zeros(0, dtype=kind)


def lengths_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Lengths in bytes of strings and byte strings."""
    return np.diff(numbers_of(array, np.int32)[: len(array) + 1]).astype(np.int64)


def valid(array: pa.Array) -> Mask | None:
    """Mask of values that are not NULL; None: all."""
    return np.asarray(array.is_valid()) if array.null_count else None


def with_validity(stored: pa.Array, message: pa.Array) -> pa.Array:
    """The only field of a message in place of the message, with its NULLs."""
    if not message.null_count:
        return stored
    buffers = [message.buffers()[0], *stored.buffers()[1:]]
    return pa.Array.from_buffers(stored.type, len(stored), buffers, message.null_count)


def converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers in the stored type."""
    if kind == UINT64:
        return array.cast(UINT64)
    if array.type == pa.uint64():
        return array.view(pa.int64())
    return array if array.type == kind else array.cast(kind)


def no_utf8(array: pa.Array) -> Rows:
    """Positions of strings that are not UTF-8."""
    if _is_ascii(array.buffers()[2]):
        return np.empty(0, dtype=np.int64)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        texts = array.view(pa.binary()).to_pylist()
        return np.asarray([at for at, text in enumerate(texts) if text is not None and not _is_utf8(text)], dtype=np.int64)
    return np.empty(0, dtype=np.int64)


def _is_ascii(data: pa.Buffer | None) -> bool:
    """Whether all bytes are below 128: usual, and ten times faster to check than UTF-8."""
    if data is None:
        return True
    whole = data.size // 8 * 8
    words = np.bitwise_or.reduce(np.frombuffer(data, dtype=np.uint64, count=whole // 8)) if whole else 0
    return not int(words) & 0x8080808080808080 and data.slice(whole).to_pybytes().isascii()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def enum_names(array: pa.Array, enum: EnumDescriptor) -> tuple[pa.Array, Rows]:
    """Numbers as names, unknown ones as digits, and positions of the latter."""
    encoded = pc.dictionary_encode(array)
    numbers = encoded.dictionary.to_pylist()
    known = enum.values_by_number
    names = pa.array([known[n].name if n in known else str(n) for n in numbers], pa.string())
    nameless = pa.array([i for i, n in enumerate(numbers) if n not in known], encoded.indices.type)
    unknown = np.empty(0, dtype=np.int64)
    if len(nameless):
        unknown = np.flatnonzero(np.asarray(pc.fill_null(pc.is_in(encoded.indices, value_set=nameless), False)))
    return names.take(encoded.indices), unknown


def varint_size(value: int) -> int:
    """Bytes of one varint, 1 to 10."""
    return max(1, (value.bit_length() + 6) // 7)


def varint_sizes(values: npt.NDArray[np.int64] | Numbers) -> Sizes:
    """Bytes of each varint; ten for negative numbers."""
    if not len(values):
        return 0
    unsigned = values.view(np.uint64)
    low, high = varint_size(int(unsigned.min())), varint_size(int(unsigned.max()))
    if low == high:
        return low
    sizes = np.full(len(values), low, dtype=np.int64)
    for octets in range(low, high):
        sizes += unsigned >= np.uint64(1 << (7 * octets))
    return sizes


def zigzag(values: npt.NDArray[np.int64]) -> Numbers:
    """Signed numbers as encoded by ``sint32`` and ``sint64``."""
    zigzagged: Numbers = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return zigzagged


def delimited(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes of delimited values, lengths included."""
    if len(lengths) and lengths.max() < _TWO_BYTES:
        return lengths + 1
    return lengths + varint_sizes(lengths)


def sums(sizes: Sizes, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum of the sizes of each list's elements; `offsets` of the lists: shape (n + 1,)."""
    if isinstance(sizes, int):
        return np.diff(offsets) * sizes
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    each: npt.NDArray[np.int64] = total[offsets[1:]] - total[offsets[:-1]]
    return each
