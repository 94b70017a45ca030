"""What bronze needs to know of where its records come from: lanes with positions, slices of them, rows to decode.

A source is any number of **lanes**: sequences of records, each of which is read from its beginning to its end, once. A Kafka
partition is one (position: the next offset), another pipeline's table is one (position: its next batch). Bronze keeps the next
position of each lane in a transaction of its own name (`Split.app`), and every commit compares it with where its slice began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

KAFKA, TABLE, FILES = "kafka", "table", "files"


class Split(NamedTuple):
    """One sequence of records.

    Attributes:
        topic: name of the topic, or address of the table.
        topic_id: the broker's id of the topic, or the table's own: another one after it was deleted and made again.
        partition: number of the partition; 0 where there is only one.
        kind: what it is a lane of.
    """

    topic: str
    topic_id: str
    partition: int
    kind: str = KAFKA

    @property
    def app(self) -> str:
        """Name of the `txn` of bronze and quarantine that holds the next position."""
        if self.kind == KAFKA:
            return f"{KAFKA}:{self.topic}:{self.topic_id}:{self.partition}"
        return f"{self.kind}:{self.topic_id}"

    @property
    def epoch_app(self) -> str:
        """Name of the `txn` of bronze with the newest leader epoch that its records may have."""
        return f"epoch:{self.topic}:{self.topic_id}:{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]" if self.kind == KAFKA else self.topic


#: Split -> a position in it.
Offsets = dict[Split, int]


@dataclass(frozen=True)
class Gap:
    """Offsets [start, end) of one lane that nobody can read any more; `end` None: of a topic that is gone."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int | None

    @property
    def offsets(self) -> int | None:
        """How many; None: nobody knows."""
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
        earliest: lane -> first position that still exists.
        latest: lane -> position behind the last one that may be read.
        unit: positions of one thing to read.
        epochs: lane -> number of the leader that writes it now; only where the source has such.
    """

    earliest: Offsets
    latest: Offsets
    unit: int = 1
    epochs: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class MicroBatch:
    """A bounded part of a source: lane -> [start, end). Lanes with nothing to read, and no gap, are left out.

    Attributes:
        start, end: lane -> [start, end), only of positions that there are.
        latest: lane -> end of the source as it was seen.
        gaps: positions that nobody will ever read: a commit of this slice passes over them.
        reached: lane -> where bronze stands, of those too that are left out.
        joined: topics that bronze has never read before: it starts with what they have.
        unit: positions of one record.
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
        """Number of records at most (gaps of transactions included)."""
        return sum(self.end[p] - self.start[p] for p in self.end) // self.unit

    @property
    def lag(self) -> Offsets:
        """Split -> positions that remain after this slice, whether it reads any of the lane or none."""
        return {p: max(0, end - self.end.get(p, self.reached.get(p, end))) // self.unit for p, end in self.latest.items()}


class Source(Protocol):
    """Where bronze's records come from.

    Guarantee asked of it: a slice is exactly the records with ``start <= position < end`` of its lanes; reading it twice gives
    the same records, and never less without an error.
    """

    def snapshot(self) -> SourceSnapshot:
        """The source as it is now.

        Raises:
            ConfigurationError: it is not there, or refuses us.
            TransientError: it does not answer.
        """

    def offsets_at(self, lanes: Iterable[Split], when: datetime) -> Offsets:
        """Split -> first position whose record is not older than a time; lanes without such a record are left out."""

    def subjects(self, lanes: Iterable[Split]) -> tuple[str, ...]:
        """Subjects of the registry whose versions are worth planning for before a record of them is met."""

    def batch_limit(self, reached: Offsets) -> int:
        """Offsets that the next slice from there may have, all lanes together."""

    def records(self, part: MicroBatch) -> int:
        """Records of a slice at most: what Spark's tasks are made by."""

    def read(self, spark: SparkSession, part: MicroBatch) -> DataFrame:
        """The records of a slice, columns `RAW_COLUMNS`; those in `constants` may be left out."""

    def constants(self, part: MicroBatch) -> Mapping[str, str]:
        """Columns of `RAW_COLUMNS` that are the same in all records of a slice, so that they need not travel to the workers."""

    def changed(self, part: MicroBatch) -> str | None:
        """After a slice was read: why its records may be other ones than were planned, in words; None: they are not."""
