"""The topic: its offsets, and bounded slices of it as Spark DataFrames.

Guarantee: a slice is exactly the records with ``start <= offset < end`` of each partition that a committed reader may see
(aborted transactions leave gaps in the offsets); reading it twice gives the same records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    OffsetSpec,
    TopicDescription,
)
from pyspark.sql import DataFrame, SparkSession

from game_events.errors import ConfigurationError, TransientError
from game_events.settings import Settings
from game_events.sources.kafka_client import LOOK_S, CauseMemory, bad_option, client_options
from game_events.sources.kafka_options import for_java, refuse_managed

TIMEOUT_S = 15.0
#: Spark's consumer asks for records behind the slice's end as well, and its next request waits until the broker answers that:
#: with Kafka's default of 500 ms a small slice took 0.55 s for each partition, with 10 ms the whole slice takes 0.3 s.
FETCH_WAIT_MS = "10"

Offsets = dict[int, int]


@dataclass(frozen=True)
class TopicOffsets:
    """A topic at one moment.

    Attributes:
        topic: name.
        topic_id: the broker's id of it; another one after the topic was deleted and made again.
        earliest: partition -> first offset that still exists.
        latest: partition -> offset behind the last one that a committed reader may see.
    """

    topic: str
    topic_id: str
    earliest: Offsets
    latest: Offsets


@dataclass(frozen=True)
class Gap:
    """Offsets [start, end) of one partition that nobody can read any more; `end` None: of a topic that is gone."""

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
class Slice:
    """A bounded part of a topic: partition -> [start, end). Partitions with nothing to read, and no gap, are left out.

    Attributes:
        topic, topic_id: of what.
        start, end: partition -> [start, end), only of offsets that there are.
        latest: partition -> end of the topic as it was seen.
        reached: partition -> where bronze stands, of those too that are left out.
        gaps: offsets that nobody will ever read: a commit of this slice passes over them.
    """

    topic: str
    topic_id: str
    start: Offsets
    end: Offsets
    latest: Offsets = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    reached: Offsets = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of offsets in the slice (gaps of transactions included)."""
        return sum(self.end[p] - self.start[p] for p in self.end)

    @property
    def lag(self) -> Offsets:
        """Partition -> offsets that remain after this slice, whether it reads any of the partition or none."""
        return {p: max(0, end - self.end.get(p, self.reached.get(p, end))) for p, end in self.latest.items()}


class KafkaTopic:
    """Reads one topic's metadata from the driver and its records through Spark."""

    def __init__(self, settings: Settings, timeout_s: float | None = None) -> None:
        """Connects lazily.

        Args:
            settings: the settings.
            timeout_s: longest wait for one answer; None: `TIMEOUT_S`.

        Raises:
            ConfigurationError: `kafka_options` names an option that exactly-once depends on.
        """
        self.topic = settings.kafka_topic
        self.servers = settings.kafka_bootstrap_servers
        refuse_managed(settings.kafka_options)
        self._options = {key: value.get_secret_value() for key, value in settings.kafka_options.items()}
        self._settings = settings
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._admin: AdminClient | None = None
        self._memory = CauseMemory(self.servers)
        self._was_there = False

    def offsets(self) -> TopicOffsets:
        """The topic's id and offset ranges.

        Raises:
            ConfigurationError: no such topic, or the broker refuses the login.
            TransientError: the broker does not answer; or does not know the topic, or a partition of it, any more or yet.
        """
        described = self._describe()
        partitions = [TopicPartition(self.topic, p.id) for p in described.partitions]
        earliest = self._list(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        latest = self._list(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return TopicOffsets(self.topic, str(described.topic_id), earliest, latest)

    def offsets_at(self, when: datetime) -> Offsets:
        """Partition -> first offset whose record is not older than a time; partitions without such a record are left out.

        Raises:
            ConfigurationError, TransientError: as `offsets` does.
        """
        partitions = [TopicPartition(self.topic, p.id) for p in self._describe().partitions]
        since = OffsetSpec.for_timestamp(int(when.timestamp() * 1000))
        return {p: offset for p, offset in self._list(partitions, since).items() if offset >= 0}

    def topic_id(self) -> str:
        """The broker's id of the topic as it is now.

        Raises:
            ConfigurationError, TransientError: as `offsets` does.
        """
        return str(self._describe().topic_id)

    def read(self, spark: SparkSession, part: Slice) -> DataFrame:
        """The records of a slice: key, value, topic, partition, offset, timestamp, headers.

        Raises at execution, never returns less: a record that has expired meanwhile fails the job.
        """
        reader = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("assign", json.dumps({part.topic: sorted(part.end)}))
            .option("startingOffsets", json.dumps({part.topic: {str(p): o for p, o in part.start.items()}}))
            .option("endingOffsets", json.dumps({part.topic: {str(p): o for p, o in part.end.items()}}))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .option("kafka.isolation.level", "read_committed")
            .option("kafka.fetch.max.wait.ms", FETCH_WAIT_MS)
        )
        for key, value in for_java(self._options).items():
            reader = reader.option(f"kafka.{key}", value)
        return reader.load()

    def _describe(self) -> TopicDescription:
        found = self._call(lambda admin: admin.describe_topics(TopicCollection([self.topic]), request_timeout=self._timeout_s))
        described: TopicDescription = found[self.topic]
        self._was_there = True
        return described

    def _list(self, partitions: list[TopicPartition], spec: OffsetSpec) -> Offsets:
        found = self._call(
            lambda admin: admin.list_offsets(
                dict.fromkeys(partitions, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._timeout_s,
            )
        )
        return {key.partition: result.offset for key, result in found.items()}

    def _call(self, ask: Callable[[AdminClient], Mapping]) -> dict:  # type: ignore[type-arg]
        memory = self._memory
        if self._admin is None:
            try:
                self._admin = AdminClient(client_options(self._settings, memory, {}))  # type: ignore[arg-type]
            except KafkaException as error:
                raise bad_option(error) from None
        admin, self._admin = self._admin, None  # not used again after a failure
        try:
            found = {key: future.result(timeout=2 * self._timeout_s) for key, future in ask(admin).items()}
        except KafkaException as error:
            unknown = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if unknown and self._was_there:
                # It is being made anew, or a new partition's leader has not heard of it yet.
                raise TransientError(
                    f"Kafka {self.servers} does not know topic {self.topic!r}, or one of its partitions, which was there a "
                    "while ago. If it was deleted for good, stop this run; if it was made anew, it is found again by itself"
                ) from None
            if unknown:
                raise ConfigurationError(
                    f"Kafka {self.servers} has no topic {self.topic!r}: create it, or set GAME_EVENTS_KAFKA_TOPIC"
                ) from None
            admin.poll(LOOK_S)  # only now does the client tell what it has heard
            raise memory.explain(f"reading topic {self.topic}", error.args[0]) from error
        except TimeoutError as error:
            admin.poll(LOOK_S)
            raise memory.explain(f"reading topic {self.topic}") from error
        self._admin = admin
        return found
