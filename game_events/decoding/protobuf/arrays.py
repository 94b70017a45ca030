"""Buffers of the native decoder's arrays, conversion to stored types, and sizes of values in the canonical encoding.

Sources: the comments of google/protobuf/timestamp.proto and duration.proto; protobuf's own JSON mapping, by which a Struct,
Value or ListValue becomes text: whole numbers have no fraction, a Value without a kind is null; NaN and infinities, which JSON
lacks, are the strings "NaN", "Infinity" and "-Infinity", as in that mapping for ``double``.
"""

import json
import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.message import DecodeError, Message

from game_events.decoding.core.column_types import TIMESTAMP_RANGE, UINT64
from game_events.decoding.core.wire_format import Mask, Rows

#: One size for all values, or one for each.
Sizes = int | npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

#: The smallest number with a varint of two bytes.
_TWO_BYTES = 128
_TIME_SECONDS = tuple(bound // 1_000_000 for bound in TIMESTAMP_RANGE)
_DURATION_SECONDS = (-315_576_000_000, 315_576_000_000)
_NANOS = 999_999_999
#: Integers up to this one are exact as floats.
_EXACT = 2**53


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


def microseconds(seconds: pa.Array, nanos: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Times in microseconds, truncated towards zero, and a mask of those outside protobuf's range (value undefined).

    `seconds`, `nanos`: int64, shape (n,), no NULLs; `kind`: a timestamp type, or int64 for durations.
    """
    if not len(seconds):
        return pa.array([], kind), np.zeros(0, dtype=bool)
    whole, parts = seconds.to_numpy(), nanos.to_numpy()
    is_time = pa.types.is_timestamp(kind)
    low, high = _TIME_SECONDS if is_time else _DURATION_SECONDS
    least, most = (0, _NANOS) if is_time else (-_NANOS, _NANOS)
    bad = np.zeros(len(whole), dtype=bool)
    if whole.min() < low or whole.max() > high or parts.min() < least or parts.max() > most:
        bad |= (whole < low) | (whole > high) | (parts < least) | (parts > most)
    if not is_time:
        bad |= (whole > 0) & (parts < 0) | (whole < 0) & (parts > 0)
        # numpy rounds down, protobuf towards zero.
        micros = np.sign(parts) * (np.abs(parts) // 1_000)
    else:
        # Unsigned: numpy divides those twice as fast, and what is negative is bad.
        micros = (parts.view(np.uint64) // np.uint64(1_000)).view(np.int64)
    micros += np.where(bad, 0, whole) * 1_000_000 if bad.any() else whole * 1_000_000
    return pa.Array.from_buffers(kind, len(micros), [None, pa.py_buffer(micros)], 0), bad


def is_in_range(seconds: int, nanos: int, *, is_time: bool) -> bool:
    """Whether protobuf allows one time, or one duration."""
    if is_time:
        return _TIME_SECONDS[0] <= seconds <= _TIME_SECONDS[1] and 0 <= nanos <= _NANOS
    return abs(seconds) <= _DURATION_SECONDS[1] and abs(nanos) <= _NANOS and seconds * nanos >= 0


def json_texts(values: pa.Array, message: Descriptor) -> tuple[pa.Array, Rows]:
    """JSON of serialized messages (Struct, Value or ListValue), NULL for malformed ones, and positions of these."""
    encoded = pc.dictionary_encode(values)
    new: type[Message] = message_factory.GetMessageClass(message)
    texts: list[str | None] = []
    for value in encoded.dictionary.to_pylist():
        try:
            texts.append(json.dumps(_plain(new.FromString(value)), ensure_ascii=False, separators=(",", ":")))
        except DecodeError:
            texts.append(None)
    stored = pa.array(texts, pa.string()).take(encoded.indices)
    return stored, np.flatnonzero(np.asarray(stored.is_null()) & np.asarray(values.is_valid()))


def _plain(message: Message) -> Json:
    """A message as Python's own values."""
    match message.DESCRIPTOR.name:
        case "Struct":
            # By name: the order of protobuf's map is another one in each process.
            return {str(name): _plain(value) for name, value in sorted(message.fields.items())}  # type: ignore[attr-defined]
        case "ListValue":
            return [_plain(value) for value in message.values]  # type: ignore[attr-defined]
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    value = getattr(message, kind)
    if kind != "number_value":
        return _plain(value) if isinstance(value, Message) else bool(value) if kind == "bool_value" else str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    whole = value.is_integer() and abs(value) <= _EXACT and (value != 0 or math.copysign(1, value) > 0)
    return int(value) if whole else float(value)


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
