"""Between payloads and columns: compiled schemas and decoders of any format, projection to a table's columns, counted cells.

Projection gives a decoder's arrays the names and types of the column map; missing fields are NULL.

What records expand to when they are decoded is counted in cells: the eight bytes that each fixed part of a value takes in a row
of Spark (org.apache.spark.sql.catalyst, UnsafeRow). An empty element of a list has two bytes, and can be thousands of values.
Texts and bytes come on top, and are no more than the record has.

Rows of columns, as in Parquet files, have no payload: names and kinds choose a field's column, as for Avro; types become those
that bronze stores (`columns.storage_type`), times in microseconds and UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from game_events.decoding.columns import (
    ColumnMap,
    Field,
    FieldId,
    field_key,
    inner_type,
    path_inside,
    storage_type,
    struct_fields,
)
from game_events.decoding.frame import DAMAGE, NO_ROWS, DamageError, IndexPath, Reason, Rows, SchemaId, as_damage
from game_events.errors import DataError

#: Bytes of a cell.
CELL_BYTES = 8
#: Cells of a record at most.
MAX_RECORD_CELLS = 8 * 1024**2
#: Cells that a worker decodes at a time, but for a single record.
MAX_BATCH_CELLS = 32 * 1024**2
#: Bytes of a text that one byte of a payload may stand for (an enum's value, a decimal's zeros): a batch's fit into 2 GiB.
MAX_SHORT_TEXT = 160
TOO_MANY = f"more than {MAX_RECORD_CELLS:,} values once decoded: NULLs and defaults of the elements of lists count"

#: A position, and what is there (a text: its end up to a multiple of eight).
_CELLS = (
    (pa.types.is_map, 4),
    (pa.types.is_decimal, 3),
    *((is_a, 2) for is_a in (pa.types.is_list, pa.types.is_string, pa.types.is_binary)),
)


def cells_of(kind: pa.DataType) -> int:
    """Cells of one value, without those of the elements of lists and maps in it."""
    if pa.types.is_struct(kind):
        return 2 + sum(cells_of(f.type) for f in kind)
    return next((cells for is_a, cells in _CELLS if is_a(kind)), 1)


def cells_of_element(kind: pa.DataType) -> int:
    """Cells of one element of a list, or of one entry of a map."""
    return cells_of(kind.key_type) + cells_of(kind.item_type) if pa.types.is_map(kind) else cells_of(kind.value_type)


def is_many(kind: pa.DataType) -> bool:
    """Whether it is a list or a map."""
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind))


def elements_of(array: pa.Array) -> pa.Array:
    """All elements of lists, or values of maps, whole even where the array is a slice."""
    return array.items if pa.types.is_map(array.type) else array.values


@dataclass(frozen=True)
class Shape:
    """How many cells values have.

    Attributes:
        cells: of one value, without those of elements.
        lists: of the lists and maps in no other one: the members (of structs) that lead to it, and the shape of its elements.
    """

    cells: int
    lists: tuple[tuple[tuple[int | str, ...], Shape], ...] = ()

    @classmethod
    def of(cls, kinds: Iterable[pa.DataType]) -> Shape:
        """Of rows with columns of these types."""
        types = list(kinds)
        lists = [((index, *steps), inner) for index, kind in enumerate(types) for steps, inner in _lists_of(kind)]
        return cls(sum(map(cells_of, types)), tuple(lists))

    @cached_property
    def widest(self) -> int:
        """Most cells of one element of any list or map."""
        return max((max(inner.cells, inner.widest) for _, inner in self.lists), default=0)

    def in_lists(self, values: pa.RecordBatch | pa.Array) -> Rows:
        """Cells of the elements of each value, shape (n,)."""
        total = np.zeros(len(values), dtype=np.int64)
        for (first, *steps), inner in self.lists:
            lists = values.column(first) if isinstance(values, pa.RecordBatch) else values.field(first)
            for step in steps:
                lists = lists.field(step)
            total += _in_elements(lists, inner)
        return total


def _in_elements(lists: pa.Array, inner: Shape) -> Rows:
    if not len(lists):
        return NO_ROWS  # the JVM sends no lists without any offset: to read it would end the process
    offsets = lists.offsets.to_numpy().astype(np.int64)
    counts: Rows = np.diff(offsets)
    if not inner.lists:
        return counts * inner.cells
    elements = elements_of(lists).slice(offsets[0], offsets[-1] - offsets[0])
    # The elements of lists of lists are lists themselves.
    each = _in_elements(elements, inner.lists[0][1]) if inner.lists[0][0] == () else inner.in_lists(elements)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    places = offsets - offsets[0]
    total: Rows = counts * inner.cells + sums[places[1:]] - sums[places[:-1]]
    return total


def _lists_of(kind: pa.DataType) -> Iterator[tuple[tuple[int | str, ...], Shape]]:
    if is_many(kind):
        inside = kind.item_type if pa.types.is_map(kind) else kind.value_type
        yield (), Shape(cells_of_element(kind), tuple(_lists_of(inside)))
    elif pa.types.is_struct(kind):
        for index, member in enumerate(kind):
            yield from (((index, *steps), inner) for steps, inner in _lists_of(member.type))


def cuts(loads: npt.NDArray[np.int64] | npt.NDArray[np.float64], most: float) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive rows with a load of at most `most` together, or of a single row."""
    sums = np.cumsum(loads)
    begin = 0
    while begin < len(loads):
        done = sums[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, done + most, side="right")))
        yield begin, end
        begin = end


def pieces(shape: Shape, lengths: npt.NDArray[np.integer], octets: int) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive payloads that cannot become more than `MAX_BATCH_CELLS` together, or of a single one.

    `shape`: of the columns; `lengths`: bytes of the payloads, shape (n,); `octets`: the least that an element has.
    """
    # A packed number has one byte, and up to three cells.
    widest = max(shape.widest, 3 * octets) if shape.lists else 0
    if shape.cells * len(lengths) + int(lengths.sum()) * widest // octets <= MAX_BATCH_CELLS:
        yield 0, len(lengths)
    else:
        yield from cuts(shape.cells + lengths.astype(np.int64) * widest // octets, MAX_BATCH_CELLS)


@dataclass
class CellBudget:
    """Cells of elements that the current payload may still have."""

    cells: int = field(default=MAX_RECORD_CELLS, init=False)

    def reset(self) -> None:
        """Start the next payload."""
        self.cells = MAX_RECORD_CELLS

    @property
    def spent(self) -> int:
        """Cells of the current payload's elements."""
        return MAX_RECORD_CELLS - self.cells

    def spend(self, cells: int) -> None:
        """Before so many are made; raises DamageError if there are not as many left."""
        self.cells -= cells
        if self.cells < 0:
            raise DamageError(Reason.TOO_MANY_VALUES, TOO_MANY)


#: Identity of an enum's value across versions (its number, in Avro its name) -> its name, as stored.
EnumValues = Mapping[int | str, str]


@dataclass(frozen=True)
class CompiledSchema(ABC):
    """A compiled schema; picklable, as it is sent to Spark's workers.

    Attributes:
        schema_id: the id, or the GUID.
        indexed: whether frames hold message indexes before the payload: only for protobuf.
    """

    schema_id: SchemaId
    indexed: ClassVar[bool] = False

    @property
    @abstractmethod
    def names(self) -> Mapping[IndexPath, str]:
        """Full names of its message types ("": no name) by index path; formats without indexes have one type, at ``()``."""

    def has(self, path: IndexPath) -> bool:
        """Whether there is a message type at an index path."""
        return path in self.names

    def name_of(self, path: IndexPath) -> str | None:
        """Full name of the message type at an index path, without building a decoder; None: it has no name."""
        return self.names.get(path) or None

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:  # noqa: ARG002 - only protobuf has nested ones
        """Index paths of its message types, in order; of nested types only those with full names in `nested`."""
        return list(self.names)

    def enums(self) -> Mapping[str, EnumValues]:
        """Full names of its enums, imported ones included, with their values; default: none."""
        return {}

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes that it is sent to a worker with; its memory grows with them."""

    def forget(self) -> None:
        """Drop what was made of the fields; it is made again when it is needed."""
        kept = {f.name for f in fields(self)}
        for name in [name for name in vars(self) if name not in kept]:
            del self.__dict__[name]

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: what is made of them may be large, or cannot be pickled."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class SingleTypeSchema(CompiledSchema):
    """Base class of schemas with one message type: its full name ("": none), and `text`, what decoding needs."""

    text: str
    message: str = ""

    @property
    def names(self) -> dict[IndexPath, str]:
        """See `CompiledSchema.names`."""
        return {(): self.message}

    @property
    def size(self) -> int:
        """See `CompiledSchema.size`."""
        return len(self.text)


@dataclass
class Decoded:
    """Payloads of one batch and message type, decoded.

    Attributes:
        table: columns of the good rows, named and typed by the column map.
        good: their positions, in the order of the table's rows.
        bad: positions by reason and detail.
        nulled: column -> its values that are NULL because their type does not take them (`ValueRules`).
        names: of the good rows, where each names its type itself (NULL: it does not); None: they are of one type.
        grown: type of members that the plan has no columns for; None: there are none. `rescued`: good rows with values that do
            not fit (both of documents without a schema only).
    """

    table: pa.Table
    good: Rows
    bad: list[tuple[Reason, str, Rows]] = field(default_factory=list)
    nulled: Counter[str] = field(default_factory=Counter)
    names: pa.Array | None = None
    grown: str | None = None
    rescued: int = 0


class PayloadDecoder(Protocol):
    """Decodes payloads of one message type of one schema.

    Attributes:
        message: full name of the type, the first part of its fields' identity, without ``#``.
        fields: its fields, nested ones included.
    """

    message: str
    fields: tuple[Field, ...]

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode payloads without frames, shape (n,), no NULLs; `columns` must know this message type.

        Each position is returned once, in `good` or in `bad`: a bad payload affects no other one.
        """


#: Usual payload bytes of one Arrow array: 2 GiB of text would not fit, and an escape in JSON takes up to six characters.
BATCH_BYTES = 2**28
#: Bytes, about, of a cell as long as it is a value of Python.
_VALUE_BYTES = 32
#: The column of a top-level value that has no fields of its own.
VALUE = "value"


class Projection:
    """Projection of one message type; names and types are cached for one map."""

    def __init__(self, message: str, fields: Sequence[Field]) -> None:
        """`fields` are in the order of the batches' columns."""
        self._message = message
        self._fields = fields
        self._columns: ColumnMap | None = None
        self._schema = pa.schema([])
        self._shape = Shape(0)

    def decoded(
        self, parts: Iterable[tuple[Rows, pa.RecordBatch]], columns: ColumnMap, bad: Mapping[tuple[Reason, str], list[int]]
    ) -> Decoded:
        """Decoded parts (positions, rows) with one column per field; those with too many cells become bad."""
        if columns is not self._columns:
            self._use(columns)
        projected: list[pa.RecordBatch] = []
        good = [NO_ROWS]
        rejected = [(*why, np.array(rows, np.int64)) for why, rows in bad.items()]
        for rows, batch in parts:
            # Of the columns' types: an element of this version may lack what others have, and has NULLs there.
            over = self._shape.in_lists(batch) > MAX_RECORD_CELLS if self._shape.lists else NO_ROWS
            if over.any():
                rejected.append((Reason.TOO_MANY_VALUES, f"{self._message}: {TOO_MANY}", rows[over]))
                good.append(rows[~over])
                projected.append(self._projected(batch.filter(pa.array(~over)), columns))
            else:
                good.append(rows)
                projected.append(self._projected(batch, columns))
        return Decoded(pa.Table.from_batches(projected, self._schema), np.concatenate(good), rejected)

    def _use(self, columns: ColumnMap) -> None:
        names = [columns.names[field_key(self._message, (item.id,), item.kind)] for item in self._fields]
        self._columns = columns
        self._schema = pa.schema([pa.field(name, columns.columns[name]) for name in names])
        lists = [
            ((index, *steps), inner)
            for index, (item, target) in enumerate(zip(self._fields, self._schema, strict=True))
            for steps, inner in _lists(item, item.type, target.type, self._message, (item.id,), columns)
        ]
        self._shape = Shape(0, tuple(lists))

    def _projected(self, batch: pa.RecordBatch, columns: ColumnMap) -> pa.RecordBatch:
        arrays = [
            _conform(batch.column(index), item, target.type, self._message, (item.id,), columns)
            for index, (item, target) in enumerate(zip(self._fields, self._schema, strict=True))
        ]
        # Of a message without fields, only its rows are known.
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema) if arrays else batch


class RowDecoder(ABC):
    """Decodes payload by payload (see `PayloadDecoder`); a bad row affects no other one."""

    def __init__(self, message: str, fields: tuple[Field, ...], type_: pa.DataType, budget: CellBudget) -> None:
        """`type_`: a struct of the fields; `budget`: of the payload that is read, for the elements of its lists."""
        self.message = message
        self.fields = fields
        self.budget = budget
        #: Columns of the values that became NULL, of good rows and of the current one.
        self.nulled: list[str] = []
        self._type = type_
        self._raw_type = _raw(type_)
        self._cells = cells_of(type_)
        self._projection = Projection(message, fields)

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap, batch_bytes: int = BATCH_BYTES) -> Decoded:
        """Decode a batch; `batch_bytes`: payload bytes of one Arrow array."""
        rows: list[int] = []
        values: list[object] = []
        bad: dict[tuple[Reason, str], list[int]] = {}
        parts: list[tuple[Rows, pa.RecordBatch]] = []
        nulled = self.nulled
        settled = 0
        size = 0
        for row, payload in enumerate(payloads.to_pylist()):
            self.budget.reset()
            try:
                values.append(self._read(payload))
                rows.append(row)
                settled = len(nulled)
            except DAMAGE as error:
                del nulled[settled:]
                damage = as_damage(error)
                bad.setdefault((damage.reason, damage.detail(self.message)), []).append(row)
            # Values take more memory than the payload, and those in JSON text have names, which it has not.
            size += len(payload) + (self._cells + self.budget.spent) * _VALUE_BYTES
            if size > batch_bytes:
                parts.append((np.array(rows, np.int64), self._batch(values)))
                rows = []
                values = []
                size = 0
        parts.append((np.array(rows, np.int64), self._batch(values)))
        decoded = self._projection.decoded(parts, columns, bad)
        decoded.nulled.update(nulled)
        nulled.clear()
        return decoded

    @abstractmethod
    def _read(self, payload: bytes) -> object:
        """A payload's row as pyarrow takes it, decimals as their bytes; raises `DAMAGE` for a bad one."""

    def _batch(self, values: list[object]) -> pa.RecordBatch:
        if not self.fields:
            return pa.RecordBatch.from_arrays([], names=[])
        array = pa.array(values, self._raw_type)
        return pa.RecordBatch.from_struct_array(array if self._raw_type == self._type else array.view(self._type))


def _raw(kind: pa.DataType) -> pa.DataType:
    """The type with the bytes of decimals, which become decimals without a copy."""
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _raw(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_raw(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _raw(kind.item_type))
    return pa.binary(16) if pa.types.is_decimal(kind) else kind


def _lists(
    item: Field, kind: pa.DataType, target: pa.DataType, message: str, path: tuple[FieldId, ...], columns: ColumnMap
) -> Iterator[tuple[tuple[int | str, ...], Shape]]:
    """Lists in arrays of this version's type, with the cells of the column's elements (see `Shape`)."""
    if is_many(kind):
        own, wide = (t.item_type if pa.types.is_map(t) else t.value_type for t in (kind, target))
        yield (), Shape(cells_of_element(target), tuple(_lists(item, own, wide, message, path, columns)))
    elif pa.types.is_struct(kind):
        for child in item.children:
            child_path = (*path_inside(path, item), child.id)
            wide = target.field(columns.names[field_key(message, child_path, child.kind)]).type
            for steps, inner in _lists(child, child.type, wide, message, child_path, columns):
                yield (child.name, *steps), inner


def _conform(
    array: pa.Array, item: Field, target: pa.DataType, message: str, path: tuple[FieldId, ...], columns: ColumnMap
) -> pa.Array:
    """An array of this version's type as the column's type."""
    if array.type == target:
        return array
    # A message without fields is stored as `true`.
    if not item.children and not pa.types.is_boolean(inner_type(target)):
        return array.cast(target)
    mask = array.is_null() if array.null_count else None
    if pa.types.is_list(target):
        inner = _conform(array.values, item, target.value_type, message, path, columns)
        return pa.ListArray.from_arrays(array.offsets, inner, mask=mask)
    if pa.types.is_map(target):
        keys = array.keys.cast(target.key_type)
        items = _conform(array.items, item, target.item_type, message, path, columns)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=mask)
    if not item.children:
        return pc.if_else(array.is_valid(), True, None)
    by_name = {}
    for child in item.children:
        child_path = (*path_inside(path, item), child.id)
        name = columns.names[field_key(message, child_path, child.kind)]
        by_name[name] = _conform(array.field(child.name), child, target.field(name).type, message, child_path, columns)
    arrays = [by_name.get(f.name, pa.nulls(len(array), f.type)) for f in target]
    return pa.StructArray.from_arrays(arrays, fields=list(target), mask=mask)


#: The format's name in the table `schemas`; the text is the JSON of a Delta schema (Delta protocol, "Schema Serialization").
FORMAT = "COLUMNS"
#: Used as message type: all files of a source have the same kind of records, with any columns.
MESSAGE = "columns"
_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class ColumnsSchema(SingleTypeSchema):
    """A schema of columns; its type has no name, as files have no message type."""


class ColumnsDecoder:
    """Renames columns by the column map (see `PayloadDecoder`)."""

    message = MESSAGE

    def __init__(self, schema: ColumnsSchema) -> None:
        """Raises DataError for an invalid text."""
        try:
            columns = pa.schema(Schema.from_json(schema.text))
        except (ValueError, TypeError) as error:
            raise DataError(f"schema id {schema.schema_id} is no schema of columns: {error}") from None
        self.fields: tuple[Field, ...] = _fields(columns)
        self._projection = Projection(self.message, self.fields)

    def decode(self, payloads: pa.StructArray, columns: ColumnMap) -> Decoded:
        """Rows have the types of the schema: none is malformed."""
        batch = pa.RecordBatch.from_struct_array(payloads)
        return self._projection.decoded([(np.arange(len(payloads), dtype=np.int64), batch)], columns, {})


def _fields(items: Iterable[pa.Field]) -> tuple[Field, ...]:
    return tuple(Field(f.name, f.name, f.type, _fields(struct_fields(f.type)), str(f.type)) for f in items)


def schema_text(rows: pa.DataType) -> str:
    """The text of the schema of `stored` rows."""
    return str(Schema.from_arrow(pa.schema(list(rows))).to_json())


_LEAVES = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_float16, pa.float32()),
    # More digits than Spark's and Delta's decimals hold.
    (lambda kind: pa.types.is_decimal(kind) and kind.precision > 38, pa.string()),
)

#: Times by the unit in which they are stored: what is finer than a microsecond is cut.
_TIMES = ((pa.types.is_time, pa.time64("us")), (pa.types.is_duration, pa.duration("us")))


def stored(array: pa.Array) -> pa.Array:
    """An array with the types that bronze stores, without columns of the type null; ArrowException if a value does not fit."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return stored(array.storage)
    if pa.types.is_dictionary(kind):
        return stored(array.dictionary_decode())
    return _nested(array) if pa.types.is_nested(kind) else _leaf(array)


def _nested(array: pa.Array) -> pa.Array:
    kind = array.type
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        inner = [(f.name, stored(a)) for f, a in zip(kind, array.flatten(), strict=True) if not pa.types.is_null(a.type)]
        if not inner:
            return pc.if_else(array.is_valid(), True, None)
        fields = [pa.field(name, a.type) for name, a in inner]
        return pa.StructArray.from_arrays([a for _, a in inner], fields=fields, mask=mask)
    if pa.types.is_map(kind):
        keys = stored(array.keys)
        items = stored(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=pa.map_(keys.type, items.type), mask=mask)
    if not pa.types.is_list(kind):  # large ones, of a fixed size, views
        array = array.cast(pa.list_(kind.value_type))
    return pa.ListArray.from_arrays(array.offsets, stored(array.values), mask=mask)


def _leaf(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind):
        # Without a zone it is taken for UTC.
        return array.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(_UTC)
    for is_a, unit in _TIMES:
        if is_a(kind):
            return array.cast(unit, safe=False).cast(pa.int64())
    return array.cast(next((target for is_a, target in _LEAVES if is_a(kind)), storage_type(kind)))
