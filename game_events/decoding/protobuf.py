"""Payloads of one message type -> Arrow columns, with ptars (Rust); a bad row costs only itself.

Contained here because the native library would not: deep nesting ends its process, a panic is a BaseException, one bad row
fails its batch without a row number.
"""

from __future__ import annotations

import numpy as np
import ptars
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from game_events.decoding.columns import ColumnMap, Field, field_key, storage_type
from game_events.decoding.descriptors import CompiledSchema
from game_events.decoding.frames import IndexPath, Rows
from game_events.decoding.nesting import is_too_deep
from game_events.decoding.reasons import Reason
from game_events.errors import DataError

#: The native decoder overflows its stack at ~150,000 levels, one byte each at least: payloads this long are read by
#: Python's protobuf first, which refuses more than 100 levels. Far below, and long payloads are rare.
GUARDED_BYTES = 32_768
#: Depth to which nested messages become columns; deeper ones exist only in recursive types, which arrive as bytes.
MAX_DEPTH = 32
#: Protobuf's own ranges, in microseconds: the years 1 to 9999, and 10,000 years either way. Outside, the native decoder
#: gives the nearest value it can hold, and Python cannot read most of them back.
TIMESTAMP_RANGE = (-62_135_596_800_000_000, 253_402_300_799_999_999)
DURATION_RANGE = (-315_576_000_000_999_999, 315_576_000_000_999_999)

_CONFIG = ptars.PtarsConfig(
    # Microseconds: what Delta holds; nanoseconds overflow after the year 2262.
    timestamp_unit="us",
    time_unit="us",
    duration_unit="us",
    enum_repr="string",
    list_nullable=True,
    map_nullable=True,
    # Without it, a map entry that lacks its value (legal bytes) is a panic.
    map_value_nullable=True,
)


class MessageDecoder:
    """Decodes one message type of one schema id into the columns of a `ColumnMap`."""

    def __init__(self, compiled: CompiledSchema, path: IndexPath) -> None:
        """Looks the message type up and builds the native handler.

        Raises:
            DataError: the schema has no message at this path, or the native library cannot take the schema.
        """
        descriptor = compiled.message(path)
        if descriptor is None:
            raise DataError(f"schema id {compiled.schema_id} has no message at index path {list(path)}")
        self.message: str = descriptor.full_name
        self._descriptor = descriptor
        self._python: type[Message] = message_factory.GetMessageClass(descriptor)
        try:
            pool = ptars.HandlerPool([descriptor.file], config=_CONFIG)
            self._handler = pool.get_for_message(descriptor)
            arrow: pa.Schema = self._handler.schema()
        except BaseException as error:  # noqa: BLE001 - a native panic is one; `_contained` lets the others go on
            raise _contained(error, f"schema id {compiled.schema_id}: {self.message} is not supported") from None
        self.fields: tuple[Field, ...] = tuple(
            _field(descriptor.fields_by_name[f.name], f.type, MAX_DEPTH) for f in arrow if f.name in descriptor.fields_by_name
        )

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> tuple[pa.Table, Rows, list[tuple[Reason, str, Rows]]]:
        """Decode a batch.

        Args:
            payloads: messages without frames, shape (n,), no NULLs.
            columns: the map, which must know this message type.

        Returns:
            the decoded columns of the good rows, the positions of the good rows, and the bad positions by reason.
        """
        bad: list[tuple[Reason, str, Rows]] = []
        good = np.arange(len(payloads), dtype=np.int64)
        lengths = np.diff(np.frombuffer(payloads.buffers()[1], dtype=np.int32)[payloads.offset :][: len(payloads) + 1])
        for at in np.flatnonzero(lengths >= GUARDED_BYTES).tolist():
            fault = self._fault(payloads[at].as_py())
            if fault is not None:
                bad.append((*fault, np.asarray([at], dtype=np.int64)))
                good = good[good != at]
        batches: list[pa.RecordBatch] = []
        kept: list[Rows] = []
        # Halves until the bad rows stand alone: O(bad * log n) calls on top of one.
        stack = [good] if len(good) else []
        while stack:
            rows = stack.pop()
            part = payloads if len(rows) == len(payloads) else payloads.take(pa.array(rows))
            try:
                batch = self._handler.array_to_record_batch(part)
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    _check_ranges(column, name)
                batches.append(batch)
                kept.append(rows)
            except BaseException as error:  # noqa: BLE001 - a native panic is one; `_contained` lets the others go on
                failure = _contained(error, "not a message of its schema")
                if len(rows) > 1:
                    half = len(rows) // 2
                    stack += [rows[half:], rows[:half]]
                else:
                    reason, detail = self._fault(payloads[int(rows[0])].as_py()) or (Reason.MALFORMED, str(failure))
                    bad.append((reason, detail, rows))
        kept_rows = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
        return self._project(batches, columns), kept_rows, bad

    def _project(self, batches: list[pa.RecordBatch], columns: ColumnMap) -> pa.Table:
        arrays, names = [], []
        for item in self.fields:
            name = columns.names[field_key(self.message, (item.number,), item.kind)]
            parts = [
                _conform(batch.column(item.name), item, columns.columns[name], self.message, (item.number,), columns)
                for batch in batches
            ]
            arrays.append(pa.chunked_array(parts, type=columns.columns[name]))
            names.append(name)
        return pa.Table.from_arrays(arrays, names=names)

    def _fault(self, payload: bytes) -> tuple[Reason, str] | None:
        """What Python's protobuf says of one payload: None if it reads it."""
        try:
            self._python().ParseFromString(payload)
        except DecodeError as error:
            deep = is_too_deep(payload, self._descriptor)
            return (Reason.TOO_DEEP if deep else Reason.MALFORMED), f"{self.message}: {error}"
        return None


def _contained(error: BaseException, what: str) -> DataError:
    """A native failure as our own error; whatever asks the process to end goes on."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return DataError(f"{what}: {error}")
    raise error


def _field(descriptor: FieldDescriptor, kind: pa.DataType, depth: int) -> Field:
    struct = kind
    while pa.types.is_list(struct) or pa.types.is_map(struct):
        struct = struct.value_type if pa.types.is_list(struct) else struct.item_type
    message = _element_message(descriptor)
    children: tuple[Field, ...] = ()
    if pa.types.is_struct(struct) and message is not None and depth:
        by_name = message.fields_by_name
        if all(f.name in by_name for f in struct):
            children = tuple(_field(by_name[f.name], f.type, depth - 1) for f in struct)
    return Field(descriptor.number, descriptor.name, storage_type(kind), children)


def _element_message(descriptor: FieldDescriptor) -> Descriptor | None:
    message: Descriptor | None = descriptor.message_type
    if message is not None and message.GetOptions().map_entry:
        return message.fields_by_name["value"].message_type
    return message


def _conform(
    array: pa.Array, item: Field, target: pa.DataType, message: str, path: tuple[int, ...], columns: ColumnMap
) -> pa.Array:
    """An array of this version's type as the column's type: names from the map, missing nested fields NULL."""
    if array.type == target:
        return array
    if not item.children:
        return _stored(array, target)
    if pa.types.is_list(target):
        inner = _conform(array.values, item, target.value_type, message, path, columns)
        return pa.ListArray.from_arrays(array.offsets, inner, mask=array.is_null() if array.null_count else None)
    if pa.types.is_map(target):
        keys = array.keys.cast(target.key_type)
        items = _conform(array.items, item, target.item_type, message, path, columns)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=target)
    by_name = {}
    for child in item.children:
        child_path = (*path, child.number)
        name = columns.names[field_key(message, child_path, child.kind)]
        by_name[name] = _conform(array.field(child.name), child, target.field(name).type, message, child_path, columns)
    arrays = [by_name.get(f.name, pa.nulls(len(array), f.type)) for f in target]
    return pa.StructArray.from_arrays(arrays, fields=list(target), mask=array.is_null() if array.null_count else None)


def _stored(array: pa.Array, target: pa.DataType) -> pa.Array:
    """An array without named fields as `storage_type` has it."""
    if pa.types.is_struct(array.type):
        present = array.is_valid()
        return pc.if_else(present, present, None)
    if pa.types.is_list(target) and pa.types.is_boolean(target.value_type):
        inner = _stored(array.values, target.value_type)
        return pa.ListArray.from_arrays(array.offsets, inner, mask=array.is_null() if array.null_count else None)
    if pa.types.is_map(target) and pa.types.is_boolean(target.item_type):
        items = _stored(array.items, target.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys.cast(target.key_type), items, type=target)
    return array.cast(target)


def _check_ranges(array: pa.Array, name: str) -> None:
    """Refuses times that protobuf itself does not allow, at any depth."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        low, high = TIMESTAMP_RANGE if pa.types.is_timestamp(kind) else DURATION_RANGE
        bounds = pc.min_max(array.cast(pa.int64())).as_py()
        if bounds["min"] is not None and not low <= bounds["min"] <= bounds["max"] <= high:
            raise DataError(f"{name} is outside protobuf's range of a {'time' if low == TIMESTAMP_RANGE[0] else 'duration'}")
    elif pa.types.is_struct(kind):
        for index, item in enumerate(kind):
            _check_ranges(array.field(index), f"{name}.{item.name}")
    elif pa.types.is_map(kind):
        _check_ranges(array.keys, name)
        _check_ranges(array.items, name)
    elif pa.types.is_list(kind):
        _check_ranges(array.values, name)
