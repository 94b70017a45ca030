"""What the broker says of topics: their ids, partitions and offsets; failures as this project's errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from confluent_kafka import (
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

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.sources.core.source import Offsets, Split
from game_events.sources.kafka.client import LOOK_S, CauseMemory, bad_option, client_options

TIMEOUT_S = 15.0


class KafkaAdmin:
    """Asks about topics; connects lazily, and anew after a failure."""

    def __init__(self, settings: Settings, timeout_s: float | None = None) -> None:
        """`timeout_s`: longest wait for one answer; None: `TIMEOUT_S`."""
        self.servers = settings.kafka_bootstrap_servers
        self._settings = settings
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._admin: AdminClient | None = None
        self._memory = CauseMemory(self.servers)
        self._seen: set[str] = set()

    def topics_matching(self, pattern: str) -> list[str]:
        """Names of the topics that match as a whole, sorted; not Kafka's own.

        Raises:
            ConfigurationError, TransientError: as `describe` does.
        """
        found = self._ask(lambda admin: admin.list_topics(timeout=self._timeout_s).topics)
        return sorted(n for n in found if re.fullmatch(pattern, n) and n not in ("__consumer_offsets", "__transaction_state"))

    def describe(self, topics: Iterable[str], *, some_may_go: bool = False) -> dict[str, TopicDescription]:
        """Topic -> its id and partitions.

        Args:
            topics: names.
            some_may_go: a topic that is not there is left out.

        Raises:
            ConfigurationError: no such topic, or the broker refuses the login.
            TransientError: the broker does not answer; or does not know a topic, or a partition of it, any more or yet.
        """
        names = list(topics)
        if not names:
            return {}
        found = self._ask(
            lambda admin: _settled(
                admin.describe_topics(TopicCollection(names), request_timeout=self._timeout_s), 2 * self._timeout_s
            )
        )
        missing = [name for name in names if name not in found]
        if missing and not some_may_go:
            raise self._unknown(missing)
        self._seen.update(found)
        return found

    def offset_ranges(self, wanted: Iterable[Split]) -> tuple[Offsets, Offsets, Offsets]:
        """First offset, the one behind the last that a committed reader may see, and the leader's epoch, of each lane.

        Lanes of which the broker does not say the epoch are left out of the last.

        Raises:
            ConfigurationError, TransientError: as `describe` does.
        """
        lanes = {(lane.topic, lane.partition): lane for lane in wanted}
        first = self._listed(lanes, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        last = self._listed(lanes, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        epochs = {lane: found.leader_epoch for lane, found in last.items() if found.leader_epoch is not None}
        return _offsets(first), _offsets(last), epochs

    def offsets_at(self, lanes: Iterable[Split], when: datetime) -> Offsets:
        """Split -> first offset whose record is not older than a time; lanes without such a record are left out."""
        since = OffsetSpec.for_timestamp(int(when.timestamp() * 1000))
        found = _offsets(self._listed({(lane.topic, lane.partition): lane for lane in lanes}, since))
        return {lane: offset for lane, offset in found.items() if offset >= 0}

    def commit_group_offsets(self, group: str, positions: Offsets) -> None:
        """Commit offsets for a consumer group that has no members.

        Raises:
            ConfigurationError, TransientError: as `describe` does; or the group has members of its own.
        """
        offsets = [TopicPartition(lane.topic, lane.partition, at) for lane, at in sorted(positions.items())]
        asked = [ConsumerGroupTopicPartitions(group, offsets)]
        found = self._ask(
            lambda admin: _settled(
                admin.alter_consumer_group_offsets(asked, request_timeout=self._timeout_s), 2 * self._timeout_s
            )
        )
        refused = [p.error for answer in found.values() for p in answer.topic_partitions if p.error is not None]
        if refused:
            raise self._memory.explain(f"offsets of consumer group {group}", refused[0])

    def _listed(self, lanes: Mapping[tuple[str, int], Split], spec: OffsetSpec) -> dict[Split, ListOffsetsResultInfo]:
        if not lanes:
            return {}
        asked = dict.fromkeys((TopicPartition(*name) for name in lanes), spec)
        found = self._ask(
            lambda admin: _settled(
                admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout_s),
                2 * self._timeout_s,
            )
        )
        answers = {(key.topic, key.partition): result for key, result in found.items()}
        missing = sorted({topic for topic, partition in lanes if (topic, partition) not in answers})
        if missing:
            raise self._unknown(missing)
        return {lane: answers[name] for name, lane in lanes.items()}

    def _unknown(self, topics: list[str]) -> ConfigurationError | TransientError:
        named = ", ".join(repr(topic) for topic in topics)
        if self._seen.issuperset(topics):
            # It is being made anew, or a new partition's leader has not heard of it yet.
            return TransientError(
                f"Kafka {self.servers} does not know topic {named}, or one of its partitions, which was there a "
                "while ago. If it was deleted for good, stop this run; if it was made anew, it is found again by itself"
            )
        return ConfigurationError(f"Kafka {self.servers} has no topic {named}: create it, or set GAME_EVENTS_KAFKA_TOPIC")

    def _ask(self, ask: Callable[[AdminClient], Any]) -> dict[Any, Any]:
        memory = self._memory
        if self._admin is None:
            try:
                self._admin = AdminClient(client_options(self._settings, memory, {}))  # type: ignore[arg-type]
            except KafkaException as error:
                raise bad_option(error) from None
        admin, self._admin = self._admin, None  # not used again after a failure
        what = f"reading topic {self._settings.source_name}"
        try:
            found: dict[Any, Any] = ask(admin)
        except KafkaException as error:
            admin.poll(LOOK_S)  # only now does the client tell what it has heard
            raise memory.explain(what, error.args[0]) from error
        except TimeoutError as error:
            admin.poll(LOOK_S)
            raise memory.explain(what) from error
        self._admin = admin
        return found


def _offsets(found: Mapping[Split, ListOffsetsResultInfo]) -> Offsets:
    return {lane: result.offset for lane, result in found.items()}


def _settled(asked: Mapping[Any, Future[Any]], timeout_s: float) -> dict[Any, Any]:
    """The answers; without those that the broker does not know topic or partition of."""
    found = {}
    for key, future in asked.items():
        try:
            found[key] = future.result(timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found
