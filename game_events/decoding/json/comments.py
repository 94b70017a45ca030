"""Reads `description` of a JSON Schema's properties; beside a `$ref` the local one takes precedence.

Source: JSON Schema, "A Vocabulary for Basic Meta-Data Annotations".
"""

from __future__ import annotations

from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.json.schema import JsonSchema, SchemaNode, inner_place
from game_events.errors import DataError

#: Schemas visited for one property: references may be circular.
MAX_PLACES = 200
_PARTS = ("allOf", "oneOf", "anyOf")


class JsonComments:
    """The comments of a schema (see `comments.Comments`)."""

    def __init__(self, schema: RegistrySchema) -> None:
        """Raises DataError for an invalid schema."""
        self._schema = JsonSchema(schema.schema_id, schema.text, schema.references)
        _ = self._schema.root

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        """See `comments.Comments.of`."""
        if message != self._schema.message:
            return ""
        places = self._parts([self._schema.root])
        for name in names:
            inner = [inner_place(p.node["properties"][name], p) for p in places if name in _properties(p)]
            places = self._parts(inner)
        return next((str(p.node["description"]) for p in places if isinstance(p.node.get("description"), str)), "")

    def _parts(self, places: list[SchemaNode]) -> list[SchemaNode]:
        """The schemas of a value: itself, references, parts, items of a list or map."""
        found: list[SchemaNode] = []
        waiting = list(places)
        while waiting and len(found) < MAX_PLACES:
            place = waiting.pop(0)
            if not isinstance(place.node, dict):
                continue
            found.append(place)
            reference = place.node.get("$ref")
            try:
                waiting += [self._schema.follow(reference, place)] if isinstance(reference, str) else []
            except DataError:  # reported by decoding
                continue
            for key in _PARTS:
                parts = place.node.get(key)
                waiting += [inner_place(node, place) for node in parts] if isinstance(parts, list) else []
            for key in ("items", "additionalProperties"):
                if isinstance(place.node.get(key), dict):
                    waiting.append(inner_place(place.node[key], place))
        return found


def _properties(place: SchemaNode) -> dict[str, object]:
    found = place.node.get("properties")
    return found if isinstance(found, dict) else {}
