"""Arrow batches of records from files: a topic's columns, with file and position.

Offsets: partition 0, ``number of the file in the log << 32 | position in the file``. Micro-batches begin and end between files,
so everything that depends on offsets (commits, restores, the checks) holds for files as for a topic.

Limits of one file: records, decompressed bytes, bytes of a record, memory of decoding. A few bytes can announce any amount of
each. At a limit the records so far are kept, one quarantine row describes the rest, and other files are not affected.

Record archives: Parquet files of Kafka records (columns `RAW_SCHEMA`), one row each. The key-value metadata of each file marks
it and holds the schemas of its records, so that it can be read without a registry.
"""

import json
import resource
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.decoder import TypeKey
from game_events.decoding.frame import ID_HEADER, KEPT_BYTES, IndexPath, Reason, RegistrySchema, SchemaId, ordered, too_large
from game_events.decoding.protobuf.fields import varint
from game_events.sources.source import RAW_SCHEMA, RECORD_SCHEMA, Gap, Integers, byte_lengths, columns_of

#: Kind of the source, and the name that its one partition has instead of a topic's.
FILES = "files"
PARTITION = 0
#: Offsets of one file: its first is as many times its number.
FILE_ROWS = 2**32
#: Records of a batch: large files are divided, also by `BATCH_BYTES`.
BATCH_ROWS = 20_000
BATCH_BYTES = 32 * 1024 * 1024
#: Bytes that decoding a batch may allocate.
MEMORY = 1024 * 1024 * 1024
#: Key of the metadata of an archive's files; its value is the version of this format.
MARK = b"game_events.archive"
VERSION = b"1"
SCHEMAS_KEY = b"game_events.schemas"
#: Format of an id that was unknown when the archive was written.
UNKNOWN = "UNKNOWN"


class LimitExceededError(Exception):
    """A file exceeds a limit; the message names the limit and its setting."""


@dataclass(frozen=True)
class FileLimits:
    """The limits of reading a file.

    Attributes:
        rows, unpacked, record: of the settings: records of a file (by position), its decompressed bytes, bytes of a record.
        batch: bytes of a batch of records.
        memory: bytes that decoding a batch of Parquet may allocate, besides the compressed row group.
    """

    rows: int
    unpacked: int
    record: int
    batch: int = BATCH_BYTES
    memory: int = MEMORY

    def too_many(self) -> LimitExceededError:
        """Error for a file with too many records."""
        return LimitExceededError(f"it has more than {self.rows:,} records (GAME_EVENTS_FILES_MAX_ROWS)")

    def too_much(self) -> LimitExceededError:
        """Error for a file with too many bytes."""
        return LimitExceededError(
            f"it is more than {self.unpacked:,} bytes once unpacked (GAME_EVENTS_FILES_MAX_UNPACKED_BYTES)"
        )

    def too_large(self, size: int) -> str:
        """Quarantine detail of a record of so many bytes."""
        return too_large(f"{size:,}", self.record)


class DecompressedFile:
    """A compressed file, decompressed up to the limit: a megabyte may hold a terabyte."""

    def __init__(self, source: pa.NativeFile, bounds: FileLimits) -> None:
        self._source = source
        self._bounds = bounds
        self._size = 0

    def read(self, size: int) -> bytes:
        """The next bytes; raises LimitExceededError if there are too many in all."""
        content: bytes = self._source.read(size)
        self._size += len(content)
        if self._size > self._bounds.unpacked:
            raise self._bounds.too_much()
        return content


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Limit this process to so many more bytes in the block; beyond them it gets a MemoryError (`pa.ArrowMemoryError`).

    It holds for all threads, so keep the block short. Without effect except on Linux.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - not by its length: it has none
            in_use = int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        in_use = None
    most = min((n for n in (before, hard) if n != resource.RLIM_INFINITY), default=None)
    if in_use is None or (most is not None and most <= in_use + more):
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


_HEADERS = RAW_SCHEMA.field("headers").type
_PLACE = (pa.field("at", pa.int64()), pa.field("file_path", pa.string()), pa.field("file_position", pa.int64()))
#: Columns of every batch. `at`: offset in the source; `partition` and `offset`: coordinates in bronze (Kafka's, of an archive).
RECORDS = pa.schema([*RECORD_SCHEMA, *_PLACE])


class FilePart(NamedTuple):
    """A file, or a part of a large one, that a worker reads.

    Attributes:
        number, path, size, modified_us: as in the file log.
        log_id: the log's id, used as topic id.
        part, parts: number of the part of a Parquet file, and of parts in all.
    """

    number: int
    path: str
    size: int
    modified_us: int
    log_id: str
    part: int = 0
    parts: int = 1


def records(
    file: FilePart, positions: Integers, buffer: bytes, starts: Integers, ends: Integers, identity: bytes | None
) -> Iterator[pa.RecordBatch]:
    """Records with the values between these offsets of a buffer, in batches of `BATCH_ROWS`.

    `identity` names their schema; None: the values begin with a registry frame.
    """
    for begin in range(0, len(positions), BATCH_ROWS):
        part = slice(begin, begin + BATCH_ROWS)
        count = len(positions[part])
        columns = _place(file, positions[part]) | {
            "value": _binary_slices(buffer, starts[part], ends[part]),
            "headers": _headers(identity, count),
        }
        yield columns_of(columns, count, RECORDS)


def decoded(file: FilePart, positions: Integers, guid: str, rows: pa.StructArray) -> pa.RecordBatch:
    """Rows of columns, all of one schema."""
    count = len(positions)
    columns = _place(file, positions) | {"schema_guid": pa.repeat(pa.scalar(guid), count), "columns": rows}
    schema = pa.schema([*RECORDS, pa.field("schema_guid", pa.string()), pa.field("columns", rows.type)])
    return columns_of(columns, count, schema)


def archived(file: FilePart, positions: Integers, rows: pa.Table) -> pa.RecordBatch:
    """Records of an archive, with their Kafka coordinates, keys, headers and timestamps."""
    count = len(positions)
    own = _place(file, positions)
    columns = own | {name: rows.column(name).combine_chunks() for name in rows.column_names}
    columns["headers"] = pc.coalesce(columns["headers"], own["headers"])
    return columns_of(columns, count, RECORDS)


def unreadable(
    file: FilePart, position: int, detail: str, rest: bytes | None = None, reason: Reason = Reason.UNREADABLE_FILE
) -> pa.RecordBatch:
    """One row for an unreadable file, or the unreadable rest of one from a position on."""
    columns = _place(file, np.array([position], dtype=np.int64)) | {
        "value": pa.array([rest], pa.binary()),
        "reason": pa.array([str(reason)]),
        "detail": pa.array([detail]),
    }
    return columns_of(columns, 1, RECORDS)


def split_by_size(batch: pa.RecordBatch, bounds: FileLimits) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of bounded size; rows that are too large are truncated and get a reason."""
    if "columns" in batch.schema.names:
        for piece in pieces(batch, min(bounds.batch, bounds.record)):
            large = piece.nbytes > bounds.record
            yield _cut(piece.select(RECORDS.names), [piece.nbytes], bounds) if large else piece
        return
    sizes = byte_lengths(batch.column("value")) + byte_lengths(batch.column("key"))
    large = (sizes > bounds.record) & batch.column("reason").is_null().to_numpy(zero_copy_only=False)
    if not large.any():
        yield batch
        return
    yield batch.filter(pa.array(~large))
    yield _cut(batch.filter(pa.array(large)), sizes[large].tolist(), bounds)


def pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of so many bytes at most, except for larger single rows."""
    if len(batch) < 2 or batch.nbytes <= most:
        yield batch
        return
    half = len(batch) // 2
    yield from pieces(batch.slice(0, half), most)
    yield from pieces(batch.slice(half), most)


def _cut(batch: pa.RecordBatch, sizes: list[int], bounds: FileLimits) -> pa.RecordBatch:
    """Rows that are too large, truncated for quarantine."""
    columns = {name: batch.column(name) for name in batch.schema.names} | {
        "key": pc.binary_slice(batch.column("key"), 0, KEPT_BYTES),
        "value": pc.binary_slice(batch.column("value"), 0, KEPT_BYTES),
        "reason": pa.repeat(pa.scalar(str(Reason.TOO_LARGE)), len(batch)),
        "detail": pa.array([bounds.too_large(size) for size in sizes], pa.string()),
    }
    return columns_of(columns, len(batch), RECORDS)


def _binary_slices(data: bytes, starts: Integers, ends: Integers) -> pa.BinaryArray:
    """The values between these offsets of a buffer of less than 2 GiB."""
    count = len(starts)
    # An array of values and the bytes between them, of which every second one is taken: one copy, no loop.
    bounds = np.empty(2 * count + 1, dtype=np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = ends
    bounds[-1] = ends[-1] if count else 0
    whole = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(0, 2 * count, 2)))


def _headers(identity: bytes | None, count: int) -> pa.ListArray:
    """In each record one header, the schema's identity; None: an empty list."""
    each = 0 if identity is None else 1
    columns = pa.repeat(pa.scalar(ID_HEADER), count * each), pa.repeat(pa.scalar(identity, pa.binary()), count * each)
    pairs = pa.StructArray.from_arrays(columns, fields=list(_HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * each), pairs).cast(_HEADERS)


def _place(file: FilePart, positions: Integers) -> dict[str, pa.Array]:
    count = len(positions)
    offsets = pa.array(file.number * FILE_ROWS + positions, pa.int64())
    return {
        "topic": pa.repeat(pa.scalar(FILES), count),
        "topic_id": pa.repeat(pa.scalar(file.log_id), count),
        "partition": pa.repeat(pa.scalar(PARTITION, pa.int32()), count),
        "offset": offsets,
        "timestamp": pa.repeat(pa.scalar(file.modified_us, pa.int64()), count).cast(RAW_SCHEMA.field("timestamp").type),
        "at": offsets,
        "file_path": pa.repeat(pa.scalar(file.path), count),
        "file_position": pa.array(positions, pa.int64()),
        "headers": _headers(None, count),
    }


@dataclass(frozen=True)
class FileGap(Gap):
    """A file that was deleted before it was read; a gap from a commit's info has its number, not its path."""

    path: str = ""

    is_planned = True

    @property
    def offsets(self) -> int | None:
        """None: the number of records is unknown."""
        return None

    def __str__(self) -> str:
        return f"file {self.path}" if self.path else f"file number {self.start // FILE_ROWS} of source_files"


def identity_bytes(schema_id: SchemaId, path: IndexPath, *, indexed: bool) -> bytes:
    """Value of a record's header `__value_schema_id`: magic byte, id or GUID, and for protobuf the message indexes."""
    head = b"\0" + schema_id.to_bytes(4, "big") if isinstance(schema_id, int) else b"\1" + uuid.UUID(schema_id).bytes
    if not indexed:
        return head
    if path == (0,):
        return head + b"\0"
    # Zigzag encoding of numbers that are not negative.
    return head + b"".join(varint(n << 1) for n in (len(path), *path))


@dataclass(frozen=True)
class NamedSchema:
    """The schema of the settings, with an id of the registry or a derived GUID, for records of files without one.

    `key`: type of the records; `identity`: value of their schema header.
    """

    schema: RegistrySchema
    key: TypeKey
    identity: bytes


def marked_records(schemas: Iterable[RegistrySchema]) -> pa.Schema:
    """The files' Arrow schema with the metadata."""
    by_id = sorted(schemas, key=lambda s: ordered(s.schema_id))
    described = [{"id": s.schema_id, "format": s.format, "text": s.text, "references": s.references} for s in by_id]
    return RAW_SCHEMA.with_metadata({MARK: VERSION, SCHEMAS_KEY: json.dumps(described).encode()})


def is_archive(schema: pa.Schema) -> bool:
    """Whether a file belongs to an archive; raises ValueError for a later version of the format."""
    version = (schema.metadata or {}).get(MARK)
    if version is not None and version != VERSION:
        raise ValueError(f"an archive of version {version.decode(errors='replace')}, which this version does not read")
    return version is not None


def schemas_of(schema: pa.Schema) -> dict[SchemaId, RegistrySchema]:
    """The schemas in a file's metadata, by id or GUID; raises ValueError for damaged metadata."""
    try:
        listed = json.loads((schema.metadata or {}).get(SCHEMAS_KEY, b"[]"))
        references = [tuple((name, text) for name, text in s["references"]) for s in listed]
        schemas = [RegistrySchema(s["id"], s["format"], s["text"], r) for s, r in zip(listed, references, strict=True)]
        return {schema.schema_id: schema for schema in schemas}
    except (KeyError, TypeError) as error:
        raise ValueError(f"its schemas are damaged: {error!r}") from None
