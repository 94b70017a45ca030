"""The payload formats, chosen by the registry's ``schemaType`` for each schema id: one topic may hold them all."""

from __future__ import annotations

from game_events.decoding.avro_decoder import AvroDecoder
from game_events.decoding.avro_schema import AvroSchema, compile_avro
from game_events.decoding.descriptors import ProtobufSchema, compile_protobuf
from game_events.decoding.frames import IndexPath
from game_events.decoding.json_decoder import JsonDecoder
from game_events.decoding.json_schema import JsonSchema
from game_events.decoding.json_types import compile_json
from game_events.decoding.payloads import CompiledSchema, PayloadDecoder
from game_events.decoding.protobuf import ProtobufDecoder
from game_events.decoding.registry_schema import RegistrySchema
from game_events.decoding.stored_columns import FORMAT as COLUMNS
from game_events.decoding.stored_columns import ColumnsDecoder, ColumnsSchema
from game_events.errors import DataError


def compile_schema(schema: RegistrySchema) -> CompiledSchema:
    """Compile a registry's schema once, in the driver.

    Raises:
        DataError: the text does not compile, or its format is not decoded.
    """
    match schema.format:
        case "PROTOBUF":
            return compile_protobuf(schema)
        case "AVRO":
            return compile_avro(schema)
        case "JSON":
            return compile_json(schema)
        case str() if schema.format == COLUMNS:
            return ColumnsSchema(schema.schema_id, schema.text)
        case other:
            raise DataError(f"schema id {schema.schema_id} is {other}, which is not decoded")


def make_decoder(schema: CompiledSchema, path: IndexPath) -> PayloadDecoder:
    """The decoder of one message type; made once in each worker.

    Raises:
        DataError: the schema has no such type, or one that cannot be decoded.
    """
    match schema:
        case ProtobufSchema():
            return ProtobufDecoder(schema, path)
        case AvroSchema():
            return AvroDecoder(schema)
        case JsonSchema():
            return JsonDecoder(schema)
        case ColumnsSchema():
            return ColumnsDecoder(schema)
        case other:
            raise DataError(f"no decoder for {type(other).__name__}")
