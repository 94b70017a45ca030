"""Names of message types in the text of a schema that does not compile, to decide whether its records are selected."""

import json
from collections.abc import Mapping
from typing import Any

from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import IndexPath
from game_events.decoding.json.schema import UNNAMED, JsonSchema
from game_events.decoding.protobuf.schema import from_base64
from game_events.decoding.protobuf.source_text import top_messages
from game_events.errors import DataError


def declared_names(schema: RegistrySchema) -> Mapping[IndexPath, str]:
    """Index path -> full name of a schema's top-level message types; empty: unknown."""
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
