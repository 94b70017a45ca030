"""Reader of files, and of another pipeline's bronze, in workers: batches of records, with one batch in memory at a time.

Guarantee: a file is read to its end, or a quarantine row describes the unreadable or too large rest; nothing is skipped
silently. An unavailable storage fails the task, which is retried.

JSON lines: one document in each line; positions are line numbers from 0, empty lines count and are no records. Messages: each
after its length as a varint, as written by protobuf's `writeDelimitedTo` (Java), `SerializeDelimitedToOstream` (C++) and
`serialize_length_prefixed` (Python); positions count them from 0.

Parquet: rows of columns, or records of an archive; positions count the rows from 0. A file is read by row groups; an
unreadable group becomes one quarantine row. Tasks share a large file by its row groups. The sizes in the metadata may be wrong,
and a dictionary value may be repeated a million times: batches are sized by the metadata, and made smaller where they do not
fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.decoding.frame import KEPT_BYTES, Reason, RegistrySchema, schema_guid
from game_events.decoding.projection import FORMAT, schema_text, stored
from game_events.errors import ConfigurationError, GameEventsError
from game_events.lakehouse.data.columns import STORED_AS
from game_events.lakehouse.data.reading import FilePart as TablePart
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.storage import explain, store_errors_named
from game_events.lakehouse.tables import Table
from game_events.plugins.files.avro_container import read_container
from game_events.plugins.files.location import NotAFileError, SourceLocation
from game_events.plugins.files.records import (
    BATCH_ROWS,
    DecompressedFile,
    FileLimits,
    FilePart,
    LimitExceededError,
    NamedSchema,
    archived,
    decoded,
    is_archive,
    memory_limit,
    pieces,
    records,
    schemas_of,
    split_by_size,
    unreadable,
)
from game_events.sources.source import BATCH_RECORDS, RAW_SCHEMA, Integers, Reading, ReadNotes, columns_of, joined

#: An open file, which knows its size only if it is not compressed.
_Opened: TypeAlias = pa.NativeFile | DecompressedFile
_BLANK = (9, 13, 32)
#: Bytes of a message's length at most.
_LENGTH_BYTES = 5
#: Protobuf's own limit of a message.
MAX_MESSAGE = 2**31 - 1


def read_lines(source: _Opened, file: FilePart, identity: bytes, bounds: FileLimits) -> Iterator[pa.RecordBatch]:
    """Batches of a file's lines; the last one needs no line break. A line that is too large is skipped; its size is counted."""
    unfinished = b""
    position = 0
    large = 0  # bytes so far of a line that is too large; `held` is how it begins
    while chunk := source.read(bounds.batch):
        if large:
            end = chunk.find(b"\n")
            if end < 0:
                large += len(chunk)
                continue
            yield unreadable(file, position, bounds.too_large(large + end), unfinished, Reason.TOO_LARGE)
            unfinished = b""
            large = 0
            position += 1
            chunk = chunk[end + 1 :]
        buffer = unfinished + chunk
        breaks = np.flatnonzero(np.frombuffer(buffer, dtype=np.uint8) == 10)
        if len(breaks):
            yield from _batches(buffer, breaks, file, position, identity)
            position += len(breaks)
            unfinished = buffer[int(breaks[-1]) + 1 :]
        else:
            unfinished = buffer
        if len(unfinished) > bounds.record:
            large = len(unfinished)
            unfinished = unfinished[:KEPT_BYTES]
    if large:
        yield unreadable(file, position, bounds.too_large(large), unfinished, Reason.TOO_LARGE)
    elif unfinished.strip():
        yield from _batches(unfinished, np.array([len(unfinished)]), file, position, identity)


def _batches(buffer: bytes, breaks: Integers, file: FilePart, position: int, identity: bytes) -> Iterator[pa.RecordBatch]:
    octets = np.frombuffer(buffer, dtype=np.uint8)
    ends = breaks.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    # An empty line, a blank or a carriage return; longer blank lines are rejected by the parser.
    blank = (ends == starts) | ((ends == starts + 1) & np.isin(octets[np.minimum(starts, len(octets) - 1)], _BLANK))
    return records(file, position + np.flatnonzero(~blank), buffer, starts[~blank], ends[~blank], identity)


def read_delimited(source: _Opened, file: FilePart, identity: bytes | None, bounds: FileLimits) -> Iterator[pa.RecordBatch]:
    """Batches of a file's messages, then a row for the rest after an impossible length.

    A message that is too large is skipped without being held in memory.
    """
    unfinished = b""
    position = 0
    # A message has no more bytes than the file, where its size is known.
    most = MAX_MESSAGE + _LENGTH_BYTES if isinstance(source, DecompressedFile) else file.size
    while True:
        chunk = source.read(bounds.batch)
        buffer = unfinished + chunk
        starts, ends, at, needed = _lengths(buffer)
        positions = position + np.arange(len(starts), dtype=np.int64)
        yield from records(file, positions, buffer, np.array(starts, np.int64), np.array(ends, np.int64), identity)
        position += len(starts)
        unfinished = buffer[at:]
        if needed is None or not chunk or needed > most:
            break
        if needed > bounds.record + _LENGTH_BYTES:
            missing = _skip(source, needed - len(unfinished), bounds.batch)
            if missing:
                unfinished = unfinished[:KEPT_BYTES]
                detail = f"{position:,}: a message of {needed:,} bytes is announced, {needed - missing:,} are left of the file"
                yield unreadable(file, position, f"record {detail}", unfinished)
                return
            yield unreadable(file, position, bounds.too_large(needed), unfinished[:KEPT_BYTES], Reason.TOO_LARGE)
            unfinished = b""
            position += 1
        # One message larger than a batch: read it at once, not chunk by chunk.
        elif needed > len(unfinished) + bounds.batch:
            unfinished += source.read(needed - len(unfinished) - bounds.batch)
    if unfinished:
        detail = f"record {position:,}: {_left_over(source, unfinished, needed)}"
        yield unreadable(file, position, detail, unfinished[:KEPT_BYTES])


def _left_over(source: _Opened, unfinished: bytes, needed: int | None) -> str:
    """What is wrong with the rest of a file, which begins with the bytes that were read of it; `needed`: see `_lengths`."""
    wrong = "no length" if needed is None else f"a message of {needed:,} bytes is announced"
    rest = len(unfinished) + (0 if isinstance(source, DecompressedFile) else source.size() - source.tell())
    return f"{wrong}, {rest:,} bytes are left of the file"


def _skip(source: _Opened, size: int, at_once: int) -> int:
    """Skip so many bytes, some at a time; returns how many are missing at the end of the file."""
    while size and (chunk := source.read(min(size, at_once))):
        size -= len(chunk)
    return size


def _lengths(buffer: bytes) -> tuple[list[int], list[int], int, int | None]:
    """Starts and ends of the complete messages of a buffer, where they stop, and bytes that the next one needs.

    None: no valid length there. A loop, as the start of a message depends on the one before.
    """
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    size = len(buffer)
    while at < size:
        octet = buffer[at]
        begin = at + 1
        length = octet & 0x7F
        shift = 7
        while octet > 0x7F:
            if begin == size:
                return starts, ends, at, begin - at + 1
            if begin - at == _LENGTH_BYTES:
                return starts, ends, at, None
            octet = buffer[begin]
            length |= (octet & 0x7F) << shift
            begin += 1
            shift += 7
        if length > MAX_MESSAGE:
            return starts, ends, at, None
        if begin + length > size:
            return starts, ends, at, begin - at + length
        starts.append(begin)
        ends.append(begin + length)
        at = begin + length
    return starts, ends, at, 1


#: Errors of reading damaged Parquet; `FileReading.is_damage` excludes those of an unavailable storage.
DAMAGED = (pa.ArrowException, OSError, ValueError, EOFError, MemoryError)
#: A batch that did not fit is retried with so many times fewer rows.
_FEWER = 32


@dataclass(frozen=True)
class _ParquetReader:
    """Reads one file; `notes` gets the schemas of an accepted one."""

    reading: FileReading
    file: FilePart
    notes: ReadNotes

    def batches(self, source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
        """Batches of a file's rows, or of a part of them, and rows for what cannot be read; LimitExceededError."""
        file = self.file
        bounds = self.reading.bounds
        try:
            opened = self._open(source)
        except DAMAGED as error:
            if not self.reading.is_damage(error):
                raise
            if file.part == 0:
                yield unreadable(file, 0, f"it cannot be read as Parquet: {_message(error)}")
            return
        if opened.metadata.num_rows > bounds.rows:
            # Nothing was read yet: the file can be added again, divided.
            if file.part == 0:
                yield unreadable(file, 0, f"nothing of it was read: {bounds.too_many()}", reason=Reason.TOO_LARGE)
            return
        size = 0
        for batch in self._row_groups(opened):
            size += batch.column("columns" if "columns" in batch.schema.names else "value").nbytes
            if size > bounds.unpacked:
                raise bounds.too_much()
            yield batch

    def _row_groups(self, opened: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        """Batches of the row groups of this part of the file."""
        position = 0
        for group in range(opened.num_row_groups):
            if group % self.file.parts == self.file.part:
                yield from self._row_group(opened, group, position)
            position += opened.metadata.row_group(group).num_rows

    def _open(self, source: pa.NativeFile) -> pq.ParquetFile:
        with memory_limit(self.reading.bounds.memory):
            opened = pq.ParquetFile(source)
        archive = is_archive(opened.schema_arrow)
        if archive and not set(RAW_SCHEMA.names) <= set(opened.schema_arrow.names):
            raise ValueError("an archive without the columns of one")
        # Files that the archive's log does not name would repeat records (compacted files, or left by a crash).
        if archive and not self.reading.archive:
            raise ValueError("it is of an archive: set GAME_EVENTS_FILES_PATH to the archive's own folder")
        if self.reading.archive and not archive:
            raise ValueError("the archive's files were rewritten (OPTIMIZE?): restore its table, or make another archive")
        if archive:
            self.notes.schemas.update(schemas_of(opened.schema_arrow))
        return opened

    def _row_group(self, opened: pq.ParquetFile, group: int, position: int) -> Iterator[pa.RecordBatch]:
        about = opened.metadata.row_group(group)
        count = about.num_rows
        memory = self.reading.bounds.memory
        # By the file's metadata.
        each = max(1, about.total_byte_size // max(1, count))
        rows = max(1, min(BATCH_ROWS, self.reading.bounds.batch // each))
        done = 0
        while done < count:
            try:
                for batch in self._row_batches(opened, group, rows, done):
                    positions = position + done + np.arange(len(batch), dtype=np.int64)
                    # The limit ends before the caller gets the batch.
                    with memory_limit(memory):
                        arranged = self._arranged(positions, batch)
                    yield arranged
                    done += len(batch)
                return
            except MemoryError as error:
                pa.default_memory_pool().release_unused()
                if rows == 1:
                    what = f"row group {group}: a row needs more than {memory:,} bytes of memory"
                    detail = f"{what}; {count - done:,} rows are left: {_message(error)}"
                    yield unreadable(self.file, position + done, detail, reason=Reason.TOO_LARGE)
                    return
                rows = max(1, rows // _FEWER)
            except DAMAGED as error:
                if not self.reading.is_damage(error):
                    raise
                detail = f"row group {group}: {_message(error)}; {count - done:,} rows are left of it"
                yield unreadable(self.file, position + done, detail)
                return

    def _row_batches(self, opened: pq.ParquetFile, group: int, rows: int, skip: int) -> Iterator[pa.RecordBatch]:
        """Batches of a row group after the first `skip` rows, decoded within the limit of memory."""
        columns = RAW_SCHEMA.names if self.reading.archive else None
        batches = opened.iter_batches(rows, row_groups=[group], columns=columns)
        about = opened.metadata.row_group(group)
        packed = sum(about.column(c).total_compressed_size for c in range(about.num_columns))
        bounds = self.reading.bounds
        while True:
            with memory_limit(bounds.memory + max(0, min(self.file.size, packed))):
                batch = next(batches, None)
            if batch is None:
                return
            if skip < len(batch):
                yield from pieces(batch.slice(skip), bounds.batch)
            skip = max(0, skip - len(batch))

    def _arranged(self, positions: Integers, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Records of a batch of rows."""
        if self.reading.archive:
            rows = pa.Table.from_batches([batch]).select(RAW_SCHEMA.names).cast(RAW_SCHEMA)
            return archived(self.file, positions, rows)
        columns = stored(batch.to_struct_array())
        if not pa.types.is_struct(columns.type):
            raise ValueError("it has no column with a type")
        text = schema_text(columns.type)
        guid = schema_guid(FORMAT, text)
        self.notes.schemas[guid] = RegistrySchema(guid, FORMAT, text)
        return decoded(self.file, positions, guid, columns)


def _message(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).partition("\n")[0][:300]


PARQUET = "parquet"
#: File name suffix -> format, for `auto`; a suffix of `COMPRESSED` may follow.
ENDINGS = {
    ".avro": "avro",
    ".parquet": PARQUET,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".pb", ".binpb", ".protobuf", ".delimited"), "protobuf"),
}
#: Suffixes of compressed files (of formats without compression of their own).
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True)
class FileReading(Reading):
    """The files of a micro-batch, and how they are read.

    Attributes:
        place: location of the files; `archive`: it is a record archive.
        format: a format, or `auto`.
        schema: for records of files that do not hold one; `framed`: protobuf records begin with a registry frame.
        parts: task -> its files, or parts of files.
    """

    place: SourceLocation
    bounds: FileLimits
    format: str = "auto"
    schema: NamedSchema | None = None
    framed: bool = False
    archive: bool = False
    parts: Sequence[Sequence[FilePart]] = ()

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """See `Reading.batches`; the schemas that the files hold are noted."""
        return joined(batch for file in self.parts[task] for batch in self._read(file, notes))

    def _read(self, file: FilePart, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """One file; raises OSError or GameEventsError if it does not exist or the storage is unavailable."""
        behind = 0
        with store_errors_named(self.place.root):
            try:
                with self.place.open(file.path) as source:
                    for batch in self._batches(source, file, notes):
                        behind = int(batch.column("file_position")[-1].as_py()) + 1
                        yield batch
            except NotAFileError as error:
                yield unreadable(file, behind, str(error))
            except LimitExceededError as error:
                yield unreadable(file, behind, f"what is left of the file was not read: {error}", reason=Reason.TOO_LARGE)
            except (pa.ArrowException, OSError) as error:
                if not self.is_damage(error):
                    raise
                yield unreadable(file, behind, f"it cannot be read to its end: {error}")

    def _batches(self, source: pa.NativeFile, file: FilePart, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """Non-empty batches of a file's rows; raises LimitExceededError at a limit."""
        bounds = self.bounds
        kind, codec = format_of(file.path, self.format)
        with nullcontext(source) if codec is None else pa.CompressedInputStream(source, codec) as content:
            unpacked = content if codec is None else DecompressedFile(content, bounds)
            for batch in self._records(unpacked, file, kind, notes):
                positions = batch.column("file_position")
                # The next file's offsets begin after `bounds.rows`.
                over = len(batch) > 0 and positions[-1].as_py() >= bounds.rows
                kept = batch.filter(pc.less(positions, bounds.rows)) if over else batch
                for piece in split_by_size(kept, bounds):
                    if len(piece):
                        yield piece
                if over:
                    raise bounds.too_many()

    def _records(self, source: _Opened, file: FilePart, kind: str | None, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        named = self.schema
        match kind:
            case "avro" | "parquet" if isinstance(source, DecompressedFile):
                yield unreadable(file, 0, f"{kind} files have compression of their own: decompress it")
            case "parquet":
                yield from _ParquetReader(self, file, notes).batches(source)
            case "avro":
                yield from read_container(source, file, notes, self.bounds)
            case "protobuf" if self.framed or (named is not None and named.schema.format == "PROTOBUF"):
                yield from self._messages(source, file)
            case "jsonl" if named is not None and named.schema.format == "JSON":
                yield from read_lines(source, file, named.identity, self.bounds)
            case None:
                yield unreadable(file, 0, "its name has no known suffix: set GAME_EVENTS_FILES_FORMAT")
            case other:
                detail = f"{other} records need a schema: set GAME_EVENTS_FILES_SCHEMA to one of their format"
                yield unreadable(file, 0, detail)

    def _messages(self, source: _Opened, file: FilePart) -> Iterator[pa.RecordBatch]:
        """Protobuf messages, by the schema of the settings unless they are framed."""
        identity = None if self.framed or self.schema is None else self.schema.identity
        yield from read_delimited(source, file, identity, self.bounds)

    def is_damage(self, error: BaseException) -> bool:
        """Whether an error is caused by the file's content, not by the storage."""
        if isinstance(error, GameEventsError) or (isinstance(error, OSError) and error.errno is not None):
            return False
        return explain(error, self.place.root) is None


def format_of(path: str, wanted: str) -> tuple[str | None, str | None]:
    """Format (None: unknown suffix) and compression (None: none) of a file, by the setting and its name."""
    name = PurePosixPath(path)
    codec = COMPRESSED.get(name.suffix.lower())
    if codec is not None:
        name = name.with_suffix("")
    return (ENDINGS.get(name.suffix.lower()) if wanted == "auto" else wanted), codec


@dataclass(frozen=True)
class TableReading(Reading):
    """Rows of the table's batches [start, end)."""

    table: Table
    columns: pa.Schema
    parts: Sequence[Sequence[TablePart]]
    start: int
    end: int

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """See `Reading.batches`; ConfigurationError for a row without its raw value."""
        for part in self.parts[task]:
            for rows in read_parts(self.table, self.columns, [part.path], BATCH_RECORDS, slice(part.number, None, part.of)):
                batches = rows.column("_batch")
                wanted = rows.filter(pc.and_(pc.greater_equal(batches, self.start), pc.less(batches, self.end)))
                if wanted.column("_raw_value").null_count:
                    raise ConfigurationError(
                        f"GAME_EVENTS_SOURCE_TABLE: {self.table.uri} has rows without their raw value (that pipeline runs "
                        "with GAME_EVENTS_KEEP_RAW=failures): they cannot be decoded. Set it to `all` there and refresh its "
                        "bronze fully"
                    )
                for batch in wanted.combine_chunks().to_batches():
                    columns = {f.name: batch.column(STORED_AS[f.name]).cast(f.type) for f in RAW_SCHEMA}
                    yield columns_of(columns, len(batch))
