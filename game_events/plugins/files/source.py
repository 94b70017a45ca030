"""Files as the source: one partition, in which each file has 2^32 offsets (`files.records`).

Each snapshot lists the folder or prefix and adds new, finished files to the file log, which numbers them. Numbered files are
read like a topic's records: in micro-batches of numbers, each once, from bronze's progress on.

The file log (table `source_files`, append-only): every source file with its number, which orders the source.

Guarantee: a path has one number for ever, also with concurrent runs and crashes; numbers have no gaps. So a file is read once:
bronze's progress is a number. A file that is overwritten later is recorded as changed and not read again.

Schemas of records: from the file's own header, from a file that a setting names, or from the registry. One without a registry
id gets a GUID derived from its text. Records carry it in the header `__value_schema_id`, as with Confluent's serializers, and
the table `schemas` keeps the text, so that replay, redecode and erasure work on records of files.
"""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.config.settings import Settings
from game_events.config.sources.schema_names import SUBJECT
from game_events.decoding.decoder import TypeKey, compile_schema
from game_events.decoding.frame import IndexPath, RegistrySchema, SchemaId
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.decoding.unframed.files import schema_of_file
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import retry_on_conflict
from game_events.lakehouse.commits.transactions import ANY_COMMIT, Txn, restored_lately
from game_events.lakehouse.storage import store_errors_named
from game_events.lakehouse.system_tables import SystemTable, schema_of
from game_events.lakehouse.tables import SOURCE_FILES, Lakehouse, paths
from game_events.plugins.files.location import LINK, NotAFileError, SourceFile, SourceLocation
from game_events.plugins.files.readers import PARQUET, FileReading, format_of
from game_events.plugins.files.records import (
    FILE_ROWS,
    FILES,
    PARTITION,
    UNKNOWN,
    FileGap,
    FileLimits,
    FilePart,
    NamedSchema,
    identity_bytes,
)
from game_events.schema_registry import SchemaLookup, SchemaRegistry
from game_events.sources.factory import since
from game_events.sources.source import (
    Gap,
    MicroBatch,
    Offsets,
    Partition,
    Source,
    SourceContext,
    SourceSnapshot,
    Upstream,
    dealt,
    last_parts,
)

log = logging.getLogger(__name__)
TAKEN = "taken"
CHANGED = "changed"
SCHEMA = schema_of(
    number=(pa.int64(), "Number that the path has for ever; a file's records count up from number * 2^32"),
    path=(pa.string(), "File"),
    size=(pa.int64(), "Bytes"),
    modified_at=(pa.timestamp("us", tz="UTC"), "When it was written (UTC)"),
    kind=(pa.string(), "taken, or changed: another size or time under a path that was taken before"),
    seen_at=(pa.timestamp("us", tz="UTC"), "When a run saw it so (UTC)"),
    run_id=(pa.string(), "Run that did"),
)


@dataclass
class LogContent:
    """The log in memory: files as last listed, by number, and their numbers by path."""

    entries: list[SourceFile] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    log_id: str = ""

    def compare(self, files: Sequence[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
        """Listed files that are not in the log, and those that changed since they were logged."""
        known = [file for file in files if file.path in self.numbers]
        changed = [file for file in known if file != self.entries[self.numbers[file.path]]]
        return [file for file in files if file.path not in self.numbers], changed


class FileLog:
    """Reads and appends to the table."""

    def __init__(self, lakehouse: Lakehouse, run_id: str = "") -> None:
        description = "Files that are the source, each with its number: bronze has read them up to one"
        self.declaration = SystemTable(lakehouse.table(SOURCE_FILES), SCHEMA, description)
        self._run_id = run_id
        self._read: set[str] = set()
        self._known = LogContent()
        self._handle: DeltaTable | None = None

    def known(self) -> LogContent:
        """Every file that was taken in; reads what came since the last look; DataError if the table was restored."""
        table = self.declaration.table
        self._handle = handle = table.open()
        if handle is None:
            self._read = set()
            self._known = LogContent()
            return self._known
        if restored_lately(table, ANY_COMMIT, handle.version()):
            raise DataError(
                f"{SOURCE_FILES} was restored to an older version: files that came since would get numbers that bronze has "
                "read already. Nothing was done: restore its newest version"
            )
        there = set(paths(handle))
        log_id = str(handle.metadata().id)
        if log_id != self._known.log_id or not self._read <= there:  # another table, or after compaction
            self._read = set()
            self._known = LogContent(log_id=log_id)
        self._add(self.declaration.read(handle, paths=sorted(there - self._read)))
        self._read = there
        if len(self._known.entries) != int(handle.transaction_version(Txn.NEXT_FILE) or 0):
            raise DataError(f"{table.uri}: its rows were changed: restore its newest version")
        return self._known

    @retry_on_conflict()
    def take_in(self, new: Sequence[SourceFile], changed: Sequence[SourceFile]) -> LogContent:
        """Number new files, in this order, and record changed ones, in one commit; ConflictError if others won every attempt.

        After a conflict the log is read again: files that the concurrent run has added are not new any more.
        """
        known = self.known()
        left = known.compare(new)[0]
        other = known.compare(changed)[1]
        if not left and not other and self._handle is not None:
            return known
        first = len(known.entries)
        rows = [(first + n, f, TAKEN) for n, f in enumerate(left)] + [(known.numbers[f.path], f, CHANGED) for f in other]
        self.declaration.commit(
            self._handle,
            self._as_table(rows),
            set_transactions={Txn.NEXT_FILE: first + len(left)},
            info={"files": str(len(left)), "changed": str(len(other))},
        )
        failpoints.reach("files_taken_in")
        return self.known()

    def _as_table(self, rows: Sequence[tuple[int, SourceFile, str]]) -> pa.Table:
        """Rows (number, file, kind) of the file log, seen now."""
        now = datetime.now(UTC)
        columns = {
            "number": [n for n, _, _ in rows],
            "path": [f.path for _, f, _ in rows],
            "size": [f.size for _, f, _ in rows],
            "modified_at": pa.array([f.modified_us for _, f, _ in rows], pa.int64()).cast(SCHEMA.field("modified_at").type),
            "kind": [kind for _, _, kind in rows],
            "seen_at": [now] * len(rows),
            "run_id": [self._run_id] * len(rows),
        }
        return pa.table(columns, schema=SCHEMA)

    def _add(self, rows: pa.Table) -> None:
        entries = self._known.entries
        numbers = self._known.numbers
        columns = [rows.column(n) for n in ("number", "path", "size", "modified_at", "kind", "seen_at")]
        columns[3] = columns[3].cast(pa.int64())
        listed = zip(*(c.to_pylist() for c in columns), strict=True)
        # By number, then changes in the order of their time.
        ordered = sorted(listed, key=lambda r: (True, r[5]) if r[4] == CHANGED else (False, r[0]))
        for number, path, size, modified, kind, _ in ordered:
            entry = SourceFile(path, size, modified)
            if kind == TAKEN and number == len(entries):
                entries.append(entry)
                numbers[path] = number
            elif kind == CHANGED and number < len(entries):
                entries[number] = entry


#: Suffix of a schema file -> its format.
_KINDS = {".proto": "PROTOBUF", ".json": "JSON", ".avsc": "AVRO"}
SETTING = "GAME_EVENTS_FILES_SCHEMA"
#: Last bytes of a complete Parquet file.
_PARQUET_END = b"PAR1"
#: Parallel checks of Parquet footers: each is a request to an object store.
_FOOTER_CHECKS = 16
#: Files and bytes of one task: a task costs some 100 ms, opening a file in an object store some 20 ms.
TASK_FILES = 2_000
TASK_BYTES = 256 * 1024 * 1024
#: Skipped files and folders that are logged by name for one snapshot.
_NAMES_LOGGED = 10
#: Tasks that read one Parquet file at most.
MOST_PARTS = 64


def named_schema(settings: Settings, registry: SchemaRegistry) -> NamedSchema | None:
    """The schema of the settings, if they name one.

    Raises:
        ConfigurationError: there is no such file, subject or message type, or the text does not compile.
        TransientError: the registry does not answer.
    """
    named = settings.files_schema
    if named is None:
        return None
    schema = _from_subject(named.removeprefix(SUBJECT), registry) if named.startswith(SUBJECT) else _from_file(named)
    try:
        compiled = compile_schema(schema)
    except DataError as error:
        raise ConfigurationError(f"{SETTING}: {named}: {error}") from None
    path: IndexPath = ()
    if isinstance(compiled, ProtobufSchema):
        path = _path_of(compiled, settings.files_message_type)
    return NamedSchema(schema, (schema.schema_id, path), identity_bytes(schema.schema_id, path, indexed=compiled.indexed))


def _from_subject(subject: str, registry: SchemaRegistry) -> RegistrySchema:
    newest = registry.newest(subject)
    schema = registry.fetch(newest[1]) if newest is not None else None
    if schema is None:
        raise ConfigurationError(f"{SETTING}: the registry {registry.url} has no subject {subject!r}")
    return schema


def _from_file(name: str) -> RegistrySchema:
    path = Path(name).expanduser()
    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise ConfigurationError(f"{SETTING}: {path} ends in none of {', '.join(_KINDS)}, and is no `{SUBJECT}NAME`")
    try:
        return schema_of_file(path, kind)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{SETTING}: {path} cannot be read: {error}") from None


def _path_of(schema: ProtobufSchema, name: str | None) -> IndexPath:
    """Index path of a message type by its full name."""
    if name is None:
        return (0,)
    names = schema.type_paths()
    if name not in names:
        raise ConfigurationError(
            f"GAME_EVENTS_FILES_MESSAGE_TYPE: the schema has no message {name!r}; it has {', '.join(sorted(names))}"
        )
    return names[name]


class FileSchemas(SchemaLookup):
    """Schemas by id while files are the source: those found in files, then the registry; files have no subjects."""

    def __init__(self, registry: SchemaLookup, *, framed: bool) -> None:
        """`framed`: records name schemas of the registry."""
        self.url = registry.url
        self._registry = registry
        self._framed = framed
        self._offered: dict[SchemaId, RegistrySchema] = {}

    def offer(self, schemas: Iterable[RegistrySchema]) -> None:
        """Add schemas found in files."""
        for schema in schemas:
            self._offered.setdefault(schema.schema_id, schema)

    def id_of(self, subject: str, version: int | None = None) -> SchemaId | None:
        """See `SchemaLookup.id_of`."""
        return self._registry.id_of(subject, version)

    def subject_of(self, schema_id: SchemaId) -> str | None:
        """See `SchemaLookup.subject_of`: of ids of the registry."""
        return self._registry.subject_of(schema_id) if self._framed else None

    def fetch(self, schema_id: SchemaId) -> RegistrySchema | None:
        """The schema of an id or GUID; None: unknown; raises as `SchemaRegistry.fetch`."""
        offered = self._offered.get(schema_id)
        known = None if offered is not None and offered.format == UNKNOWN else offered
        if self._framed and (isinstance(schema_id, int) or offered is None):
            # The registry defines its ids; an archive may have schemas that it has lost.
            return self._registry.fetch(schema_id) or known
        if offered is None and isinstance(schema_id, int):
            return self._registry.fetch(schema_id)
        return known


class FileSource(Source):
    """The files of the settings; one overwritten while it is read counts as it was read."""

    kind = FILES
    unit = FILE_ROWS
    gap = FileGap
    things = "files"
    check_name = "files"
    run_looks = True
    loss_advice = "leave files where they are until bronze has them"

    def __init__(self, context: SourceContext) -> None:
        """Nothing is listed yet; ConfigurationError if `files_path` is not set, or is an object store that is not known."""
        settings = context.settings
        if settings.files_path is None:
            raise ConfigurationError(
                "GAME_EVENTS_SOURCE is files: set GAME_EVENTS_FILES_PATH to a folder or s3://bucket/prefix"
            )
        self.settings = settings
        self._checked_log = "not yet"
        self.place = SourceLocation.of(settings, settings.files_path)
        self._context = context
        self._log = FileLog(context.lakehouse or Lakehouse.of(settings), context.run_id)
        #: Archive that the files belong to, by the last snapshot: location and table id; None: plain files.
        self.archive = None
        self._known = LogContent()
        self._there: frozenset[str] = frozenset()
        self._ended: set[SourceFile] = set()
        #: Files since the last report: `taken`, `changed`, `waiting` (by the last snapshot), and symbolic `links` and other
        #: names that are `skipped`, each once.
        self.counts: Counter[str] = Counter()
        self._skipped: set[str] = set()

    @cached_property
    def _schema(self) -> NamedSchema | None:
        return named_schema(self.settings, SchemaRegistry(self.settings))

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:
        """The files that can be read now; new ones are added to the file log, or only counted without `take_in`.

        Raises:
            ConfigurationError: no such folder, the object store refuses access, or an archive's records would be read twice.
            TransientError: the object store does not answer.
            DataError: the file log was restored, or is not the one that bronze was read by.
            ConflictError: concurrent runs won every attempt to add files.
        """
        listed = self._listed()
        self._there = frozenset(file.path for file in listed)
        known = self._log.known()
        self._refuse_lost_log(known)
        new, changed = known.compare(listed)
        ready = self._ready(new)
        self.counts["waiting"] = len(new) - len(ready)
        end = len(known.entries)
        if take_in and not full_refresh:  # before its files get numbers
            self._refuse_twice({self._partition_of(known): (end + len(ready)) * FILE_ROWS})
        if self._context.read_only or not take_in:
            end += len(ready)
        elif ready or changed or not known.log_id:
            known = self._take_in(ready, changed)
            end = len(known.entries)
        self._known = known
        files = self._partition_of(known)
        return SourceSnapshot({files: 0}, {files: end * FILE_ROWS}, FILE_ROWS)

    def _refuse_twice(self, ends: Offsets) -> None:
        """Raise ConfigurationError if these are files of an archive and its records would be read twice."""
        if self._context.refuse_twice and self.archive is not None:
            self._context.refuse_twice(self.archive, ends)

    def _take_in(self, ready: Sequence[SourceFile], changed: Sequence[SourceFile]) -> LogContent:
        """Record and count new and changed files in the file log."""
        known = self._log.take_in(ready, changed)
        self.counts["taken"] += len(ready)
        self.counts["changed"] += len(changed)
        for file in changed:
            log.warning("file=%r changed=true read_again=false", file.path)
        return known

    def _listed(self) -> Sequence[SourceFile]:
        """The files that are there: of an archive those of its newest version."""
        archive = self.place.archive()
        if archive is not None:
            self.archive = f"{self.place.root} {archive.metadata().id}"
            return self.place.files_of(archive)
        self.archive = None
        skipped: dict[str, str] = {}
        files = self.place.listing(self.settings.files_pattern, skipped)
        new = sorted(skipped.keys() - self._skipped)
        self._skipped.update(new)
        links = sum(skipped[path] == LINK for path in new)
        self.counts["links"] += links
        self.counts["skipped"] += len(new) - links
        for path in new[:_NAMES_LOGGED]:
            log.warning("path=%r skipped=true reason=%r", path, skipped[path])
        return files

    def offsets_at(self, partitions: Iterable[Partition], when: datetime) -> Offsets:
        """Partition -> first offset of a file that was written at a time or later."""
        since = int(when.timestamp() * 1_000_000)
        first = next((number for number, file in enumerate(self._known.entries) if file.modified_us >= since), None)
        return {} if first is None else dict.fromkeys(partitions, first * FILE_ROWS)

    def batch_limit(self, reached: Offsets) -> int:
        """Offsets of the next batch at most, by `files_per_batch` and `files_bytes_per_batch`; at least one file."""
        first = next(iter(reached.values()), 0) // FILE_ROWS
        size = 0
        files = self._known.entries[first : first + self.settings.files_per_batch]
        for count, entry in enumerate(files):
            size += entry.size
            if size > self.settings.files_bytes_per_batch and count:
                return count * FILE_ROWS
        return max(1, len(files)) * FILE_ROWS

    def entries(self, batch: MicroBatch) -> Iterator[tuple[int, SourceFile]]:
        """Numbers and files of a batch, including missing ones."""
        for partition, end in batch.end.items():
            first = batch.start[partition] // FILE_ROWS
            yield from enumerate(self._known.entries[first : end // FILE_ROWS], first)

    def missing(self, batch: MicroBatch) -> tuple[Gap, ...]:
        """Files of a batch that do not exist any more, by the last snapshot."""
        place = self._partition_of(self._known).place
        return tuple(
            FileGap(place, self._known.log_id, PARTITION, number * FILE_ROWS, (number + 1) * FILE_ROWS, file.path)
            for number, file in self.entries(batch)
            if file.path not in self._there
        )

    def file_counts(self) -> Counter[str]:
        """See `counts`."""
        return self.counts

    def lost_rows(self, now: SourceSnapshot, origins: Offsets | None) -> Column:
        """Rows of files that do not exist any more, or are before the first offset; of an archive by its records' origins."""
        (first,) = now.earliest.values()
        missing = [
            file.path
            for number, file in enumerate(self._known.entries)
            if file.path not in self._there or number * FILE_ROWS < first
        ]
        elsewhere = F.lit(True) if self.archive is not None and origins is None else since(origins or {})
        # By the file: records of an archive have Kafka's coordinates.
        return F.coalesce(F.col("_file_path").isin(missing), elsewhere)

    @classmethod
    def name(cls, settings: Settings) -> str:
        """The folder or prefix."""
        return str(settings.files_path)

    @staticmethod
    def gone_text(is_: str, has: str) -> str:  # noqa: ARG004
        """They do not expire."""
        return f"{is_} gone from there"

    @classmethod
    def lookup(cls, settings: Settings, connect: Callable[[Settings], SchemaLookup]) -> SchemaLookup:
        """Schemas of the files' own, then those of the registry."""
        return FileSchemas(connect(settings), framed=settings.files_framed)

    @classmethod
    def named_subjects(cls, settings: Settings) -> tuple[str, ...]:  # noqa: ARG003
        """None: files have no subject."""
        return ()

    def check(self) -> str:
        """Their number."""
        now = self.snapshot()
        named = ", ".join(s.format for s in self.schemas()) or "no schema of the settings"
        return (
            f"{self.place.root}: {sum(now.there.values()):,} files to read or read before, "
            f"{self.counts['waiting']:,} not finished yet; {named}"
        )

    @classmethod
    def asset_key(cls, settings: Settings, topic: str) -> tuple[str, ...]:  # noqa: ARG003
        """The end of the folder or prefix."""
        return ("files", *last_parts(cls.name(settings)))

    @classmethod
    def upstreams(cls, settings: Settings) -> list[Upstream]:
        """The folder or prefix, and the registry's subject if its records are decoded by one."""
        said = f"Files `{settings.files_pattern}` below `{settings.files_path}`. External: others put them there."
        # The kind of the files' format, where the settings name one.
        kind = {"auto": None, "jsonl": "json"}.get(settings.files_format, settings.files_format)
        kinds = ("file",) if kind is None else ("file", kind)
        upstreams = [Upstream(cls.asset_key(settings, FILES), said, kinds)]
        schema = settings.files_schema or ""
        if schema.startswith(SUBJECT):
            upstreams.append(cls.subject_upstream(settings, schema.removeprefix(SUBJECT)))
        return upstreams

    @classmethod
    def tables(cls, lakehouse: Lakehouse) -> list[SystemTable]:
        """The file log."""
        return [FileLog(lakehouse).declaration]

    def schemas(self) -> list[RegistrySchema]:
        """The schema of the settings, if they name one; raises as `named_schema`."""
        return [] if self._schema is None else [self._schema.schema]

    def expected_types(self) -> list[TypeKey]:
        """The record type of that schema, planned for before the first record."""
        return [] if self._schema is None else [self._schema.key]

    def reading(self, batch: MicroBatch) -> FileReading:
        """The files of a batch that exist, large Parquet files in parts; DataError if none exists."""
        settings = self.settings
        bounds = FileLimits(settings.files_max_rows, settings.files_max_unpacked_bytes, settings.max_record_bytes)
        tasks = self._tasks(batch)
        is_archive = self.archive is not None
        return FileReading(self.place, bounds, settings.files_format, self._schema, settings.files_framed, is_archive, tasks)

    def _tasks(self, batch: MicroBatch) -> list[Sequence[FilePart]]:
        parts = list[FilePart]()
        for number, file in self.entries(batch):
            if file.path in self._there:
                whole = format_of(file.path, self.settings.files_format)[0] != PARQUET
                count = 1 if whole else min(MOST_PARTS, math.ceil(file.size / TASK_BYTES) or 1)
                for part in range(count):
                    parts.append(FilePart(number, file.path, file.size, file.modified_us, self._known.log_id, part, count))
        if not parts:
            raise DataError(f"{self.place.root}: no file of this batch exists any more")
        size = sum(part.size // part.parts for part in parts)
        least = max(math.ceil(len(parts) / TASK_FILES), math.ceil(size / TASK_BYTES))
        return dealt(parts, max(least, os.cpu_count() or 1))

    def _refuse_lost_log(self, known: LogContent) -> None:
        """Raise DataError if bronze was read by another file log: files would get other numbers and be read again."""
        if known.log_id == self._checked_log:
            return
        read_by = self._context.id_read(FILES, FILES) if self._context.id_read is not None else None
        if read_by is not None and read_by != known.log_id:
            raise DataError(
                f"{SOURCE_FILES} is not the table that bronze_events was read by: without that one it is unknown which files "
                "were read, and all of them would be read again. Nothing was changed: put it back; or delete bronze_events and "
                "quarantine_events too, to read everything again"
            )
        self._checked_log = known.log_id

    def _ready(self, new: list[SourceFile]) -> list[SourceFile]:
        """New files that seem to be complete; others are left for a later snapshot."""
        now = time.time()
        settled = [file for file in new if now - file.modified_us / 1e6 >= self.settings.files_settle_s]
        asked = [file for file in settled if self._may_grow(file, now)]
        if not asked:
            return settled
        with ThreadPoolExecutor(_FOOTER_CHECKS) as pool:
            ends = dict(zip(asked, pool.map(self._has_end, asked), strict=True))
        self._ended = {file for file in settled if ends.get(file, file in self._ended)}
        return [file for file in settled if ends.get(file, True)]

    def _may_grow(self, file: SourceFile, now: float) -> bool:
        """Whether a file may still be written: a young Parquet file of which the end was not seen."""
        is_young = now - file.modified_us / 1e6 < self.settings.files_incomplete_s
        return is_young and format_of(file.path, self.settings.files_format)[0] == PARQUET and file not in self._ended

    def _partition_of(self, known: LogContent) -> Partition:
        return Partition(FILES, known.log_id, PARTITION, FILES, self._context.name)

    def _has_end(self, file: SourceFile) -> bool:
        """Whether a Parquet file exists and has the last bytes of its footer."""
        try:
            with store_errors_named(self.place.root), self.place.open(file.path) as source:
                size = source.size()
                source.seek(max(0, size - len(_PARQUET_END)))
                return bool(source.read() == _PARQUET_END)
        except (FileNotFoundError, NotAFileError):
            return False
