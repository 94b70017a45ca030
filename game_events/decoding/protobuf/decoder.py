"""Payloads of one message type -> Arrow columns, equal to what Python's protobuf reads; a bad row costs only itself.

The native decoder reads whole batches. Rows it refuses, and rows whose bytes it may have read in another way (see
`protobuf_reading`), are written again by Python's protobuf (see `protobuf_canonical`) and read natively after that; what
Python's protobuf refuses is rejected with its fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.wire_format import IndexPath, Rows
from game_events.decoding.protobuf.canonical import canonical
from game_events.decoding.protobuf.diagnosis import FaultFinder
from game_events.decoding.protobuf.fields import tree_of
from game_events.decoding.protobuf.native import NativeDecoder
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.decoding.protobuf.verification import Reading, read
from game_events.errors import DataError

log = logging.getLogger(__name__)

#: The native decoder overflows its stack at ~150,000 levels, one byte each at least: payloads this long are read by
#: Python's protobuf first, which refuses more than 100 levels. Far below, and long payloads are rare.
GUARDED_BYTES = 32_768

Part = tuple[Rows, pa.RecordBatch]
Bad = tuple[Reason, str, Rows]
_NONE: Rows = np.empty(0, dtype=np.int64)

#: Attempts that may fail before halving is given up: two or three bad rows cost that many in a batch of 100,000. With more of
#: them, looking at each row by itself is cheaper.
MAX_FAILURES = 48


class ProtobufDecoder:
    """Decodes one message type of one schema id (see `payloads.PayloadDecoder`)."""

    def __init__(self, compiled: ProtobufSchema, path: IndexPath) -> None:
        """Looks the message type up and builds the native decoder.

        Raises:
            DataError: the schema has no message at this path, or the native library cannot take the schema.
        """
        descriptor = compiled.message(path)
        if descriptor is None:
            raise DataError(f"schema id {compiled.schema_id} has no message at index path {list(path)}")
        self.message: str = descriptor.full_name
        self._nodes = tree_of(descriptor, compiled.pool)
        self._python: type[Message] = message_factory.GetMessageClass(descriptor)
        self._faults = FaultFinder(descriptor, compiled.pool)
        try:
            self._native = NativeDecoder(self._nodes)
        except DataError as error:
            raise DataError(f"schema id {compiled.schema_id}: {self.message} is not supported: {error}") from None
        self.fields: tuple[Field, ...] = tuple(node.as_field() for node in self._nodes)
        self._projection = Projection(self.message, self.fields)
        moved = [n.name for n in self._nodes if n.is_foreign]
        self._is_slow = bool(moved) or bool(descriptor.GetOptions().message_set_wire_format)
        self._canonical = canonical(self._python, self._nodes, is_foreign=self._is_slow)
        if self._is_slow:
            log.warning(
                "slow_decoding=true schema_id=%s message=%s fields=%s reason=%r",
                compiled.schema_id, self.message, ",".join(moved), "groups, message sets or great field numbers",
            )  # fmt: skip

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode a batch."""
        bad: list[Bad] = []
        lengths = np.diff(np.frombuffer(payloads.buffers()[1], dtype=np.int32)[payloads.offset :][: len(payloads) + 1])
        parts: list[Part] = []
        again = np.arange(len(payloads), dtype=np.int64)
        if not self._is_slow:
            rows = self._readable(payloads, again, bad, among=np.flatnonzero(lengths >= GUARDED_BYTES))
            decoded, again = self._natively(payloads, rows, bad)
            for part, batch in decoded:
                sure, doubted = self._first_look(payloads, part, batch, lengths, bad)
                parts.append(sure)
                again = np.concatenate([again, doubted])
        if len(again):
            parts += self._second_look(payloads, again, bad)
        good = np.concatenate([part for part, _ in parts]) if parts else _NONE
        table = self._projection.table([batch for _, batch in parts], columns)
        return Decoded(table, good, bad)

    def _natively(self, payloads: pa.BinaryArray, rows: Rows, bad: list[Bad]) -> tuple[list[Part], Rows]:
        """Decoded parts, and the rows that the native decoder refuses though Python's protobuf may read them."""
        decoded, left, failed = decode_by_halves(payloads, rows, self._native.decode)
        if len(left):
            # Many are bad: Python's protobuf tells which, in one go.
            more, left, others = decode_by_halves(payloads, self._readable(payloads, left, bad), self._native.decode)
            decoded, failed = decoded + more, failed + others
        return decoded, np.concatenate([left, np.asarray([at for at, _ in failed], dtype=np.int64)])

    def _first_look(
        self, payloads: pa.BinaryArray, part: Rows, batch: pa.RecordBatch, lengths: Rows, bad: list[Bad]
    ) -> tuple[Part, Rows]:
        """What of a natively decoded part is right for sure, and the rows that are in doubt."""
        reading = read(self._nodes, batch, lengths if len(part) == len(lengths) else lengths[part])
        doubts = reading.doubts
        doubted = _distinct([*doubts.wrong, *doubts.ambiguous, *doubts.unfit])
        dropped = doubted
        if doubts.unread:
            unread = np.setdiff1d(_distinct(doubts.unread), doubted, assume_unique=True)
            read_by_python = self._readable(payloads, part[unread], bad)
            dropped = np.concatenate([doubted, unread[~np.isin(part[unread], read_by_python)]])
        return _without((part, reading.batch), dropped), part[doubted]

    def _second_look(self, payloads: pa.BinaryArray, rows: Rows, bad: list[Bad]) -> list[Part]:
        """Rows written again by Python's protobuf, then decoded; the rest is bad."""
        kept: list[int] = []
        texts: list[bytes] = []
        for at, payload in zip(rows.tolist(), payloads.take(pa.array(rows)).to_pylist(), strict=True):
            try:
                texts.append(self._canonical(payload))
                kept.append(at)
            except DecodeError as error:
                bad.append(self._rejected(at, payload, str(error)))
        written, origin = pa.array(texts, pa.binary()), np.asarray(kept, dtype=np.int64)
        lengths = np.asarray([len(text) for text in texts], dtype=np.int64)
        decoded, _, failed = decode_by_halves(written, np.arange(len(kept)), self._native.decode, max_failures=None)
        for at, failure in failed:
            bad.append(self._rejected(kept[at], payloads[kept[at]].as_py(), str(failure)))
        return [self._fit(payloads, origin[part], read(self._nodes, batch, lengths[part]), bad) for part, batch in decoded]

    def _fit(self, payloads: pa.BinaryArray, rows: Rows, reading: Reading, bad: list[Bad]) -> Part:
        """Of rows written again, those that are right: nothing is in doubt now but the values themselves."""
        unfit = _distinct(reading.doubts.unfit)
        for at in rows[unfit].tolist():
            # Not found in the bytes: a time that is out of range only after it was merged from two.
            merged = Reason.OUT_OF_RANGE, f"{self.message}: {Reason.OUT_OF_RANGE.explanation}"
            reason, detail = self._faults.first(payloads[at].as_py()) or merged
            bad.append((reason, detail, np.asarray([at], dtype=np.int64)))
        wrong = np.setdiff1d(_distinct(reading.doubts.wrong), unfit, assume_unique=True)
        for at in rows[wrong].tolist():
            bad.append(self._rejected(at, payloads[at].as_py(), "the native decoder and Python's protobuf disagree"))
        return _without((rows, reading.batch), np.concatenate([unfit, wrong]))

    def _readable(self, payloads: pa.BinaryArray, rows: Rows, bad: list[Bad], among: Rows | None = None) -> Rows:
        """Those of the rows that Python's protobuf reads; the others are bad.

        Args:
            payloads: the batch.
            rows: positions.
            bad: what is found is added to it.
            among: the positions to look at, if not all.
        """
        looked_at = rows if among is None else among
        if not len(looked_at):
            return rows
        parse, refused = self._python().ParseFromString, []
        for at, payload in zip(looked_at.tolist(), payloads.take(pa.array(looked_at)).to_pylist(), strict=True):
            try:
                parse(payload)
            except DecodeError as error:
                bad.append(self._rejected(at, payload, str(error)))
                refused.append(at)
        return np.setdiff1d(rows, np.asarray(refused, dtype=np.int64), assume_unique=True) if refused else rows

    def _rejected(self, at: int, payload: bytes, said: str) -> Bad:
        reason, detail = self._faults.first(payload) or (Reason.MALFORMED, f"{self.message}: {said}")
        return reason, detail, np.asarray([at], dtype=np.int64)


def _distinct(rows: list[Rows]) -> Rows:
    return np.unique(np.concatenate(rows)) if rows else _NONE


def _without(part: Part, dropped: Rows) -> Part:
    """A part without some of its rows, given by their places in it."""
    if not len(dropped):
        return part
    keep = np.ones(len(part[0]), dtype=bool)
    keep[dropped] = False
    return part[0][keep], part[1].filter(pa.array(keep))


def decode_by_halves(
    payloads: pa.BinaryArray,
    rows: Rows,
    attempt: Callable[[pa.BinaryArray], pa.RecordBatch],
    max_failures: int | None = MAX_FAILURES,
) -> tuple[list[tuple[Rows, pa.RecordBatch]], Rows, list[tuple[int, DataError]]]:
    """Decode rows, halving a part that fails until the bad rows stand alone, or until that has cost enough.

    Args:
        payloads: the batch, shape (n,).
        rows: positions to decode.
        attempt: decodes an array whole, one row out for each row in, or raises `DataError`.
        max_failures: attempts that may fail; None: no limit.

    Returns:
        the decoded parts with the positions they hold, the positions given up on, and each bad position with its error.
    """
    done: list[tuple[Rows, pa.RecordBatch]] = []
    bad: list[tuple[int, DataError]] = []
    stack = [rows] if len(rows) else []
    failures = 0
    while stack and (max_failures is None or failures < max_failures):
        part = stack.pop()
        try:
            done.append((part, attempt(payloads if len(part) == len(payloads) else payloads.take(pa.array(part)))))
        except DataError as failure:
            failures += 1
            if len(part) > 1:
                half = len(part) // 2
                stack += [part[half:], part[:half]]
            else:
                bad.append((int(part[0]), failure))
    return done, np.concatenate([*stack, np.empty(0, dtype=np.int64)]), bad
