"""Payload formats by the registry's ``schemaType`` of each schema id; one topic may hold all of them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Any

from game_events.decoding.avro.decoder import AvroDecoder
from game_events.decoding.avro.schema import AvroSchema
from game_events.decoding.core.protocols import CompiledSchema, PayloadDecoder
from game_events.decoding.core.wire_format import IndexPath
from game_events.decoding.json.decoder import JsonDecoder
from game_events.decoding.json.schema import JsonSchema
from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.decoding.stored_columns import ColumnsDecoder, ColumnsSchema
from game_events.errors import DataError

#: Depth of Python calls that a schema may need; the compiler's child allows no more.
CALLS = 1_500


def allow_deep_calls() -> None:
    """Raise this process's recursion limit to that of the compiler's child; never lowers it."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2 * CALLS))


def make_decoder(schema: CompiledSchema, path: IndexPath) -> PayloadDecoder:
    """The decoder of one message type; DataError if there is no such type, or it cannot be decoded."""
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


def as_json(schema: CompiledSchema) -> dict[str, Any]:
    """A compiled schema as JSON for `from_json`; DataError for an unknown format."""
    kind = {"kind": type(schema).__name__, "schema_id": schema.schema_id}
    match schema:
        case ProtobufSchema():
            files = base64.b64encode(schema.files).decode()
            return kind | {"main": schema.main, "files": files, "counts_entries": schema.counts_entries}
        case AvroSchema() | JsonSchema():
            return kind | {"text": schema.text, "references": schema.references}
        case ColumnsSchema():
            return kind | {"text": schema.text}
        case other:
            raise DataError(f"no decoder for {type(other).__name__}")


def from_json(found: Mapping[str, Any]) -> CompiledSchema:
    """The compiled schema from `as_json`."""
    schema_id = found["schema_id"]
    match found["kind"]:
        case ProtobufSchema.__name__:
            return ProtobufSchema(schema_id, found["main"], base64.b64decode(found["files"]), found["counts_entries"])
        case ColumnsSchema.__name__:
            return ColumnsSchema(schema_id, found["text"])
        case kind:
            references = tuple((name, text) for name, text in found["references"])
            return (AvroSchema if kind == AvroSchema.__name__ else JsonSchema)(schema_id, found["text"], references)
