"""Records that a producer has packed, with whatever it likes, and which code unpacks them: their bytes are anybody's."""

from __future__ import annotations

from confluent_kafka import Producer

from game_events.sources.core.source import MicroBatch
from game_events.sources.kafka.source import KafkaSource
from game_events_tests.support.worlds.topics import make_topic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_records_packed_by_any_codec_are_read_as_they_were_sent(settings, spark):
    make_topic(settings)
    sent = []
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers, "compression.type": codec, "linger.ms": 50})
        values = [f"{codec} {n} ".encode() * (1 + n * 37 % 500) for n in range(200)]
        for value in values:
            producer.produce(settings.kafka_topic, value, partition=0)
        assert producer.flush(60) == 0
        sent += values
    source = KafkaSource(settings)
    now = source.snapshot()
    rows = source.read(spark, MicroBatch(now.earliest, now.latest)).orderBy("offset").select("value").collect()
    assert [bytes(row.value) for row in rows] == sent


def test_what_unpacks_them_has_no_known_holes(spark):
    """PySpark's own lz4-java 1.8.0 (CVE-2025-12183, CVE-2025-66566) and kafka-clients 3.9.0 (CVE-2025-27817) are not used."""
    jvm = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()

    def jar_of(name):
        return loader.loadClass(name).getProtectionDomain().getCodeSource().getLocation().getPath().rsplit("/", 1)[1]

    assert jar_of("net.jpountz.lz4.LZ4Factory") == "lz4-java-1.10.1.jar"
    assert jar_of("org.apache.kafka.clients.consumer.KafkaConsumer") == "kafka-clients-3.9.2.jar"
    assert jvm.net.jpountz.lz4.LZ4Factory.fastestInstance().toString().endswith("JNI")
