"""Projection of a decoder's arrays to table columns: names and types by the column map, missing fields NULL.

Also the base class of decoders that read payload by payload.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.core.column_map import ColumnMap, Field, FieldId, field_key, path_inside
from game_events.decoding.core.column_types import inner_type
from game_events.decoding.core.expansion import (
    CELL_BYTES,
    MAX_RECORD_CELLS,
    TOO_MANY,
    CellBudget,
    Shape,
    cells_of_element,
    is_many,
)
from game_events.decoding.core.protocols import Decoded
from game_events.decoding.core.reasons import DAMAGE, Reason, as_damage
from game_events.decoding.core.wire_format import NO_ROWS, Rows

#: Usual payload bytes of one Arrow array: 2 GiB of text would not fit, and an escape in JSON takes up to six characters.
BATCH_BYTES = 2**28
#: The column of a top-level value that has no fields of its own.
VALUE = "value"


class Projection:
    """Projection of one message type; names and types are cached for one map."""

    def __init__(self, message: str, fields: Sequence[Field]) -> None:
        """`fields` are in the order of the batches' columns."""
        self._message, self._fields = message, fields
        self._columns: ColumnMap | None = None
        self._targets: list[pa.Field] = []
        self._shape = Shape(0)

    def decoded(
        self, parts: Iterable[tuple[Rows, pa.RecordBatch]], columns: ColumnMap, bad: Mapping[tuple[Reason, str], list[int]]
    ) -> Decoded:
        """Decoded parts (positions, rows) with one column per field; those with too many cells become bad."""
        if columns is not self._columns:
            names = [columns.names[field_key(self._message, (item.id,), item.kind)] for item in self._fields]
            self._columns, self._targets = columns, [pa.field(name, columns.columns[name]) for name in names]
            self._shape = Shape(0, tuple(self._lists(columns)))
        schema = pa.schema(self._targets)
        projected, good = [], [NO_ROWS]
        rejected = [(*why, np.array(rows, np.int64)) for why, rows in bad.items()]
        for rows, batch in parts:
            # Of the columns' types: an element of this version may lack what others have, and has NULLs there.
            over = self._shape.in_lists(batch) > MAX_RECORD_CELLS if self._shape.lists else NO_ROWS
            if over.any():
                rejected.append((Reason.TOO_MANY_VALUES, f"{self._message}: {TOO_MANY}", rows[over]))
            kept = batch.filter(pa.array(~over)) if over.any() else batch
            arrays = [
                _conform(kept.column(index), item, target.type, self._message, (item.id,), columns)
                for index, (item, target) in enumerate(zip(self._fields, self._targets, strict=True))
            ]
            # Of a message without fields, only its rows are known.
            projected.append(pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else kept)
            good.append(rows[~over] if over.any() else rows)
        return Decoded(pa.Table.from_batches(projected, schema), np.concatenate(good), rejected)

    def _lists(self, columns: ColumnMap) -> Iterator[tuple[tuple[int | str, ...], Shape]]:
        for index, (item, target) in enumerate(zip(self._fields, self._targets, strict=True)):
            found = _lists(item, item.type, target.type, self._message, (item.id,), columns)
            yield from (((index, *steps), inner) for steps, inner in found)


class RowDecoder(ABC):
    """Decodes payload by payload (see `protocols.PayloadDecoder`); a bad row affects no other one."""

    def __init__(self, message: str, fields: tuple[Field, ...], budget: CellBudget) -> None:
        """`budget`: of the payload that is read, for the elements of its lists."""
        self.message, self.fields, self.budget = message, fields, budget
        #: Columns of the values that became NULL, of good rows and of the current one.
        self.nulled: list[str] = []
        self._projection = Projection(message, fields)

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap, batch_bytes: int = BATCH_BYTES) -> Decoded:
        """Decode a batch; `batch_bytes`: payload bytes of one Arrow array."""
        rows: list[int] = []
        bad: dict[tuple[Reason, str], list[int]] = {}
        parts: list[tuple[Rows, pa.RecordBatch]] = []
        size, read, nulled, settled = 0, self._read, self.nulled, 0
        for row, payload in enumerate(payloads.to_pylist()):
            self.budget.reset()
            try:
                read(payload)
                rows.append(row)
                settled = len(nulled)
            except DAMAGE as error:
                del nulled[settled:]
                damage = as_damage(error)
                bad.setdefault((damage.reason, damage.detail(self.message)), []).append(row)
            # Values in JSON text have names, which the payload has not.
            size += len(payload) + self.budget.spent * CELL_BYTES
            if size > batch_bytes:
                parts.append((np.array(rows, np.int64), self._finish()))
                rows, size = [], 0
        parts.append((np.array(rows, np.int64), self._finish()))
        decoded = self._projection.decoded(parts, columns, bad)
        decoded.nulled.update(nulled)
        nulled.clear()
        return decoded

    @abstractmethod
    def _read(self, payload: bytes) -> None:
        """Add the row of a payload; raises `DAMAGE` for a bad one, of which nothing is left."""

    @abstractmethod
    def _finish(self) -> pa.RecordBatch:
        """The rows so far, one column per field; there are none left then."""


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
            found = _lists(child, child.type, wide, message, child_path, columns)
            yield from (((child.name, *steps), inner) for steps, inner in found)


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
