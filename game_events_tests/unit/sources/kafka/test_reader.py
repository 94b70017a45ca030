"""Ranges of partitions as Arrow batches: each record once with all that it has, whatever producers and brokers do."""

from __future__ import annotations

import gc
import pickle
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from hypothesis import given
from hypothesis import strategies as st

from game_events.decoding.frame import KEPT_BYTES, Reason
from game_events.errors import ConfigurationError, ConflictError, TransientError
from game_events.sources.kafka import reader
from game_events.sources.kafka.reader import MAX_TIMESTAMP_MS, KafkaReading, KeptConsumer, Range, planned_ranges
from game_events.sources.source import RECORD_SCHEMA, Partition, ReadNotes
from game_events_tests.support.sources import rows_of

SPLITS = [Partition("t", "A" * 22, partition) for partition in range(150)]
OTHER = Partition("u", "B" * 22, 0)
NANOSECONDS = 1_700_000_000_000_000_000
AT = 1_700_000_000_000


def message(offset, partition=0, *, topic="t", value=b"v", time=AT, **more):
    return Message(topic=topic, partition=partition, offset=offset, value=value, timestamp=(1, time), **more)


def headers(found):
    """As the client's: it raises for a name that is no text."""
    if found.key() == b"odd":
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    return found.headers()


CALLS = ("error", "key", "offset", "partition", "timestamp", "topic", "value")


class Broker:
    """Partitions of messages, and consumers of them.

    Attributes:
        logs: (topic, partition) -> messages, by offset.
        damaged: (topic, partition) -> offsets [start, end) of batches that cannot be unpacked.
        failure: code of an error that a consumer gives instead of what follows its messages.
        ends: end of each partition; the client tells of it behind the last message.
        known: texts of failures for `error_cb`.
        silent: nothing comes at all.
        goes_astray: behind a damaged batch a consumer takes other bytes for the next one; else nothing comes behind it.
    """

    def __init__(self, *messages, damaged=None, failure=None, ends=10**9, known=(), silent=False, goes_astray=True):
        self.logs = defaultdict(list)
        for found in messages:
            self.logs[found.topic(), found.partition()].append(found)
        self.damaged, self.failure, self.ends, self.known, self.silent = damaged or {}, failure, ends, known, silent
        self.goes_astray = goes_astray
        self.consumers = []

    def __call__(self, options):
        self.consumers.append(Consumer(self, options))
        return self.consumers[-1]

    def behind(self, place, offset):
        """What a consumer gets from an offset on."""
        begin, bad = next((b for b in self.damaged.get(place, ()) if b[1] > offset), (self.ends, None))
        topic, partition = place
        for found in self.logs[place]:
            if offset <= found.offset() < begin:
                yield found
        if bad is not None:
            error = KafkaError(KafkaError._BAD_COMPRESSION, "Decompression failed")
            yield Message(topic=topic, partition=partition, offset=begin, error=error)
            if not self.goes_astray:
                return
            # The client goes on behind it with what it takes for batches.
            yield Message(topic=topic, partition=partition, offset=10**15, error=KafkaError(KafkaError._NOT_IMPLEMENTED))
            yield Message(topic=topic, partition=partition, offset=10**15 + 1, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
            return
        if self.failure is None:
            yield Message(topic=topic, partition=partition, offset=self.ends, error=KafkaError(KafkaError._PARTITION_EOF))
        else:
            yield Message(topic=topic, partition=partition, offset=offset, error=KafkaError(self.failure))


def _is_reset(found):
    return found.error() is not None and found.error().code() == KafkaError._AUTO_OFFSET_RESET


class Consumer:
    """Gives what is assigned, partition by partition in turns."""

    def __init__(self, broker, options):
        self.broker, self.options, self.closed, self.assigned, self.most = broker, options, False, {}, 0

    def assign(self, places):
        # An error of an offset reset is of no assignment: that of the last one may still come, and ends this one.
        stale = {(one.topic(), one.partition()): one for log in self.assigned.values() for one in log if _is_reset(one)}
        self.assigned = {(p.topic, p.partition): self.broker.behind((p.topic, p.partition), p.offset) for p in places}
        self.assigned |= {place: iter([one]) for place, one in stale.items() if place in self.assigned}
        self.most = max(self.most, len(places))

    def incremental_unassign(self, places):
        for place in places:
            del self.assigned[place.topic, place.partition]

    def unassign(self):
        self.assigned = {}

    def consume(self, number, _):
        for error in self.broker.known:
            self.options["error_cb"](error)
        found = []
        while not self.broker.silent and len(found) < number:
            some = [one for log in self.assigned.values() if (one := next(log, None)) is not None]
            if not some:
                break
            found += some
        rest = found[number:]
        for one in reversed(rest):
            place = one.topic(), one.partition()
            self.assigned[place] = self._first(one, self.assigned[place])
        return found[:number]

    @staticmethod
    def _first(one, log):
        yield one
        yield from log

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """No consumer is left by another test."""
    made = KeptConsumer()
    monkeypatch.setattr(reader, "_KEPT", {"": made})
    return made


def reading(broker, *ranges, most=10**9, silence_s=60.0, **options):
    # Else a consumer would be kept for another broker.
    return KafkaReading("b:1", {"broker": id(broker), **options}, [ranges], most, silence_s, broker)


def read(broker, *ranges, notes=None, **how):
    return rows_of(reading(broker, *ranges, **how), notes)


def places(rows):
    return [(row["partition"], row["offset"]) for row in rows]


def test_exactly_the_range_is_read_with_all_that_a_record_has():
    values = [None if o == 3 else b"%d" % o for o in range(9)]
    log = [message(o, p, value=values[o], key=b"k", headers=[("h", None), ("", b"\xff")]) for p in (0, 1) for o in range(9)]
    rows = read(Broker(*log), Range(SPLITS[0], 2, 4), Range(SPLITS[1], 5, 6))
    assert [(*place, row["value"]) for place, row in zip(places(rows), rows, strict=True)] == [
        (0, 2, b"2"),
        (0, 3, None),
        (1, 5, b"5"),
    ]
    for row in rows:
        assert (row["topic"], row["topic_id"], row["key"]) == ("t", "A" * 22, b"k")
        assert row["timestamp"].timestamp() == AT / 1000
        assert row["headers"] == [{"key": "h", "value": None}, {"key": "", "value": b"\xff"}]
        assert (row["reason"], row["detail"]) == (None, None)


def test_batches_have_the_columns_of_every_source():
    (batch,) = reading(Broker(message(0), message(1)), Range(SPLITS[0], 0, 2)).batches(0, ReadNotes())
    assert batch.schema.equals(RECORD_SCHEMA)
    assert batch.column("headers").to_pylist() == [[], []]


def test_several_topics_are_told_apart():
    log = [message(0), message(0, topic="u", value=b"w"), message(1), message(1, topic="u", value=b"w")]
    rows = read(Broker(*log), Range(SPLITS[0], 0, 2), Range(OTHER, 1, 2))
    assert [(row["topic"], row["topic_id"][0], row["offset"], row["value"]) for row in rows] == [
        ("t", "A", 0, b"v"),
        ("t", "A", 1, b"v"),
        ("u", "B", 1, b"w"),
    ]


def test_offsets_without_a_record_are_passed_and_a_partition_is_read_to_the_end_of_its_range():
    """Aborted transactions and their markers, compaction."""
    log = [message(o, p) for p in (0, 1) for o in range(0, 1_000, 7)]
    rows = read(Broker(*log, ends=1_000), Range(SPLITS[0], 1, 1_000), Range(SPLITS[1], 995, 1_000))
    assert places(rows) == [(0, o) for o in range(7, 1_000, 7)]


def test_hundreds_of_partitions_are_assigned_some_at_a_time(monkeypatch):
    monkeypatch.setattr(reader, "PARTITIONS_AT_ONCE", 64)
    broker = Broker(*(message(o, p) for o in range(3) for p in range(150)))
    rows = read(broker, *(Range(split, 1, 3) for split in SPLITS))
    assert places(rows) == [(p, o) for p in range(150) for o in (1, 2)]
    assert [consumer.most for consumer in broker.consumers] == [64]


def test_batches_are_bounded_in_rows_and_bytes(monkeypatch):
    monkeypatch.setattr(reader, "BATCH_BYTES", 1_000)
    monkeypatch.setattr("game_events.sources.source.BATCH_BYTES", 1_000)
    monkeypatch.setattr("game_events.sources.source.BATCH_RECORDS", 50)
    monkeypatch.setattr(reader, "MESSAGES", 20)
    log = [message(o, value=b"x" * (300 if o < 30 else 1)) for o in range(200)]
    batches = list(reading(Broker(*log), Range(SPLITS[0], 0, 200)).batches(0, ReadNotes()))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(200))
    assert max(sum(map(len, batch.column("value").to_pylist())) for batch in batches) <= 2 * 1_000 + 2 * 300
    assert max(map(len, batches)) <= 70


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_off_only_while_a_batch_is_made(enabled):
    states = []

    class Watched(Consumer):
        def consume(self, number, wait):
            states.append(gc.isenabled())
            return super().consume(number, wait)

    good, refusing = Broker(message(0)), Broker(failure=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        for _ in reading(lambda options: Watched(good, options), Range(SPLITS[0], 0, 1)).batches(0, ReadNotes()):
            between = gc.isenabled()
        with pytest.raises(ConfigurationError):
            read(lambda options: Watched(refusing, options), Range(SPLITS[0], 0, 1), another=1)
        behind = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()
    assert (between, behind) == (enabled, enabled)
    assert states
    assert not any(states)


# --- what a producer may put into a record


def test_a_timestamp_that_no_column_can_hold_is_null_and_its_record_is_named():
    times = [NANOSECONDS, MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1, -1, -NANOSECONDS, -(2**63)]
    notes = ReadNotes()
    found = reading(Broker(*(message(o, time=time) for o, time in enumerate(times))), Range(SPLITS[0], 0, 6))
    (batch,) = found.batches(0, notes)
    assert batch.column("value").to_pylist() == [b"v"] * 6
    assert batch.column("timestamp").cast("int64").to_pylist() == [None, MAX_TIMESTAMP_MS * 1000, None, -1000, None, None]
    assert notes.incomplete == 4
    assert [example.split(" ", 1)[0] for example in notes.examples] == ["t[0]@0", "t[0]@2", "t[0]@4", "t[0]@5"]
    assert notes.examples[0] == f"t[0]@0 (timestamp of {NANOSECONDS} milliseconds)"


def test_headers_with_names_that_are_no_text_are_left_out_and_that_is_said(monkeypatch):
    own = SimpleNamespace(headers=headers, **{name: getattr(Message, name) for name in CALLS})
    monkeypatch.setattr(reader, "Message", own)
    odd = message(1, key=b"odd", headers=[("i", b"2")])
    notes = ReadNotes()
    rows = read(Broker(message(0, headers=[("h", b"1")]), odd), Range(SPLITS[0], 0, 2), notes=notes)
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"1"}], []]
    assert (notes.incomplete, notes.examples) == (1, ["t[0]@1 (headers, whose names are no UTF-8)"])


def test_few_of_many_odd_records_are_named():
    notes = ReadNotes()
    read(Broker(*(message(o, time=NANOSECONDS) for o in range(99))), Range(SPLITS[0], 0, 99), notes=notes)
    assert (notes.incomplete, len(notes.examples)) == (99, reader.EXAMPLES)


def test_of_a_record_that_is_too_large_the_first_bytes_are_kept_with_its_size():
    big = b"x" * (KEPT_BYTES + 1)
    log = [
        message(0, value=b"x" * 100),
        message(1, value=big, key=b"k"),
        message(2, key=big, headers=[("h", b"1")]),
        message(3, headers=[("h", big)]),
        message(4, value=None, key=None),
    ]
    rows = read(Broker(*log), Range(SPLITS[0], 0, 5), most=100)
    assert [row["reason"] for row in rows] == [None, *["TOO_LARGE"] * 3, None]
    assert rows[1]["detail"] == f"a record of {KEPT_BYTES + 2:,} bytes, 100 are allowed (GAME_EVENTS_MAX_RECORD_BYTES)"
    kept = [(len(row["value"] or b""), len(row["key"] or b""), len(row["headers"])) for row in rows]
    assert kept == [(100, 0, 0), (KEPT_BYTES, 1, 0), (1, KEPT_BYTES, 1), (1, 0, 0), (0, 0, 0)]


# --- batches that cannot be read

BATCHES = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["good", "damaged", "damaged", "aborted"])), max_size=12)


@given(batches=BATCHES, start=st.integers(0, 30), size=st.integers(1, 80), first=st.integers(0, 5), astray=st.booleans())
def test_each_offset_of_a_batch_that_cannot_be_read_is_a_row_and_all_other_records_come(batches, start, size, first, astray):
    log, damaged, offset = [], [], first
    for count, kind in batches:
        if kind == "good":
            log += [message(o, p) for o in range(offset, offset + count) for p in (0, 1)]
        elif kind == "damaged":
            damaged.append((offset, offset + count))
        offset += count
    broker = Broker(*log, damaged={("t", 0): damaged}, goes_astray=astray)
    end = start + size
    rows = read(broker, Range(SPLITS[0], start, end), Range(SPLITS[1], 0, end))
    bad = {o for begin, behind in damaged for o in range(begin, behind)}
    of_first = {found.offset() for found in log}
    wanted = [(0, o) for o in range(start, end) if o in bad | of_first] + [(1, o) for o in range(end) if o in of_first]
    assert places(rows) == wanted
    assert [row["reason"] for row in rows] == ["UNREADABLE" if p == 0 and o in bad else None for p, o in wanted]


def test_a_row_of_a_batch_that_cannot_be_read_says_what_to_do():
    broker = Broker(message(0), message(5), damaged={("t", 0): [(1, 5)]})
    rows = read(broker, Range(SPLITS[0], 0, 6))
    assert [row["offset"] for row in rows] == list(range(6))
    for row in rows[1:5]:
        assert (row["topic"], row["topic_id"], row["reason"]) == ("t", "A" * 22, Reason.UNREADABLE)
        assert (row["value"], row["key"], row["headers"], row["timestamp"]) == (None, None, None, None)
        for said in ("offsets 1 to 4", "Decompression failed", "receive.message.max.bytes", "GAME_EVENTS_KAFKA_OPTIONS"):
            assert said in row["detail"]


def test_of_a_batch_that_ends_behind_the_range_the_rows_end_with_the_range():
    broker = Broker(message(0), damaged={("t", 0): [(1, 9)]}, goes_astray=False)
    assert places(read(broker, Range(SPLITS[0], 0, 5))) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


def test_a_batch_behind_the_range_that_cannot_be_read_is_not_looked_at():
    broker = Broker(message(0), message(1), damaged={("t", 0): [(2, 9)]})
    assert places(read(broker, Range(SPLITS[0], 0, 2))) == [(0, 0), (0, 1)]


# --- errors


@pytest.mark.parametrize("code", [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET])
def test_records_that_are_gone_are_a_conflict(code):
    with pytest.raises(ConflictError, match=r"t\[0\]: records have gone since they were planned"):
        read(Broker(failure=code), Range(SPLITS[0], 0, 1))


def test_a_broker_that_refuses_is_a_configuration_error():
    broker = Broker(failure=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigurationError, match=r"t\[0\].*TOPIC_AUTHORIZATION_FAILED"):
        read(broker, Range(SPLITS[0], 0, 1))
    assert broker.consumers[0].closed


def test_a_refused_login_ends_the_waiting_at_once():
    refusal = KafkaError(KafkaError._AUTHENTICATION, "wrong password")
    with pytest.raises(ConfigurationError, match="wrong password"):
        read(Broker(silent=True, known=[refusal]), Range(SPLITS[0], 0, 1))


def test_silence_is_an_error_that_says_what_was_waited_for():
    down = KafkaError(KafkaError._TRANSPORT, "connection refused")
    with pytest.raises(TransientError, match=r"(?s)t\[0\] from 3 to 4.*none came for 0 s.*connection refused"):
        read(Broker(silent=True, known=[down]), Range(SPLITS[0], 3, 5), silence_s=0)


def test_a_leader_that_has_less_than_the_range_yet_is_no_end_of_it():
    assert len(read(Broker(message(0), ends=5), Range(SPLITS[0], 0, 5))) == 1
    with pytest.raises(TransientError, match=r"t\[0\] from 4 to 4"):
        read(Broker(message(0), ends=4), Range(SPLITS[0], 0, 5), silence_s=0)


def test_errors_of_the_group_which_is_not_used_are_none():
    class Refusing(Consumer):
        def consume(self, number, wait):
            return [Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)), *super().consume(number, wait)]

    broker = Broker(message(0))
    assert len(read(lambda options: Refusing(broker, options), Range(SPLITS[0], 0, 1))) == 1


def test_an_option_that_the_client_does_not_know_is_named():
    def refuse(_):
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, 'No such configuration property: "no.such"'))

    with pytest.raises(ConfigurationError, match=r"GAME_EVENTS_KAFKA_OPTIONS.*no\.such"):
        read(refuse, Range(SPLITS[0], 0, 1))


# --- the consumer of a process


def test_a_consumer_is_kept_for_the_next_micro_batch_with_nothing_assigned():
    broker = Broker(*(message(o) for o in range(9)))
    assert places(read(broker, Range(SPLITS[0], 0, 4))) == [(0, o) for o in range(4)]
    assert broker.consumers[0].assigned == {}
    assert places(read(broker, Range(SPLITS[0], 4, 9))) == [(0, o) for o in range(4, 9)]
    assert [consumer.closed for consumer in broker.consumers] == [False]


def test_other_options_get_a_consumer_of_their_own_and_close_the_last_one():
    broker = Broker(message(0))
    read(broker, Range(SPLITS[0], 0, 1), a=1)
    read(broker, Range(SPLITS[0], 0, 1), a=2)
    assert [consumer.closed for consumer in broker.consumers] == [True, False]
    assert [consumer.options["a"] for consumer in broker.consumers] == [1, 2]


def test_a_consumer_is_closed_after_an_error_and_when_nobody_reads_on():
    broker = Broker(message(0), failure=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigurationError):
        read(broker, Range(SPLITS[0], 0, 2))
    broker.failure = None
    batches = reading(broker, Range(SPLITS[0], 0, 1)).batches(0, ReadNotes())
    next(batches)
    batches.close()
    assert [consumer.closed for consumer in broker.consumers] == [True, True]
    assert len(read(broker, Range(SPLITS[0], 0, 1))) == 1
    assert len(broker.consumers) == 3


def test_two_readings_at_once_have_a_consumer_each_and_one_of_them_is_kept():
    broker = Broker(*(message(o) for o in range(9)))
    first, second = (reading(broker, Range(SPLITS[0], 0, 9)).batches(0, ReadNotes()) for _ in range(2))
    counts = [len(next(first)), len(next(second)), *(len(list(rest)) for rest in (first, second))]
    assert counts == [9, 9, 0, 0]
    assert [consumer.closed for consumer in broker.consumers] == [True, False]


def test_a_process_that_was_forked_makes_a_consumer_of_its_own(monkeypatch):
    broker = Broker(message(0))
    read(broker, Range(SPLITS[0], 0, 1))
    monkeypatch.setattr(reader.os, "getpid", lambda: -1)
    read(broker, Range(SPLITS[0], 0, 1))
    # Its threads are the parent's: to close it would wait for them for ever.
    assert [consumer.closed for consumer in broker.consumers] == [False, False]


# --- the plan


SOME = st.dictionaries(st.sampled_from(SPLITS[:9]), st.tuples(st.integers(0, 50), st.integers(0, 5_000)), max_size=9)


@given(part=SOME, task_records=st.integers(1, 9_000))
def test_a_plan_has_each_offset_once_and_no_partition_twice_in_a_task(part, task_records):
    start = {split: at for split, (at, _) in part.items()}
    end = {split: at + size for split, (at, size) in part.items()}
    tasks = planned_ranges(start, end, task_records)
    for task in tasks:
        assert len({r.partition for r in task}) == len(task)
        assert sum(r.end - r.start for r in task) <= task_records
    of = defaultdict(list)
    for r in (r for task in tasks for r in task):
        of[r.partition].append((r.start, r.end))
    for split, first in start.items():
        ranges = sorted(of.pop(split, []))
        assert [at for at, _ in ranges] == [first, *(until for _, until in ranges)][: len(ranges)]
        assert all(at < until for at, until in ranges)
        assert (ranges[-1][1] if ranges else first) == end[split]
    assert not of


def test_tasks_have_about_the_same_size_and_a_small_slice_is_one_task():
    sizes = [sum(r.end - r.start for r in task) for task in planned_ranges({SPLITS[0]: 0}, {SPLITS[0]: 1_050}, 500)]
    assert sizes == [350, 350, 350]
    parts = dict.fromkeys(SPLITS, 0)
    assert len(planned_ranges(parts, dict.fromkeys(SPLITS, 3), 500)) == 1


def test_a_reading_goes_to_workers_and_shows_no_option():
    made = KafkaReading("b:1", {"sasl.password": "secret"}, [[Range(SPLITS[0], 0, 1)]], 9)
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own bytes
    assert "secret" not in repr(made)
    assert made.tasks == 1


def test_a_sparing_reading_gives_the_same_with_one_batch_in_each_answer_whatever_the_user_sets():
    found = reading(Broker(*(message(o) for o in range(9))), Range(SPLITS[0], 0, 9), **{"fetch.max.bytes": 10**8, "a": 1})
    assert rows_of(found.sparing()) == rows_of(found)
    options = found.sparing().options
    assert (options["fetch.max.bytes"], options["fetch.message.max.bytes"], options["a"]) == (1_000, 1, 1)


def test_columns_of_many_messages_are_those_of_each():
    chance = np.random.default_rng(1)
    of, sizes, times = (chance.integers(most, size=5_000).tolist() for most in (3, 40, 10**12))
    log = [message(o, of[o], value=chance.bytes(sizes[o]), time=times[o]) for o in range(5_000)]
    rows = read(Broker(*log), *(Range(split, 0, 5_000) for split in SPLITS[:3]))
    found = {(row["partition"], row["offset"]): (row["value"], row["timestamp"].timestamp() * 1000) for row in rows}
    assert {place: (value, round(time)) for place, (value, time) in found.items()} == {
        (m.partition(), m.offset()): (m.value(), m.timestamp()[1]) for m in log
    }
