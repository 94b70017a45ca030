"""What the decoding tests share: compiled schemas, frames from the Confluent serializer, expected columns."""

import functools
import tempfile
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
from confluent_kafka.schema_registry import SchemaRegistryClient, prefix_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf import message_factory
from grpc_tools import protoc

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, DecodePlan, compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.protobuf.decoder import ProtobufDecoder

REGISTRY = SchemaRegistryClient.new_client({"url": "mock://decoding"})


@functools.cache
def compiled(text, schema_id=1, references=()):
    """A schema as the driver compiles it."""
    return compile_schema(RegistrySchema(schema_id, "PROTOBUF", text, references))


def descriptor_set(text):
    """The descriptors of a schema as protoc itself makes them, with JSON names and all imports."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.proto").write_text(text)
        known = files("grpc_tools") / "_proto"
        target = Path(folder, "set")
        options = [f"-I{folder}", f"-I{known}", "--include_imports", f"--descriptor_set_out={target}"]
        assert protoc.main(["protoc", *options, "main.proto"]) == 0
        return target.read_bytes()


def python_class(schema, path=(0,)):
    """Python's own class of a message type: the independent reader and writer."""
    return message_factory.GetMessageClass(schema.message(path))


def frame(schema_id, path, message):
    """A record's value, framed by the Confluent serializer."""
    identity = SchemaId("PROTOBUF", schema_id, message_indexes=list(path))
    serializer = ProtobufSerializer(
        type(message),
        REGISTRY,
        {
            "auto.register.schemas": False,
            "schema.id.serializer": lambda payload, ctx, _: prefix_schema_id_serializer(payload, ctx, identity),
        },
    )
    return serializer(message, None)


def plan_for(*keys_and_schemas, columns=None):
    """A plan that decodes the given (schema, path) pairs."""
    columns = columns or ColumnMap()
    schemas, types = {}, set()
    for schema, path in keys_and_schemas:
        decoder = ProtobufDecoder(schema, path)
        columns = columns.with_message(decoder.message, decoder.fields)
        schemas[schema.schema_id] = schema
        types.add((schema.schema_id, path))
    return DecodePlan(schemas, frozenset(types), {}, columns)


def decode(plan, values):
    """Decoded batch of Python bytes (None: tombstone)."""
    return BatchDecoder(plan).decode(pa.array(values, pa.binary()))


def rows_by_position(batch):
    """Position -> decoded row, for the good rows."""
    return {
        int(position): row for rows, _, table, _ in batch.good for position, row in zip(rows, table.to_pylist(), strict=True)
    }


def reasons_by_position(batch):
    """Position -> reason, for the rejected rows."""
    return {int(position): rejected.reason for rejected in batch.rejected for position in rejected.rows}


def assert_each_row_once(batch, positions):
    """Every row is good or rejected, and none is both."""
    seen = [int(p) for rows, _, _, _ in batch.good for p in rows] + [int(p) for r in batch.rejected for p in r.rows]
    assert sorted(seen) == sorted(positions)
