"""Verification of the native decoder's arrays: conversion to stored types, and detection of rows that it may have misread.

The native decoder silently drops bytes that it does not understand. A row is verified if the canonical encoding of its values
is as long as the payload: then every byte belongs to one of these values, once, in its shortest form. Rows are doubtful
otherwise, if several encodings have the same length, or if a value may be wrong (two members of one oneof, a repeated map key).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from game_events.decoding.core.column_map import FieldId
from game_events.decoding.core.wire_format import Mask, Rows
from game_events.decoding.protobuf.arrays import (
    Sizes,
    converted,
    delimited,
    enum_names,
    json_texts,
    lengths_of,
    microseconds,
    no_utf8,
    numbers_of,
    sums,
    valid,
    varint_size,
    varint_sizes,
    with_validity,
    zigzag,
)
from game_events.decoding.protobuf.decimals import DECIMAL, MONEY, amounts
from game_events.decoding.protobuf.fields import FIXED_SIZES, MESSAGES, Label, Node, Role

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


@dataclass
class Reading:
    """A converted batch, with one column per field of the tree, and its doubtful rows."""

    batch: pa.RecordBatch
    doubts: Doubts


def read(nodes: Sequence[Node], batch: pa.RecordBatch, lengths: Rows, nullable: Mapping[FieldId, str] | None = None) -> Reading:
    """Convert a natively decoded batch; `nodes`: tree of the message type, `lengths`: bytes of each payload, shape (n,).

    `nullable`: fields at the top -> columns in which values outside their range become NULL.
    """
    reader = _Reader()
    columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    arrays, sizes = reader.message(nodes, columns, len(lengths), lambda rows: rows, nullable or {})
    different = lengths != sizes
    if different.any():
        reader.doubts.wrong.append(np.flatnonzero(different))
    names = [str(index) for index in range(len(arrays))]
    return Reading(pa.RecordBatch.from_arrays(arrays, names=names), reader.doubts)


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
        for node in nodes:
            array = columns[f"f{node.native}"]
            if nullable is not None:
                self._column = nullable.get(node.number)
            tag = varint_size(node.native << 3)
            match node.label:
                case Label.ONE:
                    stored, sizes, present = self._one(node, array, lift)
                    if present is None:
                        constant += tag
                    else:
                        sizes = (sizes + tag) * present
                    oneof = node.descriptor.containing_oneof
                    # A oneof of one member (proto3 `optional`) is never doubtful.
                    if oneof is not None and len(oneof.fields) > 1:
                        members.setdefault(oneof.name, []).append(np.ones(count, dtype=bool) if present is None else present)
                case Label.LIST:
                    stored, sizes = self._list(node, array, tag, lift)
                case Label.MAP:
                    stored, sizes = self._map(node, array, tag, lift)
            if isinstance(sizes, int):
                constant += sizes
            else:
                total += sizes
            arrays.append(stored)
        for masks in members.values():
            _add(self.doubts.wrong, np.flatnonzero(np.sum(masks, axis=0, dtype=np.int32) > 1), lift)
        return arrays, total + constant if constant else total

    def _one(self, node: Node, array: pa.Array, lift: Lift) -> tuple[pa.Array, Sizes, Mask | None]:
        """A singular field: stored array, sizes without tag, and mask of encoded values (None: all)."""
        stored, sizes, is_set = self._values(node, array, lift)
        # A message field has presence whatever the syntax.
        if node.descriptor.has_presence:
            return stored, sizes, valid(array)
        return stored, sizes, None if is_set.all() else is_set

    def _list(self, node: Node, array: pa.Array, tag: int, lift: Lift) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        offsets = numbers_of(array, np.int32).astype(np.int64)
        stored, sizes, _ = self._values(node, array.values, _through(offsets, lift))
        counts, content = np.diff(offsets), sums(sizes, offsets)
        if node.descriptor.is_packed:
            total = np.where(counts > 0, tag + delimited(content), 0)
            _add(self.doubts.ambiguous, np.flatnonzero(counts == 1), lift)
        else:
            total = counts * tag + content
            if _is_packable(node):
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
                kind = MONEY if node.role is Role.MONEY else DECIMAL
                by_number = [
                    held for _, held in sorted(zip((c.number for c in node.children), arrays, strict=True), key=itemgetter(0))
                ]
                stored, bad = amounts(node.message.full_name, by_number, kind, set_)
                stored = self._fitting(stored, bad, lift)
                if node.role is Role.MONEY:
                    mask = array.is_null() if array.null_count else None
                    stored = pa.StructArray.from_arrays([by_number[0], stored], fields=list(node.element()), mask=mask)
            case Role.WRAPPER:
                stored = with_validity(arrays[0], array)
            case _:
                mask = array.is_null() if array.null_count else None
                stored = pa.StructArray.from_arrays(arrays, fields=list(node.element()), mask=mask)
        return stored, delimited(sizes), set_

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
        read = {_F.TYPE_STRING: self._texts, _F.TYPE_BYTES: self._texts, _F.TYPE_BOOL: _booleans}.get(kind, self._varints)
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


def _booleans(_node: Node, array: pa.Array, _lift: Lift) -> tuple[pa.Array, Sizes, Mask]:
    return array, 1, np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False))


def _set(array: pa.Array) -> Mask:
    present = valid(array)
    return np.ones(len(array), dtype=bool) if present is None else present


def _through(offsets: Rows, lift: Lift) -> Lift:
    """Map elements of a list to the row."""
    return lambda elements: lift(np.searchsorted(offsets, elements, side="right") - 1)


def _is_packable(node: Node) -> bool:
    return node.role is Role.SCALAR and node.descriptor.type not in (_F.TYPE_STRING, _F.TYPE_BYTES)
