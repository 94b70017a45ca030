"""Puts the schema versions into the registry, as `.proto` text."""

from __future__ import annotations

from collections.abc import Iterable

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from game_events.errors import ConfigurationError, TransientError
from game_events.producer.message_shape import MessageShape
from game_events.settings import Settings
from game_events.sources.kafka import subject_of

REFUSED_LOGIN = (401, 403)
#: Past these, waiting may help; any other 4xx answer stays the same.
BUSY = 429
SERVER_ERROR = 500


def register_versions(client: SchemaRegistryClient, settings: Settings, versions: Iterable[int]) -> dict[int, int]:
    """Registers each version under ``<topic>-value``, lowest first; registering again gives the same ids.

    The compatibility level stays what the registry has. No references: the only import is a well-known type, which
    every reader brings along.

    Returns:
        {version: schema id}.

    Raises:
        ConfigurationError: a message that does not compile, refused login, wrong address, or the subject's compatibility
            level forbids a version.
        TransientError: the registry cannot be reached, or answers with an error of its own.
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
        if status in REFUSED_LOGIN:
            raise ConfigurationError(
                f"{what}: login refused (HTTP {status}): check GAME_EVENTS_SCHEMA_REGISTRY_USER and "
                "GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD"
            ) from None
        if status == BUSY or status >= SERVER_ERROR:
            raise TransientError(f"{what}: {error}") from error
        raise ConfigurationError(f"{what}: not accepted ({error}): check the address and the compatibility level") from error
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise TransientError(
            f"{what}: no usable answer ({type(error).__name__}: {error}): "
            "is GAME_EVENTS_SCHEMA_REGISTRY_URL right, and is it up?"
        ) from error
