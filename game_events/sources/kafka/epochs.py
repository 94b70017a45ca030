"""Which leader wrote a partition's records: each leader has a number, its epoch, and each record keeps that of its writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from game_events.config.settings import Settings
from game_events.sources.core.source import Lane, Positions
from game_events.sources.kafka.client import CauseMemory, bad_option, client_options

#: Offsets before a position that are looked through: the last ones may be a transaction's markers, which no client is given.
LOOK_BACK = 32
#: What is being done, for errors.
_WHAT = "looking for the leaders of records"
#: Lanes that are asked about at once: a client fetches for all of them, what lies behind their positions included.
LANES_AT_ONCE = 64


def epochs_before(
    settings: Settings,
    positions: Positions,
    earliest: Positions,
    timeout_s: float,
    make: Callable[[Mapping[str, object]], Consumer] = Consumer,  # type: ignore[assignment]
) -> Positions:
    """Lane -> epoch of the last record before a position; lanes without a record right before it are left out.

    Args:
        settings: where the broker is.
        positions: lane -> position.
        earliest: lane -> first offset that there still is.
        timeout_s: longest wait for `LANES_AT_ONCE` of them.
        make: makes a consumer of its options.

    Raises:
        ConfigurationError, TransientError: the broker refuses or does not answer.
    """
    first = {lane: max(earliest.get(lane, 0), at - LOOK_BACK) for lane, at in positions.items()}
    asked = [lane for lane, at in positions.items() if first[lane] < at]
    found: Positions = {}
    if not asked:
        return found
    memory = CauseMemory(settings.kafka_bootstrap_servers)
    # It is in no group: it commits nothing, and nothing is assigned to it. Uncommitted records have their writer's epoch, too.
    own = {
        "group.id": "game_events",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
        # What lies behind a position is not wanted: no more is fetched ahead than one answer of the broker has.
        "queued.min.messages": 1,
    }
    try:
        consumer = make(client_options(settings, memory, {}) | own)
    except KafkaException as error:
        raise bad_option(error) from None
    try:
        for start in range(0, len(asked), LANES_AT_ONCE):
            group = asked[start : start + LANES_AT_ONCE]
            consumer.assign([TopicPartition(lane.topic, lane.partition, first[lane]) for lane in group])
            found |= _epochs(consumer, {lane: positions[lane] for lane in group}, time.monotonic() + timeout_s, memory)
    except KafkaException as error:
        raise memory.explain(_WHAT, error.args[0]) from error
    finally:
        consumer.close()
    return found


def _epochs(consumer: Consumer, positions: Positions, deadline: float, memory: CauseMemory) -> Positions:
    """The same of the lanes that are assigned to a consumer."""
    open_: dict[tuple[str | None, int | None], Lane] = {(lane.topic, lane.partition): lane for lane in positions}
    found: Positions = {}
    while open_:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        if message is None:
            raise memory.explain(_WHAT)
        lane = open_.get((message.topic(), message.partition()))
        if lane is None:  # a partition that is done with; or the group, which a login for the topic alone may not use
            continue
        failure = message.error()
        if failure is not None and failure.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
            raise memory.explain(_WHAT, failure)
        at, offset = positions[lane], int(message.offset() or 0)
        within = failure is None and offset < at
        epoch = message.leader_epoch() if within else None
        if epoch is not None:
            found[lane] = epoch
        if not within or offset == at - 1:
            del open_[lane.topic, lane.partition]
            consumer.pause([TopicPartition(lane.topic, lane.partition)])
    return found
