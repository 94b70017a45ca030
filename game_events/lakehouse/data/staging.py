"""Parquet files written by Spark's workers and reported as Delta add-actions; nothing here commits.

A file that was written and never committed is invisible to every reader, and is removed by maintenance (vacuum). Guarantee:
a reported file is complete and closed; a crash leaves only unreported files.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from game_events.lakehouse import failpoints
from game_events.lakehouse.tables import Table, is_person

log = logging.getLogger(__name__)
#: Rows of a row group: columnar enough for readers, small enough that some hundred open writers fit in memory.
ROW_GROUP_ROWS = 131_072
#: Bytes of a row group in memory: some records are megabytes, and readers hold a row group at a time.
ROW_GROUP_BYTES = 128 * 1024 * 1024
#: Files are closed past this size; readers split larger ones anyway.
MAX_FILE_BYTES = 256 * 1024 * 1024
#: Delta's own default of columns with statistics.
STATISTICS_COLUMNS = 32
#: Longer strings get no statistics instead of truncated ones.
STATISTICS_CHARS = 64


@dataclass(frozen=True)
class StagedFile:
    """One closed Parquet file, waiting for a commit.

    Attributes:
        table: name of the table it is meant for.
        path: path below the table's folder.
        size: bytes.
        rows: number of rows.
        stats: Delta statistics, JSON.
        game: the game whose rows it holds, for tables of games.
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
        return AddAction(self.path, self.size, {}, self.modified_ms, not same_rows, self.stats)

    def to_json(self) -> str:
        """For the way back through Spark."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StagedFile:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


def buffer_bytes(rows: pa.Table | pa.RecordBatch) -> int:
    """Bytes of the buffers that rows keep in memory, whole buffers even where the rows are a slice of them.

    Never ask `nbytes` of rows that come from Spark's JVM: pyarrow reads the first offset of each nested list for it. Where no
    row of a batch has an element, Java sends a buffer without any, as Arrow's format allows, and the process ends with a
    segmentation fault.
    """
    return int(rows.get_total_buffer_size())


def file_system(table: Table) -> tuple[pafs.FileSystem, str]:
    """An Arrow file system and the prefix of the table's files in it: local folders, or the object store of delta-rs."""
    if table.local_path is not None:
        Path(table.uri).mkdir(parents=True, exist_ok=True)
        return pafs.LocalFileSystem(), table.uri.rstrip("/") + "/"
    return pafs.PyFileSystem(DeltaStorageHandler(table.uri, table.options)), ""


class StagedWriter:
    """Writes rows of one table (and game) into files of bounded size, buffering one row group."""

    def __init__(self, table: Table, schema: pa.Schema, game: str | None = None, group_rows: int = ROW_GROUP_ROWS) -> None:
        """Nothing is created before the first row group is full.

        Args:
            table: where they will belong.
            schema: their columns.
            game: whose rows they hold.
            group_rows: rows of a row group at most: what readers of a few rows read at least.
        """
        self._table, self._schema, self._game, self._group_rows = table, schema, game, group_rows
        self._buffer: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._name = ""
        self.files: list[StagedFile] = []

    def write(self, rows: pa.Table, size: int | None = None) -> None:
        """Add rows; the schema is the writer's own.

        Args:
            rows: the rows.
            size: their bytes, if they are a part of larger arrays; None: they hold nothing else.
        """
        self._buffer.append(rows)
        self._rows += rows.num_rows
        self._bytes += buffer_bytes(rows) if size is None else size
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered as a row group."""
        if not self._rows:
            return
        rows = pa.concat_tables(self._buffer)
        self._buffer, self._rows, self._bytes = [], 0, 0
        if self._writer is None:
            system, prefix = file_system(self._table)
            self._name = f"part-{uuid.uuid4()}.zstd.parquet"
            self._sink = system.open_output_stream(prefix + self._name)
            self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd", compression_level=1)
        self._writer.write_table(rows, row_group_size=self._group_rows)
        failpoints.reach("file_open", self._table.name)
        if self._sink is not None and self._sink.tell() >= MAX_FILE_BYTES:
            self._finish()

    def close(self) -> list[StagedFile]:
        """Write the rest; returns every file of this writer, each complete."""
        self.flush()
        if self._writer is not None:
            self._finish()
        return self.files

    def abort(self) -> None:
        """Forget everything that was written so far; `close` then returns no file."""
        self._buffer, self._rows, self._bytes = [], 0, 0
        if self._writer is not None:
            self._finish()
        discard(self._table, self.files)
        self.files = []

    def _finish(self) -> None:
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        metadata = self._writer.writer.metadata
        stats = json.dumps(delta_statistics(metadata, self._table.person))
        self.files.append(StagedFile(self._table.name, self._name, size, metadata.num_rows, stats, self._game))
        self._writer = self._sink = None


def delta_statistics(metadata: pq.FileMetaData, person: str | None = None) -> dict[str, Any]:
    """Delta's per-file statistics from a Parquet file's own, for the first flat columns.

    Columns that say whom a row is about (`person`) have no bounds: these would be values of theirs, in a log that outlives the
    rows. Nothing reads them, and in a file of many players' events they exclude next to nothing.

    Source: Delta Lake protocol, "Per-file Statistics".
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = [c for c in range(metadata.num_columns) if "." not in metadata.schema.column(c).path]
    for index in columns[:STATISTICS_COLUMNS]:
        name = metadata.schema.column(index).path
        parts = [metadata.row_group(g).column(index).statistics for g in range(metadata.num_row_groups)]
        if any(p is None or not p.has_null_count for p in parts):
            continue
        nulls[name] = sum(p.null_count for p in parts)
        bounded = [p for p in parts if p.has_min_max]
        if is_person(name, person) or not bounded or any(not p.has_min_max and p.num_values for p in parts):
            continue
        try:
            lowest, highest = _plain(min(p.min for p in bounded)), _plain(max(p.max for p in bounded))
        except OverflowError:  # a time outside the years 1 to 9999, as a Kafka timestamp may be
            continue
        if lowest is not None and highest is not None:
            low[name], high[name] = lowest, highest
    return {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _plain(value: object) -> str | int | bool | None:
    """A statistic as JSON, or None for what Delta has no form for."""
    if isinstance(value, bool | int):
        return value
    # No floats: Parquet's bounds leave NaN out, which Spark takes for the greatest number of all.
    if isinstance(value, str):
        return value if len(value) <= STATISTICS_CHARS else None
    if isinstance(value, datetime):
        # Not strftime: its %Y has no leading zeros.
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value.isoformat() if isinstance(value, date) else None


def discard(table: Table, files: list[StagedFile]) -> None:
    """Delete files of a commit that is KNOWN to have failed; never call it after an unknown outcome.

    What cannot be deleted stays, invisible, until maintenance removes it: the error that led here is the one to be told.
    """
    for file in files:
        try:
            system, prefix = file_system(table)
            system.delete_file(prefix + file.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("table=%s file=%s not_deleted=%r", table.name, file.path, str(error))


def remove_empty_folder(table: Table) -> None:
    """Remove the folder of a table that was not made after all; one with anything in it stays."""
    if table.local_path is not None:
        with suppress(OSError):
            table.local_path.rmdir()


def unseen(table: Table, files: Sequence[StagedFile]) -> list[str]:
    """Paths of files that a worker has closed and this process does not find as they were reported, in a local folder.

    So it is where a cluster's machines each have a folder of that name: a commit would name files that only one of them has.
    """
    root = table.local_path
    if root is None:
        return []  # an object store is the same for everybody
    return [file.path for file in files if not _has_size(root / file.path, file.size)]


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


#: What workers send back: one row for each file, or for a message (`kind`).
REPORT_SCHEMA = "kind string, body string"


def report(items: Iterator[tuple[str, str]]) -> pa.RecordBatch:
    """Rows of `REPORT_SCHEMA`."""
    rows = list(items)
    return pa.RecordBatch.from_pydict(
        {"kind": [k for k, _ in rows], "body": [b for _, b in rows]},
        schema=pa.schema([("kind", pa.string()), ("body", pa.string())]),
    )
