"""Records read by the driver's own client instead of Spark: of micro-batches that Spark's Kafka source cannot hand over.

Spark converts each record's timestamp to microseconds of 64 bits before anything else sees the record, and fails if that
overflows (SPARK-56243). Kafka takes any number, and a producer may send nanoseconds for milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from game_events.config.settings import Settings
from game_events.lakehouse.event_columns import OWN_COLUMNS, RAW_COLUMNS, STORED_AS
from game_events.sources.core.source import Offsets, Split
from game_events.sources.kafka.client import CauseMemory, client_options, new_client

#: Spark's words for a timestamp that it cannot hold.
OVERFLOW = "long overflow"
#: Milliseconds from 1970 at most in Spark's timestamps, before and after it.
MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
#: Bytes of values, keys and headers that the driver reads at most, but for a single record.
MOST_BYTES = 64 * 1024**2
#: Splits of one request, messages of one call.
_SPLITS, _MESSAGES = 64, 500
_READING = "reading records"
_CONSUMER = {
    "group.id": "game_events",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}
#: Columns of `RAW_COLUMNS` with their types.
SCHEMA = pa.schema([pa.field(name, OWN_COLUMNS.field(STORED_AS[name]).type) for name in RAW_COLUMNS])


@dataclass
class ReadRecords:
    """Records of some ranges.

    Attributes:
        rows: columns `RAW_COLUMNS`; a timestamp that Spark cannot hold is NULL.
        odd: of each record that Spark cannot hand over: where it is, and what is left out of it.
        too_large: they have more than `MOST_BYTES`; then `rows` is not complete.
    """

    rows: pa.Table = field(default_factory=SCHEMA.empty_table)
    odd: list[str] = field(default_factory=list)
    too_large: bool = False


def read_records(
    settings: Settings, start: Offsets, end: Offsets, timeout_s: float, consume: Callable[..., Consumer] = Consumer
) -> ReadRecords:
    """The records with ``start <= offset < end`` of some splits that a committed reader may see; `consume`: makes a consumer.

    Raises ConfigurationError or TransientError if the broker refuses, or does not answer for `timeout_s` seconds.
    """
    memory = CauseMemory(settings.kafka_bootstrap_servers)
    consumer = new_client(consume, client_options(settings, memory, {}) | _CONSUMER)
    reading, wanted = _Reading(end), [split for split in end if start[split] < end[split]]
    try:
        for first in range(0, len(wanted), _SPLITS):
            group = wanted[first : first + _SPLITS]
            consumer.assign([TopicPartition(split.topic, split.partition, start[split]) for split in group])
            reading.read(consumer, group, timeout_s, memory)
    except KafkaException as error:
        raise memory.explain(_READING, error.args[0]) from error
    finally:
        consumer.close()
    return ReadRecords(pa.Table.from_pylist(reading.rows, schema=SCHEMA), reading.odd, reading.size > MOST_BYTES)


class _Reading:
    """Messages so far, as rows."""

    def __init__(self, end: Offsets) -> None:
        self._end = end
        self.rows: list[dict[str, Any]] = []
        self.odd: list[str] = []
        self.size = 0

    def read(self, consumer: Consumer, splits: list[Split], timeout_s: float, memory: CauseMemory) -> None:
        """Read the assigned splits to their ends, or until there are too many bytes."""
        open_: dict[tuple[str | None, int | None], Split] = {(split.topic, split.partition): split for split in splits}
        while open_ and self.size <= MOST_BYTES:
            messages = consumer.consume(_MESSAGES, timeout_s)
            if not messages:
                raise memory.explain(_READING)
            for message in messages:
                split = open_.get((message.topic(), message.partition()))
                if split is None:  # a finished partition; or an error of the group, which this login may not use
                    continue
                failure = message.error()
                if failure is not None and failure.code() != KafkaError._PARTITION_EOF:
                    raise memory.explain(_READING, failure)
                offset = int(message.offset() or 0)
                if failure is None and offset < self._end[split]:
                    self._add(split, offset, message)
                # The end of a partition may be before that of its range: a new leader has less for a while.
                reached = offset + 1 if failure is None else offset
                if reached >= self._end[split]:
                    del open_[split.topic, split.partition]
                    consumer.pause([TopicPartition(split.topic, split.partition)])

    def _add(self, split: Split, offset: int, message: Message) -> None:
        value, key, time = message.value(), message.key(), int(message.timestamp()[1])
        is_held = abs(time) <= MAX_TIMESTAMP_MS
        lost = [] if is_held else [f"timestamp of {time} milliseconds"]
        try:
            headers = cast(list[tuple[str, bytes | None]], message.headers() or [])
        except UnicodeDecodeError:
            headers = []
            lost.append("headers, whose names are no UTF-8")
        if lost:
            self.odd.append(f"{split}@{offset} ({' and '.join(lost)})")
        self.size += len(value or b"") + len(key or b"") + sum(len(name) + len(held or b"") for name, held in headers)
        row = {"topic": split.topic, "topic_id": split.topic_id, "partition": split.partition, "offset": offset}
        row |= {
            "timestamp": time * 1000 if is_held else None,
            "headers": [{"key": name, "value": held} for name, held in headers] or None,
        }
        self.rows.append(row | {"key": key, "value": value})
