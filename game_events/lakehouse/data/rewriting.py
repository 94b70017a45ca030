"""Files that are written again: by compaction, layout and renewal with the same rows, by removals without some of them.

Each way writes them here, so in each of them rows keep their number, and the version that they came with, in tables with row
tracking: both are in columns of the files that no reader shows, under names that the table's properties have. And a file that
replaces one file alone keeps what that file's name says of its rows (`staging.mark_of`).

Source: Delta Lake protocol, "Row Tracking".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.data.layout import DayWriter, RangeWriter
from game_events.lakehouse.data.reading import numbered_parts, read_parts
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, buffer_bytes, discard, mark_of
from game_events.lakehouse.entries import LogState, asked_of, read_state
from game_events.lakehouse.open_table import of_columns
from game_events.lakehouse.tables import Table

#: Rows in memory at a time, besides the writer's row group.
BATCH_ROWS = 16_384

#: Bytes of rows that are sorted together: several row groups of most tables.
SORTED_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class RowIds:
    """Numbers and versions of the rows of a version's files; `columns`: their names in files."""

    columns: tuple[str, str]
    state: LogState

    @property
    def fields(self) -> list[pa.Field]:
        """The columns."""
        return [pa.field(name, pa.int64()) for name in self.columns]

    def kept(self, path: str, first: int, rows: pa.Table) -> pa.Table:
        """Rows of a file with both columns, which they may have already; `first`: place of the first one in the file."""
        base, since = self.state.files.get(path, (None, None))
        places = pa.array(np.arange(first, first + rows.num_rows)) if base is not None else None
        numbers = pc.add(places, base) if places is not None else pa.nulls(rows.num_rows, pa.int64())
        versions = pa.repeat(pa.scalar(since, pa.int64()), rows.num_rows)
        for field, values in zip(self.fields, (numbers, versions), strict=True):
            place = rows.schema.get_field_index(field.name)
            if place < 0:
                rows = rows.append_column(field, values)
            else:
                rows = rows.set_column(place, field, pc.coalesce(rows.column(place), values))
        return rows


def row_ids(table: Table, handle: DeltaTable) -> RowIds | None:
    """Those of a version; None: its rows need not keep any."""
    asked = of_columns(handle, asked_of)
    if asked is None or asked.id_columns is None:
        return None
    return RowIds(asked.id_columns, read_state(table.uri, handle.version()))


#: Makes the writer of files with these columns in a folder.
MakeWriter = Callable[[Table, pa.Schema, str], StagedWriter | DayWriter | RangeWriter]

#: Some rows of a file -> what of them is written.
Change = Callable[[pa.Table], pa.Table]


def _plain_writer(table: Table, schema: pa.Schema, folder: str) -> StagedWriter:
    return StagedWriter(table, schema, folder=folder)


@dataclass(frozen=True)
class Rewriting:
    """Files of one version of a table that are written again; the log is read once for all of them, if rows have numbers."""

    table: Table
    handle: DeltaTable

    @cached_property
    def ids(self) -> RowIds | None:
        """Those of the version (`row_ids`)."""
        return row_ids(self.table, self.handle)

    def together(
        self,
        paths: Sequence[str],
        order: Sequence[str] = (),
        make: MakeWriter = _plain_writer,
        change: Change | None = None,
    ) -> list[StagedFile]:
        """The rows of files of one partition in new files of that, sorted by some columns, `SORTED_BYTES` at a time."""
        schema = columns_in_files(self.handle)
        schema = schema if self.ids is None else pa.schema([*schema, *self.ids.fields])
        writer = make(self.table, schema, folder_of(paths[0]))
        try:
            read = self._rows(schema, paths)
            read = read if change is None else map(change, read)
            for rows, size in _sorted(read, order) if order else ((rows, buffer_bytes(rows)) for rows in read):
                writer.write(rows, size)
            return writer.close()
        except BaseException:
            writer.abort()
            raise

    def one_by_one(self, paths: Iterable[str], change: Change | None = None) -> list[StagedFile]:
        """The rows of each file, in their order, in a file of its own; after an error there are none.

        `change`: takes some rows away, or values: what a file's name says of its rows is true of the others, too.
        """

        def again(path: str) -> list[StagedFile]:
            def make(table: Table, schema: pa.Schema, folder: str) -> StagedWriter:
                return StagedWriter(table, schema, folder=folder, mark=mark_of(path))

            return self.together([path], make=make, change=change)

        return staged_together(self.table, map(again, paths))

    def _rows(self, schema: pa.Schema, paths: Iterable[str]) -> Iterator[pa.Table]:
        """The rows of files, with their numbers if they have any."""
        if self.ids is None:
            yield from read_parts(self.table, schema, paths, BATCH_ROWS)
            return
        for path in paths:
            for first, rows in numbered_parts(self.table, schema, [path], BATCH_ROWS):
                yield self.ids.kept(path, first, rows)


def staged_together(table: Table, written: Iterable[list[StagedFile]]) -> list[StagedFile]:
    """The files that are written while this goes through them; after an error there are none."""
    files = list[StagedFile]()
    try:
        for some in written:
            files += some
    except BaseException:
        discard(table, files)
        raise
    return files


def columns_in_files(handle: DeltaTable) -> pa.Schema:
    """The columns that a table's files have: not those of its partitions."""
    partition = handle.metadata().partition_columns
    return pa.schema([field for field in pa.schema(handle.schema()) if field.name not in partition])


def folder_of(path: str) -> str:
    """The folder of a file, with its slash: its partition."""
    return path[: path.rfind("/") + 1]


def _sorted(parts: Iterable[pa.Table], order: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
    """The rows, sorted within windows of bounded size, some at a time, with their bytes."""
    window: list[pa.Table] = []
    size = 0
    for rows in chain(parts, [None]):
        if rows is not None:
            window.append(rows)
            size += buffer_bytes(rows)
        if window and (rows is None or size >= SORTED_BYTES):
            together = pa.concat_tables(window)
            window = []
            together = together.take(pc.sort_indices(together, [(name, "ascending") for name in order]))
            for begin in range(0, together.num_rows, BATCH_ROWS):
                part = together.slice(begin, BATCH_ROWS)
                yield part, size * part.num_rows // together.num_rows
            size = 0
