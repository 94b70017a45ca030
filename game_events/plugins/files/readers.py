"""Reader of files in workers: files -> batches of records, with one batch in memory at a time.

Guarantee: a file is read to its end, or a quarantine row describes the unreadable or too large rest; nothing is skipped
silently. An unavailable storage fails the task, which is retried.

Readers of records that follow one another: JSON lines, and length-delimited protobuf messages.

JSON lines: one document in each line; positions are line numbers from 0, empty lines count and are no records. Messages: each
after its length as a varint, as written by protobuf's `writeDelimitedTo` (Java), `SerializeDelimitedToOstream` (C++) and
`serialize_length_prefixed` (Python); positions count them from 0.

Reader of Parquet files: rows of columns, or records of an archive. RowNumbers count the rows from 0.

A file is read by row groups; an unreadable group becomes one quarantine row. Tasks share a large file by its
row groups. The sizes in the metadata may be wrong, and a dictionary value may be repeated a million times: batches are sized by
the metadata, and made smaller where they do not fit into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import PurePosixPath

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
from game_events.plugins.files.location import RECORDS, NotAFileError, SourceLocation, is_archive, schemas_of
from game_events.plugins.files.records import (
    BATCH_ROWS,
    DecompressedFile,
    FileLimits,
    FilePart,
    LimitExceededError,
    NamedSchema,
    RowNumbers,
    archived,
    coalesced,
    decoded,
    memory_limit,
    pieces,
    records,
    split_by_size,
    unreadable,
)
from game_events.sources.source import BATCH_RECORDS, RAW_SCHEMA, Reading, ReadNotes, columns_of

_BLANK = (9, 13, 32)
#: Bytes of a message's length at most.
_LENGTH_BYTES = 5
#: Protobuf's own limit of a message.
MAX_MESSAGE = 2**31 - 1


def read_lines(
    source: pa.NativeFile | DecompressedFile, file: FilePart, identity: bytes, bounds: FileLimits
) -> Iterator[pa.RecordBatch]:
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


def _batches(buffer: bytes, breaks: RowNumbers, file: FilePart, position: int, identity: bytes) -> Iterator[pa.RecordBatch]:
    octets = np.frombuffer(buffer, dtype=np.uint8)
    ends = breaks.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    # An empty line, a blank or a carriage return; longer blank lines are rejected by the parser.
    blank = (ends == starts) | ((ends == starts + 1) & np.isin(octets[np.minimum(starts, len(octets) - 1)], _BLANK))
    return records(file, position + np.flatnonzero(~blank), buffer, starts[~blank], ends[~blank], identity)


def read_delimited(
    source: pa.NativeFile | DecompressedFile, file: FilePart, identity: bytes | None, bounds: FileLimits
) -> Iterator[pa.RecordBatch]:
    """Batches of a file's messages, then a row for the rest after an impossible length.

    A message that is too large becomes a quarantine row and is skipped without being held in memory.
    """
    unfinished = b""
    position = 0
    most = _largest_message(source, file)
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
        wrong = "no length" if needed is None else f"a message of {needed:,} bytes is announced"
        rest = len(unfinished) + _unread(source)
        detail = f"record {position:,}: {wrong}, {rest:,} bytes are left of the file"
        yield unreadable(file, position, detail, unfinished[:KEPT_BYTES])


def _largest_message(source: pa.NativeFile | DecompressedFile, file: FilePart) -> int:
    """Bytes that a message can have: no more than the file, where its size is known."""
    return MAX_MESSAGE + _LENGTH_BYTES if isinstance(source, DecompressedFile) else file.size


def _unread(source: pa.NativeFile | DecompressedFile) -> int:
    """Bytes behind those that were read; 0 where the size is unknown."""
    return 0 if isinstance(source, DecompressedFile) else int(source.size() - source.tell())


def _skip(source: pa.NativeFile | DecompressedFile, size: int, at_once: int) -> int:
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
                size += _value_bytes(batch)
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


def _value_bytes(batch: pa.RecordBatch) -> int:
    return int(batch.column("columns" if "columns" in batch.schema.names else "value").nbytes)


def _row_group(reading: _Reading, group: int, position: int) -> Iterator[pa.RecordBatch]:
    count = reading.opened.metadata.row_group(group).num_rows
    done = 0
    memory = reading.bounds.memory
    rows = _expected_rows(reading, group)
    while done < count:
        try:
            for batch in _row_batches(reading, group, rows, done):
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
    row_group = reading.opened.metadata.row_group(group)
    each: int = max(1, row_group.total_byte_size // max(1, row_group.num_rows))
    return max(1, min(BATCH_ROWS, reading.bounds.batch // each))


def _row_batches(reading: _Reading, group: int, rows: int, skip: int) -> Iterator[pa.RecordBatch]:
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


AVRO = "avro"
JSONL = "jsonl"
PARQUET = "parquet"
PROTOBUF = "protobuf"
#: File name suffix -> format, for `auto`; a suffix of `COMPRESSED` may follow.
ENDINGS = {
    ".avro": AVRO,
    ".parquet": PARQUET,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), JSONL),
    **dict.fromkeys((".pb", ".binpb", ".protobuf", ".delimited"), PROTOBUF),
}
#: Suffixes of compressed files (of formats without compression of their own).
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True)
class FileReading(Reading):
    """The files of a micro-batch, and how they are read.

    Attributes:
        place: location of the files.
        log_id: the file log's id.
        bounds: limits of a file.
        format: a format, or `auto`.
        schema: for records of files that do not hold one.
        framed: protobuf records begin with a registry frame.
        archive: the location is a record archive.
        files: task -> its files, or parts of files.
    """

    place: SourceLocation
    log_id: str
    bounds: FileLimits
    format: str = "auto"
    schema: NamedSchema | None = None
    framed: bool = False
    archive: bool = False
    files: Sequence[Sequence[FilePart]] = ()

    @property
    def tasks(self) -> int:
        """Number of the tasks."""
        return len(self.files)

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """See `Reading.batches`; the schemas that the files hold are noted."""
        return FileReader(self, notes).batches(self.files[task])


@dataclass
class FileReader:
    """Reads files in one task."""

    reading: FileReading
    notes: ReadNotes = field(default_factory=ReadNotes)

    def batches(self, files: Iterable[FilePart]) -> Iterator[pa.RecordBatch]:
        """Batches of records of these files."""
        return coalesced(batch for file in files for batch in self._read(file))

    def _read(self, file: FilePart) -> Iterator[pa.RecordBatch]:
        """One file; raises OSError or GameEventsError if it does not exist or the storage is unavailable."""
        place = self.reading.place
        behind = 0
        with store_errors_named(place.root):
            try:
                with place.open(file.path) as source:
                    for batch in self._batches(source, file):
                        behind = int(batch.column("file_position")[-1].as_py()) + 1
                        yield batch
            except NotAFileError as error:
                yield unreadable(file, behind, str(error))
            except LimitExceededError as error:
                yield unreadable(file, behind, f"what is left of the file was not read: {error}", reason=Reason.TOO_LARGE)
            except (pa.ArrowException, OSError) as error:
                if not self._is_damage(error):
                    raise
                yield unreadable(file, behind, f"it cannot be read to its end: {error}")

    def _batches(self, source: pa.NativeFile, file: FilePart) -> Iterator[pa.RecordBatch]:
        """Non-empty batches of a file's rows; raises LimitExceededError at a limit."""
        bounds = self.reading.bounds
        kind, codec = format_of(file.path, self.reading.format)
        with nullcontext(source) if codec is None else pa.CompressedInputStream(source, codec) as content:
            unpacked = content if codec is None else DecompressedFile(content, bounds)
            for batch in self._records(unpacked, file, kind):
                positions = batch.column("file_position")
                # The next file's offsets begin after `bounds.rows`.
                over = len(batch) > 0 and positions[-1].as_py() >= bounds.rows
                kept = batch.filter(pc.less(positions, bounds.rows)) if over else batch
                for piece in split_by_size(kept, bounds):
                    if len(piece):
                        yield piece
                if over:
                    raise bounds.too_many()

    def _records(self, source: pa.NativeFile | DecompressedFile, file: FilePart, kind: str | None) -> Iterator[pa.RecordBatch]:
        named = self.reading.schema
        bounds = self.reading.bounds
        match kind:
            case "avro" | "parquet" if isinstance(source, DecompressedFile):
                yield unreadable(file, 0, f"{kind} files have compression of their own: decompress it")
            case "parquet":
                yield from read_parquet(source, file, self._offer, self._is_damage, bounds, of_archive=self.reading.archive)
            case "avro":
                yield from read_container(source, file, self._offer, bounds)
            case "protobuf" if self.reading.framed or (named is not None and named.schema.format == "PROTOBUF"):
                identity = None if self.reading.framed or named is None else named.identity
                yield from read_delimited(source, file, identity, bounds)
            case "jsonl" if named is not None and named.schema.format == "JSON":
                yield from read_lines(source, file, named.identity, bounds)
            case None:
                yield unreadable(file, 0, "its name has no known suffix: set GAME_EVENTS_FILES_FORMAT")
            case other:
                detail = f"{other} records need a schema: set GAME_EVENTS_FILES_SCHEMA to one of their format"
                yield unreadable(file, 0, detail)

    def _offer(self, schema: RegistrySchema) -> None:
        self.notes.schemas[schema.schema_id] = schema

    def _is_damage(self, error: BaseException) -> bool:
        """Whether an error is caused by the file's content, not by the storage."""
        if isinstance(error, GameEventsError) or (isinstance(error, OSError) and error.errno is not None):
            return False
        return explain(error, self.reading.place.root) is None


def format_of(path: str, wanted: str) -> tuple[str | None, str | None]:
    """Format (None: unknown suffix) and compression (None: none) of a file, by the setting and its name."""
    name = PurePosixPath(path)
    codec = COMPRESSED.get(name.suffix.lower())
    if codec is not None:
        name = name.with_suffix("")
    return (ENDINGS.get(name.suffix.lower()) if wanted == "auto" else wanted), codec


_NO_RAW = (
    "has rows without their raw value (that pipeline runs with GAME_EVENTS_KEEP_RAW=failures): they cannot be decoded. Set "
    "it to `all` there and refresh its bronze fully"
)


@dataclass(frozen=True)
class TableReading(Reading):
    """Rows of the table's batches [start, end).

    Attributes:
        columns: those of `_COLUMNS` with their types.
        parts: task -> files, or parts of files.
    """

    table: Table
    columns: pa.Schema
    parts: Sequence[Sequence[TablePart]]
    start: int
    end: int

    @property
    def tasks(self) -> int:
        """Number of the tasks."""
        return len(self.parts)

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """See `Reading.batches`; ConfigurationError for a row without its raw value."""
        for part in self.parts[task]:
            for rows in read_parts(self.table, self.columns, [part.path], BATCH_RECORDS, slice(part.number, None, part.of)):
                batches = rows.column("_batch")
                wanted = rows.filter(pc.and_(pc.greater_equal(batches, self.start), pc.less(batches, self.end)))
                if wanted.column("_raw_value").null_count:
                    raise ConfigurationError(f"GAME_EVENTS_SOURCE_TABLE: {self.table.uri} {_NO_RAW}")
                yield from self._records(wanted)

    def _records(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        for batch in rows.combine_chunks().to_batches():
            columns = {f.name: batch.column(STORED_AS[f.name]).cast(f.type) for f in RAW_SCHEMA}
            yield columns_of(columns, len(batch))
