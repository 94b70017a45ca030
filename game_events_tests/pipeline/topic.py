"""Puts any bytes into a test's topic, and any schema into the registry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference

from game_events.settings import Settings
from game_events.sources.kafka_client import ensure_topic
from game_events.sources.registry import registry_client

Headers = Sequence[tuple[str, bytes | None]]


def send_values(settings: Settings, values: Iterable[bytes | None], headers: Headers = (), key: bytes | None = None) -> None:
    """Records with these values, in order, in a topic of one partition."""
    ensure_topic(settings, 1)
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers, "message.max.bytes": 64_000_000})
    for value in values:
        producer.produce(settings.kafka_topic, value, key, headers=list(headers), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def register(
    settings: Settings,
    text: str,
    kind: str = "PROTOBUF",
    references: Sequence[SchemaReference] = (),
    subject: str | None = None,
) -> int:
    """The schema's id; under the topic's subject if no other is given."""
    with registry_client(settings) as client:
        return client.register_schema(subject or f"{settings.kafka_topic}-value", Schema(text, kind, list(references)))
