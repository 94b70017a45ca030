"""Sends events: `produce` (with faults, at a steady rate) and `produce_bulk` (as fast as possible).

Both register the schemas, create the topic, write, wait for all acknowledgements and return the manifest; an undelivered record
raises an error.
"""

from collections.abc import Iterable
from http import HTTPStatus

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.producer.encoding import EventEncoder, encode_pool
from game_events.producer.kafka_writer import BATCH_TUNING, KafkaWriter, Pacer
from game_events.producer.manifest import Manifest, ManifestBuilder
from game_events.producer.message_type import MessageShape
from game_events.producer.simulator import BulkSimulation, Simulation
from game_events.schema_registry import FORBIDDEN, registry_client
from game_events.sources.kafka.client import ensure_topic
from game_events.sources.kafka.source import subject_of


def produce(settings: Settings, simulation: Simulation, *, partitions: int = 4, rate: float | None = None) -> Manifest:
    """Send one wave of simulated events, with the fields of the settings' message.

    `partitions`: of a new topic; `rate`: records per second, None: as fast as possible.

    Raises:
        ConfigurationError: refused by broker or registry.
        TransientError: not reachable, or a record was not delivered.
    """
    encoder, schema_ids = _prepare(settings, simulation.version_numbers, partitions)
    simulation = simulation.model_copy(update={"fields": encoder.shape.fields})
    truth = ManifestBuilder(simulation.fields)
    pacer = Pacer(rate)
    with KafkaWriter(settings) as writer:
        for sent, record in enumerate(simulation.records(), 1):
            writer.write(encoder.record(record), record.event.gamer.encode(), record.event.game)
            truth.add(record)
            if sent % pacer.chunk == 0:
                writer.poll()
                pacer.pace(sent)
    return truth.build(settings.produced_topic, simulation.seed, schema_ids)


def produce_bulk(settings: Settings, simulation: BulkSimulation, *, partitions: int = 4) -> Manifest:
    """Send a bulk load, without headers (librdkafka's batch call has none); otherwise as `produce`."""
    encoder, schema_ids = _prepare(settings, simulation.version_numbers, partitions)
    simulation = simulation.model_copy(update={"fields": encoder.shape.fields})
    pool = simulation.pool()
    messages = encode_pool(pool, encoder)
    with KafkaWriter(settings, **BATCH_TUNING) as writer:
        for batch in simulation.batches(messages):
            writer.write_batch(batch)
    truth = ManifestBuilder(simulation.fields)
    for record, times in zip(pool, simulation.times_sent(len(pool)), strict=True):
        truth.add(record, times)
    return truth.build(settings.produced_topic, simulation.seed, schema_ids)


def _prepare(settings: Settings, versions: tuple[int, ...], partitions: int) -> tuple[EventEncoder, dict[int, int]]:
    """Check the message, then create the topic, then register: an unavailable broker leaves no schemas behind."""
    shape = MessageShape.of(settings)
    ensure_topic(settings, partitions)
    registry = registry_client(settings)
    schema_ids = register_versions(registry, settings, versions)
    return EventEncoder(schema_ids, registry, shape), schema_ids


def register_versions(client: SchemaRegistryClient, settings: Settings, versions: Iterable[int]) -> dict[int, int]:
    """Register each version under ``<topic>-value``, lowest first; returns {version: schema id}. Idempotent.

    Raises:
        ConfigurationError: a message that does not compile, refused login, wrong address, or an incompatible version.
        TransientError: the registry cannot be reached, or answers with a server error.
    """
    subject = subject_of(settings.produced_topic)
    shape = MessageShape.of(settings)
    return {v: _register(client, settings, subject, v, shape.versions.text(v)) for v in sorted(versions)}


def _register(client: SchemaRegistryClient, settings: Settings, subject: str, version: int, text: str) -> int:
    what = f"schema registry {settings.schema_registry_url}, subject {subject!r}, version {version}"
    try:
        return client.register_schema(subject, Schema(text, "PROTOBUF"))
    except SchemaRegistryError as error:
        status = error.http_status_code
        if status in FORBIDDEN:
            raise ConfigurationError(
                f"{what}: login refused (HTTP {status}): check GAME_EVENTS_SCHEMA_REGISTRY_USER and "
                "GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD"
            ) from None
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # a retry may help
            raise TransientError(f"{what}: {error}") from error
        raise ConfigurationError(f"{what}: not accepted ({error}): check the address and the compatibility level") from error
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise TransientError(
            f"{what}: no usable answer ({type(error).__name__}: {error}): "
            "is GAME_EVENTS_SCHEMA_REGISTRY_URL right, and is it up?"
        ) from error
