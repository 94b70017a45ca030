"""What the topics hold, read by librdkafka and Python's protobuf: the truth that the tables are compared with."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Decoded

from game_events.config.settings import Settings
from game_events.plugins.local.producer.messages import MAX_VERSION
from game_events_tests.scenarios.chaos.declared import MESSAGES, SOURCES, message

SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("decodable", pa.bool_()),
        ("type", pa.string()),
        ("name", pa.string()),
        ("gamer", pa.string()),
        ("time_us", pa.int64()),
        ("device", pa.string()),
        ("event_id", pa.string()),
    ]
)
HEADER = struct.Struct(">bI")
US_PER_S, NS_PER_US = 1_000_000, 1_000
ROWS = 50_000


def read_truth(settings: Settings) -> pa.Table:
    """Every record of both topics, with what its value says if it can be decoded."""
    batches, rows = [], []
    for source, topic in SOURCES.items():
        classes = _classes(settings, topic)
        for record in _records(settings, topic):
            place = (source, topic, record.partition(), record.offset(), record.value())
            rows.append((*place, *_decoded(record.value(), classes)))
            if len(rows) == ROWS:
                batches.append(_batch(rows))
                rows = []
    return pa.Table.from_batches([*batches, _batch(rows)], schema=SCHEMA)


def _batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in SCHEMA]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _classes(settings: Settings, topic: str) -> Mapping[int, type[Decoded]]:
    """Schema id -> class of its messages; each version has the fields of those before, so the newest one reads them all."""
    subject = f"{topic}-value"
    classes = {}
    with SchemaRegistryClient({"url": settings.schema_registry_url}) as registry:
        for version in registry.get_versions(subject):
            registered = registry.get_version(subject, version)
            (name,) = (name for name in MESSAGES if f"message {name} " in str(registered.schema.schema_str))
            classes[registered.schema_id] = message(name).message_class(MAX_VERSION)
    return classes


def _records(settings: Settings, topic: str) -> Iterator[Message]:
    """Each partition from its first offset to its end, as it is now."""
    consumer = Consumer(
        {"bootstrap.servers": settings.kafka_bootstrap_servers, "group.id": "truth", "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions}
        left = {p: end for p, end in ends.items() if end}
        consumer.assign([TopicPartition(topic, p, 0) for p in left])
        while left:
            found = consumer.consume(10_000, 10)
            assert found, f"no record for 10 s, though some are missing: {left}"
            for record in found:
                assert record.error() is None, record.error()
                yield record
                if record.offset() + 1 >= left.get(record.partition(), 0):
                    left.pop(record.partition(), None)
    finally:
        consumer.close()


def _decoded(value: bytes | None, classes: Mapping[int, type[Decoded]]) -> tuple[object, ...]:
    nothing = (False, *[None] * 6)
    if value is None or len(value) <= HEADER.size:
        return nothing
    magic, schema_id = HEADER.unpack_from(value)
    if magic != 0 or schema_id not in classes or value[HEADER.size] != 0:
        return nothing
    event: Any = classes[schema_id]()
    try:
        event.ParseFromString(value[HEADER.size + 1 :])
    except DecodeError:
        return nothing
    time_us = event.event_timestamp.seconds * US_PER_S + event.event_timestamp.nanos // NS_PER_US
    names = event.DESCRIPTOR.full_name, event.game_name, event.gamer_id
    return True, *names, time_us, event.device_id, event.event_id
