"""What workers read of a real broker's partitions: the planned records or an error, whatever happens to the topic meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Producer

from game_events.errors import ConflictError, GameEventsError
from game_events.sources.factory import make_source
from game_events.sources.kafka import reader
from game_events.sources.kafka.reader import KeptConsumer, planned_ranges
from game_events.sources.source import MicroBatch
from game_events_tests.support.sources import records, rows_of
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import admin, expire, make_anew, make_topic, put, transaction


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """The consumer of this test, which is closed behind it."""
    made = KeptConsumer()
    monkeypatch.setattr(reader, "_KEPT", {"": made})
    yield made
    made.close()


def all_of(source):
    now = source.snapshot()
    return MicroBatch(now.earliest, now.latest)


def end_of(source):
    (end,) = source.snapshot().latest.values()
    return end


def places(rows):
    return [(row["partition"], row["offset"]) for row in rows]


def send(settings, count, partitions=1, size=10):
    """Records that name their partition and number, each partition's in batches of several."""
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers, "linger.ms": 20})
    for n in range(count):
        for partition in range(partitions):
            producer.produce(settings.kafka_topic, b"%d %d " % (partition, n) + b"x" * size, partition=partition)
    assert producer.flush(60) == 0


def test_a_micro_batch_of_many_partitions_is_read_once_in_any_division_into_tasks(settings):
    make_topic(settings, 100)
    send(settings, 30, 100)
    source = make_source(settings)
    part = all_of(source)
    start = {split: split.number % 7 for split in part.start}
    whole = source.reading(replace(part, start=start))
    wanted = [(p, n) for p in range(100) for n in range(p % 7, 30)]
    for size in (10**6, 1_000, 17):
        found = rows_of(replace(whole, parts=planned_ranges(start, part.end, size)))
        assert places(found) == wanted
        assert [tuple(map(int, row["value"].split()[:2])) for row in found] == wanted


def test_records_of_aborted_transactions_and_markers_are_passed_also_at_the_end(settings):
    make_topic(settings)
    put(settings, [b"0"])
    aborted = transaction(settings, [Event("uno", n) for n in range(3)])  # offsets 1 to 3
    source = make_source(settings)
    aborted.abort_transaction(30)
    until(lambda: end_of(source) == 5)  # a broker writes markers after its answer
    put(settings, [b"5"])
    committed = transaction(settings, [Event("uno", 6)])
    committed.commit_transaction(30)  # its marker has offset 7
    until(lambda: end_of(source) == 8)
    last = transaction(settings, [Event("uno", 8)])
    last.abort_transaction(30)
    until(lambda: end_of(source) == 10)
    part = all_of(source)
    assert places(records(source, part)) == [(0, 0), (0, 5), (0, 6)]
    (split,) = part.end
    only = MicroBatch({split: 7}, {split: 10})
    assert records(source, only) == []
    assert places(records(source, replace(only, start={split: 6}))) == [(0, 6)]


def test_records_that_are_deleted_between_plan_and_reading_are_a_conflict_and_the_next_plan_is_read(settings):
    make_topic(settings, 2)
    send(settings, 20, 2)
    source = make_source(settings)
    part = all_of(source)
    reading = source.reading(part)
    expire(settings, {1: 5})
    with pytest.raises(ConflictError, match=r"\[1\]: records have gone since they were planned"):
        rows_of(reading)
    assert places(records(source, all_of(source))) == [(p, n) for p in (0, 1) for n in range(5 * p, 20)]


def test_a_topic_that_is_made_anew_between_two_micro_batches_is_read_by_the_kept_consumer(settings, kept):
    make_topic(settings)
    send(settings, 10)
    source = make_source(settings)
    assert len(records(source, all_of(source))) == 10
    first = kept.consumer
    make_anew(settings)
    send(settings, 4, size=20)
    assert len(records(source, all_of(source))) == 4
    assert kept.consumer is first


@pytest.mark.parametrize("more", [0, 20])
def test_a_topic_that_is_made_anew_between_plan_and_reading_is_noticed(settings, more):
    make_topic(settings)
    send(settings, 10)
    source = make_source(settings)
    part = all_of(source)
    rows_of(source.reading(part))
    make_anew(settings)
    send(settings, more)
    reading = replace(source.reading(part), silence_s=10)
    try:
        rows_of(reading)
    except GameEventsError as error:
        assert settings.kafka_topic in str(error)
    changed = source.changed(part)
    assert changed is not None
    assert "was deleted and made again" in changed


def test_a_topic_that_is_deleted_between_plan_and_reading_is_an_error(settings):
    make_topic(settings)
    send(settings, 10)
    source = make_source(settings)
    part = all_of(source)
    rows_of(source.reading(part))
    client = admin(settings)  # without a name it would be gone before it has its answer
    client.delete_topics([settings.kafka_topic])[settings.kafka_topic].result(30)
    with pytest.raises(GameEventsError, match=settings.kafka_topic):
        rows_of(replace(source.reading(part), silence_s=10))
