"""Serialization of events to record values by the Confluent serializer."""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

from confluent_kafka.schema_registry import SchemaRegistryClient, prefix_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf.message import DecodeError, Message

from game_events.producer.kafka_writer import BatchMessage
from game_events.producer.message_type import MessageShape, custom_columns
from game_events.producer.simulator import US_PER_S, GameEvent, PoisonKind, SimulatedRecord

#: The largest possible id of a registry (a Java int).
UNKNOWN_SCHEMA_ID = 2**31 - 1
#: 0 and 1 are magic bytes (schema id, schema GUID); this is neither.
WRONG_MAGIC = b"\x2a"
#: Every game event ends with a string of at least 8 bytes, so cutting this many always breaks it.
CUT_BYTES = 3
#: Tag of a string in field 1, and a length without content.
UNFINISHED = b"\x0a\x7f"


class EventEncoder:
    """Frames and serializes events, each with the schema id of its own version.

    With ``use.schema.id`` confluent-kafka 2.16.0 parses the registry's schema as a base64 FileDescriptorProto and fails on
    registered text (binascii.Error); without it, the serializer registers or looks up its own base64 form. So it runs without
    a context, which skips the registry, and the public option ``schema.id.serializer`` writes the id of the registered text.
    """

    def __init__(
        self, schema_ids: Mapping[int, int], registry: SchemaRegistryClient, shape: MessageShape | None = None
    ) -> None:
        """`schema_ids`: version -> schema id; `registry`: required by the serializer; `shape`: default: the game event."""
        self.shape = shape or MessageShape()
        self._names = tuple(name for name, _ in self.shape.fields)
        self._classes = {version: self.shape.versions.message_class(version) for version in schema_ids}
        self._serializers = {
            version: ProtobufSerializer(
                self._classes[version],
                registry,
                {"auto.register.schemas": False, "schema.id.serializer": _framer(schema_id, self.shape.versions.index)},
            )
            for version, schema_id in schema_ids.items()
        }

    def event(self, event: GameEvent) -> bytes:
        """Frame and payload of one event."""
        return cast(bytes, self._serializers[event.version](self.message(event), None))  # None only for a None message

    def record(self, record: SimulatedRecord) -> bytes:
        """The value of a record, malformed if it has a poison kind."""
        if record.poison is None:
            return self.event(record.event)
        return self._malformed(record.poison, record.event, self.event(record.event))

    def message(self, event: GameEvent) -> Message:
        """The protobuf message of an event, in the class of its version."""
        shape = self.shape
        seconds, microseconds = divmod(event.timestamp_us, US_PER_S)
        fields: dict[str, object] = {
            shape.entity: event.game,
            shape.key: event.gamer,
            shape.time: {"seconds": seconds, "nanos": microseconds * 1_000},
        }
        fields.update(zip(self._names, event.values, strict=True))
        for name, value in zip(custom_columns(event.version), event.custom, strict=True):
            if value is not None:
                fields[name] = value
        return cast(Callable[..., Message], self._classes[event.version])(**fields)

    def _malformed(self, kind: PoisonKind, event: GameEvent, frame: bytes) -> bytes:
        """Undecodable bytes, derived from an event's valid ones."""
        match kind:
            case PoisonKind.UNFRAMED_JSON:
                return json.dumps({self.shape.entity: event.game, self.shape.key: event.gamer}).encode()
            case PoisonKind.WRONG_MAGIC:
                return WRONG_MAGIC + frame[1:]
            case PoisonKind.TRUNCATED:
                return self._truncated(event.version, frame)
            case PoisonKind.UNKNOWN_SCHEMA:
                return frame[:1] + struct.pack(">I", UNKNOWN_SCHEMA_ID) + frame[5:]
            case PoisonKind.EMPTY:
                return b""

    def _truncated(self, version: int, frame: bytes) -> bytes:
        """A frame with a payload that ends within a field."""
        cut = frame[:-CUT_BYTES]
        head = len(_framer(1, self.shape.versions.index)(b"", None, None))
        if len(frame) >= head + CUT_BYTES:
            try:
                self._classes[version].FromString(cut[head:])
            except DecodeError:
                return cut
        # The message is valid without its last bytes: append the start of a string of 127 bytes.
        return frame + UNFINISHED


def encode_pool(pool: list[SimulatedRecord], encoder: EventEncoder) -> list[BatchMessage]:
    """The pool as framed messages, key = gamer."""
    return [{"key": record.event.gamer.encode(), "value": encoder.record(record)} for record in pool]


def _framer(schema_id: int, index: list[int]) -> Callable[[bytes, Any, Any], bytes]:
    """The ``schema.id.serializer`` of one version."""
    frame = SchemaId("PROTOBUF", schema_id, message_indexes=index)
    return lambda payload, ctx, _: prefix_schema_id_serializer(payload, ctx, frame)
