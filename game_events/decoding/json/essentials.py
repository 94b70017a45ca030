"""What decoding needs of a JSON Schema: the rest (examples, comments, definitions that nothing uses) is kept by no process.

Source: the keywords that `types` reads.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.json.schema import INNER, JsonSchema, SchemaNode, typed
from game_events.decoding.json.types import json_type
from game_events.errors import DataError

#: Bytes of texts, below which nothing is worth the work.
SMALL = 2**14
#: Keywords of which the text matters.
_TEXTS = frozenset({"$ref", "$id", "id", "$anchor", "$dynamicAnchor", "title", "format"})
#: Keywords that matter even if they are empty.
_PRESENT = frozenset({*INNER, "properties", "prefixItems", "patternProperties"})
#: Of a part that nothing uses.
_UNUSED = object()


def compile_json(schema: RegistrySchema) -> JsonSchema:
    """Compile a registry's JSON Schema, to what decoding needs; DataError for an invalid one, or a missing reference."""
    compiled = JsonSchema(schema.schema_id, schema.text, schema.references)
    json_type(compiled)
    return essential_json(compiled)


def essential_json(schema: JsonSchema) -> JsonSchema:
    """A large schema without what decoding does not need; itself if that would change what is decoded."""
    if schema.size < SMALL:
        return schema
    used = _used(schema)
    references = tuple((name, _text(schema.documents[name].node, used)) for name, _ in schema.references)
    made = JsonSchema(schema.schema_id, _text(schema.root.node, used), references)
    with suppress(DataError):
        if made.size < schema.size and made.message == schema.message and json_type(made) == json_type(schema):
            return made
    return schema


def _text(document: object, used: set[int]) -> str:
    return json.dumps(_part(document, used), ensure_ascii=False)


def _used(schema: JsonSchema) -> set[int]:
    """Identities of the schemas that values may have; the documents outlive them."""
    waiting, seen = [schema.root], set[int]()
    while waiting:
        place = waiting.pop()
        if not isinstance(place.node, dict) or id(place.node) in seen:
            continue
        seen.add(id(place.node))
        waiting += _inner(place)
        if isinstance(reference := place.node.get("$ref"), str):
            with suppress(DataError):  # of a part that is too deep to be read
                waiting.append(schema.follow(reference, place))
    return seen


def _inner(place: SchemaNode) -> Iterator[SchemaNode]:
    for keyword, kind in INNER.items():
        found = place.node.get(keyword)
        if isinstance(found, kind):
            yield from map(place.inner, found if isinstance(found, list) else [found])
    yield from map(place.inner, typed(place.node, "properties", dict).values())


def _reduced(node: object, used: set[int]) -> Any:  # noqa: ANN401 - any JSON
    """A part of a document: used schemas with the keywords that count, and the way to them."""
    if isinstance(node, list):
        parts = [_reduced(item, used) for item in node]
        while parts and parts[-1] is _UNUSED:
            parts.pop()
        # Pointers count the items.
        return [None if part is _UNUSED else part for part in parts] or _UNUSED
    if not isinstance(node, dict):
        return _UNUSED
    is_used = id(node) in used
    found = {}
    for keyword, value in node.items():
        part = _of_keyword(keyword, value, used) if is_used else _reduced(value, used)
        if part is not _UNUSED:
            found[keyword] = part
    if found or is_used:
        # They change the addresses of the schemas inside.
        found |= {name: node[name] for name in ("$id", "id", "$anchor") if isinstance(node.get(name), str)}
    return found if found or is_used else _UNUSED


def _of_keyword(keyword: str, value: object, used: set[int]) -> Any:  # noqa: ANN401 - any JSON
    """What counts of a keyword's value."""
    found: object
    match keyword, value:
        case _, str() if keyword in _TEXTS or keyword == "type":
            found = value
        case "type", list():
            found = [item for item in value if isinstance(item, str)]
        case "const", _:
            found = type(value)()
        case "enum", list():
            found = [kind() for kind in dict.fromkeys(map(type, value))]
        case "properties", dict():
            found = {name: _part(item, used) for name, item in value.items()}
        case "allOf" | "oneOf" | "anyOf", list():
            found = [_part(item, used) for item in value]
        case _:
            found = _reduced(value, used)
            if found is _UNUSED and keyword in _PRESENT:
                found = type(value)() if isinstance(value, dict | list) else value
    return found


def _part(item: object, used: set[int]) -> Any:  # noqa: ANN401 - any JSON
    """What counts of a schema: of one that nothing uses an empty one, true and false as they are."""
    part = _reduced(item, used)
    return item if not isinstance(item, dict | list) else ({} if part is _UNUSED else part)
