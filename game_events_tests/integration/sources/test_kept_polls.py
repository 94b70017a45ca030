"""Records that Spark keeps after a micro-batch: it polls past the end, and the next micro-batch never asks for them."""

from __future__ import annotations

import re

from confluent_kafka import Producer

from game_events.sources.core.source import MicroBatch
from game_events.sources.kafka.source import KafkaSource
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.topics import make_topic


def test_the_last_polls_of_a_micro_batch_do_not_stay_in_memory(settings, spark):
    make_topic(settings, partitions=2)
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers})
    for n in range(200):
        producer.produce(settings.kafka_topic, b"x", partition=n % 2)
    assert producer.flush(60) == 0
    source = KafkaSource(settings)
    now = source.snapshot()
    half = {split: end // 2 for split, end in now.latest.items()}
    assert source.read(spark, MicroBatch(now.earliest, half)).count() == 100
    jvm = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kind = loader.loadClass("org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer$")
    pool = _field(kind, kind.getField("MODULE$").get(None), "fetchedDataPool")
    kept = _field(pool.getClass(), pool, "cache")
    assert f",{settings.kafka_topic}-0) -> " in kept.toString()
    # Other tests may use the same JVM, so only this topic's are looked at; without the setting they stay for 5 minutes.
    held = re.compile(rf",{settings.kafka_topic}-\d+\) -> ListBuffer\([^)]")
    until(lambda: held.search(kept.toString()) is None, 60, what="a pool without this topic's polls")


def _field(kind, of, name):
    """Value of a private field."""
    found = next(field for field in kind.getDeclaredFields() if field.getName().endswith(name))
    found.setAccessible(True)
    return found.get(of)
