"""What the topic holds, read by librdkafka and Python's protobuf: the truth that the tables are compared with."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf.message import DecodeError

from game_events.config.settings import Settings
from game_events.plugins.local.producer.messages import BUILT_IN, MAX_VERSION

SCHEMA = pa.schema(
    [
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("decodable", pa.bool_()),
        ("game", pa.string()),
        ("gamer", pa.string()),
        ("time_us", pa.int64()),
        ("device", pa.string()),
    ]
)
HEADER = struct.Struct(">bI")
US_PER_S, NS_PER_US = 1_000_000, 1_000
ROWS = 50_000


def read_truth(settings: Settings) -> pa.Table:
    """Every record of the topic, with what its value says if it can be decoded."""
    ids = _known_ids(settings)
    batches, rows = [], []
    for message in _records(settings):
        rows.append((message.partition(), message.offset(), message.value(), *_decoded(message.value(), ids)))
        if len(rows) == ROWS:
            batches.append(_batch(rows))
            rows = []
    return pa.Table.from_batches([*batches, _batch(rows)], schema=SCHEMA)


def _batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in SCHEMA]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _known_ids(settings: Settings) -> set[int]:
    subject = f"{settings.kafka_topic}-value"
    with SchemaRegistryClient({"url": settings.schema_registry_url}) as registry:
        return {registry.get_version(subject, v).schema_id for v in registry.get_versions(subject)}


def _records(settings: Settings) -> Iterator[Message]:
    """Each partition from its first offset to its end, as it is now."""
    consumer = Consumer(
        {"bootstrap.servers": settings.kafka_bootstrap_servers, "group.id": "truth", "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(settings.kafka_topic, 30).topics[settings.kafka_topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(settings.kafka_topic, p), 30)[1] for p in partitions}
        left = {p: end for p, end in ends.items() if end}
        consumer.assign([TopicPartition(settings.kafka_topic, p, 0) for p in left])
        while left:
            found = consumer.consume(10_000, 10)
            assert found, f"no record for 10 s, though some are missing: {left}"
            for message in found:
                assert message.error() is None, message.error()
                yield message
                if message.offset() + 1 >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
    finally:
        consumer.close()


def _decoded(value: bytes | None, ids: set[int]) -> tuple[object, ...]:
    nothing = (False, None, None, None, None)
    if value is None or len(value) <= HEADER.size:
        return nothing
    magic, schema_id = HEADER.unpack_from(value)
    if magic != 0 or schema_id not in ids or value[HEADER.size] != 0:
        return nothing
    # Each version has the fields of those before: the newest reads them all.
    message = BUILT_IN.message_class(MAX_VERSION)()
    try:
        message.ParseFromString(value[HEADER.size + 1 :])
    except DecodeError:
        return nothing
    time = message.event_timestamp
    return True, message.game_name, message.gamer_id, time.seconds * US_PER_S + time.nanos // NS_PER_US, message.device_id
