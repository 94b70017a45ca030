"""Parquet files written by Spark's workers and reported as Delta add-actions; nothing here commits.

A file that is not committed is invisible to every reader, and maintenance removes it. Guarantee: a reported file is complete
and closed; a crash leaves only unreported files.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from game_events.decoding.core.expansion import Shape, cuts
from game_events.decoding.core.wire_format import NO_ROWS, Rows
from game_events.lakehouse import failpoints
from game_events.lakehouse.data.file_statistics import exact_columns, floating_columns, leaves, new_name, statistics_text
from game_events.lakehouse.handle import DataFile
from game_events.lakehouse.tables import Table

log = logging.getLogger(__name__)
#: Bytes of a row group in memory: some records are megabytes, and readers hold a row group at a time.
ROW_GROUP_BYTES = 128 * 1024 * 1024
#: Values in lists of a row group: Spark holds those of up to 4,096 rows of one at a time, with their positions in the lists.
ROW_GROUP_CELLS = 4 * 1024**2
#: Files that have fewer bytes in memory when they are closed are compressed by Snappy: setting up Zstandard's compressor for
#: each of their columns takes half of the time of a file of 1,000 rows. It is up to a fifth larger, until compaction.
SMALL_FILE_BYTES = 512 * 1024
#: Rows that decide which columns of a file get a dictionary; smaller files have one for each.
SAMPLE_ROWS = 10_000
#: The first of these decide alone where they have a few values, or hardly any value twice: so it is in most columns.
FIRST_ROWS, MOST_DIFFERENT = 1_000, 950
#: Files are closed past this size; readers split larger ones anyway.
MAX_FILE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class StagedFile:
    """One closed Parquet file, waiting for a commit.

    Attributes:
        path: path below the table's folder; its folders are the file's partition, as in Hive.
        size: bytes.
        stats: Delta statistics, JSON.
        game: game of the rows, in tables of games.
    """

    table: str
    path: str
    size: int
    rows: int
    stats: str
    game: str | None = None
    modified_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def add_action(self, *, same_rows: bool = False) -> AddAction:
        """The Delta action that makes the file part of its table; `same_rows`: instead of files with the same rows."""
        return AddAction(self.path, self.size, partition_of(self.path), self.modified_ms, not same_rows, self.stats)

    def data_file(self) -> DataFile:
        """The file as the log lists it after its commit."""
        stats = json.loads(self.stats)
        lowest, highest = (stats.get(bounds, {}).get("_batch") for bounds in ("minValues", "maxValues"))
        return DataFile(quote(self.path, safe="/="), self.size, stats.get("numRecords"), lowest, highest)

    def to_json(self) -> str:
        """JSON of the file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StagedFile:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


def partition_of(path: str) -> dict[str, str]:
    """Partition column -> value of a file, from its path's folders (``game_name=rummy/``): polars finds them nowhere else."""
    return {column: value for column, _, value in (folder.rpartition("=") for folder in path.split("/")[:-1])}


def buffer_bytes(rows: pa.Table | pa.RecordBatch) -> int:
    """Bytes of the buffers that rows keep in memory, whole buffers even where the rows are a slice of them.

    Never ask `nbytes` of rows that come from Spark's JVM: pyarrow reads the first offset of each nested list for it. Where no
    row of a batch has an element, Java sends a buffer without any, as Arrow's format allows, and the process ends with a
    segmentation fault.
    """
    return int(rows.get_total_buffer_size())


def file_system(table: Table) -> tuple[pafs.FileSystem, str]:
    """An Arrow file system and the prefix of the table's files in it: local folders, or the object store of delta-rs."""
    if table.is_local:
        return pafs.LocalFileSystem(), table.uri.rstrip("/") + "/"
    return pafs.PyFileSystem(DeltaStorageHandler(table.uri, table.options)), ""


def writable_file_system(table: Table) -> tuple[pafs.FileSystem, str]:
    """`file_system` of a table whose folder is there.

    Raises:
        ReadOnlyError: the table is only read here.
    """
    table.require_writable()
    if table.is_local:
        Path(table.uri, table.folder).mkdir(parents=True, exist_ok=True)
    return file_system(table)


class StagedWriter:
    """Writes rows of one table (and game) into files of bounded size, buffering one row group."""

    def __init__(
        self,
        table: Table,
        schema: pa.Schema,
        game: str | None = None,
        group_rows: int | None = None,
        folder: str = "",
        file_bytes: int = MAX_FILE_BYTES,
        *,
        short_lived: bool = False,
    ) -> None:
        """Nothing is created before the first row group is full.

        `group_rows`: maximum rows of a row group, the smallest unit that is read; None: those of the table's `sizes`.
        `folder`: an existing one, with its slash; empty: the table's, or its part's, and the rows of a part are written without
        the column that this folder says (`self.schema`). `file_bytes`: a file is closed past this size. `short_lived`: the next
        refresh reads and replaces the files, so Snappy compresses them: a third larger than by Zstandard, and a third quicker
        to write and read.
        """
        self._table, self.schema, self._game, self._folder = table, table.in_files(schema), game, folder or table.folder
        self._group_rows = group_rows or table.sizes.row_group_rows
        self._file_bytes, self._short_lived = file_bytes, short_lived
        self._buffer: list[pa.Table] = []
        self._rows = self._bytes = self._cells = 0
        self._shape = Shape.of(schema.types) if any(map(pa.types.is_nested, schema.types)) else Shape(0)
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._name = ""
        #: NULLs in the open file, of the columns that have no statistics in it.
        self._nulls: dict[str, int] = {}
        self.files: list[StagedFile] = []

    def write_columns(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int) -> None:
        """Add rows as columns by name, in any order; what is missing is NULL."""
        self.write(self.rows_of(columns, count))

    def rows_of(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int) -> pa.Table:
        """Columns by name, in any order, as rows of this writer; what is missing is NULL."""
        arrays = []
        for item in self.schema:
            column = columns.get(item.name)
            if column is None:
                column = pa.nulls(count, item.type)
            arrays.append(column if column.type == item.type else column.cast(item.type))
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def write(self, rows: pa.Table, size: int | None = None) -> None:
        """Add rows; the schema is the writer's own.

        `size`: their bytes, if they are a part of larger arrays; None: they hold nothing else.
        """
        size = buffer_bytes(rows) if size is None else size
        if size <= ROW_GROUP_BYTES and not self._shape.lists:
            self._add(rows, size, 0)
            return
        cells = np.concatenate([self._shape.in_lists(batch) for batch in rows.to_batches()] or [NO_ROWS])
        for begin, end in _parts(cells, size):
            share, held = size * (end - begin) // max(len(cells), 1), int(cells[begin:end].sum())
            if self._cells + held > ROW_GROUP_CELLS:
                self.flush()
            self._add(rows.slice(begin, end - begin), share, held)

    def _add(self, rows: pa.Table, size: int, cells: int) -> None:
        self._buffer.append(rows)
        self._rows += rows.num_rows
        self._bytes += size
        self._cells += cells
        if self._rows >= self._table.sizes.row_group_rows or self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write what is buffered as a row group; `last`: no rows follow."""
        if not self._rows:
            return
        rows, size = pa.concat_tables(self._buffer), self._bytes
        self._buffer, self._rows, self._bytes, self._cells = [], 0, 0, 0
        if self._writer is None:
            system, prefix = writable_file_system(self._table)
            quick = self._short_lived or (last and size < SMALL_FILE_BYTES)
            codec, level = ("snappy", None) if quick else ("zstd", 1)
            self._name = f"{self._folder}{new_name(codec)}"
            self._sink = system.open_output_stream(prefix + self._name)
            floating = floating_columns(self.schema)
            exact = exact_columns(self.schema, floating)
            self._nulls = {name: 0 for name in self.schema.names if name in floating}
            self._writer = pq.ParquetWriter(
                self._sink,
                self.schema,
                compression=codec,
                compression_level=level,
                use_dictionary=repeated_columns(rows) if rows.num_rows >= SAMPLE_ROWS else exact,
                write_statistics=exact,
            )
        self._writer.write_table(rows, row_group_size=self._group_rows)
        for name in self._nulls:
            self._nulls[name] += rows.column(name).null_count
        failpoints.reach("file_open", self._table.name)
        if self._sink is not None and self._sink.tell() >= self._file_bytes:
            self._finish()

    def close(self) -> list[StagedFile]:
        """Write the rest; returns every file of this writer, each complete."""
        self.flush(last=True)
        self._finish()
        return self.files

    def abort(self) -> None:
        """Delete everything that was written; `close` then returns no file."""
        self._buffer, self._rows, self._bytes, self._cells = [], 0, 0, 0
        self._finish()
        discard(self._table, self.files)
        self.files = []

    def _finish(self) -> None:
        """Close the file that is open, if one is."""
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        metadata = self._writer.writer.metadata
        stats = statistics_text(metadata, self._table.person, self._nulls)
        self.files.append(StagedFile(self._table.name, self._name, size, metadata.num_rows, stats, self._game))
        self._writer = self._sink = None


def _parts(cells: Rows, size: int) -> Iterable[tuple[int, int]]:
    """Bounds of rows that fit into a row group, or of a single one; `cells`: in lists of each row; `size`: bytes of all."""
    if size <= ROW_GROUP_BYTES and cells.sum() <= ROW_GROUP_CELLS:
        return ((0, len(cells)),)
    return cuts(np.maximum(cells / ROW_GROUP_CELLS, size / len(cells) / ROW_GROUP_BYTES), 1)


def staged(table: Table, rows: pa.Table) -> list[StagedFile]:
    """Rows as files that are not committed yet; without rows, none."""
    writer = StagedWriter(table, rows.schema)
    writer.write(rows)
    return writer.close()


def repeated_columns(rows: pa.Table) -> list[str]:
    """Parquet columns with repeated values, by the first rows: only for these a dictionary pays.

    Rows of gold, of which no two have the same key or times, take three times as long to write with dictionaries, and the file
    is a third larger. Floating-point columns have none (`file_statistics`).
    """
    first = rows.slice(0, SAMPLE_ROWS)
    nested = [leaf for field in rows.schema if pa.types.is_nested(field.type) for leaf in leaves(field)]
    flat = [f.name for f in rows.schema if not (pa.types.is_nested(f.type) or pa.types.is_floating(f.type))]
    return [path for path, kind in nested if not pa.types.is_floating(kind)] + [
        name for name in flat if _is_repeated(first.column(name))
    ]


def _is_repeated(column: pa.ChunkedArray) -> bool:
    """Whether a value occurs twice, on average."""
    different = len(column.slice(0, FIRST_ROWS).unique())
    if FIRST_ROWS / 2 < different < MOST_DIFFERENT:
        return 2 * len(column.unique()) <= len(column)
    return different <= FIRST_ROWS / 2


def discard(table: Table, files: list[StagedFile]) -> None:
    """Delete files of a commit that is KNOWN to have failed; never call it after an unknown outcome.

    A file that cannot be deleted stays, invisible, until maintenance removes it: the first error is the one to raise.
    """
    for file in files:
        table.require_writable()
        try:
            system, prefix = file_system(table)
            system.delete_file(prefix + file.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("table=%s file=%s not_deleted=%r", table.name, file.path, str(error))


def remove_empty_folder(table: Table) -> None:
    """Remove the folder of a table, or of its part, that was not made after all; one with anything in it stays."""
    if table.is_local:
        with suppress(OSError):
            Path(table.uri, table.folder).rmdir()
            if table.folder:
                Path(table.uri).rmdir()


def unseen(table: Table, files: Sequence[StagedFile]) -> list[str]:
    """Paths of reported files that this process does not find, or finds with another size, in a local folder.

    On a cluster each machine may have a folder of that name: a commit would name files that only one of them has.
    """
    root = table.local_path
    if root is None:
        return []  # an object store is the same for all machines
    return [file.path for file in files if not _has_size(root / file.path, file.size)]


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
