"""Reads ranges of Kafka partitions in a Spark worker, by librdkafka, as Arrow batches.

Partitions are assigned at their offsets: there is no consumer group, and nothing is committed. A worker's process keeps its
consumer from one micro-batch to the next, with its connections and metadata; records that were fetched ahead are dropped with
the assignment. Spark ends the process, and so the consumer, when it has been idle for a minute.
"""

import gc
import math
import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from game_events.decoding.frame import KEPT_BYTES, Reason, too_large
from game_events.errors import ConflictError, first_few
from game_events.sources.kafka.client import LOOK_S, CauseMemory, new_client
from game_events.sources.source import (
    BATCH_BYTES,
    RAW_SCHEMA,
    Integers,
    Offsets,
    Partition,
    Reading,
    ReadNotes,
    byte_lengths,
    columns_of,
    header_bytes,
    joined,
)

HEADERS = RAW_SCHEMA.field("headers").type
#: Milliseconds from 1970 at most, before and after it, that a column of microseconds can hold.
MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
#: Messages of one call.
MESSAGES = 8_000
#: Partitions that are assigned together: a consumer fetches for all of them, also past the end of a range.
PARTITIONS_AT_ONCE = 64
#: Records that are described to the user, of each task.
EXAMPLES = 5
#: Seconds without a record after which a task fails: a new leader takes some, and unpacking a batch of a gigabyte a minute.
SILENCE_S = 120.0
#: Options that a user may replace: no wait for more records where a partition ends, large fetches, bounded memory.
DEFAULTS: dict[str, object] = {
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "fetch.max.bytes": 16 * 1024 * 1024,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 32 * 1024,
    # Else a second, while what is queued is used up earlier.
    "fetch.queue.backoff.ms": 20,
    # As in Java's client: a damaged batch is found as such, not read as other records.
    "check.crcs": True,
}
#: Options of a reading that spares memory: one batch in each answer of a broker, however many its records unpack to.
SPARING: dict[str, object] = {
    "fetch.message.max.bytes": 1,
    "fetch.max.bytes": 1_000,
    "message.max.bytes": 1_000,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1,
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
#: Errors of a batch: it is damaged, or unpacks to more than `receive.message.max.bytes`. The client would fetch it for ever.
DAMAGED = (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED)
_READING = "reading records"


class Messages(NamedTuple):
    """Some messages; of each the number of its range, and its offset."""

    records: list[Message]
    numbers: Integers
    offsets: Integers


class Range(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: Partition
    start: int
    end: int


class Damage(NamedTuple):
    """A batch that cannot be unpacked: the number of its range, its first offset, and the client's text."""

    number: int
    offset: int
    text: str


@dataclass(frozen=True)
class KafkaReading(Reading):
    """Ranges by task; each task has a partition once.

    Attributes:
        options: of the client, with its login: never in a text.
        max_record_bytes: of value, key and headers; of a larger record `KEPT_BYTES` of each are kept.
        silence_s: longest wait for the next record.
        make: makes a consumer of its options; None: the library's, which cannot be pickled.
        source: name in `SOURCES`: a process keeps a consumer for each of them.
    """

    servers: str
    options: Mapping[str, object] = field(repr=False)
    parts: Sequence[Sequence[Range]]
    max_record_bytes: int
    silence_s: float = SILENCE_S
    make: Callable[..., Consumer] | None = None
    source: str = ""

    def sparing(self) -> "KafkaReading":
        """See `Reading.sparing`."""
        return replace(self, options={**self.options, **SPARING})

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """See `Reading.batches`."""
        columns = MessageColumns(self.max_record_bytes, notes)
        with _KEPT[self.source].lent(self) as opened:
            for first in range(0, len(self.parts[task]), PARTITIONS_AT_ONCE):
                some = self.parts[task][first : first + PARTITIONS_AT_ONCE]
                batches = columns.batches(some, _Assignment(opened, some, self.silence_s).messages())
                yield from _uncollected(joined(batches))


@dataclass(frozen=True)
class OpenConsumer:
    """A consumer, its options, what its brokers have said, and the process that its threads belong to."""

    consumer: Consumer
    options: Mapping[str, object] = field(repr=False)
    memory: CauseMemory
    process: int


class KeptConsumer:
    """The consumer of this process, if it has one: of the options of the last micro-batch."""

    def __init__(self) -> None:
        self._kept: OpenConsumer | None = None

    @contextmanager
    def lent(self, reading: KafkaReading) -> Iterator[OpenConsumer]:
        """The consumer for a reading's options; kept afterwards, unless there was an error."""
        taken = self._take(reading)
        self._kept = None
        try:
            yield taken
        except BaseException as error:
            taken.consumer.close()
            if isinstance(error, KafkaException):
                raise taken.memory.explain(_READING, error.args[0]) from error
            raise
        taken.consumer.unassign()
        self.close()  # that of a reading which began later
        self._kept = taken

    @property
    def consumer(self) -> Consumer | None:
        """The consumer, while it is not lent."""
        return None if self._kept is None else self._kept.consumer

    def close(self) -> None:
        """Close the consumer, unless it is another process's, whose threads it would wait for."""
        if self._kept is not None and self._kept.process == os.getpid():
            self._kept.consumer.close()
        self._kept = None

    def _take(self, reading: KafkaReading) -> OpenConsumer:
        kept = self._kept
        process = os.getpid()
        if kept is not None and kept.process == process and kept.options == reading.options:
            return kept
        self.close()
        memory = CauseMemory.of(reading.options)
        consumer = new_client(reading.make or Consumer, {**reading.options, "error_cb": memory})
        return OpenConsumer(consumer, reading.options, memory, process)


#: Name in `SOURCES` (empty: there is one source) -> its consumer.
_KEPT: defaultdict[str, KeptConsumer] = defaultdict(KeptConsumer)


class _Assignment:
    """Ranges that a consumer reads; each partition is among them once."""

    def __init__(self, opened: OpenConsumer, ranges: Sequence[Range], silence_s: float) -> None:
        self._opened = opened
        self._ranges = ranges
        self._silence_s = silence_s
        self._numbers = {(r.partition.topic, r.partition.number): number for number, r in enumerate(ranges)}
        self._topics = {r.partition.topic for r in ranges}
        self._of_partition = {r.partition.number: number for number, r in enumerate(ranges)}
        self._ends = np.array([r.end for r in ranges], np.int64)
        #: Range -> next offset.
        self._reached = np.array([r.start for r in ranges], np.int64)
        self._waiting = set(range(len(ranges)))
        self._damage: Damage | None = None
        #: Whether the client has left a position: behind a damaged batch it takes other bytes for the next one.
        self._astray = False

    def messages(self) -> Iterator[Messages | pa.RecordBatch]:
        """Messages of the ranges, some at a time, and rows of offsets that have none as their batch cannot be unpacked.

        Raises:
            ConflictError: the offsets are not in a partition any more.
            TransientError, ConfigurationError: see `CauseMemory.explain`; no record came for `silence_s` seconds.
        """
        while self._waiting:
            self._damage = None
            self._assign({number: int(self._reached[number]) for number in self._waiting})
            yield from self._until_damage()
            if self._damage is not None:
                yield self._passed(self._damage)
                # Else the client reports the same batch again, though its rows end with the range.
                self._settle()

    def _assign(self, places: Mapping[int, int]) -> None:
        """Fetch these ranges from these offsets on, and nothing else."""
        partitions = [(self._ranges[number].partition, offset) for number, offset in places.items()]
        self._astray = False
        self._opened.consumer.assign([TopicPartition(p.topic, p.number, offset) for p, offset in partitions])

    def _until_damage(self) -> Iterator[Messages]:
        """Messages up to the ends of all ranges, or to a batch that cannot be unpacked; records of others may come later."""
        consumer = self._opened.consumer
        last = time.monotonic()
        while self._waiting and self._damage is None and not self._astray:
            # What was fetched already is taken at once: waiting for a full list would hold as many messages, however large.
            consumed = consumer.consume(MESSAGES, 0) or consumer.consume(1, LOOK_S)
            records = self._without_errors(consumed) if any(map(Message.error, consumed)) else consumed
            if records:
                last = time.monotonic()
                yield from self._wanted(records)
            else:
                self._refuse_silence(last)
            self._settle()

    def _refuse_silence(self, last: float) -> None:
        memory = self._opened.memory
        if memory.refused or time.monotonic() - last > self._silence_s:
            left = [
                f"{self._ranges[n].partition} from {self._reached[n]} to {self._ends[n] - 1}" for n in sorted(self._waiting)
            ]
            said = f"{_READING} of {first_few(left, EXAMPLES, ', ')}: none came for {self._silence_s:g} s"
            raise memory.explain(said)

    def _without_errors(self, consumed: Sequence[Message]) -> list[Message]:
        """The messages that are records, up to damage; notes it, and where partitions end; raises other errors."""
        records = []
        for message in consumed:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                number = self._number_of(message)
                if number is not None:
                    # Before the end of the range if a new leader has less for a while: then more follows, or silence.
                    self._reached[number] = max(self._reached[number], int(message.offset() or 0))
            else:
                self._damage = self._damage_of(message, error)
                if self._damage is not None or self._astray:
                    break
        return records

    def _number_of(self, message: Message) -> int | None:
        return self._numbers.get((str(message.topic()), int(message.partition() or 0)))

    def _damage_of(self, message: Message, error: KafkaError) -> Damage | None:
        """The damage that an error tells of; None: it is of no offset of a range. Raises other errors."""
        topic = message.topic()
        where = f"{topic}[{message.partition()}]"
        if topic is None:  # Of the consumer group, which is not used and which this login may not be allowed to see.
            return None
        if error.code() not in (*GONE, *DAMAGED):
            raise self._opened.memory.explain(f"{_READING} of {where}", error)
        number = self._number_of(message)
        offset = int(message.offset() or 0)
        if number is None or number not in self._waiting:
            return None
        if error.code() in DAMAGED and offset < self._ends[number]:
            return Damage(number, offset, error.str())
        if error.code() in DAMAGED:
            self._reached[number] = self._ends[number]
        elif offset > self._ends[number]:
            self._astray = True
        else:
            raise ConflictError(f"{where}: records have gone since they were planned to be read ({error.str()})")
        return None

    def _passed(self, damage: Damage) -> pa.RecordBatch:
        """A row for each offset of a damaged batch in its range: they are passed."""
        number = damage.number
        partition = self._ranges[number].partition
        begin = max(int(self._reached[number]), damage.offset)
        most = int(self._ends[number])
        # Each look is a fetch, and a batch most often ends soon: its end is searched within twice its size.
        step = 1
        while begin + step < most and self._is_in(damage, begin + step):
            step *= 2
        unknown = range(begin + step // 2 + 1, min(begin + step, most))
        end = unknown.start + bisect_left(unknown, True, key=lambda offset: not self._is_in(damage, offset))
        self._reached[number] = end
        detail = (
            f"offsets {begin} to {end - 1} are of a batch that cannot be read ({damage.text}): it is damaged, or larger than "
            "receive.message.max.bytes, which GAME_EVENTS_KAFKA_OPTIONS may set"
        )
        texts = {"topic": partition.topic, "topic_id": partition.topic_id, "reason": str(Reason.UNREADABLE), "detail": detail}
        columns = {name: pa.repeat(pa.scalar(text, pa.string()), end - begin) for name, text in texts.items()}
        columns["partition"] = pa.repeat(pa.scalar(partition.number, pa.int32()), end - begin)
        columns["offset"] = pa.array(np.arange(begin, end, dtype=np.int64))
        return columns_of(columns, end - begin)

    def _is_in(self, damage: Damage, offset: int) -> bool:
        """Whether what a partition has at an offset, or next behind it, is this batch."""
        consumer = self._opened.consumer
        last = time.monotonic()
        self._assign({damage.number: offset})
        while True:
            for message in consumer.consume(1, LOOK_S):
                error = message.error()
                if self._number_of(message) != damage.number:
                    continue
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    return False
                other = self._damage_of(message, error)
                if not self._astray:
                    return other is not None and other.offset == damage.offset
                self._assign({damage.number: offset})
            self._refuse_silence(last)

    def _wanted(self, records: list[Message]) -> Iterator[Messages]:
        """The records that are in the ranges; notes how far each was read."""
        offsets = np.fromiter(map(Message.offset, records), np.int64, len(records))
        numbers = self._numbers_of(records)
        np.maximum.at(self._reached, numbers, offsets + 1)
        inside = offsets < self._ends[numbers]
        if inside.all():
            yield Messages(records, numbers, offsets)
        elif inside.any():
            kept = [record for record, wanted in zip(records, inside.tolist(), strict=True) if wanted]
            yield Messages(kept, numbers[inside], offsets[inside])

    def _numbers_of(self, records: Sequence[Message]) -> Integers:
        """Record -> number of its range."""
        partitions: Any = map(Message.partition, records)
        if len(self._numbers) == 1:
            return np.zeros(len(records), np.int64)
        if len(self._topics) == 1:
            return np.fromiter(map(self._of_partition.__getitem__, partitions), np.int64, len(records))
        places: Any = zip(map(Message.topic, records), partitions, strict=True)
        return np.fromiter(map(self._numbers.__getitem__, places), np.int64, len(records))

    def _settle(self) -> None:
        """Fetch no more for the ranges that were read to their ends."""
        done = [number for number in self._waiting if self._reached[number] >= self._ends[number]]
        if done:
            self._waiting.difference_update(done)
            partitions = [self._ranges[number].partition for number in done]
            self._opened.consumer.incremental_unassign([TopicPartition(p.topic, p.number) for p in partitions])


class MessageColumns:
    """Messages as batches of columns; notes those that no column can hold."""

    def __init__(self, max_record_bytes: int, notes: ReadNotes) -> None:
        self._most = max_record_bytes
        self._notes = notes

    def batches(self, ranges: Sequence[Range], parts: Iterable[Messages | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of `RECORD_SCHEMA`."""
        partitions = [r.partition for r in ranges]
        for some in parts:
            if isinstance(some, pa.RecordBatch):
                yield some
            else:
                sizes = np.fromiter(map(len, some.records), np.int64, len(some.records))
                for start, end in _parts(sizes):
                    part = Messages(some.records[start:end], some.numbers[start:end], some.offsets[start:end])
                    yield self._batch(partitions, part, sizes[start:end])

    def _batch(self, partitions: Sequence[Partition], messages: Messages, sizes: Integers) -> pa.RecordBatch:
        records = messages.records
        numbers = pa.array(messages.numbers)
        columns = {
            "topic": pa.array([partition.topic for partition in partitions]).take(numbers),
            "topic_id": pa.array([partition.topic_id for partition in partitions]).take(numbers),
            "partition": pa.array([partition.number for partition in partitions], pa.int32()).take(numbers),
            "offset": pa.array(messages.offsets),
            "timestamp": self._timestamps(partitions, messages),
            "key": pa.array(list(map(Message.key, records)), pa.binary()),
            "headers": self._headers(partitions, messages),
        }
        values: list[bytes | None] = list(map(Message.value, records))
        lost = np.zeros(len(records), np.int64)
        for row in np.flatnonzero(sizes > self._most).tolist():
            # Cut before it is copied: it may be hundreds of megabytes.
            whole = values[row] or b""
            values[row] = whole[:KEPT_BYTES]
            lost[row] = len(whole) - len(values[row] or b"")
        columns["value"] = pa.array(values, pa.binary())
        return columns_of(self._cut(columns, lost), len(records))

    def _timestamps(self, partitions: Sequence[Partition], messages: Messages) -> pa.Array:
        """Microseconds; NULL where a producer's number is more than a column can hold."""
        milliseconds = map(itemgetter(1), map(Message.timestamp, messages.records))
        times = np.fromiter(milliseconds, np.int64, len(messages.records))
        beyond = (times > MAX_TIMESTAMP_MS) | (times < -MAX_TIMESTAMP_MS)
        kind = RAW_SCHEMA.field("timestamp").type
        if not beyond.any():
            return pa.array(times * 1000, pa.int64()).cast(kind)
        for row in np.flatnonzero(beyond).tolist():
            self._note(partitions[messages.numbers[row]], messages.records[row], f"timestamp of {times[row]} milliseconds")
        return pa.array(np.where(beyond, 0, times) * 1000, pa.int64(), mask=beyond).cast(kind)

    def _headers(self, partitions: Sequence[Partition], messages: Messages) -> pa.Array:
        """Names and values; none for a record with a name that is no text."""
        try:
            all_headers: Sequence[Any] = list(map(Message.headers, messages.records))
        except UnicodeDecodeError:
            rows = zip(messages.numbers.tolist(), messages.records, strict=True)
            all_headers = [self._readable_headers(partitions[number], message) for number, message in rows]
        lengths = np.zeros(len(all_headers) + 1, np.int32)
        names: list[str] = []
        values: list[bytes | None] = []
        if any(all_headers):
            for row, headers in enumerate(all_headers, 1):
                for name, value in headers or ():
                    names.append(name)
                    values.append(value)
                lengths[row] = len(headers or ())
        texts = [pa.array(names, pa.string()), pa.array(values, pa.binary())]
        items = pa.StructArray.from_arrays(texts, fields=list(HEADERS.value_type))
        return pa.ListArray.from_arrays(pa.array(np.cumsum(lengths, dtype=np.int32)), items).cast(HEADERS)

    def _readable_headers(self, partition: Partition, message: Message) -> Any:  # noqa: ANN401 - as the library's
        try:
            return Message.headers(message)
        except UnicodeDecodeError:
            self._note(partition, message, "headers, whose names are no UTF-8")
            return None

    def _note(self, partition: Partition, message: Message, what: str) -> None:
        self._notes.incomplete += 1
        if len(self._notes.examples) < EXAMPLES:
            self._notes.examples.append(f"{partition}@{message.offset()} ({what})")

    def _cut(self, columns: dict[str, pa.Array], lost: Integers) -> dict[str, pa.Array]:
        """The columns, of records that are too large the first bytes only, with reason and detail.

        `lost`: bytes of each value that were cut off already.
        """
        of_headers = header_bytes(columns["headers"])
        whole = byte_lengths(columns["value"]) + byte_lengths(columns["key"]) + of_headers + lost
        large = whole > self._most
        if not large.any():
            return columns
        mask = pa.array(large)
        for name in ("value", "key"):
            columns[name] = pc.if_else(mask, pc.binary_slice(columns[name], 0, KEPT_BYTES), columns[name])
        no_room = pa.array(large & (of_headers > min(self._most, KEPT_BYTES)))
        columns["headers"] = pc.if_else(no_room, pa.scalar([], HEADERS), columns["headers"])
        details = [too_large(f"{size:,}", self._most) if over else None for size, over in zip(whole, large, strict=True)]
        reasons = pc.if_else(mask, pa.scalar(str(Reason.TOO_LARGE)), pa.nulls(len(large), pa.string()))
        return columns | {"reason": reasons, "detail": pa.array(details, pa.string())}


def _parts(sizes: Integers) -> list[tuple[int, int]]:
    """Messages of these sizes in parts [start, end) of `BATCH_BYTES`, or of one more message: a column has 2 GiB at most."""
    ends = np.cumsum(sizes)
    cuts = (np.flatnonzero(np.diff(ends // BATCH_BYTES)) + 1).tolist() if ends[-1] > BATCH_BYTES else []
    return list(pairwise([0, *cuts, len(sizes)]))


def _uncollected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each made without Python's garbage collector: it would look for cycles among each 700 messages."""
    enabled = gc.isenabled()
    while True:
        gc.disable()
        try:
            batch = next(batches, None)
        finally:
            if enabled:
                gc.enable()
        if batch is None:
            return
        yield batch


def planned_ranges(start: Offsets, end: Offsets, task_records: int) -> list[list[Range]]:
    """The ranges of a micro-batch in tasks of about so many offsets; a large partition is divided between several."""
    total = sum(end[partition] - start[partition] for partition in end)
    tasks: list[list[Range]] = [[]]
    most = math.ceil(total / max(1, math.ceil(total / task_records)))
    room = most
    for partition in sorted(end):
        begin = start[partition]
        while begin < end[partition]:
            if not room:
                tasks.append([])
                room = most
            until = min(end[partition], begin + room)
            tasks[-1].append(Range(partition, begin, until))
            room -= until - begin
            begin = until
    return tasks
