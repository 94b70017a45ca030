"""Parquet files: rows of columns, or records of an archive. Positions count the rows from 0.

A file is read row group by row group; one that cannot be read is one row of quarantine, the others are read all the same. A
large file is shared out to several tasks by its row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from game_events.decoding.registry_schema import RegistrySchema, schema_guid
from game_events.decoding.stored_columns import FORMAT, schema_text, stored
from game_events.files.archive_format import RECORDS, is_archive, schemas_of
from game_events.files.rows import BATCH_ROWS, FilePart, archived, decoded, refused

#: What reading damaged Parquet raises; `is_damage` tells it from storage that is away.
DAMAGED = (pa.ArrowException, OSError, ValueError, EOFError)


def read_parquet(
    source: pa.NativeFile,
    file: FilePart,
    offer: Callable[[RegistrySchema], None],
    is_damage: Callable[[BaseException], bool],
    *,
    of_archive: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Batches of a file's rows, or of a part of them, and rows for what cannot be read.

    Args:
        source: the file.
        file: what it is, and which part of it is read.
        offer: told of the schemas that the file brings.
        is_damage: whether an error is one of the file's content.
        of_archive: the log of an archive names the file.
    """
    try:
        opened = pq.ParquetFile(source)
        archive = is_archive(opened.schema_arrow)
        for schema in schemas_of(opened.schema_arrow).values() if archive else ():
            offer(schema)
        if archive and not set(RECORDS.names) <= set(opened.schema_arrow.names):
            raise ValueError("an archive without the columns of one")
        # Its records would come twice: those of files that were joined, or that a crash has left there.
        if archive and not of_archive:
            raise ValueError("it is of an archive: set GAME_EVENTS_FILES_PATH to the archive's own folder")
        if of_archive and not archive:
            raise ValueError("the archive's files were rewritten (OPTIMIZE?): restore its table, or make another archive")
    except DAMAGED as error:
        if not is_damage(error):
            raise
        if file.part == 0:
            yield refused(file, 0, f"it cannot be read as Parquet: {_said(error)}")
        return
    position = 0
    for group in range(opened.num_row_groups):
        count = opened.metadata.row_group(group).num_rows
        if group % file.parts == file.part:
            yield from _row_group(opened, group, position, file, offer, is_damage, archive=archive)
        position += count


def _row_group(
    opened: pq.ParquetFile,
    group: int,
    position: int,
    file: FilePart,
    offer: Callable[[RegistrySchema], None],
    is_damage: Callable[[BaseException], bool],
    *,
    archive: bool,
) -> Iterator[pa.RecordBatch]:
    count, done = opened.metadata.row_group(group).num_rows, 0
    try:
        for batch in opened.iter_batches(BATCH_ROWS, row_groups=[group], columns=RECORDS.names if archive else None):
            positions = position + done + np.arange(len(batch), dtype=np.int64)
            if archive:
                rows = pa.Table.from_batches([batch]).select(RECORDS.names).cast(RECORDS)
                found = archived(file, positions, rows)
            else:
                columns = stored(batch.to_struct_array())
                if not pa.types.is_struct(columns.type):
                    raise ValueError("it has no column with a type")
                text = schema_text(columns.type)
                schema = RegistrySchema(schema_guid(FORMAT, text), FORMAT, text)
                offer(schema)
                found = decoded(file, positions, str(schema.schema_id), columns)
            yield found
            done += len(batch)
    except DAMAGED as error:
        if not is_damage(error):
            raise
        detail = f"row group {group}: {_said(error)}; {count - done:,} rows are left of it"
        yield refused(file, position + done, detail)


def _said(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).partition("\n")[0][:300]
