"""Column builders of nested Avro types: records, arrays, maps, unions, recursive types."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from game_events.decoding.avro.encoding import Budget, min_bytes, read_blocks, read_bytes, read_index
from game_events.decoding.avro.json_text import text_reader
from game_events.decoding.avro.scalar_columns import DURATION, Column, Leaf, leaf
from game_events.decoding.avro.types import AvroType
from game_events.decoding.core.column_map import Field, FieldId
from game_events.decoding.core.expansion import cells_of
from game_events.decoding.core.reasons import DAMAGE, as_damage
from game_events.errors import DataError

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

    def read(self, buf: bytes, at: int) -> int:
        """One record."""
        name = ""
        try:
            for name, read in self._readers:  # noqa: B007 - for the handler
                at = read(buf, at)
        except DAMAGE as error:
            damage = as_damage(error)
            damage.path.append(name)
            raise damage from None
        self._count += 1
        return at

    def truncate(self, count: int) -> None:
        """Keeps the first records."""
        self._count = count
        for _, column in self.members:
            column.truncate(count)

    def finish(self) -> pa.Array:
        """The records so far."""
        count, self._count = self._count, 0
        if not self.members:
            return pa.array([True] * count, pa.bool_())
        return pa.StructArray.from_arrays([c.finish() for _, c in self.members], fields=list(self.type))


class _ArrayColumn:
    """A list."""

    def __init__(self, items: Column, least: int, budget: Budget) -> None:
        self.type: pa.DataType = pa.list_(items.type)
        self.is_text = items.is_text
        self._items, self._least, self._budget = items, least, budget
        self._read_item = items.read
        self._cells = cells_of(items.type)
        self._offsets = [0]

    def read(self, buf: bytes, at: int) -> int:
        count, at = read_blocks(buf, at, self._least, self._budget, self._read_item, self._cells)
        self._offsets.append(self._offsets[-1] + count)
        return at

    def truncate(self, count: int) -> None:
        del self._offsets[count + 1 :]
        self._items.truncate(self._offsets[-1])

    def finish(self) -> pa.Array:
        offsets, self._offsets = self._offsets, [0]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), self._items.finish(), type=self.type)


class _MapColumn(_ArrayColumn):
    """A map; the last value of a repeated key counts, as in other readers."""

    def __init__(self, items: Column, least: int, budget: Budget) -> None:
        super().__init__(items, least + 1, budget)
        self.type = pa.map_(pa.string(), items.type)
        self._keys: list[str] = []
        self._read_item, self._cells = self._entry, self._cells + 1

    def _entry(self, buf: bytes, at: int) -> int:
        key, at = read_bytes(buf, at)
        self._keys.append(str(key, "utf-8"))
        return self._items.read(buf, at)

    def truncate(self, count: int) -> None:
        super().truncate(count)
        del self._keys[self._offsets[-1] :]

    def finish(self) -> pa.Array:
        keys, offsets = self._keys, self._offsets
        self._keys, self._offsets = [], [0]
        items = self._items.finish()
        # Last index of each key, in the order of first appearance.
        kept, ends = [], [0]
        for begin, end in pairwise(offsets):
            kept += list({keys[i]: i for i in range(begin, end)}.values())
            ends.append(len(kept))
        if len(kept) != len(keys):
            items, keys = items.take(pa.array(kept, pa.int64())), [keys[i] for i in kept]
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), pa.array(keys, pa.string()), items, type=self.type)


class _OptionalLeaf:
    """A simple type or null."""

    def __init__(self, inner: Leaf, null: int) -> None:
        self.type: pa.DataType = inner.type
        self.is_text = inner.is_text
        self._null = null
        self._read, self._append = inner.read, inner.values.append
        self.truncate, self.finish = inner.truncate, inner.finish

    def read(self, buf: bytes, at: int) -> int:
        index, at = read_index(buf, at, 2, "union branch")
        if index != self._null:
            return self._read(buf, at)
        self._append(None)
        return at


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

    def read(self, buf: bytes, at: int) -> int:
        """One value of one branch."""
        index, at = read_index(buf, at, len(self._branches), "union branch")
        branch = self._branches[index]
        if branch is not None:
            at = branch[1].read(buf, at)
        self._counts[index] += 1
        self._chosen.append(index)
        return at

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
        self._counts, self._chosen = [0] * len(self._branches), []
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
                parts = [(f.name, f.identity, *self._member(f.identity, f.type, inside)) for f in type_.fields]
                fields = tuple(Field(_identity(id_, column), name, column.type, inner) for name, id_, column, inner in parts)
                return RecordColumn([(name, column) for name, _, column, _ in parts]), fields
            case "array" | "map":
                items, fields = self.build(type_.items[0], inside)
                make = _ArrayColumn if type_.kind == "array" else _MapColumn
                return make(items, min_bytes(type_.items[0]), self.budget), fields
            case "union":
                return self.union(type_, inside)
            case _:
                made = leaf(type_)
                if self._column is not None:
                    made.null_bad_values(self._nulled, self._column)
                fields = tuple(Field(f.name, f.name, f.type) for f in DURATION) if made.type == DURATION else ()
                return made, fields

    def _member(self, identity: str, type_: AvroType, above: tuple[int, ...]) -> Built:
        """A member's column; at the top it decides about the bad values in it."""
        if len(above) <= 1 and self._nullable and self._column is None:
            self._column = next((self._nullable[k] for k in (identity, f"{identity}:json") if k in self._nullable), None)
            try:
                return self.build(type_, above)
            finally:
                self._column = None
        return self.build(type_, above)

    def union(self, type_: AvroType, above: tuple[int, ...], *, always_struct: bool = False) -> Built:
        """A union's column; `always_struct` also for a single type."""
        others = [b for b in type_.items if b.kind != "null"] or type_.items
        built = {id(b): self._member(b.name, b, above) if always_struct else self.build(b, above) for b in others}
        short = [b.short_name for b in others]
        names = {id(b): b.short_name if short.count(b.short_name) == 1 else b.name for b in others}
        branches = [(names[id(b)], built[id(b)][0]) if id(b) in built else None for b in type_.items]
        if len(others) == 1 and not always_struct:
            column, fields = built[id(others[0])]
            if isinstance(column, Leaf) and len(branches) == 2:
                return _OptionalLeaf(column, branches.index(None)), fields
            return UnionColumn(branches), fields
        fields = tuple(Field(b.name, names[id(b)], built[id(b)][0].type, built[id(b)][1]) for b in others)
        return UnionColumn(branches, always_struct=True), fields


def _identity(name: str, column: Column) -> str:
    """Identity of a field: JSON text and strings never share a column (``1`` would be equal). Names hold no colon."""
    return f"{name}:json" if column.is_text else name
