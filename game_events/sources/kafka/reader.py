"""Reads ranges of Kafka partitions in a Spark worker, by librdkafka, as Arrow batches.

Partitions are assigned at their offsets: there is no consumer group, and nothing is committed. A worker's process keeps its
consumer from one micro-batch to the next, with its connections and metadata; records that were fetched ahead are dropped with
the assignment. Spark ends the process, and so the consumer, when it has been idle for a minute.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from game_events.decoding.core.reasons import KEPT_BYTES, Reason, too_large
from game_events.errors import ConflictError, first_few
from game_events.sources.core.reading import BATCH_BYTES, BATCH_RECORDS, RAW_SCHEMA, Reading, ReadNotes, columns_of
from game_events.sources.core.source import Offsets, Split
from game_events.sources.kafka.client import LOOK_S, CauseMemory, new_client

Integers = npt.NDArray[np.int64]
HEADERS = RAW_SCHEMA.field("headers").type
#: Milliseconds from 1970 at most, before and after it, that a column of microseconds can hold.
MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
#: Messages of one call: few enough that their objects stay in the processor's cache.
MESSAGES = 2_000
#: Partitions that are assigned together: a consumer fetches for all of them, also past the end of a range.
PARTITIONS_AT_ONCE = 64
#: Records that are described to the user, of each task.
EXAMPLES = 5
#: Seconds without a record after which a task fails: a new leader may take some.
SILENCE_S = 60.0
#: Options that a user may replace: no wait for more records where a partition ends, large fetches, bounded memory.
DEFAULTS: dict[str, object] = {
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 32 * 1024,
}
#: Options that this code depends on.
REQUIRED: dict[str, object] = {
    # Needed for any consumer; no group is joined.
    "group.id": "game_events",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    # A consumer that is kept between micro-batches is not polled meanwhile.
    "max.poll.interval.ms": 86_400_000,
}
#: Errors of a range that a partition does not have (any more).
GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_READING = "reading records"


class Messages(NamedTuple):
    """Some messages; of each the number of its range, and its offset."""

    found: list[Message]
    of: Integers
    offsets: Integers


class Range(NamedTuple):
    """Offsets [start, end) of a partition."""

    split: Split
    start: int
    end: int


@dataclass(frozen=True)
class KafkaReading(Reading):
    """Ranges by task; each task has a partition once.

    Attributes:
        servers: the brokers, for messages.
        options: of the client, with its login: never in a text.
        ranges: task -> its ranges.
        max_record_bytes: of value, key and headers; of a larger record `KEPT_BYTES` of each are kept.
        silence_s: longest wait for the next record.
        make: makes a consumer of its options; None: the library's, which cannot be pickled.
    """

    servers: str
    options: Mapping[str, object] = field(repr=False)
    ranges: Sequence[Sequence[Range]]
    max_record_bytes: int
    silence_s: float = SILENCE_S
    make: Callable[..., Consumer] | None = None

    @property
    def tasks(self) -> int:
        """Number of the tasks."""
        return len(self.ranges)

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """See `Reading.batches`."""
        columns = MessageColumns(self.max_record_bytes, notes)
        with _KEPT.lent(self) as opened:
            for first in range(0, len(self.ranges[task]), PARTITIONS_AT_ONCE):
                some = self.ranges[task][first : first + PARTITIONS_AT_ONCE]
                yield from _joined(columns.batch(some, found) for found in _Assignment(opened, some).messages(self.silence_s))


@dataclass(frozen=True)
class OpenConsumer:
    """A consumer, its options, and what its brokers have said."""

    consumer: Consumer
    options: Mapping[str, object] = field(repr=False)
    memory: CauseMemory


class KeptConsumer:
    """The consumer of this process, if it has one: of the options of the last micro-batch."""

    def __init__(self) -> None:
        self._kept: OpenConsumer | None = None

    @contextmanager
    def lent(self, reading: KafkaReading) -> Iterator[OpenConsumer]:
        """The consumer for a reading's options; kept afterwards, unless there was an error.

        Raises:
            TransientError, ConfigurationError: for an error of the client.
        """
        taken, self._kept = self._take(reading), None
        try:
            yield taken
        except BaseException as error:
            taken.consumer.close()
            if isinstance(error, KafkaException):
                raise taken.memory.explain(_READING, error.args[0]) from error
            raise
        taken.consumer.unassign()
        self._kept = taken

    def _take(self, reading: KafkaReading) -> OpenConsumer:
        kept = self._kept
        if kept is not None and kept.options == reading.options:
            return kept
        if kept is not None:
            kept.consumer.close()
        memory = CauseMemory(reading.servers)
        return OpenConsumer(
            new_client(reading.make or Consumer, {**reading.options, "error_cb": memory}), reading.options, memory
        )


_KEPT = KeptConsumer()


class _Assignment:
    """Ranges that a consumer reads; each partition is among them once."""

    def __init__(self, opened: OpenConsumer, ranges: Sequence[Range]) -> None:
        self._opened, self._ranges = opened, ranges
        self._numbers = {(r.split.topic, r.split.partition): number for number, r in enumerate(ranges)}
        self._ends = np.array([r.end for r in ranges], np.int64)
        #: Range -> next offset.
        self._reached = np.array([r.start for r in ranges], np.int64)
        self._waiting = set(range(len(ranges)))
        #: Partition -> range, if they are of one topic.
        self._of_partition: Integers | None = None
        if len({r.split.topic for r in ranges}) == 1:
            self._of_partition = np.zeros(1 + max(r.split.partition for r in ranges), np.int64)
            for number, r in enumerate(ranges):
                self._of_partition[r.split.partition] = number

    def messages(self, silence_s: float) -> Iterator[Messages]:
        """Messages of the ranges, some at a time.

        Raises:
            ConflictError: the offsets are not in a partition any more.
            TransientError, ConfigurationError: see `CauseMemory.explain`; no record came for `silence_s` seconds.
        """
        consumer, memory = self._opened.consumer, self._opened.memory
        consumer.assign([TopicPartition(r.split.topic, r.split.partition, r.start) for r in self._ranges])
        last = time.monotonic()
        while self._waiting:
            # What was fetched already is taken at once: waiting for a full list would hold as many messages, however large.
            found = consumer.consume(MESSAGES, 0) or consumer.consume(1, LOOK_S)
            records = self._without_errors(found) if any(map(Message.error, found)) else found
            if records:
                last = time.monotonic()
                yield from self._wanted(records)
            elif memory.refused or time.monotonic() - last > silence_s:
                raise memory.explain(f"{_READING} of {self._missing()}: none came for {silence_s:g} s")
            self._settle()

    def _without_errors(self, found: Sequence[Message]) -> list[Message]:
        """The messages that are records; notes where partitions end, and raises other errors."""
        records = []
        for message in found:
            error, topic = message.error(), message.topic()
            where = f"{topic}[{message.partition()}]"
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                number = self._numbers.get((str(topic), int(message.partition() or 0)))
                if number is not None:
                    # Before the end of the range if a new leader has less for a while: then more follows, or silence.
                    self._reached[number] = max(self._reached[number], int(message.offset() or 0))
            elif error.code() in GONE:
                raise ConflictError(f"{where}: records have gone since they were planned to be read ({error.str()})")
            elif topic is not None:
                raise self._opened.memory.explain(f"{_READING} of {where}", error)
            # Else of the consumer group, which is not used and which this login may not be allowed to see.
        return records

    def _wanted(self, records: list[Message]) -> Iterator[Messages]:
        """The records that are in the ranges; notes how far each was read."""
        offsets = np.fromiter(map(Message.offset, records), np.int64, len(records))
        of = self._numbers_of(records)
        np.maximum.at(self._reached, of, offsets + 1)
        inside = offsets < self._ends[of]
        if inside.all():
            yield Messages(records, of, offsets)
        elif inside.any():
            kept = [record for record, wanted in zip(records, inside.tolist(), strict=True) if wanted]
            yield Messages(kept, of[inside], offsets[inside])

    def _numbers_of(self, records: Sequence[Message]) -> Integers:
        """Record -> number of its range."""
        partitions: Any = map(Message.partition, records)
        if self._of_partition is not None:
            return self._of_partition[np.fromiter(partitions, np.int64, len(records))]
        places: Any = zip(map(Message.topic, records), partitions, strict=True)
        return np.fromiter((self._numbers[place] for place in places), np.int64, len(records))

    def _settle(self) -> None:
        """Fetch no more for the ranges that were read to their ends."""
        done = [number for number in self._waiting if self._reached[number] >= self._ends[number]]
        if done:
            self._waiting.difference_update(done)
            splits = [self._ranges[number].split for number in done]
            self._opened.consumer.incremental_unassign([TopicPartition(split.topic, split.partition) for split in splits])

    def _missing(self) -> str:
        some = [f"{self._ranges[n].split} from {self._reached[n]} to {self._ends[n] - 1}" for n in sorted(self._waiting)]
        return first_few(some, EXAMPLES, ", ")


class MessageColumns:
    """Messages as batches of columns; notes the largest record, and those that no column can hold."""

    def __init__(self, max_record_bytes: int, notes: ReadNotes) -> None:
        self._most, self._notes = max_record_bytes, notes

    def batch(self, ranges: Sequence[Range], messages: Messages) -> pa.RecordBatch:
        """A batch of `RECORD_SCHEMA`."""
        found, splits = messages.found, [r.split for r in ranges]
        columns = {
            "topic": _of_each(pa.array([split.topic for split in splits]), messages.of),
            "topic_id": _of_each(pa.array([split.topic_id for split in splits]), messages.of),
            "partition": _of_each(pa.array([split.partition for split in splits], pa.int32()), messages.of),
            "offset": pa.array(messages.offsets),
            "timestamp": self._timestamps(splits, messages),
            "key": pa.array(list(map(Message.key, found)), pa.binary()),
            "value": pa.array(list(map(Message.value, found)), pa.binary()),
            "headers": self._headers(splits, messages),
        }
        return columns_of(self._cut(columns), len(found))

    def _timestamps(self, splits: Sequence[Split], messages: Messages) -> pa.Array:
        """Microseconds; NULL where a producer's number is more than a column can hold."""
        found = map(itemgetter(1), map(Message.timestamp, messages.found))
        times = np.fromiter(found, np.int64, len(messages.found))
        beyond = (times > MAX_TIMESTAMP_MS) | (times < -MAX_TIMESTAMP_MS)
        kind = RAW_SCHEMA.field("timestamp").type
        if not beyond.any():
            return pa.array(times * 1000, pa.int64()).cast(kind)
        for row in np.flatnonzero(beyond).tolist():
            self._note(splits[messages.of[row]], messages.found[row], f"timestamp of {times[row]} milliseconds")
        return pa.array(np.where(beyond, 0, times) * 1000, pa.int64(), mask=beyond).cast(kind)

    def _headers(self, splits: Sequence[Split], messages: Messages) -> pa.Array:
        """Names and values; none for a record with a name that is no text."""
        try:
            found: Sequence[Any] = list(map(Message.headers, messages.found))
        except UnicodeDecodeError:
            rows = zip(messages.of.tolist(), messages.found, strict=True)
            found = [self._readable_headers(splits[number], message) for number, message in rows]
        lengths = np.zeros(len(found) + 1, np.int32)
        names: list[str] = []
        values: list[bytes | None] = []
        if any(found):
            for row, headers in enumerate(found, 1):
                for name, value in headers or ():
                    names.append(name)
                    values.append(value)
                lengths[row] = len(headers or ())
        texts = [pa.array(names, pa.string()), pa.array(values, pa.binary())]
        items = pa.StructArray.from_arrays(texts, fields=list(HEADERS.value_type))
        return pa.ListArray.from_arrays(pa.array(np.cumsum(lengths, dtype=np.int32)), items).cast(HEADERS)

    def _readable_headers(self, split: Split, message: Message) -> Any:  # noqa: ANN401 - as the library's
        try:
            return message.headers()
        except UnicodeDecodeError:
            self._note(split, message, "headers, whose names are no UTF-8")
            return None

    def _note(self, split: Split, message: Message, what: str) -> None:
        self._notes.incomplete += 1
        if len(self._notes.examples) < EXAMPLES:
            self._notes.examples.append(f"{split}@{message.offset()} ({what})")

    def _cut(self, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """The columns, of records that are too large the first bytes only, with reason and detail."""
        of_headers = _header_bytes(columns["headers"])
        sizes = _lengths(columns["value"]) + _lengths(columns["key"]) + of_headers
        self._notes.largest = max(self._notes.largest, int(sizes.max(initial=0)))
        large = sizes > self._most
        if not large.any():
            return columns
        mask = pa.array(large)
        for name in ("value", "key"):
            columns[name] = pc.if_else(mask, pc.binary_slice(columns[name], 0, KEPT_BYTES), columns[name])
        no_room = pa.array(large & (of_headers > min(self._most, KEPT_BYTES)))
        columns["headers"] = pc.if_else(no_room, pa.scalar([], HEADERS), columns["headers"])
        details = [too_large(f"{size:,}", self._most) if over else None for size, over in zip(sizes, large, strict=True)]
        reasons = pc.if_else(mask, pa.scalar(str(Reason.TOO_LARGE)), pa.nulls(len(large), pa.string()))
        return columns | {"reason": reasons, "detail": pa.array(details, pa.string())}


def _of_each(values: pa.Array, of: Integers) -> pa.Array:
    """The value of each record's range; most often all records are of one."""
    if (of == of[0]).all():
        return pa.repeat(values[int(of[0])], len(of))
    return values.take(pa.array(of))


def _lengths(values: pa.Array) -> Integers:
    found: Integers = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _header_bytes(headers: pa.ListArray) -> Integers:
    """Bytes of each record's headers, names and values."""
    items = headers.flatten()
    if not len(items):
        return np.zeros(len(headers), np.int64)
    sizes = _lengths(items.field("key")) + _lengths(items.field("value"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    ends = headers.offsets.to_numpy()
    found: Integers = before[ends[1:]] - before[ends[:-1]]
    return found


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `BATCH_RECORDS` or `BATCH_BYTES`."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def planned_ranges(start: Offsets, end: Offsets, task_records: int) -> list[list[Range]]:
    """The ranges of a micro-batch in tasks of about so many offsets; a large partition is split over several."""
    total = sum(end[split] - start[split] for split in end)
    tasks: list[list[Range]] = [[]]
    room = most = -(-total // max(1, -(-total // task_records)))
    for split in sorted(end):
        at = start[split]
        while at < end[split]:
            if not room:
                tasks.append([])
                room = most
            until = min(end[split], at + room)
            tasks[-1].append(Range(split, at, until))
            room -= until - at
            at = until
    return tasks
