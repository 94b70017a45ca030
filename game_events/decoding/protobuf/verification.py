"""Verification of the native decoder's arrays: conversion to stored types, and detection of rows that it may have misread.

The native decoder silently drops bytes that it does not understand. A row is verified if the canonical encoding of its values
is as long as the payload: then every byte belongs to one of these values, once, in its shortest form. Rows are doubtful
otherwise, if several encodings have the same length, or if a value may be wrong (two members of one oneof, a repeated map key).

For example the message ``{id: 300, name: "ab"}`` of the fields 1 and 2 has the canonical encoding ``08 ac 02  12 02 61 62``: a
tag of one byte and a varint of two, then a tag, a length and two bytes of text, 7 in all. A payload of 7 bytes holds nothing
else; one of 9 bytes has a field that the native decoder dropped, a number in a longer form, or a field twice.

Sources: the comments of google/protobuf/timestamp.proto and duration.proto; protobuf's own JSON mapping, by which a Struct,
Value or ListValue becomes text: whole numbers have no fraction, a Value without a kind is null; NaN and infinities, which JSON
lacks, are the strings "NaN", "Infinity" and "-Infinity", as in that mapping for ``double``; confluent/type/decimal.proto
(unscaled value, big endian; scale), google/type/decimal.proto (a text), and google/type/money.proto (units, nanos of the same
sign).
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from game_events.decoding.columns import TIMESTAMP_RANGE, UINT64, FieldId, decimal_bytes
from game_events.decoding.frame import NO_ROWS, Mask, Rows
from game_events.decoding.protobuf.schema import DECIMAL, FIXED_SIZES, MESSAGES, MONEY, Label, Node, Role, packed_size

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
        return NO_ROWS
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return np.flatnonzero([text is not None and not _is_utf8(text) for text in array.view(pa.binary()).to_pylist()])
    return NO_ROWS


def _is_ascii(data: pa.Buffer | None) -> bool:
    """Whether all bytes are below 128: usual, and ten times faster to check than UTF-8.

    Eight bytes are one word, and a byte from 128 on has its highest bit: of ``61 62 63 64 65 66 67 c3`` and the mask
    ``80 80 80 80 80 80 80 80`` the last one is left. First all words are combined by "or", so that one look at it is enough.
    """
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
    unknown = NO_ROWS
    if len(nameless):
        unknown = np.flatnonzero(np.asarray(pc.fill_null(pc.is_in(encoded.indices, value_set=nameless), False)))
    return names.take(encoded.indices), unknown


def microseconds(seconds: pa.Array, nanos: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Times in microseconds, truncated towards zero, and a mask of those outside protobuf's range (value undefined).

    `seconds`, `nanos`: int64, shape (n,), no NULLs; `kind`: a timestamp type, or int64 for durations.
    """
    if not len(seconds):
        return pa.array([], kind), np.zeros(0, dtype=bool)
    whole = seconds.to_numpy()
    parts = nanos.to_numpy()
    is_time = pa.types.is_timestamp(kind)
    low, high = _TIME_SECONDS if is_time else _DURATION_SECONDS
    least, most = (0, _NANOS) if is_time else (-_NANOS, _NANOS)
    bad = np.zeros(len(whole), dtype=bool)
    if whole.min() < low or whole.max() > high or parts.min() < least or parts.max() > most:
        bad |= (whole < low) | (whole > high) | (parts < least) | (parts > most)
    if is_time:
        # Unsigned: numpy divides those twice as fast, and what is negative is bad.
        micros = (parts.view(np.uint64) // np.uint64(1_000)).view(np.int64)
    else:
        bad |= (whole > 0) & (parts < 0) | (whole < 0) & (parts > 0)
        # numpy rounds down, protobuf towards zero: -1,500 ns are -1 us.
        micros = np.sign(parts) * (np.abs(parts) // 1_000)
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
    value: float | str | Message = getattr(message, kind)
    if isinstance(value, Message):
        return _plain(value)
    return _plain_number(value) if isinstance(value, float) else value


def _plain_number(value: float) -> Json:
    """A number as JSON has it: without a fraction if it is whole, exact and not -0.0."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    is_negative_zero = value == 0 and math.copysign(1, value) < 0
    return int(value) if value.is_integer() and abs(value) <= _EXACT and not is_negative_zero else value


def varint_size(value: int) -> int:
    """Bytes of one varint, 1 to 10: seven bits in each. 300 has 9 bits (1 0010 1100), so (9 + 6) // 7 = 2 bytes."""
    return max(1, (value.bit_length() + 6) // 7)


def varint_sizes(values: npt.NDArray[np.int64] | Numbers) -> Sizes:
    """Bytes of each varint; ten for negative numbers, whose 64 bits as an unsigned number begin with a one.

    Of 5, 300 and 70,000, with 1 to 3 bytes: one each, one more for those from 2**7 on, and one more from 2**14 on.
    """
    if not len(values):
        return 0
    unsigned = values.view(np.uint64)
    low = varint_size(int(unsigned.min()))
    high = varint_size(int(unsigned.max()))
    if low == high:
        return low
    sizes = np.full(len(values), low, dtype=np.int64)
    for octets in range(low, high):
        sizes += unsigned >= np.uint64(1 << (7 * octets))
    return sizes


def zigzag(values: npt.NDArray[np.int64]) -> Numbers:
    """Signed numbers as encoded by ``sint32`` and ``sint64``: 0, -1, 1, -2, 2 are 0, 1, 2, 3, 4.

    ``value >> 63`` is -1, all bits set, for a negative number, else 0: -2 is (-4) ^ (-1) = 3, and 2 is 4 ^ 0 = 4.
    """
    zigzagged: Numbers = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return zigzagged


def delimited(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes of delimited values, lengths included."""
    if len(lengths) and lengths.max() < _TWO_BYTES:
        return lengths + 1
    return lengths + varint_sizes(lengths)


def sums(sizes: Sizes, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum of the sizes of each list's elements; `offsets` of the lists: shape (n + 1,).

    Of the sizes 1, 2, 3 and the offsets 0, 2, 2, 3: the sums so far are 0, 1, 3, 6, and those of the lists 3, 0, 3.
    """
    if isinstance(sizes, int):
        return np.diff(offsets) * sizes
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    each: npt.NDArray[np.int64] = total[offsets[1:]] - total[offsets[:-1]]
    return each


#: Bytes of an unscaled value, and characters of a text, at most: far more than 38 digits.
_MOST = 100
_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,5}))?", re.ASCII)
_NANOS_PER_UNIT = 10**9
#: Values of the fields 1, 2, ... of a message, None if it lacks one (fields with presence) -> unscaled value of its column;
#: None: the column cannot hold it exactly.
Unscaled = Callable[..., int | None]


def _scaled(number: int, exponent: int) -> int | None:
    """``number * 10**exponent`` in units of `DECIMAL`, 1e-18: of 125 and -1 (12.5) 125 * 10**17; None: it does not fit."""
    shift = exponent + DECIMAL.scale
    limit = 10**DECIMAL.precision
    if not number:
        return 0
    if shift < -4 * _MOST or shift > DECIMAL.precision:
        return None
    scaled, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    return scaled if not rest and -limit < scaled < limit else None


def _confluent(value: bytes | None, _precision: int | None, scale: int | None) -> int | None:
    raw = value or b""
    return _scaled(int.from_bytes(raw, "big", signed=True), -(scale or 0)) if len(raw) <= _MOST else None


def _google(value: str | None) -> int | None:
    text = value or ""
    number = _TEXT.fullmatch(text) if len(text) <= _MOST else None
    if number is None:
        return None
    sign, whole, fraction, exponent = number.groups("")
    if not whole and not fraction:
        return None
    return _scaled(int(sign + whole + fraction), int(exponent or 0) - len(fraction))


def _money(_currency: str | None, units: int | None, nanos: int | None) -> int | None:
    units = units or 0
    nanos = nanos or 0
    return units * _NANOS_PER_UNIT + nanos if abs(nanos) < _NANOS_PER_UNIT and units * nanos >= 0 else None


#: Full name of a message -> its reading.
_READ: Mapping[str, Unscaled] = {
    "confluent.type.Decimal": _confluent,
    "google.type.Decimal": _google,
    "google.type.Money": _money,
}


_F = FieldDescriptor

_FIXED_DTYPES = {
    _F.TYPE_FIXED32: np.uint32, _F.TYPE_SFIXED32: np.int32, _F.TYPE_FIXED64: np.uint64, _F.TYPE_SFIXED64: np.int64,
    # As bits: negative zero is not the default.
    _F.TYPE_FLOAT: np.uint32, _F.TYPE_DOUBLE: np.uint64,
}  # fmt: skip

_RANGES_32 = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_ENUM), (-(2**31), 2**31 - 1)), _F.TYPE_UINT32: (0, 2**32 - 1),
}  # fmt: skip
#: From an element of a list or map to its row.
Lift = Callable[[Rows], Rows]


@dataclass
class Doubts:
    """Positions of rows, in no order, maybe repeated.

    Attributes:
        wrong: possibly read differently than by Python's protobuf.
        ambiguous: several encodings have this length.
        unread: with bytes that are not parsed yet.
        unfit: with a value outside its range, or not UTF-8.
        nulled: column -> rows of its values outside their range, which became NULL: these rows are not doubtful.
    """

    wrong: list[Rows] = field(default_factory=list)
    ambiguous: list[Rows] = field(default_factory=list)
    unread: list[Rows] = field(default_factory=list)
    unfit: list[Rows] = field(default_factory=list)
    nulled: dict[str, list[Rows]] = field(default_factory=dict)


def read(
    nodes: Sequence[Node], batch: pa.RecordBatch, lengths: Rows, nullable: Mapping[FieldId, str] | None = None
) -> tuple[pa.RecordBatch, Doubts]:
    """Convert a natively decoded batch to one column per field, and its doubtful rows.

    `nodes`: tree of the message type; `lengths`: bytes of each payload, shape (n,);
    `nullable`: fields at the top -> columns in which values outside their range become NULL.
    """
    reader = _Reader()
    columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    arrays, sizes = reader.message(nodes, columns, len(lengths), lambda rows: rows, nullable or {})
    different = lengths != sizes
    if different.any():
        reader.doubts.wrong.append(np.flatnonzero(different))
    names = [str(index) for index in range(len(arrays))]
    return pa.RecordBatch.from_arrays(arrays, names=names), reader.doubts


class _Reader:
    """One pass over the tree; singular fields and elements of lists are handled alike."""

    def __init__(self) -> None:
        self.doubts = Doubts()
        #: Column of the field at the top that is read, if values outside their range become NULL in it.
        self._column: str | None = None

    def message(
        self,
        nodes: Sequence[Node],
        columns: dict[str, pa.Array],
        count: int,
        lift: Lift,
        nullable: Mapping[FieldId, str] | None = None,
    ) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
        """Stored arrays of a message's fields, and the canonical length of each message; `nullable`: at the top only."""
        constant = 0
        total = np.zeros(count, dtype=np.int64)
        arrays: list[pa.Array] = []
        members: dict[str, list[Mask]] = {}
        sizes: Sizes
        for node in nodes:
            array = columns[f"f{node.native}"]
            if nullable is not None:
                self._column = nullable.get(node.number)
            tag = varint_size(node.native << 3)
            if node.label is Label.LIST:
                stored, sizes = self._list(node, array, tag, lift)
            elif node.label is Label.MAP:
                stored, sizes = self._map(node, array, tag, lift)
            else:
                stored, sizes, present = self._one(node, array, tag, lift)
                oneof = node.descriptor.containing_oneof
                # A oneof of one member (proto3 `optional`) is never doubtful.
                if oneof is not None and len(oneof.fields) > 1:
                    members.setdefault(oneof.name, []).append(_mask(present, count))
            if isinstance(sizes, int):
                constant += sizes
            else:
                total += sizes
            arrays.append(stored)
        for masks in members.values():
            _add(self.doubts.wrong, np.flatnonzero(np.sum(masks, axis=0, dtype=np.int32) > 1), lift)
        return arrays, total + constant if constant else total

    def _one(self, node: Node, array: pa.Array, tag: int, lift: Lift) -> tuple[pa.Array, Sizes, Mask | None]:
        """A singular field: stored array, sizes with the tag (0 if not encoded), and mask of encoded values (None: all)."""
        stored, sizes, is_set = self._values(node, array, lift)
        if node.descriptor.has_presence:  # as a message field has whatever the syntax
            present = valid(array)
        elif is_set.all():
            present = None
        else:
            present = is_set
        return stored, sizes + tag if present is None else (sizes + tag) * present, present

    def _list(self, node: Node, array: pa.Array, tag: int, lift: Lift) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        offsets = numbers_of(array, np.int32).astype(np.int64)
        stored, sizes, _ = self._values(node, array.values, _through(offsets, lift))
        counts = np.diff(offsets)
        content = sums(sizes, offsets)
        if node.descriptor.is_packed:
            total = np.where(counts > 0, tag + delimited(content), 0)
            _add(self.doubts.ambiguous, np.flatnonzero(counts == 1), lift)
        else:
            total = counts * tag + content
            if packed_size(node.descriptor) is not None:
                _add(self.doubts.ambiguous, np.flatnonzero((counts > 1) & (tag + delimited(content) < total)), lift)
        return pa.ListArray.from_arrays(array.offsets, stored, type=node.stored()), total

    def _map(self, node: Node, array: pa.Array, tag: int, lift: Lift) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        key = cast(Node, node.key)
        offsets = numbers_of(array, np.int32).astype(np.int64)
        inner = _through(offsets, lift)
        keys, key_sizes, key_set = self._values(key, array.keys, inner)
        items, item_sizes, item_set = self._values(node, array.items, inner)
        # Missing keys and values are the default (natively NULL for a message).
        _add(self.doubts.ambiguous, np.flatnonzero(~(key_set & item_set)), inner)
        if (np.diff(offsets) > 1).any():
            # A number for each row and key: of two keys, row 3 with the second one is 3 * 2 + 1 = 7. Twice: a key is repeated.
            codes = pc.dictionary_encode(array.keys)
            rows = np.repeat(np.arange(len(array), dtype=np.int64), np.diff(offsets))
            entries = np.sort(rows * len(codes.dictionary) + codes.indices.to_numpy())
            twice = entries[1:][entries[1:] == entries[:-1]] // max(len(codes.dictionary), 1)
            _add(self.doubts.wrong, twice, lift)
        entry_sizes = np.broadcast_to(np.asarray(2 + key_sizes + item_sizes, dtype=np.int64), (len(keys),))
        total = np.diff(offsets) * tag + sums(delimited(entry_sizes), offsets)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=node.stored()), total

    def _values(self, node: Node, array: pa.Array, lift: Lift) -> tuple[pa.Array, Sizes, Mask]:
        """Stored values, their sizes (including a length), and mask of values other than the default."""
        match node.role:
            case Role.SCALAR:
                return self._scalars(node, array, lift)
            case role if role in MESSAGES:
                return self._messages(node, array, lift)
        lengths = lengths_of(array)
        set_ = _set(array)
        stored = array
        if node.role is Role.EMPTY:
            # Parquet has no struct without fields: only presence is stored. Its content is unknown, so doubtful.
            stored = pa.array(set_, pa.bool_(), mask=~set_) if len(array) else pa.array([], pa.bool_())
            return stored, 1, np.zeros(len(array), dtype=bool)
        _add(self.doubts.unread, np.flatnonzero(set_ & (lengths > 0)), lift)
        if node.role is Role.JSON:
            stored, bad = json_texts(array, node.message)
            _add(self.doubts.wrong, bad, lift)
        return stored, delimited(lengths), lengths > 0

    def _messages(self, node: Node, array: pa.Array, lift: Lift) -> tuple[pa.Array, Sizes, Mask]:
        columns = {f.name: array.field(index) for index, f in enumerate(array.type)}
        set_ = _set(array)
        arrays, sizes = self.message(node.children, columns, len(array), lift)
        match node.role:
            case Role.TIME | Role.DURATION:
                stored, bad = microseconds(arrays[0], arrays[1], node.element())
                stored = self._fitting(with_validity(stored, array), bad, lift)
            case Role.DECIMAL | Role.MONEY:
                stored = self._amounts(node, array, arrays, lift)
            case Role.WRAPPER:
                stored = with_validity(arrays[0], array)
            case _:
                stored = _struct(node, array, arrays)
        return stored, delimited(sizes), set_

    def _amounts(self, node: Node, array: pa.Array, arrays: list[pa.Array], lift: Lift) -> pa.Array:
        """The decimals of messages; of sums of money, with their currencies."""
        numbers = [child.number for child in node.children]
        by_number = [arrays[numbers.index(number)] for number in sorted(numbers)]
        unscaled = _READ[node.message.full_name]
        present = _set(array)
        rows = zip(*(field.to_pylist() for field in by_number), strict=True)
        values = [unscaled(*row) if is_set else None for row, is_set in zip(rows, present.tolist(), strict=True)]
        bad = present & np.fromiter((value is None for value in values), dtype=bool, count=len(values))
        raw = pa.array([None if value is None else decimal_bytes(value) for value in values], pa.binary(16))
        if node.role is Role.DECIMAL:
            return self._fitting(raw.view(DECIMAL), bad, lift)
        return _struct(node, array, [by_number[0], self._fitting(raw.view(MONEY), bad, lift)])

    def _fitting(self, stored: pa.Array, bad: Mask, lift: Lift) -> pa.Array:
        """Values of which some are outside of their range: NULL in a column that takes that, else their rows are unfit."""
        rows = np.flatnonzero(bad)
        if not len(rows):
            return stored
        if self._column is None:
            self.doubts.unfit.append(lift(rows))
            return stored
        self.doubts.nulled.setdefault(self._column, []).append(lift(rows))
        return pc.if_else(pa.array(bad), pa.scalar(None, stored.type), stored)

    def _scalars(self, node: Node, array: pa.Array, lift: Lift) -> tuple[pa.Array, Sizes, Mask]:
        kind = node.descriptor.type
        if kind in FIXED_SIZES:
            values = numbers_of(array, _FIXED_DTYPES[kind])[: len(array)]
            return converted(array, node.element()), FIXED_SIZES[kind], values != 0
        if kind == _F.TYPE_BOOL:
            return array, 1, np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False))
        read = self._texts if kind in (_F.TYPE_STRING, _F.TYPE_BYTES) else self._varints
        return read(node, array, lift)

    def _texts(self, node: Node, array: pa.Array, lift: Lift) -> tuple[pa.Array, Sizes, Mask]:
        lengths = lengths_of(array)
        if node.descriptor.type == _F.TYPE_STRING and array.type != pa.string():
            array = pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)
            _add(self.doubts.unfit, no_utf8(array), lift)
        return array, delimited(lengths), lengths > 0

    def _varints(self, node: Node, array: pa.Array, lift: Lift) -> tuple[pa.Array, Sizes, Mask]:
        kind = node.descriptor.type
        numbers = numbers_of(array, np.int64)[: len(array)]
        if kind in _RANGES_32 and len(numbers):
            low, high = _RANGES_32[kind]
            if numbers.min() < low or numbers.max() > high:
                # Python's protobuf truncates the upper bits.
                _add(self.doubts.wrong, np.flatnonzero((numbers < low) | (numbers > high)), lift)
        sizes = varint_sizes(zigzag(numbers) if kind in (_F.TYPE_SINT32, _F.TYPE_SINT64) else numbers)
        if kind != _F.TYPE_ENUM:
            return converted(array, node.element()), sizes, numbers != 0
        enum = cast(EnumDescriptor, node.descriptor.enum_type)
        stored, unknown = enum_names(array, enum)
        if enum.is_closed:
            # For Python's protobuf it is an unknown field.
            _add(self.doubts.wrong, unknown, lift)
        return stored, sizes, numbers != 0


def _add(to: list[Rows], rows: Rows, lift: Lift) -> None:
    if len(rows):
        to.append(lift(rows))


def _struct(node: Node, message: pa.Array, members: list[pa.Array]) -> pa.Array:
    mask = message.is_null() if message.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(node.element()), mask=mask)


def _set(array: pa.Array) -> Mask:
    return _mask(valid(array), len(array))


def _mask(present: Mask | None, count: int) -> Mask:
    return np.ones(count, dtype=bool) if present is None else present


def _through(offsets: Rows, lift: Lift) -> Lift:
    """Map elements of a list to the row: of the offsets 0, 2, 2, 5, the element 3 is in the list of row 2."""
    return lambda elements: lift(np.searchsorted(offsets, elements, side="right") - 1)
