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

from game_events.decoding.columns import ColumnMap, Field, storage_type
from game_events.decoding.descriptors import ProtobufSchema
from game_events.decoding.frames import IndexPath
from game_events.decoding.halving import Bad, decode_by_halves
from game_events.decoding.nesting import is_too_deep
from game_events.decoding.payloads import Decoded
from game_events.decoding.projection import project
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


class ProtobufDecoder:
    """Decodes one message type of one schema id (see `payloads.PayloadDecoder`)."""

    def __init__(self, compiled: ProtobufSchema, path: IndexPath) -> None:
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
        self.fields: tuple[Field, ...] = tuple(_field(descriptor.fields_by_name[f.name], f.type, MAX_DEPTH) for f in arrow)

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode a batch."""
        bad: list[Bad] = []
        rows = np.arange(len(payloads), dtype=np.int64)
        lengths = np.diff(np.frombuffer(payloads.buffers()[1], dtype=np.int32)[payloads.offset :][: len(payloads) + 1])
        for at in np.flatnonzero(lengths >= GUARDED_BYTES).tolist():
            fault = self._fault(payloads[at].as_py())
            if fault is not None:
                bad.append((*fault, np.asarray([at], dtype=np.int64)))
                rows = rows[rows != at]
        batches, good, more = decode_by_halves(payloads, rows, self._attempt, self._diagnose)
        return Decoded(project(self.message, self.fields, batches, columns), good, bad + more)

    def _attempt(self, payloads: pa.BinaryArray) -> pa.RecordBatch:
        try:
            batch = self._handler.array_to_record_batch(payloads)
        except BaseException as error:  # noqa: BLE001 - a native panic is one; `_contained` lets the others go on
            raise _contained(error, "not a message of its schema") from None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_ranges(column, name)
        return batch

    def _diagnose(self, payload: bytes, failure: DataError) -> tuple[Reason, str]:
        return self._fault(payload) or (Reason.MALFORMED, str(failure))

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
