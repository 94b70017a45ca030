"""Reading a table's snapshot: with Arrow in the driver (small tables), or as a Spark DataFrame over exactly its files.

The driver takes the files from the Delta handle that its commit is compared with, so both are one version. Spark reads them as
Parquet with the table's schema; columns that a file lacks are NULL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.tables import Table

#: Key in the commit information of silver, gold and unified, which marks a commit as this project's own.
BATCH_INFO = "bronze_batch"


def files_with(handle: DeltaTable, column: str | None = None, above: int | None = None) -> list[str]:
    """URIs of the files that may hold rows with ``column > above``, by their statistics; of all files without a column."""
    return selection(handle, column, above).files


@dataclass(frozen=True)
class FileSelection:
    """Files of one version that may hold rows above a bound.

    Attributes:
        files: their URIs.
        rows: rows in them.
        exact: by their statistics every row is above the bound, so no filter is needed. A filter's bound is part of the code
            that Spark generates: with one, each small batch would be compiled again and run cold.
    """

    files: list[str]
    rows: int
    exact: bool


def selection(handle: DeltaTable, column: str | None = None, above: int | None = None) -> FileSelection:
    """Files that may hold rows with ``column > above``; without a column, all files."""
    actions = _actions(handle, column, above)
    root = handle.table_uri.rstrip("/")
    uris = [f"{root}/{path}" for path in actions.column("path").to_pylist()]
    exact = column is None or not uris
    if not exact and f"min.{column}" in actions.column_names:
        exact = pc.all(pc.fill_null(pc.greater(actions.column(f"min.{column}"), above), False)).as_py()
    return FileSelection(uris, int(pc.sum(actions.column("num_records")).as_py() or 0), exact)


def _actions(handle: DeltaTable, column: str | None, above: int | None) -> pa.Table:
    actions = pa.table(handle.get_add_actions(flatten=True))
    if column is not None and f"max.{column}" in actions.column_names:
        highest = actions.column(f"max.{column}")
        return actions.filter(pc.or_kleene(pc.is_null(highest), pc.greater(highest, above)))
    return actions


def row_count(handle: DeltaTable) -> int:
    """Rows of a version, from its log alone."""
    return int(pc.sum(pa.table(handle.get_add_actions()).column("num_records")).as_py() or 0)


def spark_schema(schema: Schema) -> StructType:
    """A Delta schema as Spark's: both are the same JSON (Delta protocol, "Schema Serialization Format")."""
    return StructType.fromJson(json.loads(schema.to_json()))


def read_files(spark: SparkSession, uris: Sequence[str], schema: StructType) -> DataFrame:
    """Rows of Parquet files with a given schema; no file footers are read for it.

    Args:
        spark: the session.
        uris: as delta-rs gives them: what is not plain ASCII in a folder's name is percent-encoded.
        schema: columns a file lacks are NULL.
    """
    if not uris:
        return spark.createDataFrame([], schema)
    # Spark takes its paths as they are.
    return spark.read.schema(schema).parquet(*[unquote(u.removeprefix("file://")) for u in uris])


def game_of_file(uris: Sequence[str], pattern: str) -> Column:
    """The game of each row of `read_files`, from the folder of its file.

    Args:
        uris: the files that were read.
        pattern: of `Names.silver_path` or `Names.gold_path`.
    """
    # Without files Spark has no such column.
    path = F.col("_metadata.file_path") if uris else F.lit(None).cast("string")
    return F.regexp_extract(path, pattern, 1)


def read_arrow(
    table: Table, handle: DeltaTable, columns: list[str] | None = None, only: Sequence[str] | None = None
) -> pa.Table:
    """A small table's rows in the driver, columns in the table's order; of all files, or of those at some paths."""
    system, prefix = file_system(table)
    schema = pa.schema(handle.schema())
    wanted = [f for f in schema if columns is None or f.name in columns]
    parts = []
    for path in pa.table(handle.get_add_actions()).column("path").to_pylist() if only is None else only:
        with store_errors_named(table.uri), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            part = file.read(columns=[f.name for f in wanted if f.name in file.schema_arrow.names])
        arrays = [
            part.column(f.name).cast(f.type) if f.name in part.column_names else pa.nulls(part.num_rows, f.type) for f in wanted
        ]
        parts.append(pa.Table.from_arrays(arrays, schema=pa.schema(wanted)))
    return pa.concat_tables(parts) if parts else pa.schema(wanted).empty_table()
