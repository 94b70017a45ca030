"""Leader epochs of records: each record keeps the epoch of the partition leader that wrote it."""

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from game_events.config.settings import Settings
from game_events.sources.core.source import Offsets, Split
from game_events.sources.kafka.client import CauseMemory, bad_option, client_options

#: Offsets read before the given one: the last ones may be transaction markers, which clients do not receive.
LOOK_BACK = 32
_WHAT = "reading the leader epochs of records"
#: Splits of one request: a client fetches for all of them, also after the requested offsets.
SPLITS_AT_ONCE = 64
#: No consumer group: nothing is committed or assigned. Uncommitted records count, too.
_OPTIONS = {
    "group.id": "game_events",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    # Limits prefetching to one answer of the broker.
    "queued.min.messages": 1,
}


def epochs_before(
    settings: Settings,
    offsets: Offsets,
    earliest: Offsets,
    timeout_s: float,
    make: Callable[[dict[str, Any]], Consumer] = Consumer,
) -> Offsets:
    """Split -> epoch of the last record before an offset; splits without a record right before it are left out.

    `earliest`: split -> first offset that still exists; `timeout_s`: longest wait for `SPLITS_AT_ONCE` splits.

    Raises:
        ConfigurationError, TransientError: the broker refuses or does not answer.
    """
    first = {split: max(earliest.get(split, 0), at - LOOK_BACK) for split, at in offsets.items()}
    asked = [split for split, at in offsets.items() if first[split] < at]
    found: Offsets = {}
    if not asked:
        return found
    memory = CauseMemory(settings.kafka_bootstrap_servers)
    try:
        consumer = make(client_options(settings, memory, {}) | _OPTIONS)
    except KafkaException as error:
        raise bad_option(error) from None
    try:
        for start in range(0, len(asked), SPLITS_AT_ONCE):
            group = asked[start : start + SPLITS_AT_ONCE]
            consumer.assign([TopicPartition(split.topic, split.partition, first[split]) for split in group])
            found |= _epochs(consumer, {split: offsets[split] for split in group}, time.monotonic() + timeout_s, memory)
    except KafkaException as error:
        raise memory.explain(_WHAT, error.args[0]) from error
    finally:
        consumer.close()
    return found


def _epochs(consumer: Consumer, offsets: Offsets, deadline: float, memory: CauseMemory) -> Offsets:
    """Epochs for the splits assigned to a consumer."""
    open_: dict[tuple[str | None, int | None], Split] = {(split.topic, split.partition): split for split in offsets}
    found: Offsets = {}
    while open_:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        if message is None:
            raise memory.explain(_WHAT)
        split = open_.get((message.topic(), message.partition()))
        if split is None:  # a finished partition; or an error of the group, which this login may not use
            continue
        failure = message.error()
        if failure is not None and failure.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
            raise memory.explain(_WHAT, failure)
        at, offset = offsets[split], int(message.offset() or 0)
        within = failure is None and offset < at
        epoch = message.leader_epoch() if within else None
        if epoch is not None:
            found[split] = epoch
        if not within or offset == at - 1:
            del open_[split.topic, split.partition]
            consumer.pause([TopicPartition(split.topic, split.partition)])
    return found
