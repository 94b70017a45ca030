"""Reader of Parquet files: rows of columns, or records of an archive. RowNumbers count the rows from 0.

A file is read by row groups; an unreadable group becomes one quarantine row. Tasks share a large file by its
row groups. The sizes in the metadata may be wrong, and a dictionary value may be repeated a million times: batches are sized by
the metadata, and made smaller where they do not fit into memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.registry_schema import RegistrySchema, schema_guid
from game_events.decoding.stored_columns import FORMAT, schema_text, stored
from game_events.sources.files.archive_format import RECORDS, is_archive, schemas_of
from game_events.sources.files.limits import FileLimits, memory_limit
from game_events.sources.files.record_batches import (
    BATCH_ROWS,
    FilePart,
    RowNumbers,
    archived,
    decoded,
    pieces,
    unreadable,
)

#: Errors of reading damaged Parquet; `is_damage` excludes those of an unavailable storage.
DAMAGED = (pa.ArrowException, OSError, ValueError, EOFError, MemoryError)
#: A batch that did not fit is retried with so many times fewer rows.
_FEWER = 32


@dataclass(frozen=True)
class _Reading:
    """One file, open."""

    opened: pq.ParquetFile
    file: FilePart
    offer: Callable[[RegistrySchema], None]
    is_damage: Callable[[BaseException], bool]
    bounds: FileLimits
    archive: bool


def read_parquet(
    source: pa.NativeFile,
    file: FilePart,
    offer: Callable[[RegistrySchema], None],
    is_damage: Callable[[BaseException], bool],
    bounds: FileLimits,
    *,
    of_archive: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Batches of a file's rows, or of a part of them, and rows for what cannot be read.

    `offer` is called with the schemas of an accepted file; `is_damage`: whether an error is caused by the file's content;
    `of_archive`: the file is in the Delta log of an archive. Raises LimitExceededError if its rows are too many bytes.
    """
    try:
        opened, archive = _open(source, offer, bounds.memory, of_archive=of_archive)
    except DAMAGED as error:
        if not is_damage(error):
            raise
        if file.part == 0:
            yield unreadable(file, 0, f"it cannot be read as Parquet: {_message(error)}")
        return
    if opened.metadata.num_rows > bounds.rows:
        # Nothing was read yet: the file can be added again, divided.
        if file.part == 0:
            yield unreadable(file, 0, f"nothing of it was read: {bounds.too_many()}", reason=Reason.TOO_LARGE)
        return
    reading = _Reading(opened, file, offer, is_damage, bounds, archive)
    position = size = 0
    for group in range(opened.num_row_groups):
        count = opened.metadata.row_group(group).num_rows
        if group % file.parts == file.part:
            for batch in _row_group(reading, group, position):
                size += batch.column("value" if "columns" not in batch.schema.names else "columns").nbytes
                if size > bounds.unpacked:
                    raise bounds.too_much()
                yield batch
        position += count


def _open(
    source: pa.NativeFile, offer: Callable[[RegistrySchema], None], memory: int, *, of_archive: bool
) -> tuple[pq.ParquetFile, bool]:
    """The file, and whether it belongs to an archive."""
    with memory_limit(memory):
        opened = pq.ParquetFile(source)
    archive = is_archive(opened.schema_arrow)
    if archive and not set(RECORDS.names) <= set(opened.schema_arrow.names):
        raise ValueError("an archive without the columns of one")
    # Files that the archive's log does not name would repeat records (compacted files, or left by a crash).
    if archive and not of_archive:
        raise ValueError("it is of an archive: set GAME_EVENTS_FILES_PATH to the archive's own folder")
    if of_archive and not archive:
        raise ValueError("the archive's files were rewritten (OPTIMIZE?): restore its table, or make another archive")
    for schema in schemas_of(opened.schema_arrow).values() if archive else ():
        offer(schema)
    return opened, archive


def _row_group(reading: _Reading, group: int, position: int) -> Iterator[pa.RecordBatch]:
    count, done, memory = reading.opened.metadata.row_group(group).num_rows, 0, reading.bounds.memory
    rows = _expected_rows(reading, group)
    while done < count:
        try:
            for batch in _batches(reading, group, rows, done):
                positions = position + done + np.arange(len(batch), dtype=np.int64)
                # The limit ends before the caller gets the batch.
                with memory_limit(memory):
                    arranged = _arranged(reading, positions, batch)
                yield arranged
                done += len(batch)
            return
        except MemoryError as error:
            pa.default_memory_pool().release_unused()
            if rows == 1:
                detail = f"row group {group}: a row needs more than {memory:,} bytes of memory; {count - done:,} rows are left"
                yield unreadable(reading.file, position + done, f"{detail}: {_message(error)}", reason=Reason.TOO_LARGE)
                return
            rows = max(1, rows // _FEWER)
        except DAMAGED as error:
            if not reading.is_damage(error):
                raise
            detail = f"row group {group}: {_message(error)}; {count - done:,} rows are left of it"
            yield unreadable(reading.file, position + done, detail)
            return


def _expected_rows(reading: _Reading, group: int) -> int:
    """Rows of a batch, by the file's metadata."""
    found = reading.opened.metadata.row_group(group)
    each: int = max(1, found.total_byte_size // max(1, found.num_rows))
    return max(1, min(BATCH_ROWS, reading.bounds.batch // each))


def _batches(reading: _Reading, group: int, rows: int, skip: int) -> Iterator[pa.RecordBatch]:
    """Batches of a row group after the first `skip` rows, decoded within the limit of memory."""
    columns = RECORDS.names if reading.archive else None
    batches = reading.opened.iter_batches(rows, row_groups=[group], columns=columns)
    about = reading.opened.metadata.row_group(group)
    packed = sum(about.column(c).total_compressed_size for c in range(about.num_columns))
    while True:
        with memory_limit(reading.bounds.memory + max(0, min(reading.file.size, packed))):
            batch = next(batches, None)
        if batch is None:
            return
        if skip < len(batch):
            yield from pieces(batch.slice(skip), reading.bounds.batch)
        skip = max(0, skip - len(batch))


def _arranged(reading: _Reading, positions: RowNumbers, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records of a batch of rows."""
    if reading.archive:
        rows = pa.Table.from_batches([batch]).select(RECORDS.names).cast(RECORDS)
        return archived(reading.file, positions, rows)
    columns = stored(batch.to_struct_array())
    if not pa.types.is_struct(columns.type):
        raise ValueError("it has no column with a type")
    text = schema_text(columns.type)
    schema = RegistrySchema(schema_guid(FORMAT, text), FORMAT, text)
    reading.offer(schema)
    return decoded(reading.file, positions, str(schema.schema_id), columns)


def _message(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).partition("\n")[0][:300]
