"""Parquet files, written by Spark's workers or copied, their statistics, and their report; nothing here commits.

A file that is not committed is invisible to every reader, and maintenance removes it. Guarantee: a reported file is complete
and closed; a crash leaves only unreported files.

By statistics, in Delta's log and in each file's own footer, readers leave out files and row groups. Guarantee: the bounds that
there are exclude no row that a predicate selects, in any reader. Two faults of others decide their form:

- Arrow leaves NaN out of a footer's bounds, and readers for which NaN is the greatest number (Spark, DuckDB, DataFusion) then
  skip rows that match. Spark also misses -0.0 in a column with a dictionary when it is compared with 0.0. So floating-point
  columns have neither bounds nor dictionaries.
- arrow-json (delta-rs, delta-kernel, and so Polars and DuckDB) decodes characters from U+20000 on wrongly if they are escaped.
  So Delta's statistics are UTF-8 without escapes, but for control characters.

Files of earlier releases have both faults. Their names differ (`is_current`), so that maintenance finds them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from game_events.decoding.frame import NO_ROWS, Rows
from game_events.decoding.projection import Shape, cuts
from game_events.lakehouse import failpoints
from game_events.lakehouse.open_table import DataFile
from game_events.lakehouse.storage import store_errors_named
from game_events.lakehouse.tables import Lakehouse, Table, is_person

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

    `path`: below the table's folder; its folders are the file's partition, as in Hive. `stats`: Delta statistics, JSON. `game`:
    of the rows, in tables of games.
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
    """`system_below` of the table's folder."""
    return system_below(table.uri, table.options)


def system_below(uri: str, options: dict[str, str]) -> tuple[pafs.FileSystem, str]:
    """An Arrow file system and the prefix of files below an address in it: local folders, or the object store of delta-rs."""
    if "://" not in uri:
        return pafs.LocalFileSystem(), uri.rstrip("/") + "/"
    return pafs.PyFileSystem(DeltaStorageHandler(uri, options)), ""


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
        *,
        short_lived: bool = False,
        mark: str = "",
    ) -> None:
        """Nothing is created before the first row group is full.

        `group_rows`: maximum rows of a row group, the smallest unit that is read; None: those of the table's `sizes`.
        `folder`: an existing one, with its slash; empty: the table's, or its part's, and the rows of a part are written without
        the column that this folder says (`self.schema`). `short_lived`: the next refresh reads and replaces the files, so
        Snappy compresses them: a third larger than by Zstandard, and a third quicker to write and read. `mark`: a word in the
        files' names.
        """
        self._table = table
        self.schema = table.in_files(schema)
        self._game = game
        self._folder = folder or table.folder
        self._group_rows = group_rows or table.sizes.row_group_rows
        self._short_lived = short_lived
        self._mark = mark
        self._forget_buffered()
        self._shape = Shape.of(schema.types) if any(map(pa.types.is_nested, schema.types)) else Shape(0)
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._name = ""
        #: NULLs in the open file, of the columns that have no statistics in it.
        self._nulls: dict[str, int] = {}
        self.files: list[StagedFile] = []

    def write_columns(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int) -> None:
        """Add rows as columns (`rows_of`)."""
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
            share = size * (end - begin) // max(len(cells), 1)
            held = int(cells[begin:end].sum())
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

    def _forget_buffered(self) -> None:
        self._buffer: list[pa.Table] = []
        self._rows = self._bytes = self._cells = 0

    def flush(self, *, last: bool = False) -> None:
        """Write what is buffered as a row group; `last`: no rows follow."""
        if not self._rows:
            return
        rows = pa.concat_tables(self._buffer)
        size = self._bytes
        self._forget_buffered()
        writer = self._writer or self._begin_file(rows, is_small=last and size < SMALL_FILE_BYTES)
        writer.write_table(rows, row_group_size=self._group_rows)
        for name in self._nulls:
            self._nulls[name] += rows.column(name).null_count
        failpoints.reach("file_open", self._table.name)
        if self._sink is not None and self._sink.tell() >= MAX_FILE_BYTES:
            self._finish()

    def _begin_file(self, rows: pa.Table, *, is_small: bool) -> pq.ParquetWriter:
        """Open a file, for these rows first; `is_small`: for these alone."""
        system, prefix = writable_file_system(self._table)
        codec = "snappy" if self._short_lived or is_small else "zstd"
        self._name = f"{self._folder}{new_name(codec, self._mark)}"
        self._sink = system.open_output_stream(prefix + self._name)
        floating = floating_columns(self.schema)
        exact = _exact_columns(self.schema, floating)
        self._nulls = {name: 0 for name in self.schema.names if name in floating}
        self._writer = pq.ParquetWriter(
            self._sink,
            self.schema,
            compression=codec,
            compression_level=1 if codec == "zstd" else None,
            use_dictionary=repeated_columns(rows) if rows.num_rows >= SAMPLE_ROWS else exact,
            write_statistics=exact,
        )
        return self._writer

    def close(self) -> list[StagedFile]:
        """Write the rest; returns every file of this writer, each complete."""
        self.flush(last=True)
        self._finish()
        return self.files

    def abort(self) -> None:
        """Delete everything that was written; `close` then returns no file."""
        self._forget_buffered()
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
        table = self._table
        stats = statistics_text(metadata, table.person, self._nulls, table.file_layout.with_statistics)
        self.files.append(StagedFile(table.name, self._name, size, metadata.num_rows, stats, self._game))
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
    paths: list[str] = []
    for column in rows.schema:
        if pa.types.is_nested(column.type):
            paths += [path for path, kind in leaves(column) if not pa.types.is_floating(kind)]
        elif not pa.types.is_floating(column.type) and _is_repeated(first.column(column.name)):
            paths.append(column.name)
    return paths


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


class CopyingStore(DeltaStorageHandler):
    """An object store that copies on its own side."""

    def copy_file(self, src: str, dst: str) -> None:
        """Copy a file; deltalake 1.6.6 names an argument that its own library does not have."""
        self._handler.copy_file(src, dst)


def copy_file(lakehouse: Lakehouse, source: Table, path: str, to: Table, name: str) -> StagedFile:
    """Copy a file to a path below a table's folder, which names no other file; its Delta statistics are made again.

    On a local disk the copy is a hard link, where the disk has them.

    Raises:
        FileNotFoundError: the file is gone.
        pa.ArrowInvalid: it is damaged.
    """
    to.require_writable()
    if source.local_path is not None and to.local_path is not None:
        _link(source.local_path / path, to.local_path / name)
    else:
        with store_errors_named(to.uri):
            store = pafs.PyFileSystem(CopyingStore(lakehouse.root, to.options))
            store.copy_file(f"{source.name}/{path}", f"{to.name}/{name}")
    system, prefix = file_system(to)
    try:
        with store_errors_named(to.uri), system.open_input_file(prefix + name) as copied:
            metadata = pq.read_metadata(copied)
            size = copied.size()
    except pa.ArrowInvalid:
        system.delete_file(prefix + name)
        raise
    statistics = statistics_text(metadata, to.person, more=to.file_layout.with_statistics)
    return StagedFile(to.name, name, size, metadata.num_rows, statistics)


def name_of_copy(path: str, folder: str) -> str:
    """A new path in a folder for a copy; it ends with the old name (`copied_name`)."""
    return f"{folder}/{uuid.uuid4().hex}-{PurePosixPath(path).name}"


def copied_name(path: str) -> str:
    """The old name of a copy; of any other file a name that no file has had."""
    return PurePosixPath(path).name.partition("-")[2]


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Both names have one time: maintenance deletes old files that no commit names yet.
        os.utime(source)
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a disk without hard links, another user's file, too many links
        shutil.copyfile(source, target)


#: Delta's own default of columns with statistics.
STATISTICS_COLUMNS = 32

#: Longer strings get no statistics instead of truncated ones.
STATISTICS_CHARS = 64

#: In the name of each file with statistics as this module describes them. Copies have the name of their file at the end.
_FORM = "v2"
_CURRENT = re.compile(rf"\.{_FORM}\.\w+\.parquet")
_MARK = re.compile(rf"\.(\w+)\.{_FORM}\.")


def new_name(codec: str, mark: str = "") -> str:
    """Name of a new file, compressed by a codec; with a word that `has_mark` finds."""
    return f"part-{uuid.uuid4()}{mark and f'.{mark}'}.{_FORM}.{codec}.parquet"


def has_mark(path: str, mark: str) -> bool:
    """Whether a file's name has a word."""
    return f".{mark}.{_FORM}." in PurePosixPath(path).name


def mark_of(path: str) -> str:
    """The word in a file's name that `has_mark` finds; empty: there is none."""
    found = _MARK.search(PurePosixPath(path).name)
    return "" if found is None else found[1]


def _exact_columns(schema: pa.Schema, floating: frozenset[str]) -> list[str] | bool:
    """Paths of the Parquet columns without floating-point numbers; True: all."""
    return [path for f in schema for path, _ in leaves(f) if path not in floating] if floating else True


def is_current(path: str) -> bool:
    """Whether a file's name says that its statistics are as this module describes them."""
    return _CURRENT.search(PurePosixPath(path).name) is not None


def leaves(field: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
    """Path and type of each Parquet column of a field. Source: Parquet format, "LogicalTypes.md", nested types."""
    kind = field.type
    if pa.types.is_struct(kind):
        inner = [("", part) for part in kind]
    elif pa.types.is_map(kind):
        inner = [("key_value.", kind.key_field), ("key_value.", kind.item_field)]
    elif pa.types.is_nested(kind):
        inner = [("list.", kind.value_field.with_name("element"))]
    else:
        yield field.name, kind
        return
    for between, part in inner:
        yield from ((f"{field.name}.{between}{path}", leaf) for path, leaf in leaves(part))


def floating_columns(schema: pa.Schema) -> frozenset[str]:
    """Paths of the Parquet columns with floating-point numbers, in nested columns, too."""
    return frozenset(
        path
        for field in schema
        if pa.types.is_floating(field.type) or pa.types.is_nested(field.type)
        for path, kind in leaves(field)
        if pa.types.is_floating(kind)
    )


def statistics_text(
    metadata: pq.FileMetaData,
    person: str | None = None,
    nulls: Mapping[str, int] | None = None,
    more: tuple[str, ...] = (),
) -> str:
    """Delta's per-file statistics as JSON, from a Parquet file's own, for the first flat columns.

    `person`: the person's columns have no bounds: these would be values in a log that outlives the rows. No reader needs
    them, and in a file of many subjects' events they exclude next to nothing. `nulls`: number of NULLs by column, of columns
    without statistics in the file. `more`: flat columns with statistics, whatever their place.

    Source: Delta Lake protocol, "Per-file Statistics".
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    counts = dict[str, int]()
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    paths = tuple(metadata.schema.column(index).path for index in range(metadata.num_columns))
    for index, name, has_bounds in _columns_with_statistics(paths, person, more):
        if nulls is not None and name in nulls:
            counts[name] = nulls[name]
            continue
        parts = [group.column(index).statistics for group in groups]
        count = _null_count(parts)
        if count is None:
            continue
        counts[name] = count
        bounds = _bounds(parts) if has_bounds else None
        if bounds is not None:
            low[name], high[name] = bounds
    statistics = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": counts}
    return json.dumps(statistics, ensure_ascii=False)


def _null_count(parts: Sequence[pq.Statistics | None]) -> int | None:
    """Number of NULLs of a column, by the statistics of its row groups; None: it is not known."""
    total = 0
    for part in parts:
        if part is None or not part.has_null_count:
            return None
        total += part.null_count
    return total


def _bounds(parts: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """Lowest and highest value of a column as JSON, by the statistics of its row groups; None: they are not known."""
    with_values = [part for part in parts if part.has_min_max or part.num_values]
    if not all(part.has_min_max for part in with_values):
        return None
    lows = (part.min for part in with_values)
    highs = (part.max for part in with_values)
    try:
        bounds = _plain(min(lows, default=None)), _plain(max(highs, default=None))
    except OverflowError:  # a time outside the years 1 to 9999, as a Kafka timestamp may be
        return None
    return None if None in bounds else bounds


@lru_cache
def _columns_with_statistics(paths: tuple[str, ...], person: str | None, more: tuple[str, ...]) -> list[tuple[int, str, bool]]:
    """The first flat columns, and more, of a file with these Parquet columns: index, name, and whether bounds may be noted."""
    flat = [(index, path, not is_person(path, person)) for index, path in enumerate(paths) if _is_flat(path)]
    return flat[:STATISTICS_COLUMNS] + [column for column in flat[STATISTICS_COLUMNS:] if column[1] in more]


def _is_flat(path: str) -> bool:
    """Whether a Parquet column is a flat one of the table: not of row tracking, by the names that Delta gives these."""
    return "." not in path and not path.startswith(("_row-id-col-", "_row-commit-version-col-"))


def _plain(value: object) -> str | int | bool | None:
    """A statistic as JSON, or None for what Delta has no form for, and for floating-point numbers."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if len(value) <= STATISTICS_CHARS else None
    if isinstance(value, datetime):
        # Not strftime: its %Y has no leading zeros. A time without a zone is none of this machine's.
        utc = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo is not None else "")
    return value.isoformat() if isinstance(value, date) else None
