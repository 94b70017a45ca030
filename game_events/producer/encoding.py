"""From an event to the bytes of a record's value, by the Confluent serializer."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

from confluent_kafka.schema_registry import SchemaRegistryClient, prefix_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf.message import Message

from game_events.producer.events import US_PER_S, GameEvent, PoisonKind, SimulatedRecord
from game_events.producer.schema_versions import custom_columns, message_class

#: The largest id a registry could give out (a Java int); none has counted so far.
UNKNOWN_SCHEMA_ID = 2**31 - 1
#: 0 and 1 are magic bytes (schema id, schema GUID); this is neither.
WRONG_MAGIC = b"\x2a"
#: Every message ends with a string of at least 8 bytes, so cutting this many always breaks it.
CUT_BYTES = 3


class EventEncoder:
    """Frames and serializes events, each with the schema id of its own version.

    ``use.schema.id`` is no help here: confluent-kafka 2.16.0 then parses the registry's schema as a base64
    FileDescriptorProto and fails on registered text (binascii.Error); without it, the serializer registers or looks up
    its own base64 form. So it runs without a context, which skips the registry, and ``schema.id.serializer`` (a public
    option) writes the id that the text was registered with.
    """

    def __init__(self, schema_ids: Mapping[int, int], registry: SchemaRegistryClient) -> None:
        """Takes {version: schema id} and the client that the serializer insists on."""
        self._serializers = {
            version: ProtobufSerializer(
                message_class(version),
                registry,
                {"auto.register.schemas": False, "schema.id.serializer": _framer(schema_id)},
            )
            for version, schema_id in schema_ids.items()
        }

    def event(self, event: GameEvent) -> bytes:
        """Frame and payload of one event."""
        return cast(bytes, self._serializers[event.version](to_message(event), None))  # None only for a None message

    def record(self, record: SimulatedRecord) -> bytes:
        """The value of a record, spoilt if it is to be."""
        if record.poison is None:
            return self.event(record.event)
        return spoil(record.poison, record.event, self.event(record.event))


def to_message(event: GameEvent) -> Message:
    """The protobuf message of an event, in the class of its version."""
    seconds, microseconds = divmod(event.timestamp_us, US_PER_S)
    fields: dict[str, object] = {
        "game_name": event.game,
        "gamer_id": event.gamer,
        "event_timestamp": {"seconds": seconds, "nanos": microseconds * 1_000},
        "device_id": event.device,
    }
    for name, value in zip(custom_columns(event.version), event.custom, strict=True):
        if value is not None:
            fields[name] = value
    return cast(Callable[..., Message], message_class(event.version))(**fields)


def spoil(kind: PoisonKind, event: GameEvent, frame: bytes) -> bytes:
    """Bytes that nobody can decode, made from an event's good ones."""
    match kind:
        case PoisonKind.UNFRAMED_JSON:
            return json.dumps({"game_name": event.game, "gamer_id": event.gamer}).encode()
        case PoisonKind.WRONG_MAGIC:
            return WRONG_MAGIC + frame[1:]
        case PoisonKind.TRUNCATED:
            return frame[:-CUT_BYTES]
        case PoisonKind.UNKNOWN_SCHEMA:
            return frame[:1] + struct.pack(">I", UNKNOWN_SCHEMA_ID) + frame[5:]
        case PoisonKind.EMPTY:
            return b""


def _framer(schema_id: int) -> Callable[[bytes, Any, Any], bytes]:
    """The ``schema.id.serializer`` of one version. GameEvent is the first message of its file: index path [0]."""
    frame = SchemaId("PROTOBUF", schema_id, message_indexes=[0])
    return lambda payload, ctx, _: prefix_schema_id_serializer(payload, ctx, frame)
