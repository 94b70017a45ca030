"""Puts any bytes into a test's topic, and any schema into the registry."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference

from game_events.config.settings import Settings, load_settings
from game_events.plugins.local.servers.local_stack import StackState
from game_events.schema_registry import registry_client
from game_events.sources.kafka.client import ensure_topic

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


def own_settings(stack: StackState, folder: Path, **more: object) -> Settings:
    """Settings of a world that several tests share: a topic of its own, tables below a folder."""
    chosen: dict[str, object] = {
        "kafka_bootstrap_servers": stack.kafka_bootstrap_servers,
        "schema_registry_url": stack.schema_registry_url,
        "kafka_topic": f"shared_{uuid.uuid4().hex[:8]}",
        "lakehouse": str(folder / "lakehouse"),
        "state_dir": folder / "state",
    }
    return load_settings(**(chosen | more))
