"""Workers' part: files -> batches of records, each file opened where it is read, never more of it in memory than a batch.

Guarantee: a file is read to its end, or what of it cannot be read, or is more than a file may have, is in a row that says so;
nothing is left out in silence. A storage that is away is an error and no damage: the task fails, and is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.errors import GameEventsError
from game_events.lakehouse.storage.errors import explain, store_errors_named
from game_events.sources.files.avro_container import read_container
from game_events.sources.files.json_lines import read_lines
from game_events.sources.files.limits import DecompressedFile, FileLimits, LimitExceededError
from game_events.sources.files.location import FileLocation, NotAFileError
from game_events.sources.files.parquet import read_parquet
from game_events.sources.files.protobuf_delimited import read_delimited
from game_events.sources.files.record_batches import FilePart, coalesced, split_by_size, unreadable
from game_events.sources.files.schemas import NamedSchema

AVRO, JSONL, PARQUET, PROTOBUF = "avro", "jsonl", "parquet", "protobuf"
#: Ending of a name -> format, for `auto`; behind it may stand that of a compression.
ENDINGS = {
    ".avro": AVRO,
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".json": JSONL,
    ".parquet": PARQUET,
    ".pb": PROTOBUF,
    ".binpb": PROTOBUF,
    ".protobuf": PROTOBUF,
    ".delimited": PROTOBUF,
}
#: Endings of compressed files (of formats that do not compress by themselves).
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

#: Columns of the DataFrame of files.
FILES_SCHEMA = "number long, path string, size long, modified_us long, part int, parts int"


@dataclass(frozen=True)
class FileReading:
    """What a worker needs to read files; picklable.

    Attributes:
        place: where they are.
        log_id: the file log's id.
        bounds: what a file may take.
        format: of the setting: a format, or `auto`.
        schema: of records whose files do not hold one.
        framed: protobuf records begin with a registry frame.
        archive: the place is an archive.
    """

    place: FileLocation
    log_id: str
    bounds: FileLimits
    format: str = "auto"
    schema: NamedSchema | None = None
    framed: bool = False
    archive: bool = False


@dataclass
class FileReader:
    """One worker's pass.

    Attributes:
        schemas: those that files brought, by GUID or id: the driver does not know them yet.
    """

    reading: FileReading
    schemas: dict[int | str, RegistrySchema] = field(default_factory=dict)

    def batches(self, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of records of the files whose rows (`FILES_SCHEMA`) come in."""
        return coalesced(batch for file in self._parts(files) for batch in self._read(file))

    def _parts(self, files: Iterable[pa.RecordBatch]) -> Iterator[FilePart]:
        for batch in files:
            for row in batch.to_pylist():
                yield FilePart(log_id=self.reading.log_id, **row)

    def _read(self, file: FilePart) -> Iterator[pa.RecordBatch]:
        """One file.

        Raises:
            OSError, GameEventsError: it is gone, may not be read, or the storage is away.
        """
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
        """A file's rows, none of them empty, up to its bounds.

        Raises:
            LimitExceededError: there are more.
        """
        bounds = self.reading.bounds
        kind, codec = format_of(file.path, self.reading.format)
        with nullcontext(source) if codec is None else pa.CompressedInputStream(source, codec) as content:
            unpacked = content if codec is None else DecompressedFile(content, bounds)
            for batch in self._records(unpacked, file, kind):
                positions = batch.column("file_position")
                # Behind a file's positions the next file's begin.
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
                yield unreadable(file, 0, f"{kind} files pack by themselves: unpack it")
            case "parquet":
                yield from read_parquet(source, file, self._offer, self._is_damage, bounds, of_archive=self.reading.archive)
            case "avro":
                yield from read_container(source, file, self._offer, bounds)
            case "protobuf" if self.reading.framed or (named is not None and named.kind == "PROTOBUF"):
                identity = None if self.reading.framed or named is None else named.identity
                yield from read_delimited(source, file, identity, bounds)
            case "jsonl" if named is not None and named.kind == "JSON":
                yield from read_lines(source, file, named.identity, bounds)
            case None:
                yield unreadable(file, 0, "its name does not tell its format: set GAME_EVENTS_FILES_FORMAT")
            case other:
                detail = f"{other} records need a schema: set GAME_EVENTS_FILES_SCHEMA to one of their format"
                yield unreadable(file, 0, detail)

    def _offer(self, schema: RegistrySchema) -> None:
        self.schemas[schema.schema_id] = schema

    def _is_damage(self, error: BaseException) -> bool:
        """Whether an error is one of the file's content, and not of the storage that holds it."""
        if isinstance(error, GameEventsError) or (isinstance(error, OSError) and error.errno is not None):
            return False
        return explain(error, self.reading.place.root) is None


def format_of(path: str, wanted: str) -> tuple[str | None, str | None]:
    """Format and compression of a file, by the setting and its name; None: its name does not tell, it is not compressed."""
    name = PurePosixPath(path)
    codec = COMPRESSED.get(name.suffix.lower())
    if codec is not None:
        name = name.with_suffix("")
    return (ENDINGS.get(name.suffix.lower()) if wanted == "auto" else wanted), codec
