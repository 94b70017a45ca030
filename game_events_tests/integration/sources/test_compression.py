"""Records that a producer has packed, with whatever it likes, and their bytes are anybody's."""

from __future__ import annotations

from confluent_kafka import Producer

from game_events.sources.factory import make_source
from game_events.sources.source import MicroBatch
from game_events_tests.support.sources import records
from game_events_tests.support.worlds.topics import make_topic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_records_packed_by_any_codec_are_read_as_they_were_sent(settings):
    make_topic(settings)
    sent = []
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers, "compression.type": codec, "linger.ms": 50})
        values = [f"{codec} {n} ".encode() * (1 + n * 37 % 500) for n in range(200)]
        for value in values:
            producer.produce(settings.kafka_topic, value, partition=0)
        assert producer.flush(60) == 0
        sent += values
    source = make_source(settings)
    now = source.snapshot()
    assert [row["value"] for row in records(source, MicroBatch(now.earliest, now.latest))] == sent
