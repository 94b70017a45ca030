"""Delta's columns as Iceberg's, and the changes that make an Iceberg table's columns those of a Delta table.

A column keeps its Iceberg id for as long as Delta has it. Our files have no ids: readers find columns by the table's name
mapping, and the columns that a file's folder says by its partition (Iceberg specification, "Column Projection").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from deltalake import DeltaTable
from deltalake.schema import ArrayType, Field, MapType, PrimitiveType, StructType, VariantType
from pyiceberg import types as ice
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform

from game_events.errors import DataError

DeltaType = PrimitiveType | ArrayType | MapType | StructType | VariantType
Path = tuple[str, ...]

#: Delta's primitive types as Iceberg's.
_PLAIN: dict[str, ice.PrimitiveType] = {
    "boolean": ice.BooleanType(),
    "byte": ice.IntegerType(),
    "short": ice.IntegerType(),
    "integer": ice.IntegerType(),
    "long": ice.LongType(),
    "float": ice.FloatType(),
    "double": ice.DoubleType(),
    "string": ice.StringType(),
    "binary": ice.BinaryType(),
    "date": ice.DateType(),
    "timestamp": ice.TimestamptzType(),
    "timestamp_ntz": ice.TimestampType(),
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(-?\d+)\)")

#: Features of Delta with which the files alone are still what readers of Iceberg need.
_HARMLESS = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"})


class NotInIcebergError(DataError):
    """A table has what Iceberg's second format lacks: it is no Iceberg table, the others are."""


def refuse_foreign(handle: DeltaTable) -> None:
    """Raise NotInIcebergError for a table whose files alone do not say its rows: with deletion vectors, or mapped names."""
    protocol = handle.protocol()
    features = set(protocol.reader_features or ()) - _HARMLESS
    mode = handle.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        features.add("columnMapping")
    if features:
        raise NotInIcebergError(
            f"the Delta table has features that Iceberg's readers do not know: {', '.join(sorted(features))}"
        )


def iceberg_schema(handle: DeltaTable) -> Schema:
    """The columns of a version, with new ids. Raises NotInIcebergError."""
    ids = count(1)
    return Schema(*[_field(field, ids, (field.name,)) for field in handle.schema().fields])


def partition_of(schema: Schema, columns: list[str]) -> PartitionSpec:
    """A partition by the values of these columns."""
    fields = [
        PartitionField(schema.find_field(name).field_id, PARTITION_FIELD_ID_START + number, IdentityTransform(), name)
        for number, name in enumerate(columns)
    ]
    return PartitionSpec(*fields)


def _field(field: Field, ids: Iterator[int], path: Path) -> ice.NestedField:
    number = next(ids)
    return ice.NestedField(number, field.name, _type(field.type, ids, path), required=False, doc=_comment(field))


def _comment(field: Field) -> str | None:
    text = field.metadata.get("comment")
    return text if isinstance(text, str) else None


def _type(kind: DeltaType, ids: Iterator[int], path: Path) -> ice.IcebergType:
    if isinstance(kind, StructType):
        return ice.StructType(*[_field(field, ids, (*path, field.name)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ice.ListType(next(ids), _type(kind.element_type, ids, path), element_required=False)
    if isinstance(kind, MapType):
        key = next(ids)
        value = next(ids)
        key_type = _type(kind.key_type, ids, path)
        return ice.MapType(key, key_type, value, _type(kind.value_type, ids, path), value_required=False)
    name = kind.type if isinstance(kind, PrimitiveType) else "variant"
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        return ice.DecimalType(int(decimal[1]), int(decimal[2]))
    if name not in _PLAIN:
        raise NotInIcebergError(f"column {'.'.join(path)} has the type {name}, which Iceberg's format version 2 does not have")
    return _PLAIN[name]


def change_columns(update: UpdateSchema, held: Schema, wanted: Schema) -> bool:
    """Make columns those that are wanted, by their names; returns whether any changed.

    A column of another type is a new one with the same name.
    """
    return _change(update, held.as_struct(), wanted.as_struct(), ())


def _change(update: UpdateSchema, held: ice.StructType, wanted: ice.StructType, path: Path) -> bool:
    before = {field.name: field for field in held.fields}
    after = {field.name: field for field in wanted.fields}
    changed = False
    for name in before.keys() - after.keys():
        update.delete_column((*path, name))
        changed = True
    for name, field in after.items():
        old = before.get(name)
        inner = None if old is None else _grow(update, old.field_type, field.field_type, (*path, name))
        if inner is not None:
            changed |= inner
            continue
        if old is not None:
            update.delete_column((*path, name))
        update.add_column((*path, name), field.field_type, field.doc)
        changed = True
    return changed


def _grow(update: UpdateSchema, held: ice.IcebergType, wanted: ice.IcebergType, path: Path) -> bool | None:
    """Change what is inside of a column's type; returns whether anything changed, None: it is another type."""
    if isinstance(held, ice.StructType) and isinstance(wanted, ice.StructType):
        return _change(update, held, wanted, path)
    if isinstance(held, ice.ListType) and isinstance(wanted, ice.ListType):
        return _grow(update, held.element_type, wanted.element_type, (*path, "element"))
    if isinstance(held, ice.MapType) and isinstance(wanted, ice.MapType) and same_type(held.key_type, wanted.key_type):
        return _grow(update, held.value_type, wanted.value_type, (*path, "value"))
    return False if same_type(held, wanted) else None


def same_type(held: ice.IcebergType, wanted: ice.IcebergType) -> bool:
    """Whether two types are the same but for their ids."""
    return _shape(held) == _shape(wanted)


def _shape(kind: ice.IcebergType) -> object:
    if isinstance(kind, ice.StructType):
        return [(field.name, _shape(field.field_type)) for field in kind.fields]
    if isinstance(kind, ice.ListType):
        return ("list", _shape(kind.element_type))
    if isinstance(kind, ice.MapType):
        return ("map", _shape(kind.key_type), _shape(kind.value_type))
    return str(kind)
