"""Reader of files in workers: files -> batches of records, with one batch in memory at a time.

Guarantee: a file is read to its end, or a quarantine row describes the unreadable or too large rest; nothing is skipped
silently. An unavailable storage fails the task, which is retried.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.errors import GameEventsError
from game_events.lakehouse.storage.errors import explain, store_errors_named
from game_events.sources.core.reading import Reading, ReadNotes
from game_events.sources.files.avro_container import read_container
from game_events.sources.files.delimited import read_delimited, read_lines
from game_events.sources.files.limits import DecompressedFile, FileLimits, LimitExceededError
from game_events.sources.files.location import NotAFileError, SourceLocation
from game_events.sources.files.parquet import read_parquet
from game_events.sources.files.record_batches import FilePart, coalesced, split_by_size, unreadable
from game_events.sources.files.schemas import NamedSchema

AVRO, JSONL, PARQUET, PROTOBUF = "avro", "jsonl", "parquet", "protobuf"
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
        place, behind = self.reading.place, 0
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
        named, bounds = self.reading.schema, self.reading.bounds
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
