"""Iceberg's entries of data files, made of what Delta's log says of them: no file is opened.

Bounds are exact, as engines answer `min` and `max` by them alone: only of files that this project has written, whose
statistics are not rounded or cut (`data/staging.py`), and not of the person's columns: a manifest may outlive the rows.
Guarantee: an entry's bounds exclude no row that a predicate selects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg import types as ice
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from game_events.errors import LostFileError
from game_events.lakehouse.data.staging import is_current
from game_events.lakehouse.tables import Table, add_actions, is_person

#: Types whose bounds are compared as Delta compares them.
_BOUNDED = (
    ice.BooleanType,
    ice.IntegerType,
    ice.LongType,
    ice.StringType,
    ice.DateType,
    ice.TimestampType,
    ice.TimestamptzType,
)


def location_of(table: Table) -> str:
    """The table's folder as Iceberg names it."""
    return f"file://{table.uri}" if table.is_local else table.uri


def address_of(table: Table, path: str) -> str:
    """A file of Delta's log as Iceberg names it: a URI whose path is not encoded."""
    plain = unquote(path)
    return plain if "://" in plain else f"{location_of(table)}/{plain}"


def live_files(table: Table, handle: DeltaTable) -> dict[str, str]:
    """Address of each file of a version -> its path in the log."""
    return {address_of(table, path): path for path in add_actions(handle).column("path").to_pylist()}


def data_files(
    table: Table, handle: DeltaTable, paths: Collection[str], schema: Schema, spec: PartitionSpec
) -> Iterator[DataFile]:
    """Entries of some files of a version.

    Raises:
        LostFileError: a file is gone, and the log does not say how many rows it has.
    """
    actions = add_actions(handle)
    actions = actions.filter(pc.is_in(actions.column("path"), pa.array(sorted(paths), pa.string())))
    columns = {name: _plain(actions.column(name)) for name in actions.column_names}
    counted = [f for f in schema.fields if f"null_count.{f.name}" in columns]
    bounded = [f for f in counted if isinstance(f.field_type, _BOUNDED) and not is_person(f.name, table.person)]
    for number, path in enumerate(columns["path"]):
        rows = columns["num_records"][number]
        if rows is None:
            raise LostFileError(f"{table.uri}: {path} is gone or damaged, so Iceberg cannot be told its rows")
        nulls = {f.field_id: _at(columns, f"null_count.{f.name}", number) for f in counted}
        nulls = {field: count for field, count in nulls.items() if count is not None}
        exact = bounded if is_current(unquote(path)) else []
        yield DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=address_of(table, path),
            file_format=FileFormat.PARQUET,
            partition=Record(*[columns[f"partition.{field.name}"][number] for field in spec.fields]),
            record_count=rows,
            file_size_in_bytes=columns["size_bytes"][number],
            value_counts=dict.fromkeys(nulls, rows),
            null_value_counts=nulls,
            lower_bounds=_bounds(columns, "min", exact, number),
            upper_bounds=_bounds(columns, "max", exact, number),
            spec_id=spec.spec_id,
        )


def _bounds(columns: dict[str, list[Any]], which: str, fields: list[ice.NestedField], number: int) -> dict[int, bytes]:
    """Field id -> the lowest or highest value, as Iceberg's bytes."""
    values = ((f, _at(columns, f"{which}.{f.name}", number)) for f in fields)
    return {f.field_id: to_bytes(cast("ice.PrimitiveType", f.field_type), value) for f, value in values if value is not None}


def _at(columns: dict[str, list[Any]], name: str, number: int) -> Any:  # noqa: ANN401 - of any type
    values = columns.get(name)
    return None if values is None else values[number]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Values as Iceberg's library has them: dates as days, times as microseconds, both since 1970."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values: list[Any] = column.to_pylist()
    return values
