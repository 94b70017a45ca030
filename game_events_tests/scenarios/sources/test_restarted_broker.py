"""A broker that goes while a worker reads: the worker goes on when it is back, each record once, or says what is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from game_events.config.settings import Settings, load_settings
from game_events.errors import TransientError
from game_events.plugins.local.servers import local_stack
from game_events.sources.factory import make_source
from game_events.sources.source import MicroBatch, ReadNotes
from game_events_tests.support.servers.own_stack import OwnStack
from game_events_tests.support.worlds.topics import make_topic

RECORDS = 3_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnStack]:
    own = OwnStack(tmp_path / "own-stack")
    yield own
    local_stack.down(own.folder, delete_data=True)


@pytest.fixture
def settings(broker: OwnStack) -> Settings:
    """Of a topic with records in many small batches."""
    found = load_settings(kafka_bootstrap_servers=broker.state.kafka_bootstrap_servers, kafka_topic="events")
    make_topic(found)
    producer = Producer({"bootstrap.servers": found.kafka_bootstrap_servers, "batch.num.messages": 50})
    for number in range(RECORDS):
        producer.produce(found.kafka_topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    return found


def test_a_reading_goes_on_when_its_broker_is_back_and_else_says_what_is_missing(
    settings: Settings, broker: OwnStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("game_events.sources.source.BATCH_RECORDS", 100)
    source = make_source(settings)
    now = source.snapshot()
    # Few records are fetched ahead.
    reading = source.reading(MicroBatch(now.earliest, now.latest)).sparing()

    batches = reading.batches(0, ReadNotes())
    found = next(batches).column("offset").to_pylist()
    broker.kill()
    again = threading.Timer(3, broker.start)
    again.start()
    found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    again.join()
    assert found == list(range(RECORDS))

    batches = replace(reading, silence_s=3).batches(0, ReadNotes())
    next(batches)
    broker.kill()
    with pytest.raises(TransientError, match=rf"(?s)events\[0\] from \d+ to {RECORDS - 1}: none came for 3 s.*is it up"):
        list(batches)
