"""A table's snapshot: its files, and its rows read with Arrow, in the driver (small tables) or in workers.

The files are those of the Delta handle that a commit is compared with, so both are one version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from game_events.errors import LostFileError
from game_events.lakehouse.data.staging import file_system, partition_of
from game_events.lakehouse.open_table import DataFile
from game_events.lakehouse.storage import store_errors_named
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Table, files_of, paths

#: Key in the commit information of silver, gold and unified, which marks a commit as this project's own.
BATCH_INFO = "bronze_batch"

#: All row groups of a file.
ALL = slice(None)


def files_with(handle: DeltaTable, above: int | None = None) -> list[str]:
    """URIs of the files that may hold rows of later bronze batches than `above`, by their statistics; None: of all files."""
    return selection(handle, above).files


@dataclass(frozen=True)
class FileSelection:
    """Files of one version of a table.

    Attributes:
        root: URI of the table's folder.
        exact: by their statistics every row is of a later batch than the bound, so no filter is needed. A filter's bound is
            part of the code that Spark generates: with one, each small batch would be compiled again and run cold.
    """

    root: str
    data: tuple[DataFile, ...]
    exact: bool = True

    @property
    def files(self) -> list[str]:
        """URIs of the files."""
        return [f"{self.root}/{file.path}" for file in self.data]

    @property
    def paths(self) -> list[str]:
        """Paths of the files below the table's folder."""
        return [file.plain_path for file in self.data]

    @property
    def rows(self) -> int:
        """Rows in the files; without those of lost files with an unknown number, unless `rows_known`."""
        return sum(file.rows or 0 for file in self.data)

    @property
    def rows_known(self) -> bool:
        """Whether it is known how many rows each file has: a file that is gone or damaged may not say."""
        return all(file.rows is not None for file in self.data)

    def split(self, most_rows: int, most_bytes: int) -> tuple[FileSelection, FileSelection]:
        """The files with at most so many rows and bytes, and the others."""
        small = [f.rows is not None and f.rows <= most_rows and f.size <= most_bytes for f in self.data]
        first, second = (
            tuple(f for f, is_small in zip(self.data, small, strict=True) if is_small == one) for one in (True, False)
        )
        return replace(self, data=first), replace(self, data=second)


@dataclass(frozen=True)
class SelectedFiles:
    """Files of several tables, by what each of them is called."""

    by_table: Mapping[str, FileSelection]

    @property
    def files(self) -> list[str]:
        """URIs of the files."""
        return [uri for files in self.by_table.values() for uri in files.files]

    @property
    def paths(self) -> list[str]:
        """Paths of the files below their tables' folders."""
        return [path for files in self.by_table.values() for path in files.paths]

    @property
    def rows(self) -> int:
        """As of a `FileSelection`."""
        return sum(files.rows for files in self.by_table.values())

    @property
    def exact(self) -> bool:
        """As of a `FileSelection`."""
        return all(files.exact for files in self.by_table.values())


def selection(handle: DeltaTable, above: int | None = None) -> FileSelection:
    """Files that may hold rows of later bronze batches than `above`; None: all files."""
    files = files_of(handle)
    exact = True
    if above is not None:
        files = tuple(file for file in files if file.highest_batch is None or file.highest_batch > above)
        exact = all(file.lowest_batch is not None and file.lowest_batch > above for file in files)
    return FileSelection(handle.table_uri.rstrip("/"), files, exact)


def may_hold(actions: pa.Table, column: str, low: object, high: object) -> pa.Array | pa.ChunkedArray:
    """Mask of the files (`add_actions`, flattened) that may hold a value from `low` to `high`, by their statistics."""
    if f"max.{column}" not in actions.column_names:
        return pa.repeat(True, actions.num_rows)
    outside = pc.or_kleene(pc.greater(actions[f"min.{column}"], high), pc.less(actions[f"max.{column}"], low))
    return pc.invert(pc.fill_null(outside, False))


def row_count(handle: DeltaTable | None) -> int:
    """Rows of a version, from its log, or (of files without statistics) from the files' footers; 0 without a table.

    Raises:
        LostFileError: a file is gone or damaged, and the log does not say how many rows it has.
    """
    if handle is None:
        return 0
    rows = 0
    root = handle.table_uri.rstrip("/")
    for file in files_of(handle):
        if file.rows is None:
            raise LostFileError(f"{root}/{file.path} is gone or damaged, though the table's log lists it")
        rows += file.rows
    return rows


def read_arrow(
    table: Table, handle: DeltaTable, columns: list[str] | None = None, only: Sequence[str] | None = None
) -> pa.Table:
    """A small table's rows in the driver, columns in the table's order; of all files, or of those at some paths."""
    wanted = pa.schema([f for f in pa.schema(handle.schema()) if columns is None or f.name in columns])
    parts = list(read_parts(table, wanted, paths(handle) if only is None else only))
    return pa.concat_tables(parts) if parts else wanted.empty_table()


def read_parts(
    table: Table, schema: pa.Schema, files: Iterable[str], batch_rows: int | None = None, row_groups: slice = ALL
) -> Iterator[pa.Table]:
    """Rows of files, given by their paths, in the columns of a schema; at most so many rows at a time.

    A column that a file lacks has the value of its partition, or is NULL. `batch_rows`: None: those of the table's `sizes`.
    `row_groups`: which of each file.

    Raises:
        LostFileError: a file is gone or damaged, or its columns have other types; Arrow's own errors do not name the file.
    """
    for _, rows in numbered_parts(table, schema, files, batch_rows, row_groups):
        yield rows


def numbered_parts(
    table: Table, schema: pa.Schema, files: Iterable[str], batch_rows: int | None = None, row_groups: slice = ALL
) -> Iterator[tuple[int, pa.Table]]:
    """As `read_parts`, with the place of the first row in its file; the others follow it there."""
    system, prefix = file_system(table)
    at_a_time = replace(table.sizes, read_rows=batch_rows) if batch_rows is not None else table.sizes
    for path in files:
        try:
            with store_errors_named(table.uri), system.open_input_file(prefix + path) as source:
                yield from _parts(source, path, schema, at_a_time, row_groups)
        except FileNotFoundError:
            raise LostFileError(f"{table.uri}/{path} is gone, though the table's log lists it") from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # of the disk or the store, with the file's name
            raise LostFileError(f"{table.uri}/{path} cannot be read: {error}") from error


def _parts(
    source: pa.NativeFile, path: str, schema: pa.Schema, sizes: Sizes, row_groups: slice
) -> Iterator[tuple[int, pa.Table]]:
    # One request of an object store, and no threads of Arrow, which cost more than the work on so few bytes.
    small = source.size() <= sizes.read_whole_bytes
    data = pa.BufferReader(source.read_buffer()) if small else source
    # Another engine that compacts a table may write INT96, of which nanoseconds hold no year after 2262.
    file = pq.ParquetFile(data, pre_buffer=not small, coerce_int96_timestamp_unit="us")
    names = set(file.schema_arrow.names)
    held = [name for name in schema.names if name in names]
    sizes_of_groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    starts = np.cumsum([0, *sizes_of_groups]).tolist()
    # Not across row groups, whose sizes are bounded.
    for group in range(file.num_row_groups)[row_groups]:
        first = starts[group]
        for batch in file.iter_batches(sizes.read_rows, row_groups=[group], columns=held, use_threads=not small):
            yield first, _with_all_columns(batch, schema, partition_of(path))
            first += batch.num_rows


def _with_all_columns(batch: pa.RecordBatch, schema: pa.Schema, partition: Mapping[str, str]) -> pa.Table:
    """Rows of a file with the columns of a schema: those that the file lacks have the value of its partition, or are NULL."""
    count = batch.num_rows
    own = {name: pa.repeat(value, count) for name, value in partition.items()}
    own |= dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = [own[f.name].cast(f.type) if f.name in own else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def without_views(rows: pa.Table) -> pa.Table:
    """Rows of a file in types that can be filtered: delta-rs writes texts and bytes as views, as which Arrow reads them."""
    return rows.cast(pa.schema([f.with_type(_without_views(f.type)) for f in rows.schema], rows.schema.metadata))


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_without_views(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    return pa.string() if pa.types.is_string_view(kind) else pa.binary() if pa.types.is_binary_view(kind) else kind


@dataclass(frozen=True)
class FilePart:
    """A file of a table, or every `of`-th of its row groups, from `number` on.

    `table`: its key. `path`: below the table's folder.
    """

    table: str
    path: str
    number: int = 0
    of: int = 1


def parts_of(files: FileSelection, table: str, rows: int) -> Sequence[FilePart]:
    """The files, those with more than so many rows in parts."""
    parts = list[FilePart]()
    for file, path in zip(files.data, files.paths, strict=True):
        of = max(1, ceil((file.rows or 0) / max(1, rows)))
        parts += [FilePart(table, path, number, of) for number in range(of)]
    return parts
