"""Framed messages and the decoder for them, as the workers have it, without registry and Kafka."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, DecodePlan, compile_schema, make_decoder
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.plugins.local.producer.messages import FILE_NAME

FIRST_ID = 100
MICROSECONDS = 1_000_000
BASE_S = 1_700_000_000

NESTED = """
syntax = "proto3";
package game_events.bench;
import "google/protobuf/timestamp.proto";
message Purchase {
  message Money { string currency = 1; int64 units = 2; int32 nanos = 3; }
  message Item { string sku = 1; uint32 quantity = 2; Money price = 3; repeated string tags = 4; }
  message Device { string model = 1; string system = 2; bool rooted = 3; double scale = 4; }
  string order_id = 1;
  string gamer_id = 2;
  google.protobuf.Timestamp event_timestamp = 3;
  Device device = 4;
  repeated Item items = 5;
  map<string, string> attributes = 6;
  repeated int64 scores = 7;
}
"""
NESTED_NAME = "game_events.bench.Purchase"


def version_text(version: int) -> str:
    """A version as `ProtoVersions.text` makes it, but any number of them, 0 (no custom columns) included."""
    head, brace, tail = (files("game_events.plugins.local.producer") / FILE_NAME).read_text("utf-8").rpartition("}")
    # The game event ends with field 4.
    added = "".join(f"  optional string col_custom_{i} = {5 + i};\n" for i in range(version))
    return f"{head}{added}{brace}{tail}"


def compiled(texts: Iterable[str]) -> list[ProtobufSchema]:
    """A schema id for each text."""
    schemas = (compile_schema(RegistrySchema(FIRST_ID + i, "PROTOBUF", text)) for i, text in enumerate(texts))
    return [schema for schema in schemas if isinstance(schema, ProtobufSchema)]


def decoder_for(schemas: Iterable[ProtobufSchema]) -> BatchDecoder:
    """With a plan as the driver would make it for the first message type of each."""
    columns, known = ColumnMap(), {schema.schema_id: schema for schema in schemas}
    for schema in known.values():
        decoder = make_decoder(schema, (0,))
        columns = columns.with_message(decoder.message, decoder.fields)
    return BatchDecoder(DecodePlan(known, frozenset((i, (0,)) for i in known), {}, columns))


def python_class(schema: ProtobufSchema) -> type[Message]:
    """Python's own class of the first message type."""
    descriptor = schema.message((0,))
    assert descriptor is not None, "the schema has no message type"
    return GetMessageClass(descriptor)


def framed(schema: ProtobufSchema, payload: bytes) -> bytes:
    """A record's value: magic byte, schema id, message index [0], payload."""
    return struct.pack(">bIb", 0, schema.schema_id, 0) + payload


def values(schemas: list[ProtobufSchema], fields: Callable[[random.Random, int], Mapping[str, Any]], count: int) -> list[bytes]:
    """Framed messages; the schemas take turns.

    Args:
        schemas: what to write with.
        fields: called with the number of a message: all its fields; those that a schema lacks are left out.
        count: of messages.
    """
    draw = random.Random(0)  # noqa: S311 - simulation, no secrets
    kinds = [(schema, kind := python_class(schema), kind.DESCRIPTOR.fields_by_name) for schema in schemas]
    made = []
    for number in range(count):
        schema, kind, known = kinds[number % len(kinds)]
        content = {name: value for name, value in fields(draw, number).items() if name in known}
        made.append(framed(schema, kind(**content).SerializeToString()))
    return made


def event(draw: random.Random, number: int, custom: int) -> dict[str, Any]:
    """A game event, all fields set."""
    game = f"game_{number % 10 + 1:04d}"
    return {
        "game_name": game,
        "gamer_id": f"{game}-{draw.randrange(100):04d}",
        "event_timestamp": {"seconds": BASE_S + number, "nanos": draw.randrange(MICROSECONDS) * 1_000},
        "device_id": f"device_{draw.randrange(10)}",
        **{f"col_custom_{i}": f"c{i}-{draw.getrandbits(48):012x}" for i in range(custom)},
    }


def purchase(draw: random.Random, number: int) -> dict[str, Any]:
    """A message of `NESTED`, about 500 bytes."""
    return {
        "order_id": f"{draw.getrandbits(128):032x}",
        "gamer_id": f"game_{number % 10 + 1:04d}-{draw.randrange(100):04d}",
        "event_timestamp": {"seconds": BASE_S + number, "nanos": draw.randrange(MICROSECONDS) * 1_000},
        "device": {"model": f"model {draw.randrange(100)}", "system": "Android 14", "rooted": True, "scale": draw.random()},
        "items": [
            {
                "sku": f"sku-{draw.getrandbits(32):08x}",
                "quantity": draw.randrange(1, 10),
                "price": {"currency": "EUR", "units": draw.randrange(1, 200), "nanos": draw.randrange(1, 100) * 10_000_000},
                "tags": [f"tag-{draw.randrange(1000):03d}" for _ in range(3)],
            }
            for _ in range(4)
        ],
        "attributes": {f"attribute_{i}": f"value-{draw.getrandbits(32):08x}" for i in range(4)},
        "scores": [draw.randrange(1_000_000) for _ in range(8)],
    }


def arrow(made: list[bytes]) -> pa.BinaryArray:
    """As a batch of Spark's has it."""
    return pa.array(made, pa.binary())
