"""Payload formats by the registry's ``schemaType`` of each schema id; one topic may hold all of them."""

import base64
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from game_events.decoding.avro.decoder import AvroDecoder
from game_events.decoding.avro.schema import AvroSchema
from game_events.decoding.core.protocols import CompiledSchema, PayloadDecoder
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.value_rules import ColumnRules
from game_events.decoding.core.wire_format import IndexPath
from game_events.decoding.json.decoder import JsonDecoder
from game_events.decoding.json.schema import UNNAMED, JsonSchema
from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events.decoding.protobuf.schema import ProtobufSchema, from_base64
from game_events.decoding.protobuf.source_text import top_messages
from game_events.decoding.stored_columns import ColumnsDecoder, ColumnsSchema
from game_events.errors import DataError

#: Depth of Python calls that a schema may need; the compiler's child allows no more.
CALLS = 1_500


def allow_deep_calls() -> None:
    """Raise this process's recursion limit to that of the compiler's child; never lowers it."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2 * CALLS))


#: Class of a compiled schema -> its decoder.
_DECODERS: Mapping[type, Callable[[Any, IndexPath, ColumnRules | None], PayloadDecoder]] = {
    ProtobufSchema: ProtobufDecoder,
    AvroSchema: lambda schema, _, rules: AvroDecoder(schema, rules),
    JsonSchema: lambda schema, _, rules: JsonDecoder(schema, rules),
    ColumnsSchema: lambda schema, *_: ColumnsDecoder(schema),
}
_SCHEMAS: Mapping[str, Any] = {kind.__name__: kind for kind in _DECODERS}


def make_decoder(schema: CompiledSchema, path: IndexPath, rules: ColumnRules | None = None) -> PayloadDecoder:
    """The decoder of one message type; DataError if there is no such type, or it cannot be decoded.

    `rules`: of single bad values; None: the default, by which the record is bad.
    """
    return _DECODERS[type(schema)](schema, path, rules)


def as_json(schema: CompiledSchema) -> dict[str, Any]:
    """A compiled schema as JSON for `from_json`."""
    values = {f.name: getattr(schema, f.name) for f in fields(schema)}
    if "files" in values:
        values["files"] = base64.b64encode(values["files"]).decode()
    return {"kind": type(schema).__name__} | values


def from_json(found: Mapping[str, Any]) -> CompiledSchema:
    """The compiled schema from `as_json`."""
    kind = _SCHEMAS[found["kind"]]
    values = {f.name: found[f.name] for f in fields(kind)}
    if "files" in values:
        values["files"] = base64.b64decode(values["files"])
    else:
        values["references"] = tuple((name, text) for name, text in values["references"])
    compiled: CompiledSchema = kind(**values)
    return compiled


def declared_names(schema: RegistrySchema) -> Mapping[IndexPath, str]:
    """Index path -> full name of the top-level message types in the text of a schema that may not compile; empty: unknown."""
    match schema.format:
        case "PROTOBUF":
            return _of_protobuf(schema.text)
        case "AVRO":
            name = _of_avro(schema.text)
        case "JSON":
            name = _of_json(schema)
        case _:
            name = None
    return {} if name is None else {(): name}


def _of_protobuf(text: str) -> dict[IndexPath, str]:
    described = from_base64(text)
    if described is not None and described.message_type:
        package, names = described.package, [item.name for item in described.message_type]
    else:
        package, names = top_messages(text)
    return {(index,): f"{package}.{name}" if package else name for index, name in enumerate(names)}


def _of_avro(text: str) -> str | None:
    try:
        node: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    while isinstance(node, dict) and isinstance(node.get("type"), dict):
        node = node["type"]
    name = node.get("name") if isinstance(node, dict) else None
    if not isinstance(name, str) or not name:
        return None
    namespace = node.get("namespace")
    return f"{namespace}.{name}" if "." not in name and isinstance(namespace, str) and namespace else name


def _of_json(schema: RegistrySchema) -> str | None:
    try:
        name = JsonSchema(schema.schema_id, schema.text).message
    except DataError:
        return None
    return None if name == UNNAMED else name
