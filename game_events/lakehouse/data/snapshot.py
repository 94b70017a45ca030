"""A table's snapshot: its files, and its rows read with Arrow in the driver (small tables).

The files are those of the Delta handle that a commit is compared with, so both are one version.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from game_events.lakehouse.data.staging import file_system, partition_of
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.tables import Table, add_actions, paths

#: Key in the commit information of silver, gold and unified, which marks a commit as this project's own.
BATCH_INFO = "bronze_batch"
#: Rows that are read at a time.
READ_ROWS = 1_048_576


def files_with(handle: DeltaTable, column: str | None = None, above: int = 0) -> list[str]:
    """URIs of the files that may hold rows with ``column > above``, by their statistics; of all files without a column."""
    return selection(handle, column, above).files


@dataclass(frozen=True)
class FileSelection:
    """Files of one version that may hold rows above a bound.

    Attributes:
        files, paths: their URIs, and their paths below the table's folder.
        rows: rows in them; without those of files with an unknown number, unless `rows_known`.
        exact: by their statistics every row is above the bound, so no filter is needed. A filter's bound is part of the code
            that Spark generates: with one, each small batch would be compiled again and run cold.
    """

    files: list[str]
    paths: list[str]
    rows: int
    exact: bool
    rows_known: bool = True


def selection(handle: DeltaTable, column: str | None = None, above: int = 0) -> FileSelection:
    """Files that may hold rows with ``column > above``; without a column, all files."""
    actions = _actions(handle, column, above)
    root = handle.table_uri.rstrip("/")
    listed = actions.column("path").to_pylist()
    uris = [f"{root}/{path}" for path in listed]
    exact = column is None or not uris
    if not exact and f"min.{column}" in actions.column_names:
        exact = bool(pc.all(pc.greater(actions.column(f"min.{column}"), _literal(above)), skip_nulls=False).as_py())
    rows = actions.column("num_records")
    return FileSelection(uris, list(map(unquote, listed)), int(pc.sum(rows).as_py() or 0), exact, rows.null_count == 0)


def _actions(handle: DeltaTable, column: str | None, above: int) -> pa.Table:
    """Path, number of rows, and minimum and maximum of the column."""
    actions = add_actions(handle)
    names = {"path", "num_records", f"min.{column}", f"max.{column}"}
    actions = actions.select([name for name in actions.column_names if name in names])
    if column is not None and f"max.{column}" in actions.column_names:
        highest = actions.column(f"max.{column}")
        return actions.filter(pc.or_kleene(pc.is_null(highest), pc.greater(highest, _literal(above))))
    return actions


def _literal(value: int) -> pa.Scalar:
    """An integer for Arrow's functions, which to make one of Python's import pandas: a quarter of a short command's time."""
    return pa.arange(value, value + 1)[0]


def may_hold(actions: pa.Table, column: str, low: object, high: object) -> pa.Array | pa.ChunkedArray:
    """Mask of the files (`add_actions`, flattened) that may hold a value from `low` to `high`, by their statistics."""
    if f"max.{column}" not in actions.column_names:
        return pa.repeat(True, actions.num_rows)
    outside = pc.or_kleene(pc.greater(actions[f"min.{column}"], high), pc.less(actions[f"max.{column}"], low))
    return pc.invert(pc.fill_null(outside, False))


def row_count(handle: DeltaTable | None) -> int:
    """Rows of a version, from its log alone; 0 without a table."""
    if handle is None:
        return 0
    return int(pc.sum(add_actions(handle).column("num_records")).as_py() or 0)


def read_arrow(
    table: Table, handle: DeltaTable, columns: list[str] | None = None, only: Sequence[str] | None = None
) -> pa.Table:
    """A small table's rows in the driver, columns in the table's order; of all files, or of those at some paths."""
    wanted = pa.schema([f for f in pa.schema(handle.schema()) if columns is None or f.name in columns])
    parts = list(read_parts(table, wanted, paths(handle) if only is None else only))
    return pa.concat_tables(parts) if parts else wanted.empty_table()


def read_parts(table: Table, schema: pa.Schema, files: Iterable[str], batch_rows: int = READ_ROWS) -> Iterator[pa.Table]:
    """Rows of files, given by their paths, in the columns of a schema; at most so many rows at a time.

    A column that a file lacks has the value of its partition, or is NULL.
    """
    system, prefix = file_system(table)
    for path in files:
        with store_errors_named(table.uri), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            held = [name for name in schema.names if name in file.schema_arrow.names]
            # Not across row groups, whose sizes are bounded.
            groups = (file.iter_batches(batch_rows, row_groups=[n], columns=held) for n in range(file.num_row_groups))
            for batch in chain.from_iterable(groups):
                own = {name: pa.repeat(value, batch.num_rows) for name, value in partition_of(path).items()}
                own |= {name: batch.column(name) for name in held}
                arrays = [own[f.name].cast(f.type) if f.name in own else pa.nulls(batch.num_rows, f.type) for f in schema]
                yield pa.Table.from_arrays(arrays, schema=schema)
