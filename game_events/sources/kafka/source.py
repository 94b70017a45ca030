"""Kafka topics as a source, named by the settings: topics, a pattern (which also matches later topics), or partitions.

Guarantee: a micro-batch is exactly the records with ``start <= offset < end`` of each partition that a committed reader may see
(aborted transactions leave gaps in the offsets); reading it twice gives the same records.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, SmallerPartsError, TransientError, first_few
from game_events.lakehouse.event_columns import RAW_COLUMNS
from game_events.sources.core.source import MicroBatch, Offsets, Source, SourceSnapshot, Split
from game_events.sources.kafka.admin import KafkaAdmin
from game_events.sources.kafka.options import for_java, refuse_managed
from game_events.sources.kafka.records import OVERFLOW, ReadRecords, read_records
from game_events.spark.schemas import quoted

#: Id of a topic from a broker without topic ids: 16 bytes of zeros, as librdkafka writes them.
NO_ID = "A" * 22
#: The broker answers at once. Spark's consumer prefetches past the end of the batch, and its next request waits for that fetch
#: (docs/decisions/0012-kafka-fetch-wait.md).
FETCH_WAIT_MS = "0"
#: Records of one poll while all records are small, in a JVM of this project; Kafka's own 500 otherwise, as a poll holds so many
#: unpacked. After each poll Spark's consumer sends two requests (docs/decisions/0026-spark-to-python-without-waste.md).
SMALL_POLL_RECORDS = "2000"
#: Records of a micro-batch that the driver reads at most; a part of one with too many bytes; records that a notice names.
DRIVER_RECORDS, FEWER, NAMED = 10_000, 20, 5


class KafkaSource(Source):
    """Reads topics' metadata from the driver and their records through Spark."""

    def __init__(
        self,
        settings: Settings,
        timeout_s: float | None = None,
        admin: KafkaAdmin | None = None,
        records: Callable[[Settings, Offsets, Offsets, float], ReadRecords] = read_records,
    ) -> None:
        """Connects at the first call; raises as `refuse_managed`.

        `admin`: reads the topics' metadata; None: one of these settings, with `timeout_s` as in `KafkaAdmin`. `records`: reads
        records in the driver.
        """
        self._records = records
        refuse_managed(settings.kafka_options)
        self.servers = settings.kafka_bootstrap_servers
        self._settings = settings
        self._options = {key: value.get_secret_value() for key, value in settings.kafka_options.items()}
        self.admin = admin or KafkaAdmin(settings, timeout_s)
        #: No record of more than `SMALL_RECORD_BYTES` was read yet: without a limit of bytes Spark reads faster.
        self.small_records = True
        #: Records of a micro-batch that Spark cannot hand over; what the user is told of them.
        self._by_driver: tuple[MicroBatch, pa.Table] | None = None
        self._notices: list[str] = []
        #: Until these offsets micro-batches have few enough records for the driver.
        self._few_until: Offsets = {}
        self._few = DRIVER_RECORDS
        #: split -> request (offset, leader epoch) and answer
        self._written: dict[Split, tuple[tuple[int, ...], int | None]] = {}

    def snapshot(self) -> SourceSnapshot:
        """The topics' ids and offset ranges.

        Raises:
            ConfigurationError: no such topic or partition; it has no id; or the broker refuses the login.
            TransientError: the broker does not answer or does not know a topic (any more); or no topic matches the pattern yet.
        """
        earliest, latest, epochs = self.admin.offset_ranges(self._splits())
        return SourceSnapshot(earliest, latest, epochs=epochs)

    def offsets_at(self, splits: Iterable[Split], when: datetime) -> Offsets:
        """See `Source.offsets_at`; raises as `snapshot`."""
        return self.admin.offsets_at(splits, when)

    def epochs_before(self, now: SourceSnapshot, offsets: Offsets) -> Offsets:
        """Split -> epoch of the leader that wrote the last record before an offset; cached by leader; raises as `snapshot`."""
        asked = {split: (at, now.epochs.get(split, 0)) for split, at in offsets.items()}
        new = {split: at for split, at in offsets.items() if self._written.get(split, ((), None))[0] != asked[split]}
        found = self.admin.epochs_before(new, now.earliest)
        self._written |= {split: (asked[split], found.get(split)) for split in new}
        return {split: epoch for split in offsets if (epoch := self._written[split][1]) is not None}

    def subjects(self, splits: Iterable[Split]) -> tuple[str, ...]:
        """The subject of each topic's values."""
        return tuple(subject_of(topic) for topic in sorted({split.topic for split in splits}))

    def batch_limit(self, reached: Offsets) -> int:
        """The setting `max_records_per_batch`; less where Spark failed and the driver reads."""
        most = self._settings.max_records_per_batch
        if any(reached.get(split, 0) < end for split, end in self._few_until.items()):
            return min(most, self._few)
        self._few_until, self._few = {}, DRIVER_RECORDS
        return most

    def read_by_driver(self, batch: MicroBatch, error: Exception) -> bool:
        """After a job over a micro-batch failed: whether Spark cannot hand over its records; then `read` takes the driver's.

        Raises:
            SmallerPartsError: it is too large to be read by the driver.
            ConfigurationError, TransientError: the broker refuses, or does not answer.
        """
        if OVERFLOW not in str(error):
            return False
        if batch.records > self._few:
            self._few_until = batch.end
            raise SmallerPartsError(f"Spark cannot read a record of {batch.records:,}: they are read in parts of {self._few:,}")
        found = self._records(self._settings, batch.start, batch.end, self.admin.timeout_s)
        if found.too_large and batch.records > 1:
            self._few_until, self._few = batch.end, max(1, batch.records // FEWER)
            raise SmallerPartsError(f"{batch.records:,} records are too large for the driver: parts of {self._few:,} are read")
        if found.odd:
            self._by_driver = batch, found.rows
            self._notices.append(
                f"{len(found.odd):,} records were read without what Spark cannot hold: {first_few(found.odd, NAMED)}"
            )
        return bool(found.odd)

    def take_notices(self) -> list[str]:
        """Which records were read without what Spark cannot hold."""
        said, self._notices = self._notices, []
        return said

    def read(self, spark: SparkSession, batch: MicroBatch) -> DataFrame:
        """The records of a batch, columns `RAW_COLUMNS`; a record that has expired meanwhile fails the job."""
        if self._by_driver is not None and self._by_driver[0] is batch:
            return spark.createDataFrame(self._by_driver[1])
        self._by_driver = None
        reader = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("assign", json.dumps({topic: sorted(map(int, of)) for topic, of in _by_topic(batch.end).items()}))
            .option("startingOffsets", json.dumps(_by_topic(batch.start)))
            .option("endingOffsets", json.dumps(_by_topic(batch.end)))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .option("kafka.isolation.level", "read_committed")
            .option("kafka.fetch.max.wait.ms", FETCH_WAIT_MS)
        )
        if self.small_records and self._settings.spark_remote is None:
            reader = reader.option("kafka.max.poll.records", SMALL_POLL_RECORDS)
        for key, value in for_java(self._options).items():
            reader = reader.option(f"kafka.{key}", value)
        ids = {split.topic: split.topic_id for split in batch.end}
        # Names and ids of topics match `[A-Za-z0-9._-]+`, so they need no escapes. The map is one constant: conditions for
        # hundreds of topics would be more generated code than the JVM compiles.
        pairs = ", ".join(f"'{name}', '{id_}'" for name, id_ in sorted(ids.items()))
        id_of = f"element_at(map({pairs}), topic) AS topic_id"
        return reader.load().selectExpr(*(id_of if name == "topic_id" else quoted(name) for name in RAW_COLUMNS))

    def commit_group_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a consumer group, so that monitoring tools see bronze's lag; raises as `snapshot`."""
        self.admin.commit_group_offsets(group, offsets)

    def constants(self, batch: MicroBatch) -> Mapping[str, str]:
        """Name and id of the topic, if the batch is of one."""
        topics = {(split.topic, split.topic_id) for split in batch.end}
        return dict(zip(("topic", "topic_id"), topics.pop(), strict=True)) if len(topics) == 1 else {}

    def changed(self, batch: MicroBatch) -> str | None:
        """Whether a topic was recreated while it was read: Spark reads by name, and its offsets now belong to other records."""
        now = self.admin.describe({split.topic for split in batch.end})
        other = sorted({split.topic for split in batch.end if str(now[split.topic].topic_id) != split.topic_id})
        return f"topic {', '.join(other)} was deleted and made again while it was read" if other else None

    def _splits(self) -> list[Split]:
        """The partitions that the settings name, of topics with an id; raises as `snapshot`."""
        pattern = self._settings.kafka_topic_pattern
        # With a pattern: a topic may be deleted between the two requests.
        topics = self._settings.kafka_topics if pattern is None else self.admin.topics_matching(pattern)
        described = self.admin.describe(topics, missing_ok=pattern is not None)
        if pattern is not None and not described:
            raise TransientError(
                f"Kafka {self.servers} has no topic that matches {pattern!r}: create one, or correct "
                "GAME_EVENTS_KAFKA_TOPIC_PATTERN"
            )
        without = sorted(name for name, found in described.items() if str(found.topic_id or NO_ID) == NO_ID)
        if without:
            raise ConfigurationError(
                f"Kafka {self.servers} gives topic {', '.join(without)} no id: a recreated topic could not be "
                "distinguished from the old one, and its first records would be skipped. Nothing was read. Ids come with "
                "Kafka 2.8 (`inter.broker.protocol.version` too); with a service that has none, have its records written to "
                "files and read those (GAME_EVENTS_SOURCE=files)"
            )
        splits = [
            Split(name, str(found.topic_id), partition.id)
            for name, found in sorted(described.items())
            for partition in found.partitions
        ]
        assigned = {(topic, number) for topic, numbers in self._settings.kafka_assign.items() for number in numbers}
        if not assigned:
            return splits
        missing = sorted(assigned - {(split.topic, split.partition) for split in splits})
        if missing:
            named = ", ".join(f"{topic}[{number}]" for topic, number in missing)
            raise ConfigurationError(f"Kafka {self.servers} has no partition {named}: correct GAME_EVENTS_KAFKA_ASSIGN")
        return [split for split in splits if (split.topic, split.partition) in assigned]


def subject_of(topic: str) -> str:
    """The registry's subject of a topic's values, as Confluent's serializers name it by default."""
    return f"{topic}-value"


def _by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Topic -> partition -> offset, as in Spark's options."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for split, offset in sorted(offsets.items()):
        found[split.topic][str(split.partition)] = offset
    return found
