"""Rows that are columns already, as in Parquet files: their schema, and how they become columns of bronze.

There is no payload to decode. Names and kinds decide which column a field lands in, as for Avro; types become those that bronze
stores (`columns.storage_type`), times in microseconds and UTC.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from deltalake import Schema

from game_events.decoding.core.column_map import ColumnMap, Field, storage_type
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded
from game_events.decoding.core.wire_format import IndexPath, SchemaId
from game_events.errors import DataError

#: The format's name in the archive of schemas; the text is the JSON of a Delta schema (Delta protocol, "Schema Serialization").
FORMAT = "COLUMNS"
#: What stands where a message type's name would: files of one source are one kind of record, whatever columns each has.
MESSAGE = "columns"
_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class ColumnsSchema:
    """A schema of columns: small and picklable (see `payloads.CompiledSchema`)."""

    schema_id: SchemaId
    text: str
    indexed: ClassVar[bool] = False

    def has(self, path: IndexPath) -> bool:
        """There is one type, at ``()``."""
        return path == ()

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:  # noqa: ARG002 - none is nested
        """The one path there is."""
        return [()]

    def name_of(self, path: IndexPath) -> str | None:
        """Columns have no name that anybody gave them."""
        del path
        return None

    def enums(self) -> dict[str, dict[int | str, str]]:
        """None: columns have types of their own."""
        return {}


class ColumnsDecoder:
    """Puts the columns where the map has them (see `payloads.PayloadDecoder`)."""

    message = MESSAGE

    def __init__(self, schema: ColumnsSchema) -> None:
        """Reads the text.

        Raises:
            DataError: it is no schema.
        """
        try:
            found = pa.schema(Schema.from_json(schema.text))
        except (ValueError, TypeError) as error:
            raise DataError(f"schema id {schema.schema_id} is no schema of columns: {error}") from None
        self.fields: tuple[Field, ...] = _fields(found)
        self._projection = Projection(self.message, self.fields)

    def decode(self, payloads: pa.StructArray, columns: ColumnMap) -> Decoded:
        """Every row is good: its types are those of the schema."""
        batch = pa.RecordBatch.from_struct_array(payloads)
        return Decoded(self._projection.table([batch], columns), np.arange(len(payloads), dtype=np.int64))


def _fields(items: Iterable[pa.Field]) -> tuple[Field, ...]:
    return tuple(Field(f.name, f.name, f.type, _fields(_inner(f.type)), str(f.type)) for f in items)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_list(kind):
        return _inner(kind.value_type)
    if pa.types.is_map(kind):
        return _inner(kind.item_type)
    return list(kind) if pa.types.is_struct(kind) else []


def schema_text(rows: pa.DataType) -> str:
    """The text of the schema of `stored` rows."""
    return str(Schema.from_arrow(pa.schema(list(rows))).to_json())


def stored(array: pa.Array) -> pa.Array:
    """An array with the types that bronze stores; columns without a type (all NULL) are left out of structs.

    Raises:
        pyarrow.ArrowException: a value does not fit.
    """
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
