"""Decoder of protobuf payloads into Arrow columns, equal to Python's protobuf; a bad row affects no other one.

The native decoder reads whole batches. Rows that it refuses, or may have read differently (see `verification`), are re-encoded
by Python's protobuf and decoded natively again; rows that Python's protobuf refuses are rejected with a diagnosis.
"""

import logging
from collections import Counter

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.expansion import TOO_MANY
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.value_rules import ColumnRules
from game_events.decoding.core.wire_format import NO_ROWS, IndexPath, Rows
from game_events.decoding.protobuf.cell_count import CellCounter
from game_events.decoding.protobuf.diagnosis import FaultFinder
from game_events.decoding.protobuf.fields import tree_of
from game_events.decoding.protobuf.foreign_fields import ForeignFields
from game_events.decoding.protobuf.native import NativeDecoder, Part
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.decoding.protobuf.verification import Doubts, read
from game_events.errors import DataError

log = logging.getLogger(__name__)

#: Longer payloads are parsed by Python's protobuf first, which refuses more than 100 levels: the native decoder overflows its
#: stack at ~150,000 levels of at least one byte.
GUARDED_BYTES = 32_768

#: Reason and detail -> positions.
Bad = dict[tuple[Reason, str], list[int]]


class ProtobufDecoder:
    """Decodes one message type of one schema id (see `protocols.PayloadDecoder`)."""

    def __init__(self, compiled: ProtobufSchema, path: IndexPath, rules: ColumnRules | None = None) -> None:
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
        self._nullable = rules.nullable(self.message, self.fields) if rules is not None else {}
        self._nulled: Counter[str] = Counter()
        self._cells = CellCounter(self._nodes, compiled.pool)
        moved = [n.name for n in self._nodes if n.is_foreign]
        is_slow = bool(moved) or bool(descriptor.GetOptions().message_set_wire_format)
        self._foreign = ForeignFields(self._nodes, descriptor) if is_slow else None
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
            decoded, left, failed = self._native.decode(payloads, rows)
            if len(left):
                # Many are bad: Python's protobuf finds them in one pass.
                more, left, others = self._native.decode(payloads, self._readable(payloads, left, bad))
                decoded, failed = decoded + more, failed + others
            again = np.concatenate([left, np.asarray([at for at, _ in failed], dtype=np.int64)])
            for part, batch in decoded:
                sure, doubted = self._verified(payloads, part, batch, lengths, bad)
                parts.append(sure)
                again = np.concatenate([again, doubted])
        if len(again):
            parts += self._reencoded(payloads, again, bad)
        found = self._projection.decoded(parts, columns, bad)
        found.nulled, self._nulled = self._nulled, Counter()
        return found

    def _countable(self, payloads: pa.BinaryArray, lengths: Rows, bad: Bad) -> Rows:
        """The rows without those with too many values, which become bad before a parser allocates them."""
        rows = np.arange(len(payloads), dtype=np.int64)
        large = np.flatnonzero(lengths > self._cells.safe_bytes)
        over = [at for at in large.tolist() if self._cells.is_too_large(payloads[at].as_py())]
        if not over:
            return rows
        bad[Reason.TOO_MANY_VALUES, f"{self.message}: {TOO_MANY}"] = over
        return np.delete(rows, over)

    def _verified(
        self, payloads: pa.BinaryArray, part: Rows, batch: pa.RecordBatch, lengths: Rows, bad: Bad
    ) -> tuple[Part, Rows]:
        """The verified rows of a natively decoded part, and the doubtful ones."""
        reading = read(self._nodes, batch, lengths if len(part) == len(lengths) else lengths[part], self._nullable)
        doubts = reading.doubts
        doubted = _distinct([*doubts.wrong, *doubts.ambiguous, *doubts.unfit])
        dropped = doubted
        if doubts.unread:
            unread = np.setdiff1d(_distinct(doubts.unread), doubted, assume_unique=True)
            read_by_python = self._readable(payloads, part[unread], bad)
            dropped = np.concatenate([doubted, unread[~np.isin(part[unread], read_by_python)]])
        self._note_nulled(doubts, dropped)
        return _without((part, reading.batch), dropped), part[doubted]

    def _note_nulled(self, doubts: Doubts, dropped: Rows) -> None:
        """Count the values that became NULL in rows that are kept."""
        for column, rows in doubts.nulled.items():
            self._nulled[column] += int((~np.isin(np.concatenate(rows), dropped)).sum())

    def _reencoded(self, payloads: pa.BinaryArray, rows: Rows, bad: Bad) -> list[Part]:
        """Rows re-encoded canonically by Python's protobuf (upb, ~1.5 us a row) and decoded; others become bad.

        Canonical: last value, one member of each oneof, distinct map keys, packed lists, no unknown fields.
        """
        kept: list[int] = []
        texts: list[bytes] = []
        for at, payload in zip(rows.tolist(), payloads.take(pa.array(rows)).to_pylist(), strict=True):
            message = self._python()
            try:
                message.ParseFromString(payload)
            except DecodeError as error:
                self._reject(bad, at, payload, str(error))
                continue
            message.DiscardUnknownFields()
            # Partial: a missing required field is NULL, as in Python.
            # Deterministic: without it the entries of maps have another order in each process.
            text = message.SerializePartialToString(deterministic=True)
            texts.append(text if self._foreign is None else self._foreign.converted(text))
            kept.append(at)
        written, origin = pa.array(texts, pa.binary()), np.asarray(kept, dtype=np.int64)
        lengths = np.asarray([len(text) for text in texts], dtype=np.int64)
        decoded, _, failed = self._native.decode(written, np.arange(len(kept)), max_failures=None)
        for at, failure in failed:
            self._reject(bad, kept[at], payloads[kept[at]].as_py(), str(failure))
        parts = []
        for part, batch in decoded:
            reading, places = read(self._nodes, batch, lengths[part], self._nullable), origin[part]
            # Only values may be wrong now.
            unfit = _distinct(reading.doubts.unfit)
            for at in places[unfit].tolist():
                # Without a fault: a time that is out of range only after merging two.
                self._reject(bad, at, payloads[at].as_py(), Reason.OUT_OF_RANGE.explanation, Reason.OUT_OF_RANGE)
            wrong = np.setdiff1d(_distinct(reading.doubts.wrong), unfit, assume_unique=True)
            for at in places[wrong].tolist():
                self._reject(bad, at, payloads[at].as_py(), "the native decoder and Python's protobuf disagree")
            dropped = np.concatenate([unfit, wrong])
            self._note_nulled(reading.doubts, dropped)
            parts.append(_without((places, reading.batch), dropped))
        return parts

    def _readable(self, payloads: pa.BinaryArray, rows: Rows, bad: Bad, among: Rows | None = None) -> Rows:
        """The rows that Python's protobuf parses; others are added to `bad`. Only rows in `among` (default: all) are parsed."""
        checked = rows if among is None else among
        if not len(checked):
            return rows
        parse, refused = self._python().ParseFromString, []
        for at, payload in zip(checked.tolist(), payloads.take(pa.array(checked)).to_pylist(), strict=True):
            try:
                parse(payload)
            except DecodeError as error:
                self._reject(bad, at, payload, str(error))
                refused.append(at)
        return np.setdiff1d(rows, np.asarray(refused, dtype=np.int64), assume_unique=True) if refused else rows

    def _reject(self, bad: Bad, at: int, payload: bytes, message: str, reason: Reason = Reason.MALFORMED) -> None:
        """Add a bad row, with its first fault, or else with this reason."""
        why = self._faults.first(payload) or (reason, f"{self.message}: {message}")
        bad.setdefault(why, []).append(at)


def _distinct(rows: list[Rows]) -> Rows:
    return np.unique(np.concatenate(rows)) if rows else NO_ROWS


def _without(part: Part, dropped: Rows) -> Part:
    """A part without some of its rows, given by index."""
    if not len(dropped):
        return part
    keep = np.ones(len(part[0]), dtype=bool)
    keep[dropped] = False
    # A batch without columns has no rows to filter.
    return part[0][keep], part[1].filter(pa.array(keep)) if part[1].num_columns else part[1]
