"""Which leader wrote a partition's records: each leader has a number, its epoch, and each record keeps that of its writer."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from game_events.config.settings import Settings
from game_events.sources.core.source import Offsets
from game_events.sources.kafka.client import CauseMemory, bad_option, client_options

#: Offsets before a position that are looked through: the last ones may be a transaction's markers, which no client is given.
LOOK_BACK = 32


def epochs_before(settings: Settings, positions: Offsets, earliest: Offsets, timeout_s: float) -> Offsets:
    """Lane -> epoch of the last record before a position; lanes without a record right before it are left out.

    Args:
        settings: where the broker is.
        positions: lane -> position.
        earliest: lane -> first offset that there still is.
        timeout_s: longest wait for all of them.

    Raises:
        ConfigurationError, TransientError: the broker refuses or does not answer.
    """
    first = {lane: max(earliest.get(lane, 0), at - LOOK_BACK) for lane, at in positions.items()}
    open_ = {(lane.topic, lane.partition): lane for lane, at in positions.items() if first[lane] < at}
    found: Offsets = {}
    if not open_:
        return found
    memory = CauseMemory(settings.kafka_bootstrap_servers)
    # It is in no group: it commits nothing, and nothing is assigned to it. Uncommitted records have their writer's epoch, too.
    own = {
        "group.id": "game_events",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
    }
    try:
        consumer = Consumer(client_options(settings, memory, {}) | own)
    except KafkaException as error:
        raise bad_option(error) from None
    try:
        consumer.assign([TopicPartition(lane.topic, lane.partition, first[lane]) for lane in open_.values()])
        deadline = time.monotonic() + timeout_s
        while open_:
            message = consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise memory.explain("looking for the leaders of records")
            lane = open_.get((str(message.topic()), int(message.partition() or 0)))
            if lane is None:  # a partition that is done with; or the group, which a login for the topic alone may not use
                continue
            failure = message.error()
            if failure is not None and failure.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                raise memory.explain("looking for the leaders of records", failure)
            if failure is not None or int(message.offset() or 0) >= positions[lane]:
                del open_[lane.topic, lane.partition]
                continue
            epoch = message.leader_epoch()
            if epoch is not None:
                found[lane] = epoch
            if message.offset() == positions[lane] - 1:
                del open_[lane.topic, lane.partition]
    except KafkaException as error:
        raise memory.explain("looking for the leaders of records", error.args[0]) from error
    finally:
        consumer.close()
    return found
