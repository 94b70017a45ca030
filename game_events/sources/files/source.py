"""Files as the source: one lane, in which a file is 2^32 positions (`coordinates`).

Each look lists the folder or prefix and gives what is new, and finished, its numbers in the file log. What has a number is
there to be read as a topic's records are: by slices of numbers, each once, from bronze's own progress on.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from game_events.config.settings import Settings
from game_events.decoding.batch_decoder import TypeKey
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.tables import SOURCE_FILES, Lakehouse
from game_events.schema_registry import SchemaRegistry
from game_events.sources.core.source import FILES, Gap, MicroBatch, Offsets, SourceSnapshot, Split
from game_events.sources.files.file_log import FileLog, LogContent, LogEntry
from game_events.sources.files.folder import LINK
from game_events.sources.files.limits import FileLimits
from game_events.sources.files.location import FileLocation, ListedFile, NotAFileError
from game_events.sources.files.offsets import FILE_ROWS, PARTITION, FileGap, first_offset, number_of
from game_events.sources.files.reader import FILES_SCHEMA, PARQUET, FileReading, format_of
from game_events.sources.files.schemas import NamedSchema, named_schema

log = logging.getLogger(__name__)

#: What a Parquet file ends with once it is written to its end.
_PARQUET_END = b"PAR1"
#: Ends of files that are looked at at once: each is a request in an object store.
_LOOKS = 16
#: Files and bytes of one task; a task costs some 100 ms of its own, opening a file in an object store some 20.
TASK_FILES, TASK_BYTES = 2_000, 256 * 1024 * 1024
#: Names of skipped files and folders that the log has of one look.
_NAMES_TOLD = 10
#: A Parquet file is shared out to so many tasks at most.
MOST_PARTS = 64


class FileSource:
    """The files of the settings."""

    def __init__(
        self,
        settings: Settings,
        lakehouse: Lakehouse,
        run_id: str = "",
        *,
        read_by: Callable[[], str | None] = lambda: None,
        refuse_twice: Callable[[str], None] = lambda _archive: None,
        look_only: bool = False,
    ) -> None:
        """Nothing is listed yet.

        Args:
            settings: the settings.
            lakehouse: where the file log is.
            run_id: who takes files in.
            read_by: gives the id of the file log that bronze was read by; None: no files were read.
            refuse_twice: raises ConfigurationError if bronze may not be given the records of this archive.
            look_only: new files are only counted, nothing is written.

        Raises:
            ConfigurationError: `files_path` is not set, or is an object store that is not known.
        """
        if settings.files_path is None:
            raise ConfigurationError(
                "GAME_EVENTS_SOURCE is files: set GAME_EVENTS_FILES_PATH to a folder or s3://bucket/prefix"
            )
        self.settings = settings
        self.place = FileLocation.of(settings, settings.files_path)
        self._log = FileLog(lakehouse, run_id)
        self._read_by, self._refuse_twice, self._look_only = read_by, refuse_twice, look_only
        self._checked = "not yet"
        #: Which archive the files are of, by the last look: its place and its table's id; None: of none.
        self.archive: str | None = None
        self._known = LogContent()
        self._there: frozenset[str] = frozenset()
        self._ended: set[ListedFile] = set()
        #: What this process has seen since somebody asked: files `taken`, `changed`, `waiting` (as of the last look), and
        #: symbolic `links` and other names that are `skipped`, each once.
        self.counts: Counter[str] = Counter()
        self._skipped: set[str] = set()

    @cached_property
    def schema(self) -> NamedSchema | None:
        """The schema that the settings name.

        Raises:
            ConfigurationError: it is not there, or does not compile.
            TransientError: the registry does not answer.
        """
        return named_schema(self.settings, SchemaRegistry(self.settings))

    def snapshot(self, *, take_in: bool = True, anew: bool = False) -> SourceSnapshot:
        """The files that can be read now; new ones are taken in.

        Args:
            take_in: False: files that are new are only counted, nothing is written.
            anew: bronze is replaced by what is read.

        Raises:
            ConfigurationError: there is no such folder, the object store refuses us, or records would come twice.
            TransientError: the object store does not answer.
            DataError: the file log was restored, or is not the one that bronze was read by.
            ConflictError: rivals took files in, again and again.
        """
        archive = self.place.archive()
        skipped: dict[str, str] = {}
        found = self.place.listing(self.settings.files_pattern, skipped) if archive is None else self.place.files_of(archive)
        self._tell_skipped(skipped)
        self.archive = None if archive is None else f"{self.place.root} {archive.metadata().id}"
        if self.archive is not None and take_in and not anew:
            self._refuse_twice(self.archive)  # before its files get numbers
        self._there = frozenset(f.path for f in found)
        known = self._log.known()
        self._refuse_lost_log(known)
        new, changed = known.news(found)
        ready = self._ready(new)
        self.counts["waiting"] = len(new) - len(ready)
        end = len(known.entries)
        if self._look_only or not take_in:
            end += len(ready)
        elif ready or changed or not known.log_id:
            known = self._log.take_in(ready, changed)
            self.counts["taken"] += len(ready)
            self.counts["changed"] += len(changed)
            end = len(known.entries)
            for file in changed:
                log.warning("file=%r changed=true read_again=false", file.path)
        self._known = known
        lane = self._lane(known.log_id)
        return SourceSnapshot({lane: 0}, {lane: first_offset(end)}, FILE_ROWS)

    def _tell_skipped(self, skipped: dict[str, str]) -> None:
        news = sorted(skipped.keys() - self._skipped)
        self._skipped.update(news)
        links = sum(skipped[path] == LINK for path in news)
        self.counts["links"] += links
        self.counts["skipped"] += len(news) - links
        for path in news[:_NAMES_TOLD]:
            log.warning("path=%r skipped=true reason=%r", path, skipped[path])

    def offsets_at(self, lanes: Iterable[Split], when: datetime) -> Offsets:
        """Split -> first offset of a file that was written at a time or later; nothing if there is none."""
        since = int(when.timestamp() * 1_000_000)
        first = next((e.number for e in self._known.entries if e.modified_us >= since), None)
        return {} if first is None else dict.fromkeys(lanes, first_offset(first))

    def subjects(self, lanes: Iterable[Split]) -> tuple[str, ...]:  # noqa: ARG002
        """None: files bring their schemas, or a setting names one."""
        return ()

    def batch_limit(self, reached: Offsets) -> int:
        """Offsets of the next slice at most: so many files, and no more bytes than the settings say past the first file."""
        first, size = number_of(next(iter(reached.values()), 0)), 0
        files = self._known.entries[first : first + self.settings.files_per_batch]
        for count, entry in enumerate(files):
            size += entry.size
            if size > self.settings.files_bytes_per_batch and count:
                return count * FILE_ROWS
        return max(1, len(files)) * FILE_ROWS

    def records(self, part: MicroBatch) -> int:
        """Files of a slice: how many records they hold is known when they are read."""
        return part.records

    def constants(self, part: MicroBatch) -> Mapping[str, str]:  # noqa: ARG002
        """None: records of an archive are of several topics."""
        return {}

    def changed(self, part: MicroBatch) -> str | None:  # noqa: ARG002
        """A file that is written again while it is read is what it was when it was read."""
        return None

    @staticmethod
    def _lane(log_id: str) -> Split:
        return Split(FILES, log_id, PARTITION, FILES)

    def entries(self, part: MicroBatch) -> list[LogEntry]:
        """Files of a slice, those that are gone included."""
        return [
            entry
            for lane, end in part.end.items()
            for entry in self._known.entries[number_of(part.start[lane]) : number_of(end)]
        ]

    def missing_files(self, part: MicroBatch) -> tuple[Gap, ...]:
        """Files of a slice that were taken in and are not there any more, by the last look."""
        return tuple(
            FileGap(FILES, self._known.log_id, PARTITION, first_offset(e.number), first_offset(e.number + 1), e.path)
            for e in self.entries(part)
            if e.path not in self._there
        )

    def missing_paths(self) -> list[str]:
        """Files that were taken in and are not there any more, by the last look."""
        return [e.path for e in self._known.entries if e.path not in self._there]

    def schemas(self) -> list[RegistrySchema]:
        """The schema of the settings, if they name one."""
        return [] if self.schema is None else [self.schema.schema]

    def expected_types(self) -> list[TypeKey]:
        """Its type, to be planned for before a record is seen."""
        return [] if self.schema is None else [self.schema.key]

    def reading(self) -> FileReading:
        """What workers need to read a slice."""
        settings = self.settings
        archive = self.archive is not None
        bounds = FileLimits(settings.files_max_rows, settings.files_max_unpacked_bytes, settings.max_record_bytes)
        return FileReading(
            self.place,
            self._known.log_id,
            bounds,
            settings.files_format,
            self.schema,
            settings.files_framed,
            archive=archive,
        )

    def read(self, spark: SparkSession, part: MicroBatch) -> DataFrame:
        """The files of a slice (`FILES_SCHEMA`), for `FileReader`; large Parquet files in parts.

        Raises:
            DataError: no file of the slice is there.
        """
        rows = []
        for entry in self.entries(part):
            if entry.path in self._there:
                whole = format_of(entry.path, self.settings.files_format)[0] != PARQUET
                parts = 1 if whole else min(MOST_PARTS, -(-entry.size // TASK_BYTES) or 1)
                rows += [(entry.number, entry.path, entry.size, entry.modified_us, n, parts) for n in range(parts)]
        if not rows:
            raise DataError(f"{self.place.root}: no file of this slice is there any more")
        size = sum(row[2] // row[5] for row in rows)
        tasks = min(len(rows), max(-(-len(rows) // TASK_FILES), -(-size // TASK_BYTES), min(len(rows), os.cpu_count() or 1)))
        names = [word.split()[0] for word in FILES_SCHEMA.split(", ")]
        kinds = (pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.int32(), pa.int32())
        columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
        return spark.createDataFrame(pa.table(columns, names=names), FILES_SCHEMA).repartition(tasks)

    def _refuse_lost_log(self, known: LogContent) -> None:
        """Stop before files that bronze has read get other numbers and are read again.

        Raises:
            DataError: the file log that bronze was read by is not there any more.
        """
        if known.log_id == self._checked:
            return
        read_by = self._read_by()
        if read_by is not None and read_by != known.log_id:
            raise DataError(
                f"{SOURCE_FILES} is not the table that bronze_events was read by: without that one nobody knows which files "
                "were read, and all of them would be read again. Nothing was done: put it back; or delete bronze_events and "
                "quarantine_events too, and everything is read anew"
            )
        self._checked = known.log_id

    def _ready(self, new: list[ListedFile]) -> list[ListedFile]:
        """New files that are finished, as far as one can tell; others are left for a later look."""
        now = time.time()
        settled = [f for f in new if now - f.modified_us / 1e6 >= self.settings.files_settle_s]
        young = [
            f
            for f in settled
            if format_of(f.path, self.settings.files_format)[0] == PARQUET
            and now - f.modified_us / 1e6 < self.settings.files_incomplete_s
            and f not in self._ended
        ]
        if young:
            with ThreadPoolExecutor(_LOOKS) as pool:
                ends = dict(zip(young, pool.map(self._has_end, young), strict=True))
            self._ended = {f for f in settled if ends.get(f, f in self._ended)}
            settled = [f for f in settled if ends.get(f, True)]
        return settled

    def _has_end(self, file: ListedFile) -> bool:
        """Whether a Parquet file has its footer's last bytes; one that is gone meanwhile has not."""
        try:
            with store_errors_named(self.place.root), self.place.open(file.path) as source:
                size = source.size()
                source.seek(max(0, size - len(_PARQUET_END)))
                return bool(source.read() == _PARQUET_END)
        except (FileNotFoundError, NotAFileError):
            return False
