"""Decoder of Avro payloads, by their writer schema, into Arrow columns: lists of Python values, converted to arrays at the end.

Own code, because no library reads strictly: fastavro takes a negative branch or symbol index for the last one, misreads
numbers of more than 64 bits, loops on an array of 2^62 nulls, and ends the process on types nested 20,000 deep; libraries for
Arrow lack maps, unions or decimals.
"""

import struct
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.avro.encoding import (
    INT_RANGE,
    LONG_RANGE,
    SIMPLE,
    Budget,
    min_bytes,
    read_blocks,
    read_bytes,
    read_index,
    read_long,
    read_text,
    take,
    text_reader,
)
from game_events.decoding.avro.schema import AvroSchema, AvroType, Logical
from game_events.decoding.columns import TIMESTAMP_RANGE, ColumnRules, Field, FieldId, decimal_array
from game_events.decoding.frame import DAMAGE, DamageError, Reason, as_damage
from game_events.decoding.projection import VALUE, RowDecoder, cells_of
from game_events.errors import DataError

#: Days of the years 1 to 9999, the range of Python and Spark.
DATE_RANGE = (-719_162, 2_932_896)
DAY_US = 86_400_000_000
DURATION = pa.struct([("months", pa.int64()), ("days", pa.int64()), ("milliseconds", pa.int64())])
#: Digits that Spark's and Delta's decimals hold.
MAX_DIGITS = 38


class Column(Protocol):
    """A column under construction: Arrow type of `finish`; whether it holds JSON text, or lists or maps of it."""

    type: pa.DataType
    is_text: bool

    def read(self, buf: bytes, pos: int, /) -> int:
        """Read one value at a position into the column; returns the position after it."""

    def truncate(self, count: int) -> None:
        """Keep the first values: removes those of a malformed payload."""

    def finish(self) -> pa.Array:
        """The values so far; the column is empty then."""


class Leaf:
    """A column of single values."""

    def __init__(self, type_: pa.DataType, parse: Callable[[bytes, int], tuple[Any, int]], *, is_text: bool = False) -> None:
        self.type = type_
        self.is_text = is_text
        self.values: list[Any] = []
        self.read = self._reader(parse)

    def _reader(self, parse: Callable[[bytes, int], tuple[Any, int]]) -> Callable[[bytes, int], int]:
        append = self.values.append

        def read(buf: bytes, pos: int) -> int:
            value, pos = parse(buf, pos)
            append(value)
            return pos

        return read

    def null_bad_values(self, nulled: list[str], column: str) -> None:
        """From now on values outside of the type's range are NULL, and their column is noted."""
        strict = self.read
        append = self.values.append

        def read(buf: bytes, pos: int) -> int:
            try:
                return strict(buf, pos)
            except DamageError as damage:
                if damage.end is None:
                    raise
                nulled.append(column)
                append(None)
                return damage.end

        self.read = read

    def truncate(self, count: int) -> None:
        """Keeps the first values."""
        del self.values[count:]

    def finish(self) -> pa.Array:
        """The values so far."""
        array = self.array(self.values)
        self.values.clear()
        return array

    def array(self, values: list[Any]) -> pa.Array:
        """Python values, None included, as an array of this type."""
        return pa.array(values, self.type)


class _StringLeaf(Leaf):
    """Strings, the most frequent type: read without further calls."""

    def __init__(self) -> None:
        super().__init__(pa.string(), read_text)

    def _reader(self, parse: Callable[[bytes, int], tuple[Any, int]]) -> Callable[[bytes, int], int]:
        append = self.values.append

        def read(buf: bytes, pos: int) -> int:
            size = buf[pos]
            if size < 0x80 and not size & 1:
                end = pos + 1 + (size >> 1)
                if end <= len(buf):
                    append(str(buf[pos + 1 : end], "utf-8"))
                    return end
            text, pos = parse(buf, pos)
            append(text)
            return pos

        return read


class _NumberLeaf(Leaf):
    """Integers within a range; also dates and times, which are integers."""

    def __init__(self, type_: pa.DataType, bounds: tuple[int, int], times: int = 1, per: int = 1) -> None:
        """A column of ``value * times // per``; values outside `bounds` are rejected."""
        self._bounds = bounds
        self._times = times
        self._per = per
        super().__init__(type_, read_long)

    def _reader(self, parse: Callable[[bytes, int], tuple[Any, int]]) -> Callable[[bytes, int], int]:
        append = self.values.append
        low, high = self._bounds

        def read(buf: bytes, pos: int) -> int:
            value, pos = parse(buf, pos)
            if not low <= value <= high:
                raise DamageError(Reason.OUT_OF_RANGE, f"a number outside {low}..{high}", pos)
            append(value)
            return pos

        return read

    def array(self, values: list[Any]) -> pa.Array:
        raw = pa.int32() if pa.types.is_date(self.type) else pa.int64()
        return pa.array(self._scaled(values), raw).cast(self.type)

    def _scaled(self, values: list[Any]) -> list[Any]:
        if self._times == self._per:
            return values
        # Rounded down also before 1970.
        return [None if v is None else v * self._times // self._per for v in values]


class _LocalTimeLeaf(_NumberLeaf):
    """Times without a zone as ISO text: timestamps would be read as UTC."""

    def __init__(self, bounds: tuple[int, int], times: int, per: int) -> None:
        super().__init__(pa.timestamp("us"), bounds, times, per)
        self.type = pa.string()

    def array(self, values: list[Any]) -> pa.Array:
        return pc.strftime(pa.array(self._scaled(values), pa.timestamp("us")), "%Y-%m-%dT%H:%M:%S")


class _DecimalLeaf(Leaf):
    """Decimals; as text if they have more than `MAX_DIGITS` digits."""

    def __init__(self, type_: AvroType, logical: Logical) -> None:
        self._scale = logical.scale
        fits = logical.precision <= MAX_DIGITS
        limit = 10**logical.precision

        def parse(buf: bytes, pos: int) -> tuple[int, int]:
            raw, pos = take(buf, pos, type_.size) if type_.kind == "fixed" else read_bytes(buf, pos)
            value = int.from_bytes(raw, "big", signed=True)
            if not -limit < value < limit:
                raise DamageError(Reason.OUT_OF_RANGE, f"a decimal of more than {logical.precision} digits", pos)
            return value, pos

        super().__init__(pa.decimal128(logical.precision, logical.scale) if fits else pa.string(), parse)

    def array(self, values: list[Any]) -> pa.Array:
        if pa.types.is_decimal(self.type):
            return decimal_array(values, self.type)
        return pa.array([None if v is None else f"{Decimal(f'{v}E-{self._scale}'):f}" for v in values], pa.string())


def leaf(type_: AvroType) -> Leaf:
    """The column of a simple type."""
    logical = type_.logical
    if logical is not None and logical.name == "decimal":
        return _DecimalLeaf(type_, logical)
    if logical is not None and "timestamp" in logical.name:
        return _timestamp(logical.name)
    name = type_.kind if logical is None else f"{type_.kind} {logical.name}"
    return Leaf(_PLAIN[name], SIMPLE[name](type_)) if name in _PLAIN else _LEAVES[name]()


def _timestamp(name: str) -> Leaf:
    times, per = {"millis": (1_000, 1), "micros": (1, 1), "nanos": (1, 1_000)}[name.rpartition("-")[2]]
    # All nanoseconds of 64 bits are within this range.
    low, high = TIMESTAMP_RANGE
    bounds = (low * per // times, high * per // times)
    if name.startswith("local"):
        return _LocalTimeLeaf(bounds, times, per)
    return _NumberLeaf(pa.timestamp("us", tz="UTC"), bounds, times, per)


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
_LEAVES: dict[str, Callable[[], Leaf]] = {
    "int": lambda: _NumberLeaf(pa.int64(), INT_RANGE),
    "long": lambda: _NumberLeaf(pa.int64(), LONG_RANGE),
    "string": _StringLeaf,
    "int date": lambda: _NumberLeaf(pa.date32(), DATE_RANGE),
    "int time-millis": lambda: _NumberLeaf(pa.int64(), (0, DAY_US // 1_000 - 1), times=1_000),
    "long time-micros": lambda: _NumberLeaf(pa.int64(), (0, DAY_US - 1)),
    "string uuid": _StringLeaf,
    "fixed uuid": lambda: Leaf(pa.string(), _uuid),
    "fixed duration": lambda: Leaf(DURATION, _duration),
}

#: Depth to which types become columns; deeper ones become JSON text.
MAX_DEPTH = 32
#: Repeated use of types can double the columns with every level.
MAX_COLUMNS = 10_000
#: A type's column, and the fields inside it.
Built = tuple[Column, tuple[Field, ...]]


class RecordColumn:
    """A struct; without fields ``true``, as Parquet has no empty structs."""

    def __init__(self, members: Sequence[tuple[str, Column]]) -> None:
        self.members = members
        self.type: pa.DataType = pa.struct([pa.field(n, c.type) for n, c in members]) if members else pa.bool_()
        self.is_text = False
        self._count = 0
        self._readers = [(name, column.read) for name, column in members]

    def read(self, buf: bytes, pos: int) -> int:
        """One record."""
        name = ""
        try:
            for name, read in self._readers:  # noqa: B007 - for the handler
                pos = read(buf, pos)
        except DAMAGE as error:
            damage = as_damage(error)
            damage.path.append(name)
            raise damage from None
        self._count += 1
        return pos

    def truncate(self, count: int) -> None:
        """Keeps the first records."""
        self._count = count
        for _, column in self.members:
            column.truncate(count)

    def finish(self) -> pa.Array:
        """The records so far."""
        count = self._count
        self._count = 0
        if not self.members:
            return pa.array([True] * count, pa.bool_())
        return pa.StructArray.from_arrays([c.finish() for _, c in self.members], fields=list(self.type))


class _ArrayColumn:
    """A list."""

    def __init__(self, items: Column, least: int, budget: Budget) -> None:
        self.type: pa.DataType = pa.list_(items.type)
        self.is_text = items.is_text
        self._items = items
        self._least = least
        self._budget = budget
        self._read_item = items.read
        self._cells = cells_of(items.type)
        self._offsets = [0]

    def read(self, buf: bytes, pos: int) -> int:
        count, pos = read_blocks(buf, pos, self._least, self._budget, self._read_item, self._cells)
        self._offsets.append(self._offsets[-1] + count)
        return pos

    def truncate(self, count: int) -> None:
        del self._offsets[count + 1 :]
        self._items.truncate(self._offsets[-1])

    def finish(self) -> pa.Array:
        offsets = self._offsets
        self._offsets = [0]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), self._items.finish(), type=self.type)


class _MapColumn(_ArrayColumn):
    """A map; the last value of a repeated key counts, as in other readers."""

    def __init__(self, items: Column, least: int, budget: Budget) -> None:
        super().__init__(items, least + 1, budget)
        self.type = pa.map_(pa.string(), items.type)
        self._keys: list[str] = []
        self._read_item = self._entry
        self._cells += 1

    def _entry(self, buf: bytes, pos: int) -> int:
        key, pos = read_bytes(buf, pos)
        self._keys.append(str(key, "utf-8"))
        return self._items.read(buf, pos)

    def truncate(self, count: int) -> None:
        super().truncate(count)
        del self._keys[self._offsets[-1] :]

    def finish(self) -> pa.Array:
        keys = self._keys
        items = self._items.finish()
        # Last index of each key, in the order of first appearance.
        kept: list[int] = []
        ends = [0]
        for begin, end in pairwise(self._offsets):
            kept += list({keys[i]: i for i in range(begin, end)}.values())
            ends.append(len(kept))
        if len(kept) != len(keys):
            items = items.take(pa.array(kept, pa.int64()))
            keys = [keys[i] for i in kept]
        self._keys = []
        self._offsets = [0]
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), pa.array(keys, pa.string()), items, type=self.type)


class _OptionalLeaf:
    """A simple type or null."""

    def __init__(self, inner: Leaf, null: int) -> None:
        self.type: pa.DataType = inner.type
        self.is_text = inner.is_text
        self._null = null
        self._read = inner.read
        self._append = inner.values.append
        self.truncate = inner.truncate
        self.finish = inner.finish

    def read(self, buf: bytes, pos: int) -> int:
        index, pos = read_index(buf, pos, 2, "union branch")
        if index != self._null:
            return self._read(buf, pos)
        self._append(None)
        return pos


class UnionColumn:
    """A union: of one type and null that type's column, else a struct with a member per type."""

    def __init__(self, branches: Sequence[tuple[str, Column] | None], *, always_struct: bool = False) -> None:
        """Branches in the schema's order: name and column, or None for null."""
        self._branches = branches
        self.members = [b for b in branches if b is not None]
        self._plain = len(self.members) == 1 and not always_struct
        struct = pa.struct([pa.field(n, c.type) for n, c in self.members])
        self.type: pa.DataType = self.members[0][1].type if self._plain else struct
        self.is_text = self._plain and self.members[0][1].is_text
        self._counts = [0] * len(branches)
        self._chosen: list[int] = []

    def read(self, buf: bytes, pos: int) -> int:
        """One value of one branch."""
        index, pos = read_index(buf, pos, len(self._branches), "union branch")
        branch = self._branches[index]
        if branch is not None:
            pos = branch[1].read(buf, pos)
        self._counts[index] += 1
        self._chosen.append(index)
        return pos

    def truncate(self, count: int) -> None:
        """Keeps the first values."""
        for index in self._chosen[count:]:
            self._counts[index] -= 1
        del self._chosen[count:]
        for branch, kept in zip(self._branches, self._counts, strict=True):
            if branch is not None:
                branch[1].truncate(kept)

    def finish(self) -> pa.Array:
        """The values so far: each branch has only its own values, which are spread over all rows."""
        chosen = np.asarray(self._chosen, dtype=np.int64)
        self._counts = [0] * len(self._branches)
        self._chosen = []
        arrays = []
        for index, branch in enumerate(self._branches):
            if branch is not None:
                mine = chosen == index
                arrays.append(branch[1].finish().take(pa.array(np.cumsum(mine) - 1, pa.int64(), mask=~mine)))
        if self._plain:
            return arrays[0]
        absent = np.isin(chosen, [i for i, b in enumerate(self._branches) if b is None])
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=pa.array(absent))


class ColumnBuilder:
    """Builds the columns of one schema, with their fields."""

    def __init__(self, nullable: Mapping[FieldId, str] | None = None, nulled: list[str] | None = None) -> None:
        """`nullable`: fields at the top whose bad values become NULL -> columns, which are noted in `nulled`."""
        self.budget = Budget()
        self._columns = 0
        self._nullable = nullable or {}
        self._nulled = [] if nulled is None else nulled
        self._column: str | None = None

    def build(self, type_: AvroType, above: tuple[int, ...] = ()) -> Built:
        """A type's column and inner fields, inside the types `above`; DataError for more columns than `MAX_COLUMNS`."""
        self._columns += 1
        if self._columns > MAX_COLUMNS:
            raise DataError(f"the schema has more than {MAX_COLUMNS} columns")
        if id(type_) in above or len(above) >= MAX_DEPTH:
            return Leaf(pa.string(), text_reader(type_, self.budget), is_text=True), ()
        inside = (*above, id(type_))
        match type_.kind:
            case "record":
                return self._record(type_, inside)
            case "array" | "map":
                items, fields = self.build(type_.items[0], inside)
                make = _ArrayColumn if type_.kind == "array" else _MapColumn
                return make(items, min_bytes(type_.items[0]), self.budget), fields
            case "union":
                others = _others(type_)
                if len(others) > 1:
                    return self.union(type_, inside)
                return self._optional(type_, *self.build(others[0], inside))
            case _:
                return self._leaf(type_)

    def _record(self, type_: AvroType, inside: tuple[int, ...]) -> Built:
        members: list[tuple[str, Column]] = []
        fields: list[Field] = []
        for member in type_.fields:
            column, inner = self._member(member.identity, member.type, inside)
            members.append((member.name, column))
            fields.append(Field(_identity(member.identity, column), member.name, column.type, inner))
        return RecordColumn(members), tuple(fields)

    def _leaf(self, type_: AvroType) -> Built:
        made = leaf(type_)
        if self._column is not None:
            made.null_bad_values(self._nulled, self._column)
        return made, tuple(Field(f.name, f.name, f.type) for f in DURATION) if made.type == DURATION else ()

    def _member(self, identity: str, type_: AvroType, above: tuple[int, ...]) -> Built:
        """A member's column; at the top it decides about the bad values in it."""
        if len(above) <= 1 and self._nullable and self._column is None:
            self._column = next((self._nullable[k] for k in (identity, f"{identity}:json") if k in self._nullable), None)
            try:
                return self.build(type_, above)
            finally:
                self._column = None
        return self.build(type_, above)

    def union(self, type_: AvroType, above: tuple[int, ...], *, at_top: bool = False) -> Built:
        """A struct with a member for each branch but null; `at_top`: these are members of the schema."""
        others = _others(type_)
        short = Counter(branch.short_name for branch in others)
        branches: list[tuple[str, Column] | None] = []
        fields: list[Field] = []
        for branch in type_.items:
            if branch not in others:
                branches.append(None)
                continue
            column, inner = self._member(branch.name, branch, above) if at_top else self.build(branch, above)
            name = branch.short_name if short[branch.short_name] == 1 else branch.name
            branches.append((name, column))
            fields.append(Field(branch.name, name, column.type, inner))
        return UnionColumn(branches, always_struct=True), tuple(fields)

    def _optional(self, type_: AvroType, column: Column, fields: tuple[Field, ...]) -> Built:
        """A union of one type, which has this column, and perhaps null."""
        if isinstance(column, Leaf) and len(type_.items) == 2:
            return _OptionalLeaf(column, [branch.kind for branch in type_.items].index("null")), fields
        (other,) = _others(type_)
        return UnionColumn([(other.short_name, column) if branch is other else None for branch in type_.items]), fields


def _others(union: AvroType) -> list[AvroType]:
    """The branches of a union besides null; of null alone, that."""
    return [branch for branch in union.items if branch.kind != "null"] or union.items


def _identity(name: str, column: Column) -> str:
    """Identity of a field: JSON text and strings never share a column (``1`` would be equal). Names hold no colon."""
    return f"{name}:json" if column.is_text else name


class AvroDecoder(RowDecoder):
    """Decodes one schema id.

    Fields of a record become columns, as do branches of a top-level union (several types of events in one topic); any other
    type becomes the column ``value``.
    """

    def __init__(self, compiled: AvroSchema, rules: ColumnRules | None = None) -> None:
        """Raises DataError for a schema that is too large."""
        self._column, fields, budget = _columns(compiled.root, ColumnBuilder())
        super().__init__(compiled.root.name, fields, budget)
        nullable = rules.nullable(self.message, self.fields) if rules is not None else {}
        if nullable:
            # Once more: the fields' identities are known now.
            self._column, _, self.budget = _columns(compiled.root, ColumnBuilder(nullable, self.nulled))
        self._rows = 0

    def _read(self, payload: bytes) -> None:
        try:
            end = self._column.read(payload, 0)
            if end != len(payload):
                raise DamageError(Reason.MALFORMED, f"{len(payload) - end} bytes after the value")
        except DAMAGE:
            self._column.truncate(self._rows)
            raise
        self._rows += 1

    def _finish(self) -> pa.RecordBatch:
        array = self._column.finish()
        self._rows = 0
        if not self.fields:
            return pa.RecordBatch.from_arrays([], names=[])
        arrays = array.flatten() if isinstance(self._column, RecordColumn | UnionColumn) else [array]
        return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in self.fields])


def _columns(root: AvroType, builder: ColumnBuilder) -> tuple[Column, tuple[Field, ...], Budget]:
    """The column of a schema's values, the fields at its top, and the budget of a payload."""
    if root.kind == "union":
        column, fields = builder.union(root, (), at_top=True)
    else:
        column, fields = builder.build(root)
        if not isinstance(column, RecordColumn):
            fields = (Field(VALUE, VALUE, column.type, fields),)
    return column, fields, builder.budget
