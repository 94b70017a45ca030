"""Leader epochs of records: each record keeps the epoch of the partition leader that wrote it."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from game_events.config.settings import Settings
from game_events.sources.core.source import Offsets
from game_events.sources.kafka.client import CauseMemory, bad_option, client_options

#: Offsets read before the given one: the last ones may be transaction markers, which clients do not receive.
LOOK_BACK = 32


def epochs_before(settings: Settings, offsets: Offsets, earliest: Offsets, timeout_s: float) -> Offsets:
    """Split -> epoch of the last record before an offset; splits without a record right before it are left out.

    Args:
        settings: name the broker.
        offsets: split -> offset.
        earliest: split -> first offset that still exists.
        timeout_s: longest wait for all of them.

    Raises:
        ConfigurationError, TransientError: the broker refuses or does not answer.
    """
    first = {split: max(earliest.get(split, 0), at - LOOK_BACK) for split, at in offsets.items()}
    open_ = {(split.topic, split.partition): split for split, at in offsets.items() if first[split] < at}
    found: Offsets = {}
    if not open_:
        return found
    memory = CauseMemory(settings.kafka_bootstrap_servers)
    # No consumer group: nothing is committed or assigned. Uncommitted records count, too.
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
        consumer.assign([TopicPartition(split.topic, split.partition, first[split]) for split in open_.values()])
        deadline = time.monotonic() + timeout_s
        while open_:
            message = consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise memory.explain("reading the leader epochs of records")
            split = open_.get((str(message.topic()), int(message.partition() or 0)))
            if split is None:  # a finished partition; or an error of the group, which this login may not use
                continue
            failure = message.error()
            if failure is not None and failure.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                raise memory.explain("reading the leader epochs of records", failure)
            if failure is not None or int(message.offset() or 0) >= offsets[split]:
                del open_[split.topic, split.partition]
                continue
            epoch = message.leader_epoch()
            if epoch is not None:
                found[split] = epoch
            if message.offset() == offsets[split] - 1:
                del open_[split.topic, split.partition]
    except KafkaException as error:
        raise memory.explain("reading the leader epochs of records", error.args[0]) from error
    finally:
        consumer.close()
    return found
