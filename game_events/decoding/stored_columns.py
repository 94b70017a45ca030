"""Decoder of rows of columns, as in Parquet files, into columns of bronze.

There is no payload to decode. Names and kinds choose a field's column, as for Avro; types become those that bronze stores
(`column_types.storage_type`), times in microseconds and UTC.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.column_types import storage_type, struct_fields
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded, SingleTypeSchema
from game_events.decoding.core.wire_format import IndexPath
from game_events.errors import DataError

#: The format's name in the table `schemas`; the text is the JSON of a Delta schema (Delta protocol, "Schema Serialization").
FORMAT = "COLUMNS"
#: Used as message type: all files of a source have the same kind of records, with any columns.
MESSAGE = "columns"
_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class ColumnsSchema(SingleTypeSchema):
    """A schema of columns."""

    @property
    def names(self) -> dict[IndexPath, str]:
        """One type without a name: files have no message type."""
        return {(): ""}


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
        keys, items = stored(array.keys), stored(array.items)
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
