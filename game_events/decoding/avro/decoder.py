"""Decoder of Avro payloads, by their writer schema: functions that read Python values, of which a batch makes Arrow columns.

Own code, because no library reads strictly: fastavro takes a negative branch or symbol index for the last one, misreads
numbers of more than 64 bits, loops on an array of 2^62 nulls, and ends the process on types nested 20,000 deep; libraries for
Arrow lack maps, unions or decimals.
"""

import struct
import uuid
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from game_events.decoding.avro.encoding import (
    INT_RANGE,
    LONG_RANGE,
    SIMPLE,
    Budget,
    Read,
    array_reader,
    map_reader,
    min_bytes,
    read_bytes,
    read_index,
    read_long,
    read_text,
    take,
    text_reader,
)
from game_events.decoding.avro.schema import AvroSchema, AvroType, Logical
from game_events.decoding.columns import TIMESTAMP_RANGE, ColumnRules, Field, FieldId, decimal_bytes
from game_events.decoding.frame import DAMAGE, DamageError, Reason, as_damage
from game_events.decoding.projection import VALUE, RowDecoder, cells_of_element
from game_events.errors import DataError

#: Days of the years 1 to 9999, the range of Python and Spark.
DATE_RANGE = (-719_162, 2_932_896)
DAY_US = 86_400_000_000
DURATION = pa.struct([("months", pa.int64()), ("days", pa.int64()), ("milliseconds", pa.int64())])
#: Digits that Spark's and Delta's decimals hold.
MAX_DIGITS = 38
_EPOCH = datetime(1970, 1, 1)


def _number(bounds: tuple[int, int], times: int = 1, per: int = 1) -> Read:
    """A reader of ``value * times // per``, rounded down also before 1970; values outside `bounds` are rejected."""
    low, high = bounds
    is_scaled = times != per

    def read(buf: bytes, pos: int) -> tuple[int, int]:
        value, pos = read_long(buf, pos)
        if not low <= value <= high:
            raise DamageError(Reason.OUT_OF_RANGE, f"a number outside {low}..{high}", pos)
        return (value * times // per if is_scaled else value), pos

    return read


def _timestamp(name: str) -> tuple[pa.DataType, Read]:
    times, per = {"millis": (1_000, 1), "micros": (1, 1), "nanos": (1, 1_000)}[name.rpartition("-")[2]]
    # All nanoseconds of 64 bits are within this range.
    low, high = TIMESTAMP_RANGE
    read_us = _number((low * per // times, high * per // times), times, per)
    if not name.startswith("local"):
        return pa.timestamp("us", tz="UTC"), read_us

    def read(buf: bytes, pos: int) -> tuple[str, int]:
        micros, pos = read_us(buf, pos)
        # As ISO text: a timestamp without a zone would be read as UTC.
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds"), pos

    return pa.string(), read


def _decimal(type_: AvroType, logical: Logical) -> tuple[pa.DataType, Read]:
    """Decimals; as text if they have more than `MAX_DIGITS` digits."""
    fits = logical.precision <= MAX_DIGITS
    limit = 10**logical.precision

    def read(buf: bytes, pos: int) -> tuple[bytes | str, int]:
        raw, pos = take(buf, pos, type_.size) if type_.kind == "fixed" else read_bytes(buf, pos)
        value = int.from_bytes(raw, "big", signed=True)
        if not -limit < value < limit:
            raise DamageError(Reason.OUT_OF_RANGE, f"a decimal of more than {logical.precision} digits", pos)
        return decimal_bytes(value) if fits else f"{Decimal(f'{value}E-{logical.scale}'):f}", pos

    return (pa.decimal128(logical.precision, logical.scale) if fits else pa.string()), read


def _uuid(buf: bytes, pos: int) -> tuple[str, int]:
    raw, pos = take(buf, pos, 16)
    return str(uuid.UUID(bytes=raw)), pos


def _duration(buf: bytes, pos: int) -> tuple[dict[str, int], int]:
    raw, pos = take(buf, pos, 12)
    return dict(zip(("months", "days", "milliseconds"), struct.unpack("<III", raw), strict=True)), pos


#: Type whose values are stored as they are -> type of its column; null: a column without values.
_PLAIN = {
    "null": pa.bool_(), "boolean": pa.bool_(), "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(),
    "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip

#: Other types, or type and logical type -> its column.
_LEAVES: dict[str, tuple[pa.DataType, Read]] = {
    "int": (pa.int64(), _number(INT_RANGE)),
    "long": (pa.int64(), _number(LONG_RANGE)),
    "string": (pa.string(), read_text),
    "int date": (pa.date32(), _number(DATE_RANGE)),
    "int time-millis": (pa.int64(), _number((0, DAY_US // 1_000 - 1), times=1_000)),
    "long time-micros": (pa.int64(), _number((0, DAY_US - 1))),
    "string uuid": (pa.string(), read_text),
    "fixed uuid": (pa.string(), _uuid),
    "fixed duration": (DURATION, _duration),
}


def _leaf(type_: AvroType) -> tuple[pa.DataType, Read]:
    logical = type_.logical
    if logical is not None and logical.name == "decimal":
        return _decimal(type_, logical)
    if logical is not None and "timestamp" in logical.name:
        return _timestamp(logical.name)
    name = type_.kind if logical is None else f"{type_.kind} {logical.name}"
    return (_PLAIN[name], SIMPLE[name](type_)) if name in _PLAIN else _LEAVES[name]


def _record(members: list[tuple[str, Read]]) -> Read:
    """A reader of records as dictionaries without NULLs; without fields ``true``, as Parquet has no empty structs."""

    def read(buf: bytes, pos: int) -> tuple[dict[str, Any] | bool, int]:
        row = {}
        name = ""
        try:
            for name, member in members:
                value, pos = member(buf, pos)
                if value is not None:
                    row[name] = value
        except DAMAGE as error:
            damage = as_damage(error)
            damage.path.append(name)
            raise damage from None
        return row, pos

    return read if members else lambda _, pos: (True, pos)


def _optional(inner: Read, branches: list[AvroType], other: AvroType) -> Read:
    """A reader of a union of one type, and perhaps null."""
    chosen = branches.index(other)
    count = len(branches)
    # Indexes of one byte are compared as they are.
    octet = chosen << 1
    null_octet = 2 - octet if count == 2 else -1

    def read(buf: bytes, pos: int) -> tuple[Any, int]:
        if buf[pos] == octet:
            return inner(buf, pos + 1)
        if buf[pos] == null_octet:
            return None, pos + 1
        index, pos = read_index(buf, pos, count, "union branch")
        return inner(buf, pos) if index == chosen else (None, pos)

    return read


def _union(branches: list[tuple[str, Read] | None]) -> Read:
    """A reader of a struct with the member of the branch that was written; None: the branch is null."""

    def read(buf: bytes, pos: int) -> tuple[dict[str, Any] | None, int]:
        index, pos = read_index(buf, pos, len(branches), "union branch")
        branch = branches[index]
        if branch is None:
            return None, pos
        value, pos = branch[1](buf, pos)
        return {branch[0]: value}, pos

    return read


def _or_null(strict: Read, nulled: list[str], column: str) -> Read:
    """A reader that makes NULL of values outside of the type's range, and notes their column."""

    def read(buf: bytes, pos: int) -> tuple[Any, int]:
        try:
            return strict(buf, pos)
        except DamageError as damage:
            if damage.end is None:
                raise
            nulled.append(column)
            return None, damage.end

    return read


#: Depth to which types become columns; deeper ones become JSON text.
MAX_DEPTH = 32
#: Repeated use of types can double the columns with every level.
MAX_COLUMNS = 10_000


class _Column(NamedTuple):
    """A type's column, the reader of its values, the fields inside it; whether it holds JSON text, or lists or maps of it."""

    type: pa.DataType
    read: Read
    fields: tuple[Field, ...] = ()
    is_text: bool = False


class _Builder:
    """Builds the columns of one schema."""

    def __init__(self, nullable: Mapping[FieldId, str], nulled: list[str]) -> None:
        """`nullable`: fields at the top whose bad values become NULL -> columns, which are noted in `nulled`."""
        self.budget = Budget()
        self._columns = 0
        self._nullable = nullable
        self._nulled = nulled

    def top(self, root: AvroType) -> _Column:
        """A struct of the fields at the top: of a record, branches of a union, or the column ``value``."""
        if root.kind == "union":
            return self._struct_of_union(root, (), None, at_top=True)
        column = self.build(root, (), None)
        if root.kind == "record":
            return column

        def read(buf: bytes, pos: int) -> tuple[dict[str, Any], int]:
            value, pos = column.read(buf, pos)
            return {VALUE: value}, pos

        return _Column(pa.struct([(VALUE, column.type)]), read, (Field(VALUE, VALUE, column.type, column.fields),))

    def build(self, type_: AvroType, above: tuple[int, ...], nullable: str | None) -> _Column:
        """A type's column, inside the types `above`; DataError for more columns than `MAX_COLUMNS`.

        `nullable`: the column at the top, if bad values in it become NULL.
        """
        self._columns += 1
        if self._columns > MAX_COLUMNS:
            raise DataError(f"the schema has more than {MAX_COLUMNS} columns")
        if id(type_) in above or len(above) >= MAX_DEPTH:
            return _Column(pa.string(), text_reader(type_, self.budget), is_text=True)
        inside = (*above, id(type_))
        match type_.kind:
            case "record":
                return self._record(type_, inside, nullable)
            case "array" | "map":
                items = self.build(type_.items[0], inside, nullable)
                is_map = type_.kind == "map"
                kind = pa.map_(pa.string(), items.type) if is_map else pa.list_(items.type)
                make = map_reader if is_map else array_reader
                read = make(items.read, min_bytes(type_.items[0]), self.budget, cells_of_element(kind))
                return items._replace(type=kind, read=read)
            case "union":
                others = _others(type_)
                if len(others) > 1:
                    return self._struct_of_union(type_, inside, nullable)
                column = self.build(others[0], inside, nullable)
                return column._replace(read=_optional(column.read, type_.items, others[0]))
        kind, read = _leaf(type_)
        if nullable is not None:
            read = _or_null(read, self._nulled, nullable)
        return _Column(kind, read, tuple(Field(f.name, f.name, f.type) for f in DURATION) if kind == DURATION else ())

    def _record(self, type_: AvroType, inside: tuple[int, ...], nullable: str | None) -> _Column:
        fields: list[Field] = []
        members: list[tuple[str, Read]] = []
        at_top = len(inside) == 1 and nullable is None
        for item in type_.fields:
            column = self.build(item.type, inside, self._nullable_at_top(item.identity) if at_top else nullable)
            fields.append(Field(_identity(item.identity, column), item.name, column.type, column.fields))
            members.append((item.name, column.read))
        kind = pa.struct([(f.name, f.type) for f in fields]) if fields else pa.bool_()
        return _Column(kind, _record(members), tuple(fields))

    def _nullable_at_top(self, identity: str) -> str | None:
        return next((self._nullable[k] for k in (identity, f"{identity}:json") if k in self._nullable), None)

    def _struct_of_union(
        self, type_: AvroType, above: tuple[int, ...], nullable: str | None, *, at_top: bool = False
    ) -> _Column:
        """A struct with a member for each branch but null; `at_top`: these are members of the schema."""
        others = _others(type_)
        short = Counter(branch.short_name for branch in others)
        branches: list[tuple[str, Read] | None] = []
        fields: list[Field] = []
        for branch in type_.items:
            if branch not in others:
                branches.append(None)
                continue
            column = self.build(branch, above, self._nullable_at_top(branch.name) if at_top else nullable)
            name = branch.short_name if short[branch.short_name] == 1 else branch.name
            branches.append((name, column.read))
            fields.append(Field(branch.name, name, column.type, column.fields))
        return _Column(pa.struct([(f.name, f.type) for f in fields]), _union(branches), tuple(fields))


def _others(union: AvroType) -> list[AvroType]:
    """The branches of a union besides null; of null alone, that."""
    return [branch for branch in union.items if branch.kind != "null"] or union.items


def _identity(name: str, column: _Column) -> str:
    """Identity of a field: JSON text and strings never share a column (``1`` would be equal). Names hold no colon."""
    return f"{name}:json" if column.is_text else name


class AvroDecoder(RowDecoder):
    """Decodes one schema id.

    Fields of a record become columns, as do branches of a top-level union (several types of events in one topic); any other
    type becomes the column ``value``.
    """

    def __init__(self, compiled: AvroSchema, rules: ColumnRules | None = None) -> None:
        """Raises DataError for a schema that is too large."""
        builder = _Builder({}, [])
        column = builder.top(compiled.root)
        super().__init__(compiled.message, column.fields, column.type, builder.budget)
        nullable = rules.nullable(self.message, self.fields) if rules is not None else {}
        if nullable:
            # Once more: the fields' identities are known now.
            builder = _Builder(nullable, self.nulled)
            column = builder.top(compiled.root)
            self.budget = builder.budget
        self._read_value = column.read

    def _read(self, payload: bytes) -> object:
        row, end = self._read_value(payload, 0)
        if end != len(payload):
            raise DamageError(Reason.MALFORMED, f"{len(payload) - end} bytes after the value")
        # Null in a union at the top: no column has a value.
        return {} if row is None else row
