"""Protocol of a source of records: partitions with offsets, and micro-batches of them, which Spark's workers read.

A source has one or more partitions, each read once from its beginning to its end. Bronze keeps the next offset of each in a
transaction (`Partition.app`), which every commit compares with the start of its micro-batch. The driver plans ranges, Spark
distributes the numbers of their tasks, and a worker reads the ranges of a task by itself (`Reading`): no record becomes a row
of the JVM. A task may run twice (a crashed worker, a lost executor): it gives the same records.

Guarantee of the plan: consecutive micro-batches, each planned from the end of the one before, cover every offset once;
unreadable offsets become gaps of the batch and are never skipped silently.
"""

from __future__ import annotations

import base64
import struct
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.decoder import TypeKey
from game_events.decoding.frame import RegistrySchema
from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS, RAW_COLUMNS, STORED_AS

if TYPE_CHECKING:
    from pyspark.sql import Column

    from game_events.config.settings import Settings
    from game_events.lakehouse.system_tables import SystemTable
    from game_events.lakehouse.tables import Lakehouse
    from game_events.schema_registry import SchemaLookup

Part = TypeVar("Part")
Integers = npt.NDArray[np.int64]
#: Columns of `RAW_COLUMNS` with their types.
RAW_SCHEMA = pa.schema([pa.field(name, OWN_COLUMNS.field(STORED_AS[name]).type) for name in RAW_COLUMNS])
#: Columns of every batch of records; those of files have more. `reason` (`decoding.frame.Reason`) and `detail` are NULL, but
#: for rows that are no records to decode.
RECORD_SCHEMA = pa.schema([*RAW_SCHEMA, pa.field("reason", pa.string()), pa.field("detail", pa.string())])
#: Records of one task: fewer tasks for small micro-batches, as each costs Spark some 50 ms.
TASK_RECORDS = 500_000
#: Records of a batch: large enough for groups of 20 schema versions.
BATCH_RECORDS = 32_768
#: Bytes of values, keys and headers of a batch: some records are megabytes.
BATCH_BYTES = 64 * 1024 * 1024


@dataclass
class ReadNotes:
    """What a reader tells besides the records.

    `schemas`: those found in files, by GUID or id. `incomplete`: number of records that were read without what no column can
    hold; `examples` names some of them.
    """

    schemas: dict[int | str, RegistrySchema] = field(default_factory=dict)
    incomplete: int = 0
    examples: list[str] = field(default_factory=list)


class Reading(ABC):
    """A micro-batch, planned; picklable, as it goes to the workers.

    Guarantee asked of it: all tasks together give each record of the micro-batch once, in every attempt the same ones, and
    never fewer without an error.
    """

    #: Task -> what it reads.
    parts: Sequence[Sequence[object]]

    @property
    def tasks(self) -> int:
        """Number of the tasks."""
        return len(self.parts)

    @abstractmethod
    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """Non-empty batches of the records of a task: `RECORD_SCHEMA`, and what only files have.

        Raises:
            ConflictError: a record is gone, or others are in its place, since the micro-batch was planned.
            TransientError, ConfigurationError: the source does not answer, or refuses.
        """

    def sparing(self) -> Reading:
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


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `BATCH_RECORDS` or `BATCH_BYTES`, each of batches with one schema."""
    for _, alike in groupby(batches, key=lambda batch: batch.schema):
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in alike:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield _one_batch(waiting)
                waiting = []
                rows = 0
                size = 0
        if rows:
            yield _one_batch(waiting)


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All of them as one; a single one is not copied."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def byte_lengths(values: pa.Array) -> Integers:
    """Bytes of each text or value; 0 for NULL."""
    lengths: Integers = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def header_bytes(headers: pa.ListArray) -> Integers:
    """Bytes of each record's headers, names and values."""
    ends = headers.offsets.to_numpy() if len(headers) else np.zeros(1, np.int64)
    if ends[-1] == ends[0]:
        return np.zeros(len(headers), np.int64)
    items = headers.values.slice(ends[0], ends[-1] - ends[0])
    item_bytes = byte_lengths(items.field("key")) + byte_lengths(items.field("value"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(item_bytes)])
    places = ends - ends[0]
    sizes: Integers = before[places[1:]] - before[places[:-1]]
    return sizes


#: Kind of the core's own source.
KAFKA = "kafka"


class Partition(NamedTuple):
    """One sequence of records.

    Attributes:
        topic: name of the topic, or address of what else is read.
        topic_id: id of its present contents: a recreated topic has another one. As Kafka's broker gives it, else a UUID.
        source: name of the source in `SOURCES`; empty: there is one only. Progress does not depend on it.
    """

    topic: str
    topic_id: str
    number: int
    kind: str = KAFKA
    source: str = ""

    @property
    def place(self) -> str:
        """Name of the topic among those of all sources (`eu/events`): a topic's own name has no slash."""
        return f"{self.source}/{self.topic}" if self.source else self.topic

    @property
    def app(self) -> str:
        """Name of the `txn` of bronze and quarantine that holds the next offset."""
        if not self.has_record_offsets:
            return f"{self.kind}:{self.topic_id}"
        return Txn.KAFKA.of(self.topic, self.topic_id, self.number)

    @property
    def epoch_app(self) -> str:
        """Name of the `txn` of bronze with the newest leader epoch that its records may have."""
        return Txn.EPOCH.of(self.topic, self.topic_id, self.number)

    @property
    def has_record_offsets(self) -> bool:
        """Whether its offsets are those of the records, as a topic's; a source of another kind counts what it likes."""
        return self.kind == KAFKA

    @property
    def id_txns(self) -> dict[str, int]:
        """`txn` of bronze -> half of the topic's id."""
        # librdkafka writes the 16 bytes as base64 without padding, with `+` and `/`.
        is_topic = self.has_record_offsets
        raw = base64.b64decode(self.topic_id + "==", validate=True) if is_topic else uuid.UUID(self.topic_id).bytes
        return dict(zip(id_apps(self.place if is_topic else self.topic, self.kind), struct.unpack(">qq", raw), strict=True))

    def __str__(self) -> str:
        return f"{self.place}[{self.number}]" if self.has_record_offsets else self.place


def id_apps(place: str, kind: str) -> list[str]:
    """Names of the `txn` of bronze with the id that it has read last: a `txn` has one 64-bit number, an id 128 bits."""
    first = Txn.TOPIC if kind == KAFKA else kind
    return [f"{first}:{place}:{half}" for half in ("high", "low")]


def id_of_halves(high: int, low: int, kind: str) -> str:
    """The id of which `Partition.id_txns` are the halves."""
    raw = struct.pack(">qq", high, low)
    return base64.b64encode(raw).decode().rstrip("=") if kind == KAFKA else str(uuid.UUID(bytes=raw))


#: Partition -> an offset in it.
Offsets = dict[Partition, int]


@dataclass(frozen=True)
class Gap:
    """Offsets [start, end) of one partition that cannot be read any more; `end` None: of a deleted topic.

    `topic`: as `Partition.place`.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int | None

    #: Whether a micro-batch has these offsets all the same (of a file that was listed before it was deleted).
    is_planned: ClassVar[bool] = False

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
    """A source at one moment.

    Attributes:
        earliest, latest: partition -> first offset that still exists, and end of the readable ones (exclusive).
        unit: offsets of one record (of one file, where a partition is a file log).
        epochs: partition -> epoch of its current leader; Kafka only.
        units: kind of partitions -> their unit, where it is another one.
    """

    earliest: Offsets
    latest: Offsets
    unit: int = 1
    epochs: Offsets = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)

    def unit_of(self, partition: Partition) -> int:
        """Offsets of one record of a partition."""
        return self.units.get(partition.kind, self.unit)

    @property
    def there(self) -> Offsets:
        """Partition -> number of its records that there are."""
        return {p: (end - self.earliest[p]) // self.unit_of(p) for p, end in self.latest.items()}

    def of(self, wanted: Callable[[Partition], bool]) -> SourceSnapshot:
        """A part of the partitions."""
        parts = (self.earliest, self.latest, self.epochs)
        earliest, latest, epochs = ({p: offset for p, offset in one.items() if wanted(p)} for one in parts)
        return replace(self, earliest=earliest, latest=latest, epochs=epochs)


@dataclass(frozen=True)
class MicroBatch:
    """A bounded part of a source: partition -> [start, end). Partitions with nothing to read and no gap are left out.

    Attributes:
        start, end: existing offsets only.
        latest, unit, units: of the snapshot.
        gaps: unreadable offsets that the commit of this batch skips.
        reached: partition -> next offset of bronze, for all partitions.
        joined: topics that bronze has never read before.
    """

    start: Offsets
    end: Offsets
    latest: Offsets = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    reached: Offsets = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    unit: int = 1
    units: Mapping[str, int] = field(default_factory=dict)

    def unit_of(self, partition: Partition) -> int:
        """Offsets of one record of a partition."""
        return self.units.get(partition.kind, self.unit)

    @property
    def records(self) -> int:
        """Number of records at most (transaction markers included)."""
        return sum((self.end[p] - self.start[p]) // self.unit_of(p) for p in self.end)

    @property
    def lag(self) -> Offsets:
        """Partition -> records that remain after this batch."""
        left = {p: max(0, end - self.end.get(p, self.reached.get(p, end))) for p, end in self.latest.items()}
        return {p: offsets // self.unit_of(p) for p, offsets in left.items()}

    def of(self, wanted: Callable[[Partition], bool]) -> MicroBatch:
        """A part of the partitions, without gaps and what joined."""
        parts = (self.start, self.end, self.latest, self.reached)
        start, end, latest, reached = ({p: offset for p, offset in one.items() if wanted(p)} for one in parts)
        return replace(self, start=start, end=end, latest=latest, reached=reached, gaps=(), joined=())


@dataclass(frozen=True)
class SourceContext:
    """What a source is made from.

    Attributes:
        settings, run_id: of the pipeline.
        lakehouse: that of the pipeline; None: a source that needs it opens the settings' one.
        timeout_s: longest wait for one answer; None: the source's default.
        read_only: nothing is written: new files are only counted.
        name: of the source in `SOURCES`, which its partitions have; empty: there is one only.
        id_read: name and kind of a topic, table or list of files -> id of the one that bronze has read last; None: none yet.
        refuse_twice: raises ConfigurationError if bronze would have records of this archive, up to these offsets, twice.
            Without these two there is no bronze table.
    """

    settings: Settings
    lakehouse: Lakehouse | None
    run_id: str = ""
    timeout_s: float | None = None
    read_only: bool = False
    name: str = ""
    id_read: Callable[[str, str], str | None] | None = None
    refuse_twice: Callable[[str, Offsets], None] | None = None


class Upstream(NamedTuple):
    """Something outside of the pipeline that bronze is made from, as an asset: key, description, kinds (Dagster's)."""

    key: tuple[str, ...]
    description: str
    kinds: tuple[str, ...]


#: Kind of an asset of the schema registry; which formats its schemas have only the registry knows.
REGISTRY = "schema_registry"


class Source(ABC):
    """Where bronze's records come from.

    Guarantee asked of it: a micro-batch is exactly the records with ``start <= offset < end`` of its partitions; reading it
    twice gives the same records, and never fewer without an error.

    A new source is a class with five methods, and its name in the `sources` of a plug-in. A queue that
    keeps numbered messages, each a record, which workers read over HTTP:

        class QueueSource(Source):
            kind = "queue"                                    # in the transactions of bronze: never change it

            def __init__(self, context):
                self.queue = Queue(context.settings.queue_url)

            def snapshot(self, *, take_in=True, full_refresh=False):
                at = Partition(self.queue.url, self.queue.uuid, 0, self.kind)
                return SourceSnapshot({at: self.queue.first}, {at: self.queue.next})

            def offsets_at(self, partitions, when):
                return {at: self.queue.first_since(when) for at in partitions}

            def batch_limit(self, reached):
                return 100_000

            def reading(self, batch):                         # what is pickled is in a module of its own, `queue_reader`
                ((at, start),) = batch.start.items()
                return QueueReading(self.queue.url, start, batch.end[at])

    All else has a default, which holds for a source whose records do not get lost and that needs nothing of its own.

    Attributes:
        kind: name in bronze's transactions and in the information of its commits.
        one_by_one: each offset is one record, so a micro-batch can be read in halves.
        alone: one bronze has this source alone: no topic beside it, and a full refresh keeps no row.
        unit: offsets of one record, or of one file.
        gap: class of the parts that were lost.
        things, offset_name: what a micro-batch has, and what an offset is, in messages.
        check_name: of the check in `doctor`.
        run_looks: only a run can look for news, as it writes down what it sees.
        loss_advice: what keeps records from being lost again.
        archive: the record archive that is read: location and table id; None: it is none.
    """

    kind: ClassVar[str]
    one_by_one: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    unit: ClassVar[int] = 1
    gap: ClassVar[type[Gap]] = Gap
    things: ClassVar[str] = "records"
    offset_name: ClassVar[str] = "offset"
    check_name: ClassVar[str] = "source"
    run_looks: ClassVar[bool] = False
    loss_advice: ClassVar[str] = "keep records there until bronze has them"
    archive: str | None = None

    @abstractmethod
    def __init__(self, context: SourceContext) -> None:
        """Connects to nothing yet; raises ConfigurationError for settings that cannot be."""

    @abstractmethod
    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:
        """The source as it is now.

        `take_in` False: nothing is written (a source of files keeps a list of them). `full_refresh`: what is read replaces
        bronze, so records may be read again. Raises ConfigurationError: it does not exist, or refuses the login;
        TransientError: it does not answer.
        """

    @abstractmethod
    def offsets_at(self, partitions: Iterable[Partition], when: datetime) -> Offsets:
        """Partition -> first offset of a record not older than a time; those without such a record are left out."""

    @abstractmethod
    def batch_limit(self, reached: Offsets) -> int:
        """Offsets that the next micro-batch may have, all partitions together."""

    def plan(self, now: SourceSnapshot, start: Offsets, until: Offsets, limit: int | None = None) -> MicroBatch | None:
        """The next micro-batch, as `plan_micro_batch`; `limit`: its offsets at most; None: `batch_limit`."""
        return plan_micro_batch(now, start, until, limit or self.batch_limit(start))

    @abstractmethod
    def reading(self, batch: MicroBatch) -> Reading:
        """How Spark's workers read a batch; DataError if nothing of it exists any more."""

    def epochs_before(self, now: SourceSnapshot, offsets: Offsets) -> Offsets:  # noqa: ARG002
        """Partition -> epoch of the leader that wrote the last record before an offset; default: there are no epochs."""
        return {}

    def missing(self, batch: MicroBatch) -> tuple[Gap, ...]:  # noqa: ARG002
        """Parts of a batch that were deleted since they were listed; default: none can be."""
        return ()

    def changed(self, batch: MicroBatch) -> str | None:  # noqa: ARG002
        """Checked after a batch was read: why its records may be others than planned; None: they are not (default)."""
        return None

    def wants(self, topic: str) -> bool:  # noqa: ARG002
        """Whether the settings name a topic, which may be gone by now; default: the source has no topics."""
        return False

    def lost_rows(self, now: SourceSnapshot, origins: Offsets | None) -> Column | None:  # noqa: ARG002
        """Condition on rows of bronze and quarantine whose records the source does not have any more.

        `origins`: as in `count_expired`. None (default): only a reading of all records tells, by their coordinates.
        """
        return None

    def sets_aside(self, error: BaseException) -> bool:  # noqa: ARG002
        """After a plan or a micro-batch has failed: whether to plan again, with less; default: there is one source only."""
        return False

    @property
    def takes_turns(self) -> bool:
        """Whether several sources are read one after the other, as one of them has failed; default: no."""
        return False

    def next_turn(self) -> bool:
        """The end of what is read alone: whether there is more to plan; default: all was read together."""
        return False

    @property
    def failures(self) -> Mapping[str, str]:
        """Source that is left out -> why; default: there is one only."""
        return {}

    @classmethod
    def lookup(cls, settings: Settings, connect: Callable[[Settings], SchemaLookup]) -> SchemaLookup:
        """Where schemas of ids are looked up; default: in the registry. `connect`: makes the client of a registry."""
        return connect(settings)

    @classmethod
    def named_subjects(cls, settings: Settings) -> tuple[str, ...] | None:  # noqa: ARG003
        """Subjects of the registry that the settings name; None (default): they are known once the source has answered."""
        return None

    def subjects(self, partitions: Iterable[Partition]) -> tuple[str, ...]:  # noqa: ARG002
        """Subjects of the registry, for planning their versions before the first record; default: none are known."""
        return ()

    def schemas(self) -> list[RegistrySchema]:
        """Schemas that the settings name; default: none."""
        return []

    def expected_types(self) -> list[TypeKey]:
        """Message types to plan for before the first record; default: none are known."""
        return []

    @classmethod
    def name(cls, settings: Settings) -> str:  # noqa: ARG003
        """What is read, in messages and keys of assets; default: the kind."""
        return cls.kind

    @classmethod
    def holder(cls, settings: Settings) -> str:
        """What has the records, in messages; default: its name."""
        return cls.name(settings)

    @classmethod
    def named_topics(cls, settings: Settings) -> tuple[str, ...]:  # noqa: ARG003
        """The Kafka topics that the settings name for it; default: none."""
        return ()

    @classmethod
    def unencrypted(cls, settings: Settings) -> list[str]:  # noqa: ARG003
        """Messages about connections to other machines that can be read on the way; default: none."""
        return []

    @staticmethod
    def gone_text(is_: str, has: str) -> str:  # noqa: ARG004
        """What became of lost records; `is_`, `has`: these verbs, singular or plural."""
        return f"{has} expired there"

    def commit_group_offsets(self, offsets: Offsets) -> None:  # noqa: ARG002
        """Tell the settings' consumer group what bronze has, so that monitoring tools see its lag; default: there is none."""
        return

    def file_counts(self) -> Counter[str]:
        """What became of the files of the source since the last report; default: it has none."""
        return Counter()

    def check(self) -> str:
        """What there is, for `doctor`; raises as `snapshot`."""
        now = self.snapshot()
        return f"{sum(now.there.values()):,} {self.things}"

    @classmethod
    def address(cls, settings: Settings, topic: str) -> str:  # noqa: ARG003
        """URI of a topic, or of what else the partitions of this name are read from; default: the name."""
        return topic

    @classmethod
    def asset_key(cls, settings: Settings, topic: str) -> tuple[str, ...]:  # noqa: ARG003
        """Parts of the key of the asset of a topic, or of what else the partitions of this name are read from."""
        return (cls.kind, topic)

    @classmethod
    def subject_key(cls, settings: Settings, subject: str) -> tuple[str, ...]:  # noqa: ARG003
        """The same of a subject of the registry."""
        return (REGISTRY, subject)

    @classmethod
    def subject_upstream(cls, settings: Settings, subject: str) -> Upstream:
        """A subject of the registry, as one of `upstreams`."""
        said = "The registry subject with every schema version of the values. External."
        return Upstream(cls.subject_key(settings, subject), said, (REGISTRY,))

    @classmethod
    def upstreams(cls, settings: Settings) -> list[Upstream]:
        """What bronze is made from, for the asset graph."""
        name = cls.name(settings)
        return [Upstream(cls.asset_key(settings, name), f"Records of `{name}`. External.", (cls.kind,))]

    @classmethod
    def tables(cls, lakehouse: Lakehouse) -> list[SystemTable]:  # noqa: ARG003
        """System tables that the source keeps in the lakehouse; default: none."""
        return []


def last_parts(place: str) -> list[str]:
    """The last two parts of a path or URI."""
    return [part for part in place.partition("://")[2 if "://" in place else 0].split("/") if part][-2:]


def plan_micro_batch(now: SourceSnapshot, start: Offsets, until: Offsets, max_records: int) -> MicroBatch | None:
    """Plan the next batch: from `start` towards `until`, shared between partitions by their backlog; None: nothing to do.

    Args:
        now: the source.
        start: partition -> next offset to read; those that are not in it (a new topic or partition) are read from 0.
        until: partition -> where to stop; default: the source's end.
        max_records: offsets of all partitions together; if there are more partitions, they take turns.

    Raises:
        DataError: a topic is shorter than `start`, as after a broker lost data: new records would get old offsets.
    """
    gaps: dict[Partition, Gap] = {}
    begin: Offsets = {}
    for partition, end in sorted(now.latest.items()):
        wanted = start.get(partition, 0)
        if wanted > end:
            raise DataError(
                f"{partition}: bronze is at {wanted}, the topic ends at {end}: the broker has lost records, and "
                "new ones get offsets that bronze has already. Restore the broker's data, or delete and recreate the topic: "
                "that is recognised by its id"
            )
        begin[partition] = max(wanted, now.earliest[partition])
        if begin[partition] > wanted:
            gaps[partition] = Gap(partition.place, partition.topic_id, partition.number, wanted, begin[partition])
    backlog = {p: max(0, min(until.get(p, end), end) - begin[p]) for p, end in now.latest.items()}
    take = _share({p: waiting for p, waiting in sorted(backlog.items()) if waiting}, max_records, sum(begin.values()))
    read = sorted(take.keys() | gaps.keys())
    if not read:
        return None
    ends = {p: begin[p] + take.get(p, 0) for p in read}
    return MicroBatch(
        {p: begin[p] for p in read}, ends, now.latest, tuple(gaps.values()), begin, unit=now.unit, units=now.units
    )


def _share(backlog: Offsets, most: int, turn: int) -> Offsets:
    """Partition -> offsets to take: by backlog, each at least one, never more than `most` together."""
    total = sum(backlog.values())
    if total <= most:
        return backlog
    if most < len(backlog):
        # `turn` grows by as many offsets as are read, so the next batch begins behind the partitions of this one.
        names = list(backlog)
        return dict.fromkeys((names[(turn + n) % len(names)] for n in range(most)), 1)
    take = {p: max(1, waiting * most // total) for p, waiting in backlog.items()}
    over = sum(take.values()) - most
    for partition in sorted(take, key=lambda p: -take[p]):
        cut = min(max(0, over), take[partition] - 1)
        take[partition] -= cut
        over -= cut
    return take
