"""Kafka topics as a source, named by the settings: topics, a pattern (which also matches later topics), or partitions.

Guarantee: a micro-batch is exactly the records with ``start <= offset < end`` of each partition that a committed reader may see
(aborted transactions leave gaps in the offsets); reading it twice gives the same records.

Metadata of topics from the broker: ids, partitions, offsets, leader epochs of records; failures as this project's errors.

Each record keeps the epoch of the partition leader that wrote it.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicDescription,
)
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.sources.kafka.client import LOOK_S, CauseMemory, client_options, new_client, refuse_managed, with_file_contents
from game_events.sources.kafka.reader import DEFAULTS, REQUIRED, SILENCE_S, KafkaReading, planned_ranges
from game_events.sources.source import TASK_RECORDS, MicroBatch, Offsets, Source, SourceSnapshot, Split

TIMEOUT_S = 15.0

#: Errors of a group's coordinator that is not there yet: a broker starts, or makes its topic of offsets at the first use.
_COORDINATOR_STARTS = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

#: Seconds between two attempts meanwhile.
COORDINATOR_PAUSE_S = 0.1

#: Offsets read before the one whose epoch is asked for: the last ones may be transaction markers, which clients do not receive.
LOOK_BACK = 32

_EPOCHS = "reading the leader epochs of records"

#: Splits of one request: a client fetches for all of them, also after the requested offsets.
SPLITS_AT_ONCE = 64

#: Of the consumer that reads epochs. No consumer group: nothing is committed or assigned. Uncommitted records count, too.
_EPOCHS_CONSUMER = {
    "group.id": "game_events",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    # Limits prefetching to one answer of the broker.
    "queued.min.messages": 1,
}


class KafkaAdmin:
    """Reads topics' metadata; connects at the first call, and again after a failure."""

    def __init__(
        self,
        settings: Settings,
        timeout_s: float | None = None,
        *,
        connect: Callable[..., AdminClient] = AdminClient,
        consume: Callable[..., Consumer] = Consumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s`: longest wait for one answer, by `clock` for records; None: `TIMEOUT_S`.

        `connect`, `consume`: make a client, and a consumer, of its options.
        """
        self._connect, self._consume, self._clock = connect, consume, clock
        self.servers = settings.kafka_bootstrap_servers
        self._settings = settings
        self.timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._admin: AdminClient | None = None
        self._memory = CauseMemory(self.servers)
        self._seen: set[str] = set()

    def topics_matching(self, pattern: str) -> list[str]:
        """Sorted names of the topics that match as a whole, without Kafka's own; raises as `describe`."""
        found = self._ask(lambda admin: admin.list_topics(timeout=self.timeout_s).topics)
        return sorted(n for n in found if re.fullmatch(pattern, n) and n not in ("__consumer_offsets", "__transaction_state"))

    def describe(self, topics: Iterable[str], *, missing_ok: bool = False) -> dict[str, TopicDescription]:
        """Topic -> its id and partitions; with `missing_ok` without the topics that do not exist.

        Raises:
            ConfigurationError: no such topic, or the broker refuses the login.
            TransientError: the broker does not answer; or does not know a topic or partition (just created or deleted).
        """
        names = list(topics)
        if not names:
            return {}
        found = self._answers(lambda admin: admin.describe_topics(TopicCollection(names), request_timeout=self.timeout_s))
        missing = [name for name in names if name not in found]
        if missing and not missing_ok:
            raise self._unknown(missing)
        self._seen.update(found)
        return found

    def offset_ranges(self, splits: Collection[Split]) -> tuple[Offsets, Offsets, Offsets]:
        """First offset, end of the committed ones, and leader epoch (if known) of each split; raises as `describe`."""
        first = self._listed(splits, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        last = self._listed(splits, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        epochs = {split: found.leader_epoch for split, found in last.items() if found.leader_epoch is not None}
        return _offsets(first), _offsets(last), epochs

    def offsets_at(self, splits: Iterable[Split], when: datetime) -> Offsets:
        """Split -> first offset of a record not older than a time; splits without such a record are left out."""
        since = OffsetSpec.for_timestamp(int(when.timestamp() * 1000))
        found = _offsets(self._listed(splits, since))
        return {split: offset for split, offset in found.items() if offset >= 0}

    def epochs_before(self, offsets: Offsets, earliest: Offsets) -> Offsets:
        """Split -> epoch of the last record before an offset; splits without a record right before it are left out.

        `earliest`: split -> first offset that still exists. `SPLITS_AT_ONCE` splits together have the longest wait for one
        answer. Raises ConfigurationError or TransientError if the broker refuses or does not answer.
        """
        first = {split: max(earliest.get(split, 0), at - LOOK_BACK) for split, at in offsets.items()}
        asked = [split for split, at in offsets.items() if first[split] < at]
        found: Offsets = {}
        if not asked:
            return found
        memory = CauseMemory(self.servers)
        consumer = new_client(self._consume, client_options(self._settings, {}) | _EPOCHS_CONSUMER | {"error_cb": memory})
        try:
            for start in range(0, len(asked), SPLITS_AT_ONCE):
                group = asked[start : start + SPLITS_AT_ONCE]
                consumer.assign([TopicPartition(split.topic, split.partition, first[split]) for split in group])
                deadline = self._clock() + self.timeout_s
                found |= _epochs(consumer, {split: offsets[split] for split in group}, self._clock, deadline, memory)
        except KafkaException as error:
            raise memory.explain(_EPOCHS, error.args[0]) from error
        finally:
            consumer.close()
        return found

    def commit_group_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a consumer group, once its coordinator is there; raises as `describe`, and if it has members."""
        partitions = [TopicPartition(split.topic, split.partition, at) for split, at in sorted(offsets.items())]
        asked, timeout_s = [ConsumerGroupTopicPartitions(group, partitions)], self.timeout_s
        attempts = Retrying(
            retry=retry_if_exception(_waits_for_coordinator),
            wait=wait_fixed(COORDINATOR_PAUSE_S),
            stop=stop_after_delay(timeout_s),
            reraise=True,
        )

        def commit(admin: AdminClient) -> dict[Any, Any]:
            return _settled(admin.alter_consumer_group_offsets(asked, request_timeout=timeout_s), 2 * timeout_s)

        found = self._ask(lambda admin: attempts(commit, admin))
        refused = [p.error for answer in found.values() for p in answer.topic_partitions if p.error is not None]
        if refused:
            raise self._memory.explain(f"offsets of consumer group {group}", refused[0])

    def _listed(self, wanted: Iterable[Split], spec: OffsetSpec) -> dict[Split, ListOffsetsResultInfo]:
        splits = {(split.topic, split.partition): split for split in wanted}
        if not splits:
            return {}
        asked = dict.fromkeys((TopicPartition(*name) for name in splits), spec)
        committed = IsolationLevel.READ_COMMITTED
        found = self._answers(
            lambda admin: admin.list_offsets(asked, isolation_level=committed, request_timeout=self.timeout_s)
        )
        answers = {(key.topic, key.partition): result for key, result in found.items()}
        missing = sorted({topic for topic, partition in splits if (topic, partition) not in answers})
        if missing:
            raise self._unknown(missing)
        return {split: answers[name] for name, split in splits.items()}

    def _unknown(self, topics: list[str]) -> ConfigurationError | TransientError:
        named = ", ".join(repr(topic) for topic in topics)
        if self._seen.issuperset(topics):
            # It is being recreated, or a new partition's leader does not know it yet.
            return TransientError(
                f"Kafka {self.servers} does not know topic {named}, or one of its partitions, which existed "
                "before. If it was deleted for good, stop this run; if it was recreated, the next attempt detects it"
            )
        return ConfigurationError(f"Kafka {self.servers} has no topic {named}: create it, or set GAME_EVENTS_KAFKA_TOPIC")

    def _answers(self, ask: Callable[[AdminClient], Mapping[Any, Future[Any]]]) -> dict[Any, Any]:
        """The answers to one request, without those for unknown topics and partitions."""
        return self._ask(lambda admin: _settled(ask(admin), 2 * self.timeout_s))

    def _ask(self, ask: Callable[[AdminClient], Any]) -> dict[Any, Any]:
        memory = self._memory
        admin = self._admin
        if admin is None:
            admin = new_client(self._connect, client_options(self._settings, {}) | {"error_cb": memory})
        self._admin = None  # not used again after a failure
        what = f"reading topic {self._settings.source_name}"
        try:
            found: dict[Any, Any] = ask(admin)
        except KafkaException as error:
            admin.poll(LOOK_S)  # delivers the errors that the client has received
            raise memory.explain(what, error.args[0]) from error
        except TimeoutError as error:
            admin.poll(LOOK_S)
            raise memory.explain(what) from error
        self._admin = admin
        return found


def _waits_for_coordinator(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _COORDINATOR_STARTS


def _offsets(found: Mapping[Split, ListOffsetsResultInfo]) -> Offsets:
    return {split: result.offset for split, result in found.items()}


def _settled(asked: Mapping[Any, Future[Any]], timeout_s: float) -> dict[Any, Any]:
    found = {}
    for key, future in asked.items():
        try:
            found[key] = future.result(timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found


def _epochs(consumer: Consumer, offsets: Offsets, clock: Callable[[], float], deadline: float, memory: CauseMemory) -> Offsets:
    """Epochs for the splits assigned to a consumer, read before the deadline of that clock."""
    open_: dict[tuple[str | None, int | None], Split] = {(split.topic, split.partition): split for split in offsets}
    found: Offsets = {}
    while open_:
        message = consumer.poll(max(0.0, deadline - clock()))
        if message is None:
            raise memory.explain(_EPOCHS)
        split = open_.get((message.topic(), message.partition()))
        if split is None:  # a finished partition; or an error of the group, which this login may not use
            continue
        failure = message.error()
        if failure is not None and failure.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
            raise memory.explain(_EPOCHS, failure)
        at, offset = offsets[split], int(message.offset() or 0)
        within = failure is None and offset < at
        epoch = message.leader_epoch() if within else None
        if epoch is not None:
            found[split] = epoch
        if not within or offset == at - 1:
            del open_[split.topic, split.partition]
            consumer.pause([TopicPartition(split.topic, split.partition)])
    return found


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
        return KafkaReading(self.servers, options, ranges, self._settings.max_record_bytes, SILENCE_S)

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
