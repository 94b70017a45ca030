"""Protocol of a source of records: splits with offsets, and micro-batches of them, which Spark's workers read.

A source has one or more **splits**, each read once from its beginning to its end: a partition of a Kafka topic (offset: the
record's), another pipeline's table (offset: its batch number), or a file log (offset: `files.records`). Bronze keeps the next
offset of each split in a transaction (`Split.app`), which every commit compares with the start of its micro-batch.

How Spark's workers read a micro-batch: tasks of the driver's plan, and the reader of each, as Arrow batches.

The driver plans ranges, Spark distributes the numbers of their tasks, and a worker reads the ranges of a task by itself: no
record becomes a row of the JVM. A task may run twice (a crashed worker, a lost executor): it gives the same records.

Plan of the next micro-batch of a source: contiguous, bounded, shared fairly between the splits of all topics.

Guarantee: consecutive batches, each planned from the end of the one before, cover every offset once; unreadable offsets
become gaps of the batch and are never skipped silently.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.decoder import TypeKey
from game_events.decoding.frame import RegistrySchema
from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS, RAW_COLUMNS, STORED_AS

Part = TypeVar("Part")

Integers = npt.NDArray[np.int64]

#: Columns of `RAW_COLUMNS` with their types.
RAW_SCHEMA = pa.schema([pa.field(name, OWN_COLUMNS.field(STORED_AS[name]).type) for name in RAW_COLUMNS])

#: Reason (`decoding.core.reasons`) and detail of rows that are no records to decode; else NULL.
WHY = (pa.field("reason", pa.string()), pa.field("detail", pa.string()))

#: Columns of every batch of records; those of files have more.
RECORD_SCHEMA = pa.schema([*RAW_SCHEMA, *WHY])

#: Records of one task: fewer tasks for small micro-batches, as each costs Spark some 50 ms.
TASK_RECORDS = 500_000

#: Records of a batch: large enough for groups of 20 schema versions.
BATCH_RECORDS = 32_768

#: Bytes of values, keys and headers of a batch: some records are megabytes.
BATCH_BYTES = 64 * 1024 * 1024


@dataclass
class ReadNotes:
    """What a reader tells besides the records.

    Attributes:
        schemas: those found in files, by GUID or id.
        incomplete: number of records that were read without what no column can hold; `examples` names some of them.
    """

    schemas: dict[int | str, RegistrySchema] = field(default_factory=dict)
    incomplete: int = 0
    examples: list[str] = field(default_factory=list)


class Reading(ABC):
    """A micro-batch, planned; picklable, as it goes to the workers.

    Guarantee asked of it: all tasks together give each record of the micro-batch once, in every attempt the same ones, and
    never fewer without an error.
    """

    @property
    @abstractmethod
    def tasks(self) -> int:
        """Number of the tasks."""

    @abstractmethod
    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """Non-empty batches of the records of a task: `RECORD_SCHEMA`, and what only files have.

        Raises:
            ConflictError: a record is gone, or others are in its place, since the micro-batch was planned.
            TransientError, ConfigurationError: the source does not answer, or refuses.
        """

    def sparing(self) -> "Reading":
        """The same records with as little memory as possible, after a worker crashed, perhaps for lack of it; slower."""
        return self


def dealt(parts: Sequence[Part], tasks: int) -> list[Sequence[Part]]:
    """The parts in so many tasks, or fewer."""
    tasks = max(1, min(tasks, len(parts)))
    return [parts[number::tasks] for number in range(tasks)]


def columns_of(rows: Mapping[str, pa.Array], count: int, schema: pa.Schema = RECORD_SCHEMA) -> pa.RecordBatch:
    """A batch of these columns; those that are not given are NULL."""
    arrays = [rows[f.name] if f.name in rows else pa.nulls(count, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class RecordBytes:
    """Sizes of records by their columns `value`, `key` and `headers`.

    Attributes:
        headers: of each record, bytes of the names and values of its headers.
        all: with value and key.
    """

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self.headers = _header_bytes(columns["headers"])
        self.all = _lengths(columns["value"]) + _lengths(columns["key"]) + self.headers


def _lengths(values: pa.Array) -> Integers:
    found: Integers = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _header_bytes(headers: pa.ListArray) -> Integers:
    """Bytes of each record's headers, names and values."""
    ends = headers.offsets.to_numpy() if len(headers) else np.zeros(1, np.int64)
    if ends[-1] == ends[0]:
        return np.zeros(len(headers), np.int64)
    items = headers.values.slice(ends[0], ends[-1] - ends[0])
    sizes = _lengths(items.field("key")) + _lengths(items.field("value"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    places = ends - ends[0]
    found: Integers = before[places[1:]] - before[places[:-1]]
    return found


KAFKA, TABLE, FILES = "kafka", "table", "files"


class Split(NamedTuple):
    """One sequence of records.

    Attributes:
        topic: name of the topic, or address of the table.
        topic_id: the broker's id of the topic, or the table's id: a recreated topic has another id.
        partition: number of the partition; 0 where there is only one.
        kind: `KAFKA`, `TABLE` or `FILES`.
    """

    topic: str
    topic_id: str
    partition: int
    kind: str = KAFKA

    @property
    def app(self) -> str:
        """Name of the `txn` of bronze and quarantine that holds the next offset."""
        if self.kind == KAFKA:
            return Txn.KAFKA.of(self.topic, self.topic_id, self.partition)
        return Txn(self.kind).of(self.topic_id)

    @property
    def epoch_app(self) -> str:
        """Name of the `txn` of bronze with the newest leader epoch that its records may have."""
        return Txn.EPOCH.of(self.topic, self.topic_id, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]" if self.kind == KAFKA else self.topic


#: Split -> an offset in it.
Offsets = dict[Split, int]


@dataclass(frozen=True)
class Gap:
    """Offsets [start, end) of one split that cannot be read any more; `end` None: of a deleted topic."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int | None

    @property
    def offsets(self) -> int | None:
        """Number of offsets; None: unknown."""
        return None if self.end is None else self.end - self.start

    def __str__(self) -> str:
        where = f"{self.topic}[{self.partition}]"
        if self.end is None:
            return f"{where} of the topic that was deleted (id {self.topic_id}): everything from offset {self.start} on"
        return f"{where}: offsets {self.start} to {self.end - 1}"


@dataclass(frozen=True)
class SourceSnapshot:
    """Offset ranges of a source at one moment.

    Attributes:
        earliest: split -> first offset that still exists.
        latest: split -> end of the readable offsets (exclusive).
        unit: offsets of one record (of one file, where a split is a file log).
        epochs: split -> epoch of its current leader; Kafka only.
    """

    earliest: Offsets
    latest: Offsets
    unit: int = 1
    epochs: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class MicroBatch:
    """A bounded part of a source: split -> [start, end). Splits with nothing to read and no gap are left out.

    Attributes:
        start, end: split -> [start, end), existing offsets only.
        latest: split -> end of the source in the snapshot.
        gaps: unreadable offsets that the commit of this batch skips.
        reached: split -> next offset of bronze, for all splits.
        joined: topics that bronze has never read before.
        unit: offsets of one record.
    """

    start: Offsets
    end: Offsets
    latest: Offsets = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    reached: Offsets = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    unit: int = 1

    @property
    def records(self) -> int:
        """Number of records at most (transaction markers included)."""
        return sum(self.end[p] - self.start[p] for p in self.end) // self.unit

    @property
    def lag(self) -> Offsets:
        """Split -> records that remain after this batch."""
        return {p: max(0, end - self.end.get(p, self.reached.get(p, end))) // self.unit for p, end in self.latest.items()}


class Source(Protocol):
    """Where bronze's records come from.

    Guarantee asked of it: a micro-batch is exactly the records with ``start <= offset < end`` of its splits; reading it twice
    gives the same records, and never fewer without an error.

    Attributes:
        one_by_one: each offset is one record, so a micro-batch can be read in halves.
        archive: the record archive that is read: location and table id; None: it is none.
    """

    one_by_one: bool = False
    archive: str | None = None

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:
        """The source as it is now.

        Args:
            take_in: False: nothing is written (a source of files keeps a list of them).
            full_refresh: what is read replaces bronze, so records may be read again.

        Raises:
            ConfigurationError: it does not exist, or refuses the login.
            TransientError: it does not answer.
        """

    def offsets_at(self, splits: Iterable[Split], when: datetime) -> Offsets:
        """Split -> first offset of a record not older than a time; splits without such a record are left out."""

    def epochs_before(self, now: SourceSnapshot, offsets: Offsets) -> Offsets:  # noqa: ARG002
        """Split -> epoch of the leader that wrote the last record before an offset; default: there are no epochs."""
        return {}

    def subjects(self, splits: Iterable[Split]) -> tuple[str, ...]:  # noqa: ARG002
        """Subjects of the registry, for planning their versions before the first record; default: none are known."""
        return ()

    def schemas(self) -> list[RegistrySchema]:
        """Schemas that the settings name; default: none."""
        return []

    def expected_types(self) -> list[TypeKey]:
        """Message types to plan for before the first record; default: none are known."""
        return []

    def batch_limit(self, reached: Offsets) -> int:
        """Offsets that the next micro-batch may have, all splits together."""

    def reading(self, batch: MicroBatch) -> Reading:
        """How Spark's workers read a batch; DataError if nothing of it exists any more."""

    def missing(self, batch: MicroBatch) -> tuple[Gap, ...]:  # noqa: ARG002
        """Parts of a batch that were deleted since they were listed; default: none can be."""
        return ()

    def changed(self, batch: MicroBatch) -> str | None:  # noqa: ARG002
        """Checked after a batch was read: why its records may be others than planned; None: they are not (default)."""
        return None

    def commit_group_offsets(self, group: str, offsets: Offsets) -> None:  # noqa: ARG002
        """Tell a consumer group what bronze has, so that monitoring tools see its lag; default: there are no groups."""
        return

    def file_counts(self) -> Counter[str]:
        """What became of the files of the source since the last report; default: it has none."""
        return Counter()


def plan_micro_batch(now: SourceSnapshot, start: Offsets, until: Offsets, max_records: int) -> MicroBatch | None:
    """Plan the next batch: from `start` towards `until`, shared between splits by their backlog; None: nothing to read, no gap.

    Args:
        now: the source.
        start: split -> next offset to read; splits that are not in it (a new topic or partition) are read from 0.
        until: split -> where to stop; default: the source's end.
        max_records: offsets of the batch at most, all splits together. With fewer than there are splits, they take turns.

    Raises:
        DataError: a topic is shorter than `start`, as after a broker lost data: new records would get old offsets.
    """
    gaps: list[Gap] = []
    begin: Offsets = {}
    for split, end in sorted(now.latest.items()):
        wanted = start.get(split, 0)
        if wanted > end:
            raise DataError(
                f"{split}: bronze is at {wanted}, the topic ends at {end}: the broker has lost records, and "
                "new ones get offsets that bronze has already. Restore the broker's data, or delete and recreate the topic: "
                "that is recognised by its id"
            )
        begin[split] = max(wanted, now.earliest[split])
        if begin[split] > wanted:
            gaps.append(Gap(split.topic, split.topic_id, split.partition, wanted, begin[split]))
    backlog = {p: max(0, min(until.get(p, end), end) - begin[p]) for p, end in now.latest.items()}
    take = _share({p: waiting for p, waiting in sorted(backlog.items()) if waiting}, max_records, sum(begin.values()))
    read = sorted(take.keys() | {Split(gap.topic, gap.topic_id, gap.partition) for gap in gaps})
    if not read:
        return None
    ends = {p: begin[p] + take.get(p, 0) for p in read}
    return MicroBatch({p: begin[p] for p in read}, ends, now.latest, tuple(gaps), begin, unit=now.unit)


def _share(backlog: Offsets, most: int, turn: int) -> Offsets:
    """Split -> offsets to take: by backlog, each at least one, never more than `most` together."""
    total = sum(backlog.values())
    if total <= most:
        return backlog
    if most < len(backlog):
        # `turn` grows by as many offsets as are read, so the next batch begins behind the splits of this one.
        names = list(backlog)
        return dict.fromkeys((names[(turn + n) % len(names)] for n in range(most)), 1)
    take = {p: max(1, waiting * most // total) for p, waiting in backlog.items()}
    over = sum(take.values()) - most
    for split in sorted(take, key=lambda p: -take[p]):
        cut = min(max(0, over), take[split] - 1)
        take[split] -= cut
        over -= cut
    return take
