"""Protocol of a source of records: splits with offsets, and micro-batches of them, which Spark's workers read.

A source has one or more **splits**, each read once from its beginning to its end: a partition of a Kafka topic (offset: the
record's), another pipeline's table (offset: its batch number), or a file log (offset: `files.offsets`). Bronze keeps the next
offset of each split in a transaction (`Split.app`), which every commit compares with the start of its micro-batch.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from game_events.decoding.batch_decoder import TypeKey
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.lakehouse.commits.transactions import Txn
from game_events.sources.core.reading import Reading

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
