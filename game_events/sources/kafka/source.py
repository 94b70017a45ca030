"""Kafka topics as a source, named by the settings: topics, a pattern (which also matches later topics), or partitions.

Guarantee: a micro-batch is exactly the records with ``start <= offset < end`` of each partition that a committed reader may see
(aborted transactions leave gaps in the offsets); reading it twice gives the same records.
"""

from collections.abc import Iterable
from datetime import datetime

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.sources.core.reading import TASK_RECORDS
from game_events.sources.core.source import MicroBatch, Offsets, Source, SourceSnapshot, Split
from game_events.sources.kafka.admin import KafkaAdmin
from game_events.sources.kafka.client import client_options
from game_events.sources.kafka.options import refuse_managed, with_file_contents
from game_events.sources.kafka.reader import DEFAULTS, REQUIRED, KafkaReading, planned_ranges

#: Id of a topic from a broker without topic ids: 16 bytes of zeros, as librdkafka writes them.
NO_ID = "A" * 22


class KafkaSource(Source):
    """Reads topics' metadata in the driver; Spark's workers read the records."""

    one_by_one = True

    def __init__(
        self,
        settings: Settings,
        timeout_s: float | None = None,
        admin: KafkaAdmin | None = None,
    ) -> None:
        """Connects at the first call; raises as `refuse_managed`.

        `admin`: reads the topics' metadata; None: one of these settings, with `timeout_s` as in `KafkaAdmin`.
        """
        refuse_managed(settings.kafka_options)
        self.servers = settings.kafka_bootstrap_servers
        self._settings = settings
        self.admin = admin or KafkaAdmin(settings, timeout_s)
        #: split -> request (offset, leader epoch) and answer
        self._written: dict[Split, tuple[tuple[int, ...], int | None]] = {}

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:  # noqa: ARG002
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

    def batch_limit(self, reached: Offsets) -> int:  # noqa: ARG002
        """The setting `max_records_per_batch`."""
        return self._settings.max_records_per_batch

    def reading(self, batch: MicroBatch) -> KafkaReading:
        """Ranges of about `TASK_RECORDS` offsets by task; a record that has expired meanwhile fails the job."""
        options = with_file_contents(client_options(self._settings, DEFAULTS) | REQUIRED)
        ranges = planned_ranges(batch.start, batch.end, TASK_RECORDS)
        return KafkaReading(self.servers, options, ranges, self._settings.max_record_bytes)

    def commit_group_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a consumer group, so that monitoring tools see bronze's lag; raises as `snapshot`."""
        self.admin.commit_group_offsets(group, offsets)

    def changed(self, batch: MicroBatch) -> str | None:
        """Whether a topic was recreated while it was read: consumers read by name, and its offsets are of other records now."""
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
