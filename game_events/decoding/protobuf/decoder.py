"""Decoder of protobuf payloads into Arrow columns, equal to Python's protobuf; a bad row affects no other one.

The native decoder (ptars, Rust) reads whole batches, on a surrogate schema. Rows that it refuses, or may have read differently
(see `verification`), are re-encoded by Python's protobuf and decoded natively again; rows that Python's protobuf refuses are
rejected with a diagnosis.

The surrogate schema has the same wire format without constructs that the native decoder refuses or misreads: only names
``f<number>``, one proto3 file, no recursion, no google types, no enums. 32-bit integers are read as 64-bit ones, to detect
truncation, and strings as bytes, so that bad UTF-8 does not fail a batch; `verification` converts the result.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from game_events.decoding.columns import NO_RULES, ColumnMap, ColumnRules, Field
from game_events.decoding.frame import NO_ROWS, IndexPath, Reason, Rows
from game_events.decoding.projection import TOO_MANY, Decoded, Projection
from game_events.decoding.protobuf.schema import MESSAGES, Label, Node, ProtobufSchema, Role, tree_of
from game_events.decoding.protobuf.verification import Doubts, read
from game_events.decoding.protobuf.wire import CellCounter, FaultFinder, ForeignFields
from game_events.errors import DataError

log = logging.getLogger(__name__)

_CONFIG = ptars.PtarsConfig(
    list_nullable=True,
    map_nullable=True,
    # Without it, a map entry without a value (which is valid) causes a panic.
    map_value_nullable=True,
)

_BYTES = FieldDescriptorProto.TYPE_BYTES

_WIDER = {
    FieldDescriptor.TYPE_INT32: FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32: FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT32: FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_ENUM: FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_STRING: _BYTES,
}


#: Rows by their positions, and the same rows decoded.
Part = tuple[Rows, pa.RecordBatch]


class NativeDecoder:
    """Decodes batches of one message type into columns ``f<number>`` of the surrogate schema."""

    def __init__(self, nodes: list[Node]) -> None:
        """Raises DataError if the native library does not support the type."""
        file = FileDescriptorProto(name="native.proto", package="native", syntax="proto3")
        _fill(file.message_type.add(name="M"), ".native.M", nodes)
        try:
            pool = DescriptorPool()
            pool.Add(file)
            message = pool.FindMessageTypeByName("native.M")
            self._handler = ptars.HandlerPool([message.file], config=_CONFIG).get_for_message(message)
        except BaseException as error:  # noqa: BLE001 - a native panic; `_contained` raises others
            raise _contained(error, "the native decoder does not take the type") from None

    def batch(self, payloads: pa.BinaryArray, rows: Rows) -> pa.RecordBatch:
        """Decode rows; DataError if one is refused."""
        taken = payloads if len(rows) == len(payloads) else payloads.take(pa.array(rows))
        try:
            return self._handler.array_to_record_batch(taken)
        except BaseException as error:  # noqa: BLE001 - a native panic; `_contained` raises others
            raise _contained(error, "not a message of its schema") from None

    def parts(self, payloads: pa.BinaryArray) -> tuple[list[Part], list[tuple[int, DataError]]]:
        """Decode all rows, bisecting until the refused ones are isolated, each with its error."""
        done: list[Part] = []
        refused: list[tuple[int, DataError]] = []
        stack = [np.arange(len(payloads), dtype=np.int64)] if len(payloads) else []
        while stack:
            part = stack.pop()
            try:
                done.append((part, self.batch(payloads, part)))
            except DataError as error:
                half = len(part) // 2
                if half:
                    stack += [part[half:], part[:half]]
                else:
                    refused.append((int(part[0]), error))
        return done, refused


def _contained(error: BaseException, what: str) -> DataError:
    """DataError for a native failure; raises requests to end the process."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return DataError(f"{what}: {error}")
    raise error


def _fill(message: DescriptorProto, path: str, nodes: list[Node]) -> None:
    for node in nodes:
        name = f"f{node.native}"
        label = FieldDescriptorProto.LABEL_OPTIONAL if node.label is Label.ONE else FieldDescriptorProto.LABEL_REPEATED
        item = message.field.add(name=name, number=node.native, label=label)
        if node.key is not None:
            entry = message.nested_type.add(name=f"F{node.native}Entry")
            entry.options.map_entry = True
            key = entry.field.add(name="key", number=1, label=FieldDescriptorProto.LABEL_OPTIONAL)
            # Protobuf allows no bytes here: bad UTF-8 in a map key fails the batch.
            is_text = node.key.descriptor.type == FieldDescriptor.TYPE_STRING
            key.type = FieldDescriptorProto.TYPE_STRING if is_text else _scalar(node.key)
            value = entry.field.add(name="value", number=2, label=FieldDescriptorProto.LABEL_OPTIONAL)
            _typed(value, node, message, path)
            item.type = FieldDescriptorProto.TYPE_MESSAGE
            item.type_name = f"{path}.{entry.name}"
            continue
        _typed(item, node, message, path)
        if node.label is Label.ONE and node.descriptor.has_presence and item.type != FieldDescriptor.TYPE_MESSAGE:
            item.proto3_optional = True
            item.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")


def _typed(item: FieldDescriptorProto, node: Node, into: DescriptorProto, path: str) -> None:
    if node.role in MESSAGES:
        name = f"M{node.native}"
        item.type = FieldDescriptorProto.TYPE_MESSAGE
        item.type_name = f"{path}.{name}"
        _fill(into.nested_type.add(name=name), f"{path}.{name}", node.children)
    elif node.role is Role.SCALAR:
        item.type = _scalar(node)
    else:
        item.type = _BYTES


def _scalar(node: Node) -> FieldDescriptorProto.Type.ValueType:
    return FieldDescriptorProto.Type.ValueType(_WIDER.get(node.descriptor.type, node.descriptor.type))


#: Longer payloads are parsed by Python's protobuf first, which refuses more than 100 levels: the native decoder overflows its
#: stack at ~150,000 levels of at least one byte.
GUARDED_BYTES = 32_768
#: Reason and detail -> positions.
Bad = dict[tuple[Reason, str], list[int]]


class ProtobufDecoder:
    """Decodes one message type of one schema id (see `PayloadDecoder`)."""

    def __init__(self, compiled: ProtobufSchema, path: IndexPath, rules: ColumnRules = NO_RULES) -> None:
        """Raises DataError if there is no message at this path, or the native library does not support the schema."""
        descriptor = compiled.message(path)
        if descriptor is None:
            raise DataError(f"schema id {compiled.schema_id} has no message at index path {list(path)}")
        self.message: str = descriptor.full_name
        self._nodes = tree_of(descriptor, compiled.pool, decimals=compiled.decimals)
        self._python: type[Message] = message_factory.GetMessageClass(descriptor)
        self._faults = FaultFinder(descriptor, compiled.pool)
        try:
            self._native = NativeDecoder(self._nodes)
        except DataError as error:
            raise DataError(f"schema id {compiled.schema_id}: {self.message} is not supported: {error}") from None
        self.fields: tuple[Field, ...] = tuple(node.as_field() for node in self._nodes)
        self._projection = Projection(self.message, self.fields)
        self._nullable = rules.nullable(self.message, self.fields)
        self._nulled: Counter[str] = Counter()
        self._cells = CellCounter(self._nodes, compiled.pool)
        moved = [n.name for n in self._nodes if n.is_foreign]
        is_slow = bool(moved) or bool(descriptor.GetOptions().message_set_wire_format)
        self._foreign = ForeignFields.of(self._nodes, descriptor) if is_slow else None
        if is_slow:
            log.warning(
                "slow_decoding=true schema_id=%s message=%s fields=%s reason=%r",
                compiled.schema_id, self.message, ",".join(moved), "groups, message sets or great field numbers",
            )  # fmt: skip

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode a batch."""
        bad: Bad = {}
        lengths = np.diff(np.frombuffer(payloads.buffers()[1], dtype=np.int32)[payloads.offset :][: len(payloads) + 1])
        parts: list[Part] = []
        again = self._countable(payloads, lengths, bad)
        if self._foreign is None:
            long = again[lengths[again] >= GUARDED_BYTES]
            rows = self._readable(payloads, again, bad, among=long) if len(long) else again
            again, batch = self._decoded(payloads, rows, bad)
            if batch is not None:
                sure, again = self._verified(payloads, again, batch, lengths, bad)
                parts.append(sure)
        if len(again):
            parts += self._reencoded(payloads, again, bad)
        result = self._projection.decoded(parts, columns, bad)
        result.nulled = self._nulled
        self._nulled = Counter()
        return result

    def _countable(self, payloads: pa.BinaryArray, lengths: Rows, bad: Bad) -> Rows:
        """The rows without those with too many values, which become bad before a parser allocates them."""
        rows = np.arange(len(payloads), dtype=np.int64)
        large = np.flatnonzero(lengths > self._cells.safe_bytes)
        over = [pos for pos in large.tolist() if self._cells.is_too_large(payloads[pos].as_py())]
        if not over:
            return rows
        bad[Reason.TOO_MANY_VALUES, f"{self.message}: {TOO_MANY}"] = over
        return np.delete(rows, over)

    def _decoded(self, payloads: pa.BinaryArray, rows: Rows, bad: Bad) -> tuple[Rows, pa.RecordBatch | None]:
        """Rows, without bad ones if there are any, decoded natively; None: that refuses one that Python's protobuf reads."""
        for is_checked in (False, True):
            if is_checked:
                rows = self._readable(payloads, rows, bad)
            if not len(rows):
                break
            with suppress(DataError):
                return rows, self._native.batch(payloads, rows)
        return rows, None

    def _verified(
        self, payloads: pa.BinaryArray, part: Rows, batch: pa.RecordBatch, lengths: Rows, bad: Bad
    ) -> tuple[Part, Rows]:
        """The verified rows of a natively decoded part, and the doubtful ones."""
        stored, doubts = read(self._nodes, batch, lengths if len(part) == len(lengths) else lengths[part], self._nullable)
        doubted = _distinct([*doubts.wrong, *doubts.ambiguous, *doubts.unfit])
        dropped = doubted
        if doubts.unread:
            unread = np.setdiff1d(_distinct(doubts.unread), doubted, assume_unique=True)
            read_by_python = self._readable(payloads, part[unread], bad)
            dropped = np.concatenate([doubted, unread[~np.isin(part[unread], read_by_python)]])
        self._note_nulled(doubts, dropped)
        return _without((part, stored), dropped), part[doubted]

    def _note_nulled(self, doubts: Doubts, dropped: Rows) -> None:
        for column, rows in doubts.nulled.items():
            self._nulled[column] += int((~np.isin(np.concatenate(rows), dropped)).sum())

    def _reencoded(self, payloads: pa.BinaryArray, rows: Rows, bad: Bad) -> list[Part]:
        """Rows re-encoded canonically by Python's protobuf (upb, ~1.5 us a row) and decoded; others become bad.

        Canonical: last value, one member of each oneof, distinct map keys, packed lists, no unknown fields.
        """
        kept: list[int] = []
        texts: list[bytes] = []
        for pos, payload in zip(rows.tolist(), payloads.take(pa.array(rows)).to_pylist(), strict=True):
            message = self._python()
            try:
                message.ParseFromString(payload)
            except DecodeError as error:
                self._reject(bad, pos, payload, str(error))
                continue
            message.DiscardUnknownFields()
            # Partial: a missing required field is NULL, as in Python.
            # Deterministic: without it the entries of maps have another order in each process.
            text = message.SerializePartialToString(deterministic=True)
            texts.append(text if self._foreign is None else self._foreign.converted(text))
            kept.append(pos)
        written = pa.array(texts, pa.binary())
        origin = np.asarray(kept, dtype=np.int64)
        lengths = np.asarray([len(text) for text in texts], dtype=np.int64)
        decoded, refused = self._native.parts(written)
        for pos, failure in refused:
            self._reject(bad, kept[pos], payloads[kept[pos]].as_py(), str(failure))
        parts = []
        for part, batch in decoded:
            stored, doubts = read(self._nodes, batch, lengths[part], self._nullable)
            places = origin[part]
            # Only values may be wrong now.
            unfit = _distinct(doubts.unfit)
            for pos in places[unfit].tolist():
                # Without a fault: a time that is out of range only after merging two.
                self._reject(bad, pos, payloads[pos].as_py(), Reason.OUT_OF_RANGE.explanation, Reason.OUT_OF_RANGE)
            wrong = np.setdiff1d(_distinct(doubts.wrong), unfit, assume_unique=True)
            for pos in places[wrong].tolist():
                self._reject(bad, pos, payloads[pos].as_py(), "the native decoder and Python's protobuf disagree")
            dropped = np.concatenate([unfit, wrong])
            self._note_nulled(doubts, dropped)
            parts.append(_without((places, stored), dropped))
        return parts

    def _readable(self, payloads: pa.BinaryArray, rows: Rows, bad: Bad, among: Rows | None = None) -> Rows:
        """The rows that Python's protobuf parses; others are added to `bad`. Only rows in `among` (default: all) are parsed."""
        checked = rows if among is None else among
        if not len(checked):
            return rows
        parse = self._python().ParseFromString
        refused: list[int] = []
        for pos, payload in zip(checked.tolist(), payloads.take(pa.array(checked)).to_pylist(), strict=True):
            try:
                parse(payload)
            except DecodeError as error:
                self._reject(bad, pos, payload, str(error))
                refused.append(pos)
        return np.setdiff1d(rows, np.asarray(refused, dtype=np.int64), assume_unique=True) if refused else rows

    def _reject(self, bad: Bad, pos: int, payload: bytes, message: str, reason: Reason = Reason.MALFORMED) -> None:
        """Add a bad row, with its first fault, or else with this reason."""
        why = self._faults.first(payload) or (reason, f"{self.message}: {message}")
        bad.setdefault(why, []).append(pos)


def _distinct(rows: list[Rows]) -> Rows:
    return np.unique(np.concatenate(rows)) if rows else NO_ROWS


def _without(part: Part, dropped: Rows) -> Part:
    if not len(dropped):
        return part
    keep = np.ones(len(part[0]), dtype=bool)
    keep[dropped] = False
    # A batch without columns has no rows to filter.
    return part[0][keep], part[1].filter(pa.array(keep)) if part[1].num_columns else part[1]
