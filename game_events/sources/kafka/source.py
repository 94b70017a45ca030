"""Kafka topics as a source: their offsets, and bounded slices of them as Spark DataFrames.

Which topics is a setting: names, a pattern that topics made later match too, or partitions one by one.

Guarantee: a slice is exactly the records with ``start <= offset < end`` of each partition that a committed reader may see
(aborted transactions leave gaps in the offsets); reading it twice gives the same records.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.event_columns import RAW_COLUMNS
from game_events.sources.core.source import MicroBatch, Offsets, SourceSnapshot, Split
from game_events.sources.kafka.admin import TIMEOUT_S, KafkaAdmin
from game_events.sources.kafka.epochs import epochs_before
from game_events.sources.kafka.options import for_java, refuse_managed

#: What brokers say that give topics no ids: 16 bytes of zeros, as librdkafka writes them.
NO_ID = "A" * 22
#: Spark's consumer asks for records behind the slice's end as well, and its next request waits until the broker answers that:
#: with Kafka's default of 500 ms a small slice took 0.55 s for each partition, with 10 ms the whole slice takes 0.3 s.
FETCH_WAIT_MS = "10"


class KafkaSource:
    """Reads topics' metadata from the driver and their records through Spark."""

    def __init__(self, settings: Settings, timeout_s: float | None = None) -> None:
        """Connects lazily.

        Args:
            settings: the settings.
            timeout_s: longest wait for one answer; None: that of `KafkaAdmin`.

        Raises:
            ConfigurationError: `kafka_options` names an option that exactly-once depends on.
        """
        refuse_managed(settings.kafka_options)
        self.servers = settings.kafka_bootstrap_servers
        self._settings = settings
        self._options = {key: value.get_secret_value() for key, value in settings.kafka_options.items()}
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._admin = KafkaAdmin(settings, timeout_s)
        #: lane -> what was asked of it (position, leader's epoch), and the answer
        self._written: dict[Split, tuple[tuple[int, ...], int | None]] = {}

    def snapshot(self) -> SourceSnapshot:
        """The topics' ids and offset ranges.

        Raises:
            ConfigurationError: no such topic or partition; it has no id; or the broker refuses the login.
            TransientError: the broker does not answer; no topic matches the pattern yet; or the broker does not know a topic,
                or a partition of it, any more or yet.
        """
        described = self._describe()
        earliest, latest, epochs = self._admin.offset_ranges(self._lanes(described))
        return SourceSnapshot(earliest, latest, epochs=epochs)

    def offsets_at(self, lanes: Iterable[Split], when: datetime) -> Offsets:
        """Split -> first offset whose record is not older than a time; lanes without such a record are left out.

        Raises:
            ConfigurationError, TransientError: as `look` does.
        """
        return self._admin.offsets_at(lanes, when)

    def epochs_before(self, now: SourceSnapshot, positions: Offsets) -> Offsets:
        """Split -> epoch of the leader that wrote the last record before a position; asked once for each leader there is.

        Raises:
            ConfigurationError, TransientError: as `look` does.
        """
        asked = {lane: (at, now.epochs.get(lane, 0)) for lane, at in positions.items()}
        new = {lane: at for lane, at in positions.items() if self._written.get(lane, ((), None))[0] != asked[lane]}
        found = epochs_before(self._settings, new, now.earliest, self._timeout_s)
        self._written |= {lane: (asked[lane], found.get(lane)) for lane in new}
        return {lane: epoch for lane in positions if (epoch := self._written[lane][1]) is not None}

    def subjects(self, lanes: Iterable[Split]) -> tuple[str, ...]:
        """The subject of each topic's values."""
        return tuple(subject_of(topic) for topic in sorted({lane.topic for lane in lanes}))

    def batch_limit(self, reached: Offsets) -> int:  # noqa: ARG002
        """What the setting says."""
        return self._settings.max_records_per_batch

    def records(self, part: MicroBatch) -> int:
        """Its offsets."""
        return part.records

    def read(self, spark: SparkSession, part: MicroBatch) -> DataFrame:
        """The records of a slice, columns `RAW_COLUMNS`.

        Raises at execution, never returns less: a record that has expired meanwhile fails the job.
        """
        reader = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("assign", json.dumps({topic: sorted(map(int, of)) for topic, of in _by_topic(part.end).items()}))
            .option("startingOffsets", json.dumps(_by_topic(part.start)))
            .option("endingOffsets", json.dumps(_by_topic(part.end)))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .option("kafka.isolation.level", "read_committed")
            .option("kafka.fetch.max.wait.ms", FETCH_WAIT_MS)
        )
        for key, value in for_java(self._options).items():
            reader = reader.option(f"kafka.{key}", value)
        ids = {lane.topic: lane.topic_id for lane in part.end}
        names = F.create_map(*(F.lit(text) for pair in sorted(ids.items()) for text in pair))
        return reader.load().withColumn("topic_id", F.element_at(names, F.col("topic"))).select(*RAW_COLUMNS)

    def commit_group_offsets(self, group: str, positions: Offsets) -> None:
        """Commit these offsets for a consumer group, so that tools that watch its lag see bronze's.

        Raises:
            ConfigurationError, TransientError: the broker refuses or does not answer.
        """
        self._admin.commit_group_offsets(group, positions)

    def constants(self, part: MicroBatch) -> Mapping[str, str]:
        """Name and id of the topic, if the slice is of one."""
        topics = {(lane.topic, lane.topic_id) for lane in part.end}
        return dict(zip(("topic", "topic_id"), topics.pop(), strict=True)) if len(topics) == 1 else {}

    def changed(self, part: MicroBatch) -> str | None:
        """Spark reads by name: a topic that was made anew meanwhile has other records at the same offsets."""
        now = self._admin.describe({lane.topic for lane in part.end})
        other = sorted({lane.topic for lane in part.end if str(now[lane.topic].topic_id) != lane.topic_id})
        return f"topic {', '.join(other)} was deleted and made again while it was read" if other else None

    def _describe(self) -> dict[str, TopicDescription]:
        pattern = self._settings.kafka_topic_pattern
        if pattern is None:
            return self._admin.describe(self._settings.kafka_topics)
        # A topic may be deleted between the two questions.
        found = self._admin.describe(self._admin.topics_matching(pattern), some_may_go=True)
        if not found:
            raise TransientError(
                f"Kafka {self.servers} has no topic that matches {pattern!r}: create one, or correct "
                "GAME_EVENTS_KAFKA_TOPIC_PATTERN"
            )
        return found

    def _lanes(self, described: Mapping[str, TopicDescription]) -> list[Split]:
        without = sorted(name for name, found in described.items() if str(found.topic_id or NO_ID) == NO_ID)
        if without:
            raise ConfigurationError(
                f"Kafka {self.servers} gives topic {', '.join(without)} no id: a topic that is deleted and made again could "
                "not be told from the old one, and its first records would be passed over. Nothing was read. Ids come with "
                "Kafka 2.8 (`inter.broker.protocol.version` too); with a service that has none, have its records written to "
                "files and read those (GAME_EVENTS_SOURCE=files)"
            )
        lanes = [
            Split(name, str(found.topic_id), partition.id)
            for name, found in sorted(described.items())
            for partition in found.partitions
        ]
        assigned = {(topic, number) for topic, numbers in self._settings.kafka_assign.items() for number in numbers}
        if not assigned:
            return lanes
        missing = sorted(assigned - {(lane.topic, lane.partition) for lane in lanes})
        if missing:
            named = ", ".join(f"{topic}[{number}]" for topic, number in missing)
            raise ConfigurationError(f"Kafka {self.servers} has no partition {named}: correct GAME_EVENTS_KAFKA_ASSIGN")
        return [lane for lane in lanes if (lane.topic, lane.partition) in assigned]


def subject_of(topic: str) -> str:
    """The registry's subject of a topic's values, as Confluent's serializers name it by default."""
    return f"{topic}-value"


def _by_topic(positions: Offsets) -> dict[str, dict[str, int]]:
    """As Spark's options have them: topic -> partition -> offset."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for lane, offset in sorted(positions.items()):
        found[lane.topic][str(lane.partition)] = offset
    return found
