"""Decoder of Avro payloads, by their writer schema: functions that read Python values, of which a batch makes Arrow columns.

Own code, because no library reads strictly: fastavro takes a negative branch or symbol index for the last one, misreads
numbers of more than 64 bits, loops on an array of 2^62 nulls, and ends the process on types nested 20,000 deep; libraries for
Arrow lack maps, unions or decimals.

Each reader takes the payload and a position, and returns the value and the position after it. A truncated payload raises
IndexError (see `frame.as_damage`). Values of recursive types are JSON text, as no column can hold them: a union's value is
``{"branch": value}``, null is ``null``, bytes are text with one character for each byte. Numbers that JSON lacks are ``"NaN"``,
``"Infinity"``, ``"-Infinity"``, as in Java.

Source: Apache Avro 1.12 specification, "Binary Encoding", "JSON Encoding".
"""

import json
import math
import struct
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from game_events.decoding.avro_schema import AvroSchema, AvroType, Logical
from game_events.decoding.columns import NO_RULES, TIMESTAMP_RANGE, ColumnRules, Field, FieldId, decimal_bytes
from game_events.decoding.frame import DAMAGE, DamageError, Reason, as_damage
from game_events.decoding.projection import CELL_BYTES, VALUE, CellBudget, RowDecoder, cells_of_element
from game_events.errors import DataError

#: Items without bytes (null, empty records) of one payload: a few bytes can announce 2^62 of them.
MAX_EMPTY_ITEMS = 10_000
INT_RANGE = (-(2**31), 2**31 - 1)
_LAST_BYTE = 9
T = TypeVar("T")
#: Reads a value of a payload at a position; returns it, and the position after it.
Read = Callable[[bytes, int], tuple[Any, int]]


def read_long(buf: bytes, pos: int) -> tuple[int, int]:
    """A zig-zag varint of at most 64 bits."""
    octet = buf[pos]
    if octet < 0x80:
        return (octet >> 1) ^ -(octet & 1), pos + 1
    value = octet & 0x7F
    shift = 7
    end = pos + 1
    while True:
        octet = buf[end]
        value |= (octet & 0x7F) << shift
        end += 1
        if octet < 0x80:
            break
        shift += 7
        if end - pos > _LAST_BYTE:
            raise DamageError(Reason.MALFORMED, "a number of more than 64 bits")
    if value >> 64:
        raise DamageError(Reason.MALFORMED, "a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), end


def read_bytes(buf: bytes, pos: int) -> tuple[bytes, int]:
    """A length and as many bytes."""
    size, pos = read_long(buf, pos)
    if size < 0:
        raise DamageError(Reason.MALFORMED, "a length below zero")
    return take(buf, pos, size)


def take(buf: bytes, pos: int, size: int) -> tuple[bytes, int]:
    """So many bytes."""
    end = pos + size
    if end > len(buf):
        raise DamageError(Reason.TRUNCATED, f"more bytes announced than the {len(buf) - pos} that are left")
    return buf[pos:end], end


def read_index(buf: bytes, pos: int, count: int, what: str) -> tuple[int, int]:
    """The index of a union's branch or an enum's symbol."""
    index, pos = read_long(buf, pos)
    if not 0 <= index < count:
        raise DamageError(Reason.MALFORMED, f"{what} outside 0..{count - 1}")
    return index, pos


def read_text(buf: bytes, pos: int) -> tuple[str, int]:
    """A string, the most frequent type: a short one is read without further calls."""
    size = buf[pos]
    if size < 0x80 and not size & 1:
        end = pos + 1 + (size >> 1)
        if end <= len(buf):
            return str(buf[pos + 1 : end], "utf-8"), end
    raw, pos = read_bytes(buf, pos)
    return str(raw, "utf-8"), pos


def number_reader(bounds: tuple[int, int], times: int = 1, per: int = 1) -> Read:
    """A reader of ``value * times // per``, rounded down also before 1970; values outside `bounds` are rejected."""
    low, high = bounds
    is_scaled = times != per

    def read(buf: bytes, pos: int) -> tuple[int, int]:
        value, pos = read_long(buf, pos)
        if not low <= value <= high:
            raise DamageError(Reason.OUT_OF_RANGE, f"a number outside {low}..{high}", pos)
        return (value * times // per if is_scaled else value), pos

    return read


def enum_reader(symbols: Sequence[str]) -> Read:
    """A reader of an enum's symbols."""

    def read(buf: bytes, pos: int) -> tuple[str, int]:
        index, pos = read_index(buf, pos, len(symbols), "enum symbol")
        return symbols[index], pos

    return read


def read_boolean(buf: bytes, pos: int) -> tuple[bool, int]:
    """One byte, 0 or 1."""
    octet = buf[pos]
    if octet > 1:
        raise DamageError(Reason.MALFORMED, "a boolean that is neither 0 nor 1")
    return octet == 1, pos + 1


#: Simple type -> reader of its values.
SIMPLE: Mapping[str, Callable[[AvroType], Read]] = {
    "null": lambda _: lambda _, pos: (None, pos),
    "boolean": lambda _: read_boolean,
    "int": lambda _: number_reader(INT_RANGE),
    "long": lambda _: read_long,
    "float": lambda _: lambda buf, pos: (struct.unpack_from("<f", buf, pos)[0], pos + 4),
    "double": lambda _: lambda buf, pos: (struct.unpack_from("<d", buf, pos)[0], pos + 8),
    "bytes": lambda _: read_bytes,
    "string": lambda _: read_text,
    "enum": lambda type_: enum_reader(type_.symbols),
    "fixed": lambda type_: lambda buf, pos: take(buf, pos, type_.size),
}


class ByType(Generic[T]):
    """Functions of (payload, position) by type, each made once; a recursive type refers to its own."""

    def __init__(self, make: Callable[[AvroType], Callable[[bytes, int], T]]) -> None:
        self._make = make
        self._made: dict[int, Callable[[bytes, int], T]] = {}

    def of(self, type_: AvroType) -> Callable[[bytes, int], T]:
        """The function of a type."""
        key = id(type_)
        if key not in self._made:

            def in_itself(buf: bytes, pos: int) -> T:
                return self._made[key](buf, pos)

            self._made[key] = in_itself
            self._made[key] = self._make(type_)
        return self._made[key]


@dataclass
class Budget(CellBudget):
    """What the current payload may still have; `empty`: items without bytes."""

    empty: int = field(default=MAX_EMPTY_ITEMS, init=False)

    def reset(self) -> None:
        """Start the next payload."""
        super().reset()
        self.empty = MAX_EMPTY_ITEMS


def begin_block(buf: bytes, pos: int, least: int, budget: Budget, cells: int = 0) -> tuple[int, int | None, int]:
    """Begin a block of an array or map: number of items (0: there are no more), its end if announced, place of the first item.

    `least`, `cells` (in a list): of one item.
    """
    count, pos = read_long(buf, pos)
    end = None
    if count < 0:
        count = -count
        size, pos = read_long(buf, pos)
        end = pos + size
    # Checked before anything is read or allocated.
    if count * least > len(buf) - pos:
        raise DamageError(Reason.TRUNCATED, f"more items announced than fit into the {len(buf) - pos} bytes that are left")
    if not least:
        budget.empty -= count
        if budget.empty < 0:
            raise DamageError(Reason.MALFORMED, f"more than {MAX_EMPTY_ITEMS} items without bytes")
    budget.spend(count * cells)
    return count, end, pos


def end_block(pos: int, end: int | None) -> None:
    """Check that a block ends where it has announced."""
    if end is not None and pos != end:
        raise DamageError(Reason.MALFORMED, "a block that does not end where it says")


def array_reader(item: Read, least: int, budget: Budget, cells: int) -> Read:
    """A reader of lists; `least`, `cells`: of one item."""

    def read(buf: bytes, pos: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        # The usual end is one byte, a count of 0.
        while buf[pos]:
            count, end, pos = begin_block(buf, pos, least, budget, cells)
            if not count:
                return values, pos
            for _ in range(count):
                value, pos = item(buf, pos)
                values.append(value)
            end_block(pos, end)
        return values, pos + 1

    return read


def map_reader(value: Read, least: int, budget: Budget, cells: int) -> Read:
    """A reader of maps; the last value of a repeated key counts, as in other readers. `least`: bytes of a value."""

    def entry(buf: bytes, pos: int) -> tuple[tuple[str, Any], int]:
        key, pos = read_text(buf, pos)
        item, pos = value(buf, pos)
        return (key, item), pos

    entries = array_reader(entry, least + 1, budget, cells)

    def read(buf: bytes, pos: int) -> tuple[dict[str, Any], int]:
        items, pos = entries(buf, pos)
        return dict(items), pos

    return read


def skip_blocks(buf: bytes, pos: int, least: int, budget: Budget, item: Callable[[bytes, int], int]) -> int:
    """The position after an array or map; `item`: that after one of its items."""
    while True:
        count, end, pos = begin_block(buf, pos, least, budget)
        if not count:
            return pos
        for _ in range(count):
            pos = item(buf, pos)
        end_block(pos, end)


def min_bytes(type_: AvroType, known: dict[int, int] | None = None) -> int:
    """0 for a type without bytes, else 1; also 1 for a type that must contain itself (it has no values)."""
    if type_.kind in ("null", "fixed"):
        return min(type_.size, 1)
    if type_.kind != "record":
        return 1
    known = {} if known is None else known
    if id(type_) not in known:
        known[id(type_)] = 1
        known[id(type_)] = max((min_bytes(f.type, known) for f in type_.fields), default=0)
    return known[id(type_)]


#: Nested records at most.
MAX_LEVELS = 100


def text_reader(type_: AvroType, budget: Budget) -> Read:
    """A function that reads one value of a type as JSON text."""
    readers = _Readers(budget)
    read_value = readers.of(type_)

    def read(buf: bytes, pos: int) -> tuple[str, int]:
        readers.level = 0
        value, pos = read_value(buf, pos)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False), pos

    return read


class _Readers:
    """One reader per type, recursive types included."""

    def __init__(self, budget: Budget) -> None:
        self.level = 0
        self._budget = budget
        self.of = ByType[tuple[Any, int]](self._make).of

    def _make(self, type_: AvroType) -> Read:
        match type_.kind:
            case "record":
                return self._record(type_)
            case "union":
                return self._union(type_)
            case "array" | "map" as kind:
                (item,) = type_.items
                make = map_reader if kind == "map" else array_reader
                return make(self.of(item), min_bytes(item), self._budget, _cells(item))
        return _simple(type_)

    def _record(self, type_: AvroType) -> Read:
        members = [(f.name, self.of(f.type)) for f in type_.fields]
        cells = sum(_cells(f.type, f.name) for f in type_.fields)

        def read(buf: bytes, pos: int) -> tuple[Any, int]:
            self.level += 1
            if self.level > MAX_LEVELS:
                raise DamageError(Reason.TOO_DEEP, f"more than {MAX_LEVELS} records inside one another")
            self._budget.spend(cells)
            row: dict[str, Any] = {}
            for name, member in members:
                row[name], pos = member(buf, pos)
            self.level -= 1
            return row, pos

        return read

    def _union(self, type_: AvroType) -> Read:
        branches = [(b.name, self.of(b), _cells(b, b.name)) for b in type_.items]

        def read(buf: bytes, pos: int) -> tuple[Any, int]:
            index, pos = read_index(buf, pos, len(branches), "union branch")
            name, branch, cells = branches[index]
            self._budget.spend(cells)
            value, pos = branch(buf, pos)
            return (value if name == "null" else {name: value}), pos

        return read


def _cells(type_: AvroType, name: str = "") -> int:
    """Cells of a value's text besides the payload's own: its name, an enum's symbol."""
    return 1 + (len(name) + max(map(len, type_.symbols), default=0)) // CELL_BYTES


def _simple(type_: AvroType) -> Read:
    read = SIMPLE[type_.kind](type_)
    as_json = _AS_JSON.get(type_.kind)
    if as_json is None:
        return read

    def read_converted(buf: bytes, pos: int) -> tuple[Any, int]:
        value, pos = read(buf, pos)
        return as_json(value), pos

    return read_converted


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


#: Simple type -> conversion of its values, if there is one.
_AS_JSON: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(("float", "double"), _json_number),
    **dict.fromkeys(("bytes", "fixed"), lambda raw: str(raw, "latin-1")),
}


#: Days of the years 1 to 9999, the range of Python and Spark.
DATE_RANGE = (-719_162, 2_932_896)
DAY_US = 86_400_000_000
DURATION = pa.struct([("months", pa.int64()), ("days", pa.int64()), ("milliseconds", pa.int64())])
#: Digits that Spark's and Delta's decimals hold.
MAX_DIGITS = 38
_EPOCH = datetime(1970, 1, 1)


def _timestamp(name: str) -> tuple[pa.DataType, Read]:
    times, per = {"millis": (1_000, 1), "micros": (1, 1), "nanos": (1, 1_000)}[name.rpartition("-")[2]]
    # All nanoseconds of 64 bits are within this range.
    low, high = TIMESTAMP_RANGE
    read_us = number_reader((low * per // times, high * per // times), times, per)
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
    "enum": pa.string(), "fixed": pa.binary(), "int": pa.int64(), "long": pa.int64(), "string": pa.string(),
}  # fmt: skip

#: Other types, or type and logical type -> its column.
_LEAVES: dict[str, tuple[pa.DataType, Read]] = {
    "int date": (pa.date32(), number_reader(DATE_RANGE)),
    "int time-millis": (pa.int64(), number_reader((0, DAY_US // 1_000 - 1), times=1_000)),
    "long time-micros": (pa.int64(), number_reader((0, DAY_US - 1))),
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
        return self._scalar(type_, nullable)

    def _scalar(self, type_: AvroType, nullable: str | None) -> _Column:
        """Column of a type without types in it."""
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

    def __init__(self, compiled: AvroSchema, rules: ColumnRules = NO_RULES) -> None:
        """Raises DataError for a schema that is too large."""
        builder = _Builder({}, [])
        column = builder.top(compiled.root)
        super().__init__(compiled.message, column.fields, column.type, builder.budget)
        nullable = rules.nullable(self.message, self.fields)
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
