"""Decoder of rows of columns, as in Parquet files, into columns of bronze.

There is no payload to decode. Names and kinds choose a field's column, as for Avro; types become those that bronze stores
(`column_map.storage_type`), times in microseconds and UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from deltalake import Schema

from game_events.decoding.core.column_map import ColumnMap, Field, storage_type, struct_fields
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded, SingleTypeSchema
from game_events.decoding.core.wire_format import IndexPath, SchemaId
from game_events.errors import DataError

#: The format's name in the table `schemas`; the text is the JSON of a Delta schema (Delta protocol, "Schema Serialization").
FORMAT = "COLUMNS"
#: Used as message type: all files of a source have the same kind of records, with any columns.
MESSAGE = "columns"
_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class ColumnsSchema(SingleTypeSchema):
    """A schema of columns (see `protocols.CompiledSchema`)."""

    schema_id: SchemaId
    text: str

    def name_of(self, path: IndexPath) -> str | None:  # noqa: ARG002 - it has no name
        """None: files have no message type."""
        return None


class ColumnsDecoder:
    """Renames columns by the column map (see `protocols.PayloadDecoder`)."""

    message = MESSAGE

    def __init__(self, schema: ColumnsSchema) -> None:
        """Raises DataError for an invalid text."""
        try:
            found = pa.schema(Schema.from_json(schema.text))
        except (ValueError, TypeError) as error:
            raise DataError(f"schema id {schema.schema_id} is no schema of columns: {error}") from None
        self.fields: tuple[Field, ...] = _fields(found)
        self._projection = Projection(self.message, self.fields)

    def decode(self, payloads: pa.StructArray, columns: ColumnMap) -> Decoded:
        """All rows are good: they have the types of the schema."""
        batch = pa.RecordBatch.from_struct_array(payloads)
        return Decoded(self._projection.table([batch], columns), np.arange(len(payloads), dtype=np.int64))


def _fields(items: Iterable[pa.Field]) -> tuple[Field, ...]:
    return tuple(Field(f.name, f.name, f.type, _fields(struct_fields(f.type)), str(f.type)) for f in items)


def schema_text(rows: pa.DataType) -> str:
    """The text of the schema of `stored` rows."""
    return str(Schema.from_arrow(pa.schema(list(rows))).to_json())


def stored(array: pa.Array) -> pa.Array:
    """An array with the types that bronze stores, without columns of the type null; ArrowException if a value does not fit."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return stored(array.storage)
    if pa.types.is_dictionary(kind):
        return stored(array.dictionary_decode())
    if pa.types.is_nested(kind):
        return _nested(array)
    return _leaf(array)


def _nested(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_struct(kind):
        names = [f.name for f in kind]
        inner = [(n, stored(a)) for n, a in zip(names, array.flatten(), strict=True) if not pa.types.is_null(a.type)]
        if not inner:
            return array.is_valid() if not array.null_count else pa.array([v or None for v in array.is_valid().to_pylist()])
        fields = [pa.field(n, a.type) for n, a in inner]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays([a for _, a in inner], fields=fields, mask=mask)
    if pa.types.is_map(kind):
        mask = array.is_null() if array.null_count else None
        keys, items = stored(array.keys), stored(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=pa.map_(keys.type, items.type), mask=mask)
    if not pa.types.is_list(kind):  # large ones, of a fixed size, views
        array = array.cast(pa.list_(kind.value_type))
    values = stored(array.values)
    return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null() if array.null_count else None)


def _leaf(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_time(kind):
        return array.cast(pa.time64("us"), safe=False).cast(pa.int64())
    if pa.types.is_duration(kind):
        return array.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if pa.types.is_timestamp(kind):
        # Without a zone it is taken for UTC; what is finer than a microsecond is cut.
        return array.cast(pa.timestamp("us", tz=kind.tz), safe=False).cast(_UTC)
    for has, target in _SIMPLE:
        if has(kind):
            return array.cast(target)
    if pa.types.is_decimal(kind) and kind.precision > 38:
        return array.cast(pa.string())
    return array.cast(storage_type(kind))


_SIMPLE = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_float16, pa.float32()),
)
