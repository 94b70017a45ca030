"""Kafka topics as a source, named by the settings: topics, a pattern (which also matches later topics), or partitions.

Guarantee: a micro-batch is exactly the records with ``start <= offset < end`` of each partition that a committed reader may see
(aborted transactions leave gaps in the offsets); reading it twice gives the same records.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicDescription,
)
from pyspark.sql import Column
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from game_events.config.masking import value_of
from game_events.config.network import at_loopback, is_loopback
from game_events.config.pipeline_settings import split_names
from game_events.config.settings import Settings
from game_events.config.sources.kafka_login import TOKEN_URL, described, tokens_of
from game_events.decoding.unframed.topics import TopicRules
from game_events.errors import ConfigurationError, GameEventsError, TransientError, many
from game_events.sources.factory import since
from game_events.sources.kafka.client import (
    LOOK_S,
    CauseMemory,
    client_options,
    new_client,
    refuse_managed,
    with_file_contents,
)
from game_events.sources.kafka.reader import DEFAULTS, PARTITIONS_AT_ONCE, REQUIRED, SILENCE_S, KafkaReading, planned_ranges
from game_events.sources.source import (
    KAFKA,
    REGISTRY,
    TASK_RECORDS,
    MicroBatch,
    Offsets,
    Partition,
    Source,
    SourceContext,
    SourceSnapshot,
    Upstream,
)

TIMEOUT_S = 15.0
#: Errors of a group's coordinator that is not there yet: a broker starts, or makes its topic of offsets at the first use.
_COORDINATOR_STARTS = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
#: Errors of a request that was not answered in time: also of one that waits for a connection, whatever keeps it.
_NO_ANSWER = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
#: Seconds between two attempts meanwhile.
COORDINATOR_PAUSE_S = 0.1
#: Offsets read before the one whose epoch is asked for: the last ones may be transaction markers, which clients do not receive.
LOOK_BACK = 32
_EPOCHS = "reading the leader epochs of records"
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
#: Port of a broker whose address has none.
DEFAULT_PORT = "9092"
#: Id of a topic from a broker without topic ids: 16 bytes of zeros, as librdkafka writes them.
NO_ID = "A" * 22
#: Names of the one asset, and the one of its subjects, for all topics of a pattern: only the broker knows them,
#: and a graph that has to ask it cannot be loaded while it is down.
BY_PATTERN = "topics_by_pattern"
SUBJECTS_BY_PATTERN = "subjects_by_pattern"


class KafkaAdmin:
    """Reads topics' ids, partitions, offsets and leader epochs; connects at the first call, and again after a failure."""

    def __init__(
        self,
        settings: Settings,
        timeout_s: float | None = None,
        *,
        connect: Callable[..., AdminClient] = AdminClient,
        consume: Callable[..., Consumer] = Consumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s`: longest wait for one answer; None: `TIMEOUT_S`. `connect`, `consume`: make a client of its options."""
        self._connect = connect
        self._consume = consume
        self._clock = clock
        self.servers = settings.kafka_bootstrap_servers
        self._settings = settings
        self.timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._admin: AdminClient | None = None
        self._memory = CauseMemory(self.servers)
        self._seen: set[str] = set()

    def topics_matching(self, pattern: str) -> list[str]:
        """Sorted names of the topics that match as a whole, without Kafka's own; raises as `describe`."""
        topics = self._ask(lambda admin, seconds: admin.list_topics(timeout=seconds).topics)
        return sorted(n for n in topics if re.fullmatch(pattern, n) and n not in ("__consumer_offsets", "__transaction_state"))

    def describe(self, topics: Iterable[str], *, missing_ok: bool = False) -> dict[str, TopicDescription]:
        """Topic -> its id and partitions; with `missing_ok` without the topics that do not exist.

        Raises:
            ConfigurationError: no such topic, or the broker refuses the login.
            TransientError: the broker does not answer; or does not know a topic or partition (just created or deleted).
        """
        names = list(topics)
        if not names:
            return {}
        described = self._answers(lambda admin, seconds: admin.describe_topics(TopicCollection(names), request_timeout=seconds))
        missing = [name for name in names if name not in described]
        if missing and not missing_ok:
            raise self._unknown(missing)
        self._seen.update(described)
        return described

    def snapshot(self, partitions: Collection[Partition]) -> SourceSnapshot:
        """First offset, end of the committed ones, and leader epoch (if known) of each partition; raises as `describe`."""
        first = self._listed(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        last = self._listed(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        earliest = {partition: result.offset for partition, result in first.items()}
        latest = {partition: result.offset for partition, result in last.items()}
        epochs = {partition: result.leader_epoch for partition, result in last.items() if result.leader_epoch is not None}
        return SourceSnapshot(earliest, latest, epochs=epochs)

    def offsets_at(self, partitions: Iterable[Partition], when: datetime) -> Offsets:
        """Partition -> first offset of a record not older than a time; partitions without such a record are left out."""
        first = self._listed(partitions, OffsetSpec.for_timestamp(int(when.timestamp() * 1000)))
        return {partition: result.offset for partition, result in first.items() if result.offset >= 0}

    def epochs_before(self, offsets: Offsets, earliest: Offsets) -> Offsets:
        """Partition -> epoch of the last record before an offset; partitions without a record right before it are left out.

        `earliest`: partition -> first offset that still exists. Raises as `describe`.
        """
        first = {partition: max(earliest.get(partition, 0), offset - LOOK_BACK) for partition, offset in offsets.items()}
        asked = [partition for partition, offset in offsets.items() if first[partition] < offset]
        if not asked:
            return {}
        epochs: Offsets = {}
        options = client_options(self._settings, {}) | _EPOCHS_CONSUMER
        memory = CauseMemory.of(options)
        consumer = new_client(self._consume, options | {"error_cb": memory})
        try:
            for start in range(0, len(asked), PARTITIONS_AT_ONCE):
                group = asked[start : start + PARTITIONS_AT_ONCE]
                consumer.assign([TopicPartition(partition.topic, partition.number, first[partition]) for partition in group])
                epochs |= self._read_epochs(consumer, {partition: offsets[partition] for partition in group}, memory)
        except KafkaException as error:
            raise memory.explain(_EPOCHS, error.args[0]) from error
        finally:
            consumer.close()
        return epochs

    def _read_epochs(self, consumer: Consumer, offsets: Offsets, memory: CauseMemory) -> Offsets:
        """Epochs for the partitions assigned to a consumer; the wait for all of them is the longest for one answer."""
        deadline = self._clock() + self.timeout_s
        left = {(partition.topic, partition.number): partition for partition in offsets}
        epochs: Offsets = {}
        while left:
            message = self._next_message(consumer, deadline, memory)
            partition = left.get(_place(message))
            if partition is None:  # a finished partition; or an error of the group, which this login may not use
                continue
            _refuse_error(message, memory)
            end = offsets[partition]
            offset = int(message.offset() or 0)
            is_before = message.error() is None and offset < end
            epoch = message.leader_epoch() if is_before else None
            if epoch is not None:
                epochs[partition] = epoch
            if not is_before or offset == end - 1:
                del left[partition.topic, partition.number]
                consumer.pause([TopicPartition(partition.topic, partition.number)])
        return epochs

    def _next_message(self, consumer: Consumer, deadline: float, memory: CauseMemory) -> Message:
        """The next message or error of a consumer; raises an error if none comes in time."""
        message = consumer.poll(max(0.0, deadline - self._clock()))
        if message is None:
            raise memory.explain(_EPOCHS)
        return message

    def commit_group_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a consumer group, once its coordinator is there; raises as `describe`, and if it has members."""
        partitions = [TopicPartition(partition.topic, partition.number, end) for partition, end in sorted(offsets.items())]
        asked = [ConsumerGroupTopicPartitions(group, partitions)]
        attempts = Retrying(
            retry=retry_if_exception(
                lambda error: isinstance(error, KafkaException) and error.args[0].code() in _COORDINATOR_STARTS
            ),
            wait=wait_fixed(COORDINATOR_PAUSE_S),
            stop=stop_after_delay(self.timeout_s),
            reraise=True,
        )

        def commit(admin: AdminClient, seconds: float) -> dict[Any, Any]:
            return _settled(admin.alter_consumer_group_offsets(asked, request_timeout=seconds), 2 * seconds)

        answers = self._ask(lambda admin, seconds: attempts(commit, admin, seconds))
        refused = [p.error for answer in answers.values() for p in answer.topic_partitions if p.error is not None]
        if refused:
            raise self._memory.explain(f"offsets of consumer group {group}", refused[0])

    def _listed(self, wanted: Iterable[Partition], spec: OffsetSpec) -> dict[Partition, ListOffsetsResultInfo]:
        partitions = {(partition.topic, partition.number): partition for partition in wanted}
        if not partitions:
            return {}
        asked = dict.fromkeys((TopicPartition(*name) for name in partitions), spec)
        level = IsolationLevel.READ_COMMITTED
        listed = self._answers(lambda admin, seconds: admin.list_offsets(asked, isolation_level=level, request_timeout=seconds))
        answers = {(key.topic, key.partition): result for key, result in listed.items()}
        missing = sorted({topic for topic, number in partitions if (topic, number) not in answers})
        if missing:
            raise self._unknown(missing)
        return {partition: answers[name] for name, partition in partitions.items()}

    def _unknown(self, topics: list[str]) -> ConfigurationError | TransientError:
        named = ", ".join(repr(topic) for topic in topics)
        if self._seen.issuperset(topics):
            # It is being recreated, or a new partition's leader does not know it yet.
            return TransientError(
                f"Kafka {self.servers} does not know topic {named}, or one of its partitions, which existed "
                "before. If it was deleted for good, stop this run; if it was recreated, the next attempt detects it"
            )
        return ConfigurationError(f"Kafka {self.servers} has no topic {named}: create it, or set GAME_EVENTS_KAFKA_TOPIC")

    def _answers(self, ask: Callable[[AdminClient, float], Mapping[Any, Future[Any]]]) -> dict[Any, Any]:
        """The answers to one request, without those for unknown topics and partitions."""
        return self._ask(lambda admin, seconds: _settled(ask(admin, seconds), 2 * seconds))

    def _ask(self, ask: Callable[[AdminClient, float], Any]) -> dict[Any, Any]:
        """The answer to one request, which gets the client and the seconds that it may take."""
        admin = self._admin
        tries = [self.timeout_s]
        if admin is None:
            options = client_options(self._settings, {})
            self._memory = CauseMemory.of(options)
            admin = new_client(self._connect, options | {"error_cb": self._memory})
            tries = _first_tries(self.timeout_s)
        self._admin = None  # not used again after a failure
        what = f"reading topic {KafkaSource.name(self._settings)}"
        try:
            answers = self._first_answer(admin, ask, tries)
        except KafkaException as error:
            admin.poll(LOOK_S)  # delivers the errors that the client has received
            raise self._memory.explain(what, error.args[0]) from error
        except TimeoutError as error:
            admin.poll(LOOK_S)
            raise self._memory.explain(what) from error
        self._admin = admin
        return answers

    def _first_answer(
        self, admin: AdminClient, ask: Callable[[AdminClient, float], Any], tries: Sequence[float]
    ) -> dict[Any, Any]:
        """The answer of the first of these tries that gets one in its seconds; a client that is refused makes no other."""
        answers: dict[Any, Any]
        for seconds in tries[:-1]:
            try:
                answers = ask(admin, seconds)
            except KafkaException as error:
                admin.poll(0)
                if self._memory.refused or error.args[0].code() not in _NO_ANSWER:
                    raise
            else:
                return answers
        answers = ask(admin, tries[-1])
        return answers


def _first_tries(timeout_s: float) -> list[float]:
    """Seconds of a new client's first tries, all together as many as given; the last has at least half of them.

    A request of a client that is refused just ends with its time. It cannot be left before: a client must outlive its requests.
    """
    tries: list[float] = []
    seconds = LOOK_S
    while timeout_s - sum(tries) - seconds >= timeout_s / 2:
        tries.append(seconds)
        seconds *= 2
    return [*tries, timeout_s - sum(tries)]


def _settled(asked: Mapping[Any, Future[Any]], timeout_s: float) -> dict[Any, Any]:
    results = {}
    for key, future in asked.items():
        try:
            results[key] = future.result(timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return results


def _place(message: Message) -> tuple[str, int]:
    """Topic and partition of a message."""
    return str(message.topic()), int(message.partition() or 0)


def _refuse_error(message: Message, memory: CauseMemory) -> None:
    """Raise a message's error, unless it is about the offset that was asked for: there is nothing at it."""
    error = message.error()
    if error is not None and error.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        raise memory.explain(_EPOCHS, error)


class KafkaSource(Source):
    """Reads topics' metadata in the driver; Spark's workers read the records."""

    kind = KAFKA
    one_by_one = True
    check_name = "kafka"
    loss_advice = "raise the topic's retention"

    def __init__(self, context: SourceContext, admin: KafkaAdmin | None = None) -> None:
        """Connects at the first call; raises as `refuse_managed`; `admin` reads the topics' metadata."""
        self._settings = settings = context.settings
        self._name = context.name
        refuse_managed(settings.kafka_options)
        self.servers = settings.kafka_bootstrap_servers
        self.admin = admin or KafkaAdmin(settings, context.timeout_s)
        #: partition -> request (offset, leader epoch) and answer
        self._written: dict[Partition, tuple[tuple[int, ...], int | None]] = {}

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:  # noqa: ARG002
        """The topics' ids and offset ranges.

        Raises:
            ConfigurationError: no such topic or partition; it has no id; or the broker refuses the login.
            TransientError: the broker does not answer or does not know a topic (any more); or no topic matches the pattern yet.
        """
        partitions = []
        for name, description in sorted(self._described().items()):
            topic_id = str(description.topic_id)
            partitions += [Partition(name, topic_id, one.id, source=self._name) for one in description.partitions]
        return self.admin.snapshot(self._assigned(partitions))

    def offsets_at(self, partitions: Iterable[Partition], when: datetime) -> Offsets:
        """Raises as `snapshot`."""
        return self.admin.offsets_at(partitions, when)

    def epochs_before(self, now: SourceSnapshot, offsets: Offsets) -> Offsets:
        """Partition -> epoch of the leader that wrote the last record before it; cached by leader; raises as `snapshot`."""
        asked = {partition: (offset, now.epochs.get(partition, 0)) for partition, offset in offsets.items()}
        new = {p: offset for p, offset in offsets.items() if self._written.get(p, ((), None))[0] != asked[p]}
        epochs = self.admin.epochs_before(new, now.earliest)
        self._written |= {partition: (asked[partition], epochs.get(partition)) for partition in new}
        return {partition: epoch for partition in offsets if (epoch := self._written[partition][1]) is not None}

    def wants(self, topic: str) -> bool:
        """Whether the topics, or the pattern, of the settings include this one."""
        pattern = self._settings.kafka_topic_pattern
        if "/" in topic:  # of another source by name (`Partition.place`)
            return False
        return topic in self._settings.kafka_topics if pattern is None else re.fullmatch(pattern, topic) is not None

    def lost_rows(self, now: SourceSnapshot, origins: Offsets | None) -> Column:  # noqa: ARG002
        """Rows before the first offset of their partition."""
        return ~since(now.earliest)

    @classmethod
    def named_topics(cls, settings: Settings) -> tuple[str, ...]:
        """The topics of the settings; none where a pattern names them."""
        return settings.kafka_topics

    @classmethod
    def named_subjects(cls, settings: Settings) -> tuple[str, ...] | None:
        """The subject of each topic's values; None: only the broker knows which topics match the pattern."""
        return _subjects(settings, settings.kafka_topics) if settings.kafka_topic_pattern is None else None

    def subjects(self, partitions: Iterable[Partition]) -> tuple[str, ...]:
        """The subject of each topic's values."""
        return _subjects(self._settings, {partition.topic for partition in partitions})

    def batch_limit(self, reached: Offsets) -> int:  # noqa: ARG002
        """The setting `max_records_per_batch`."""
        return self._settings.max_records_per_batch

    def reading(self, batch: MicroBatch) -> KafkaReading:
        """Ranges of about `TASK_RECORDS` offsets by task; a record that has expired meanwhile fails the job."""
        options = with_file_contents(client_options(self._settings, DEFAULTS) | REQUIRED)
        ranges = planned_ranges(batch.start, batch.end, TASK_RECORDS)
        most = self._settings.max_record_bytes
        return KafkaReading(self.servers, options, ranges, most, SILENCE_S, source=self._name)

    def commit_group_offsets(self, offsets: Offsets) -> None:
        """Commit offsets for the settings' consumer group, if there is one; raises as `snapshot`."""
        group = self._settings.consumer_group
        if group is None:
            return
        try:
            self.admin.commit_group_offsets(group, offsets)
        except GameEventsError as error:
            raise type(error)(f"offsets of consumer group {group} were not committed: {error}") from error

    def check(self) -> str:
        """Number of partitions and records of each topic, and the login."""
        now = self.snapshot()
        parts = []
        for topic in sorted({partition.topic for partition in now.latest}):
            of_topic = [partition for partition in now.latest if partition.topic == topic]
            records = sum(now.latest[partition] - now.earliest[partition] for partition in of_topic)
            parts.append(f"topic {topic}, {many(len(of_topic), 'partition')}, {many(records, 'record')}")
        login = described(client_options(self._settings, {}))
        return f"{self.servers}: {'; '.join([*parts, login] if login else parts)}"

    @classmethod
    def name(cls, settings: Settings) -> str:
        """The topics, or their pattern."""
        pattern = settings.kafka_topic_pattern
        return ", ".join(settings.kafka_topics) if pattern is None else f"topics like {pattern}"

    @classmethod
    def holder(cls, settings: Settings) -> str:  # noqa: ARG003
        """Kafka, which may have lost a topic."""
        return "Kafka"

    @classmethod
    def unencrypted(cls, settings: Settings) -> list[str]:
        """Whether Kafka's login, or the secret of its tokens, goes to another machine without encryption."""
        options = {name: value_of(value) or "" for name, value in settings.kafka_options.items()}
        brokers = [broker.rpartition(":")[0].strip("[]") for broker in split_names(settings.kafka_bootstrap_servers)]
        readable = []
        if options.get("security.protocol", "").upper() == "SASL_PLAINTEXT" and not all(map(is_loopback, brokers)):
            where = "GAME_EVENTS_KAFKA_OPTIONS has security.protocol=SASL_PLAINTEXT"
            readable.append(f"{where}: Kafka's login can be read on the way; use SASL_SSL")
        token_url = options.get(TOKEN_URL, "")
        if token_url.startswith("http://") and not at_loopback(token_url):
            where = f"GAME_EVENTS_KAFKA_OPTIONS has {TOKEN_URL}={tokens_of(options)}"
            readable.append(f"{where}: the client's secret can be read on the way; use https://")
        return readable

    @classmethod
    def address(cls, settings: Settings, topic: str) -> str:
        """With the first broker."""
        broker = settings.kafka_bootstrap_servers.split(",")[0].strip().rpartition("://")[2]
        host, _, port = broker.rpartition(":")
        return f"kafka://{host or port}:{port if host else DEFAULT_PORT}/{topic}"

    @classmethod
    def asset_key(cls, settings: Settings, topic: str) -> tuple[str, ...]:
        """One asset for each topic that the settings name, or one for all topics of a pattern."""
        return ("kafka", topic if settings.kafka_topic_pattern is None else BY_PATTERN)

    @classmethod
    def subject_key(cls, settings: Settings, subject: str) -> tuple[str, ...]:
        """Likewise."""
        return (REGISTRY, subject if settings.kafka_topic_pattern is None else SUBJECTS_BY_PATTERN)

    @classmethod
    def upstreams(cls, settings: Settings) -> list[Upstream]:
        """Each topic and its subject; with a pattern all topics, and their subjects."""
        pattern = settings.kafka_topic_pattern
        if pattern is not None:
            topics = f"The Kafka topics that match `{pattern}`, those made later too."
            subjects = "The registry subjects of these topics' values. External."
            return [
                Upstream(cls.asset_key(settings, BY_PATTERN), topics, ("kafka",)),
                Upstream(cls.subject_key(settings, BY_PATTERN), subjects, (REGISTRY,)),
            ]
        upstreams = []
        for topic in settings.kafka_topics:
            said = "A Kafka topic that bronze is made from. External: producers write it."
            upstreams.append(Upstream(cls.asset_key(settings, topic), said, ("kafka",)))
            upstreams += [cls.subject_upstream(settings, subject) for subject in _subjects(settings, [topic])]
        return upstreams

    def changed(self, batch: MicroBatch) -> str | None:
        """Whether a topic was recreated while it was read: consumers read by name, and its offsets are of other records now."""
        now = self.admin.describe({partition.topic for partition in batch.end})
        other = sorted({partition.topic for partition in batch.end if str(now[partition.topic].topic_id) != partition.topic_id})
        return f"topic {', '.join(other)} was deleted and made again while it was read" if other else None

    def _described(self) -> Mapping[str, TopicDescription]:
        """The topics that the settings name, each with an id."""
        pattern = self._settings.kafka_topic_pattern
        if pattern is None:
            topics = self.admin.describe(self._settings.kafka_topics)
        else:
            # A topic may be deleted between the two requests.
            topics = self.admin.describe(self.admin.topics_matching(pattern), missing_ok=True)
            if not topics:
                raise TransientError(
                    f"Kafka {self.servers} has no topic that matches {pattern!r}: create one, or correct "
                    "GAME_EVENTS_KAFKA_TOPIC_PATTERN"
                )
        without = sorted(name for name, description in topics.items() if str(description.topic_id or NO_ID) == NO_ID)
        if without:
            raise ConfigurationError(
                f"Kafka {self.servers} gives topic {', '.join(without)} no id: a recreated topic could not be "
                "distinguished from the old one, and its first records would be skipped. Nothing was read. Ids come with "
                "Kafka 2.8 (`inter.broker.protocol.version` too); with a service that has none, have its records written to "
                "files and read those (GAME_EVENTS_SOURCE=files)"
            )
        return topics

    def _assigned(self, partitions: list[Partition]) -> list[Partition]:
        """Those that the settings assign, if they assign some."""
        assigned = {(topic, number) for topic, numbers in self._settings.kafka_assign.items() for number in numbers}
        if not assigned:
            return partitions
        missing = sorted(assigned - {(partition.topic, partition.number) for partition in partitions})
        if missing:
            named = ", ".join(f"{topic}[{number}]" for topic, number in missing)
            raise ConfigurationError(f"Kafka {self.servers} has no partition {named}: correct GAME_EVENTS_KAFKA_ASSIGN")
        return [partition for partition in partitions if (partition.topic, partition.number) in assigned]


def _subjects(settings: Settings, topics: Iterable[str]) -> tuple[str, ...]:
    """The subjects of topics, but for those that have no frames at all."""
    rules = TopicRules.of_settings(settings)
    return tuple(subject_of(topic) for topic in sorted(topics) if (rule := rules.of(topic)) is None or rule.framed == "auto")


def subject_of(topic: str) -> str:
    """The registry's subject of a topic's values, as Confluent's serializers name it by default."""
    return f"{topic}-value"
