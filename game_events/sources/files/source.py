"""Files as the source: one split, in which each file has 2^32 offsets (`files.offsets`).

Each snapshot lists the folder or prefix and adds new, finished files to the file log, which numbers them. Numbered files are
read like a topic's records: in micro-batches of numbers, each once, from bronze's progress on.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property

from game_events.config.settings import Settings
from game_events.decoding.batch_decoder import TypeKey
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.tables import SOURCE_FILES, Lakehouse
from game_events.schema_registry import SchemaRegistry
from game_events.sources.core.reading import dealt
from game_events.sources.core.source import FILES, Gap, MicroBatch, Offsets, Source, SourceSnapshot, Split
from game_events.sources.files.file_log import FileLog, LogContent
from game_events.sources.files.limits import FileLimits
from game_events.sources.files.location import LINK, NotAFileError, SourceFile, SourceLocation
from game_events.sources.files.offsets import FILE_ROWS, PARTITION, FileGap, first_offset, number_of
from game_events.sources.files.reader import PARQUET, FileReading, format_of
from game_events.sources.files.record_batches import FilePart
from game_events.sources.files.schemas import NamedSchema, named_schema

log = logging.getLogger(__name__)

#: Last bytes of a complete Parquet file.
_PARQUET_END = b"PAR1"
#: Parallel checks of Parquet footers: each is a request to an object store.
_FOOTER_CHECKS = 16
#: Files and bytes of one task: a task costs some 100 ms, opening a file in an object store some 20 ms.
TASK_FILES, TASK_BYTES = 2_000, 256 * 1024 * 1024
#: Skipped files and folders that are logged by name for one snapshot.
_NAMES_LOGGED = 10
#: Tasks that read one Parquet file at most.
MOST_PARTS = 64


class FileSource(Source):
    """The files of the settings; one overwritten while it is read counts as it was read."""

    def __init__(
        self,
        settings: Settings,
        lakehouse: Lakehouse,
        run_id: str = "",
        *,
        read_by: Callable[[], str | None] = lambda: None,
        refuse_twice: Callable[[str, Offsets], None] = lambda _archive, _ends: None,
        read_only: bool = False,
    ) -> None:
        """Nothing is listed yet; ConfigurationError if `files_path` is not set, or is an object store that is not known.

        `read_by` gives the id of the file log that bronze was read by (None: no files were read); `refuse_twice` raises
        ConfigurationError if bronze would have records of this archive, up to these offsets, twice; with `read_only` new files
        are only counted, nothing is written.
        """
        if settings.files_path is None:
            raise ConfigurationError(
                "GAME_EVENTS_SOURCE is files: set GAME_EVENTS_FILES_PATH to a folder or s3://bucket/prefix"
            )
        self.settings = settings
        self.place = SourceLocation.of(settings, settings.files_path)
        self._log = FileLog(lakehouse, run_id)
        self._read_by, self._refuse_twice, self._read_only = read_by, refuse_twice, read_only
        self._checked = "not yet"
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
    def schema(self) -> NamedSchema | None:
        """The schema that the settings name; raises as `named_schema`."""
        return named_schema(self.settings, SchemaRegistry(self.settings))

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:
        """The files that can be read now; new ones are added to the file log.

        Args:
            take_in: False: new files are only counted, nothing is written.
            full_refresh: the files replace bronze, so records of an archive may be read again.

        Raises:
            ConfigurationError: no such folder, the object store refuses access, or records would be read twice.
            TransientError: the object store does not answer.
            DataError: the file log was restored, or is not the one that bronze was read by.
            ConflictError: concurrent runs won every attempt to add files.
        """
        archive = self.place.archive()
        skipped: dict[str, str] = {}
        found = self.place.listing(self.settings.files_pattern, skipped) if archive is None else self.place.files_of(archive)
        self._log_skipped(skipped)
        self.archive = None if archive is None else f"{self.place.root} {archive.metadata().id}"
        self._there = frozenset(f.path for f in found)
        known = self._log.known()
        self._refuse_lost_log(known)
        new, changed = known.compare(found)
        ready = self._ready(new)
        self.counts["waiting"] = len(new) - len(ready)
        end = len(known.entries)
        if self.archive is not None and take_in and not full_refresh:  # before its files get numbers
            self._refuse_twice(self.archive, {_split(known): first_offset(end + len(ready))})
        if self._read_only or not take_in:
            end += len(ready)
        elif ready or changed or not known.log_id:
            known = self._log.take_in(ready, changed)
            self.counts["taken"] += len(ready)
            self.counts["changed"] += len(changed)
            end = len(known.entries)
            for file in changed:
                log.warning("file=%r changed=true read_again=false", file.path)
        self._known = known
        split = _split(known)
        return SourceSnapshot({split: 0}, {split: first_offset(end)}, FILE_ROWS)

    def _log_skipped(self, skipped: dict[str, str]) -> None:
        new = sorted(skipped.keys() - self._skipped)
        self._skipped.update(new)
        links = sum(skipped[path] == LINK for path in new)
        self.counts["links"] += links
        self.counts["skipped"] += len(new) - links
        for path in new[:_NAMES_LOGGED]:
            log.warning("path=%r skipped=true reason=%r", path, skipped[path])

    def offsets_at(self, splits: Iterable[Split], when: datetime) -> Offsets:
        """Split -> first offset of a file that was written at a time or later."""
        since = int(when.timestamp() * 1_000_000)
        first = next((number for number, file in enumerate(self._known.entries) if file.modified_us >= since), None)
        return {} if first is None else dict.fromkeys(splits, first_offset(first))

    def batch_limit(self, reached: Offsets) -> int:
        """Offsets of the next batch at most, by `files_per_batch` and `files_bytes_per_batch`; at least one file."""
        first, size = number_of(next(iter(reached.values()), 0)), 0
        files = self._known.entries[first : first + self.settings.files_per_batch]
        for count, entry in enumerate(files):
            size += entry.size
            if size > self.settings.files_bytes_per_batch and count:
                return count * FILE_ROWS
        return max(1, len(files)) * FILE_ROWS

    def entries(self, batch: MicroBatch) -> Iterator[tuple[int, SourceFile]]:
        """Numbers and files of a batch, including missing ones."""
        for split, end in batch.end.items():
            first = number_of(batch.start[split])
            yield from enumerate(self._known.entries[first : number_of(end)], first)

    def missing(self, batch: MicroBatch) -> tuple[Gap, ...]:
        """Files of a batch that do not exist any more, by the last snapshot."""
        return tuple(
            FileGap(FILES, self._known.log_id, PARTITION, first_offset(number), first_offset(number + 1), file.path)
            for number, file in self.entries(batch)
            if file.path not in self._there
        )

    def file_counts(self) -> Counter[str]:
        """See `counts`."""
        return self.counts

    def missing_paths(self, first: int = 0) -> list[str]:
        """Files of the log that do not exist any more, by the last snapshot, or are before this offset."""
        known = enumerate(self._known.entries)
        return [file.path for number, file in known if file.path not in self._there or first_offset(number) < first]

    def schemas(self) -> list[RegistrySchema]:
        """The schema of the settings, if they name one."""
        return [] if self.schema is None else [self.schema.schema]

    def expected_types(self) -> list[TypeKey]:
        """The record type of that schema, planned for before the first record."""
        return [] if self.schema is None else [self.schema.key]

    def reading(self, batch: MicroBatch) -> FileReading:
        """The files of a batch that exist, large Parquet files in parts; DataError if none exists."""
        settings = self.settings
        bounds = FileLimits(settings.files_max_rows, settings.files_max_unpacked_bytes, settings.max_record_bytes)
        return FileReading(
            self.place,
            self._known.log_id,
            bounds,
            settings.files_format,
            self.schema,
            settings.files_framed,
            archive=self.archive is not None,
            files=self._tasks(batch),
        )

    def _tasks(self, batch: MicroBatch) -> list[Sequence[FilePart]]:
        parts = list[FilePart]()
        for number, file in self.entries(batch):
            if file.path in self._there:
                whole = format_of(file.path, self.settings.files_format)[0] != PARQUET
                of = 1 if whole else min(MOST_PARTS, -(-file.size // TASK_BYTES) or 1)
                for part in range(of):
                    parts.append(FilePart(number, file.path, file.size, file.modified_us, self._known.log_id, part, of))
        if not parts:
            raise DataError(f"{self.place.root}: no file of this batch exists any more")
        size = sum(part.size // part.parts for part in parts)
        return dealt(parts, max(-(-len(parts) // TASK_FILES), -(-size // TASK_BYTES), os.cpu_count() or 1))

    def _refuse_lost_log(self, known: LogContent) -> None:
        """Raise DataError if bronze was read by another file log: files would get other numbers and be read again."""
        if known.log_id == self._checked:
            return
        read_by = self._read_by()
        if read_by is not None and read_by != known.log_id:
            raise DataError(
                f"{SOURCE_FILES} is not the table that bronze_events was read by: without that one it is unknown which files "
                "were read, and all of them would be read again. Nothing was changed: put it back; or delete bronze_events and "
                "quarantine_events too, to read everything again"
            )
        self._checked = known.log_id

    def _ready(self, new: list[SourceFile]) -> list[SourceFile]:
        """New files that seem to be complete; others are left for a later snapshot."""
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
            with ThreadPoolExecutor(_FOOTER_CHECKS) as pool:
                ends = dict(zip(young, pool.map(self._has_end, young), strict=True))
            self._ended = {f for f in settled if ends.get(f, f in self._ended)}
            settled = [f for f in settled if ends.get(f, True)]
        return settled

    def _has_end(self, file: SourceFile) -> bool:
        """Whether a Parquet file exists and has the last bytes of its footer."""
        try:
            with store_errors_named(self.place.root), self.place.open(file.path) as source:
                size = source.size()
                source.seek(max(0, size - len(_PARQUET_END)))
                return bool(source.read() == _PARQUET_END)
        except (FileNotFoundError, NotAFileError):
            return False


def _split(known: LogContent) -> Split:
    return Split(FILES, known.log_id, PARTITION, FILES)
