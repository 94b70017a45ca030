"""Records that the driver reads itself: a range of each partition, also of what Spark cannot hold."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, SmallerPartsError, TransientError
from game_events.sources.core.source import MicroBatch, Split
from game_events.sources.kafka import records
from game_events.sources.kafka.records import MAX_TIMESTAMP_MS, OVERFLOW, ReadRecords, read_records
from game_events.sources.kafka.source import DRIVER_RECORDS, KafkaSource

LANES = [Split("t", "A" * 22, partition) for partition in range(70)]
NANOSECONDS = 1_700_000_000_000_000_000


class Message:
    def __init__(self, partition, offset, *, value=b"v", key=None, headers=None, time=1_700_000_000_000, error=None):
        self._held = {"partition": partition, "offset": offset, "value": value, "key": key, "time": time, "error": error}
        self._headers = headers

    def __getattr__(self, name):
        return lambda: self._held[name]

    def topic(self):
        return "t"

    def timestamp(self):
        return 1, self._held["time"]

    def headers(self):
        if self._headers == "no text":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return self._headers


class Consumer:
    """Answers with these messages of the assigned partitions, then with the end of each."""

    def __init__(self, messages, silent=False, failure=None, ends=10**9):
        self.messages, self.silent, self.failure, self.closed, self.waiting = messages, silent, failure, False, []
        self.ends = ends

    def __call__(self, options):
        self.options = options
        return self

    def assign(self, places):
        begins = {place.partition: place.offset for place in places}
        self.waiting = [m for m in self.messages if m.partition() in begins and m.offset() >= begins[m.partition()]]
        end = KafkaError(self.failure if self.failure is not None else KafkaError._PARTITION_EOF)
        self.waiting += [Message(partition, self.ends, error=end) for partition in begins]

    def consume(self, number, _):
        found, self.waiting = self.waiting[:number], self.waiting[number:]
        return [] if self.silent else found

    def pause(self, _):
        pass

    def close(self):
        self.closed = True


def read(messages, start, end, **how):
    consumer = Consumer(messages, **how)
    lanes = LANES[: len(end)]
    try:
        return read_records(Settings(), dict(zip(lanes, start, strict=True)), dict(zip(lanes, end, strict=True)), 1, consumer)
    finally:
        assert consumer.closed


def test_exactly_the_range_is_read_with_all_that_a_record_has():
    messages = [
        Message(p, o, value=None if o == 3 else b"%d" % o, key=b"k", headers=[("h", None)]) for p in (0, 1) for o in range(9)
    ]
    found = read(messages, (2, 5), (4, 6))
    rows = [(r["partition"], r["offset"], r["value"], r["key"], r["headers"]) for r in found.rows.to_pylist()]
    assert rows == [(p, o, v, b"k", [{"key": "h", "value": None}]) for p, o, v in ((0, 2, b"2"), (0, 3, None), (1, 5, b"5"))]
    assert {r["timestamp"].timestamp() for r in found.rows.to_pylist()} == {1_700_000_000}
    assert (found.odd, found.too_large) == ([], False)


def test_a_timestamp_that_spark_cannot_hold_is_null_and_its_record_is_named():
    times = [NANOSECONDS, MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1, -1, -NANOSECONDS]
    found = read([Message(0, o, time=time) for o, time in enumerate(times)], (0,), (5,))
    raw = found.rows.column("timestamp").cast("int64").to_pylist()
    assert raw == [None, MAX_TIMESTAMP_MS * 1000, None, -1000, None]
    assert [odd.split(" ", 1)[0] for odd in found.odd] == ["t[0]@0", "t[0]@2", "t[0]@4"]
    assert f"timestamp of {NANOSECONDS} milliseconds" in found.odd[0]


def test_headers_with_names_that_are_no_text_are_left_out_and_that_is_said():
    found = read([Message(0, 0, headers="no text")], (0,), (1,))
    assert found.rows.column("headers").to_pylist() == [None]
    assert "headers, whose names are no UTF-8" in found.odd[0]


def test_partitions_are_read_in_groups_and_compacted_ones_to_their_end():
    found = read([Message(p, 0) for p in range(0, 70, 2)], (0,) * 70, (5,) * 70)
    assert sorted(found.rows.column("partition").to_pylist()) == list(range(0, 70, 2))


def test_a_leader_that_has_less_than_the_range_yet_is_no_end_of_it():
    assert len(read([Message(0, 0)], (0,), (5,), ends=5).rows) == 1
    with pytest.raises(TransientError):
        read([Message(0, 0)], (0,), (5,), ends=4)


def test_too_many_bytes_end_the_reading(monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 1_000)
    monkeypatch.setattr(records, "_MESSAGES", 2)
    found = read([Message(0, o, value=b"x" * 400) for o in range(100)], (0,), (100,))
    assert found.too_large
    assert len(found.rows) < 10


@pytest.mark.parametrize(
    ("how", "error"),
    [({"silent": True}, TransientError), ({"failure": KafkaError.TOPIC_AUTHORIZATION_FAILED}, ConfigurationError)],
)
def test_a_broker_that_is_silent_or_refuses_is_an_error(how, error):
    with pytest.raises(error):
        read([], (0,), (1,), **how)


# --- the source


def source(found):
    asked = []
    made = KafkaSource(Settings(), records=lambda _, start, end, __: (asked.append((start, end)), found)[1])
    return made, asked


def part(count, begin=0):
    return MicroBatch({LANES[0]: begin}, {LANES[0]: begin + count})


def test_other_failures_of_spark_are_none_of_a_record():
    made, asked = source(ReadRecords(odd=["t[0]@0"]))
    assert not made.read_by_driver(part(10), RuntimeError("no room"))
    assert asked == []


def test_a_failed_micro_batch_is_read_in_small_parts_until_it_is_passed():
    made, asked = source(ReadRecords(odd=["t[0]@7 (timestamp of 9 milliseconds)"]))
    usual = made.batch_limit({})
    with pytest.raises(SmallerPartsError, match="parts of 10,000"):
        made.read_by_driver(part(50_000), ArithmeticError(OVERFLOW))
    assert made.batch_limit({LANES[0]: 49_999}) == DRIVER_RECORDS
    assert made.read_by_driver(part(DRIVER_RECORDS), ArithmeticError(OVERFLOW))
    assert [end for _, end in asked] == [{LANES[0]: DRIVER_RECORDS}]
    assert made.take_notices() == ["1 records were read without what Spark cannot hold: t[0]@7 (timestamp of 9 milliseconds)"]
    assert made.take_notices() == []
    assert made.batch_limit({LANES[0]: 50_000}) == usual


def test_a_part_with_too_many_bytes_is_made_smaller_down_to_one_record():
    made, _ = source(ReadRecords(odd=["t[0]@7"], too_large=True))
    sizes, size = [], DRIVER_RECORDS
    while size > 1:
        with pytest.raises(SmallerPartsError):
            made.read_by_driver(part(size), ArithmeticError(OVERFLOW))
        size = made.batch_limit({})
        sizes.append(size)
    assert sizes == [500, 25, 1]
    assert made.read_by_driver(part(1), ArithmeticError(OVERFLOW))


def test_an_overflow_of_no_record_stays_the_error_that_it_is():
    made, _ = source(ReadRecords())
    assert not made.read_by_driver(part(10), ArithmeticError(OVERFLOW))
