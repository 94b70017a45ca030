"""JSON Schema -> column types; values without a single type are kept as JSON text.

Only keywords that determine types are read (type, properties, items, format, enum, const, ``$ref``, allOf, oneOf, anyOf); other
validation (required, pattern, minimum) is left to quality rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa

from game_events.decoding.core.column_map import Field
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.json.schema import JsonSchema, SchemaNode, inner_place
from game_events.errors import DataError

#: Depth to which values become columns; deeper ones are JSON text.
MAX_DEPTH = 32
#: Repeated use of definitions can double the columns with every level.
MAX_COLUMNS = 10_000
_SCALARS = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "text": pa.string(),
}
_CHOICES = ("oneOf", "anyOf")
_FORMATS = {"date-time": "timestamp", "date": "date"}
_PYTHON = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array", type(None): "null"}
_TYPES = frozenset(_PYTHON.values())
#: Keyword -> type of a schema without `type`, `const` and `enum`; the first one counts.
_IMPLIED = {"properties": "object", "items": "array", "prefixItems": "array"}

T = TypeVar("T", list[Any], dict[str, Any])


@dataclass(frozen=True)
class JsonType:
    """A type.

    Attributes:
        kind: ``struct``, ``list``, ``map``, ``text`` (JSON text), or one of `_SCALARS`.
        fields: of a struct: name and type.
        item: of a list or map.
    """

    kind: str
    fields: tuple[tuple[str, JsonType], ...] = ()
    item: JsonType | None = None

    @property
    def arrow(self) -> pa.DataType:
        """As a column."""
        if self.kind == "struct":
            return pa.struct([pa.field(name, inner.arrow) for name, inner in self.fields])
        if self.item is None:
            return _SCALARS[self.kind]
        return pa.list_(self.item.arrow) if self.kind == "list" else pa.map_(pa.string(), self.item.arrow)

    @property
    def children(self) -> tuple[Field, ...]:
        """The fields inside it."""
        if self.item is not None:
            return self.item.children
        return tuple(Field(_identity(name, inner), name, inner.arrow, inner.children) for name, inner in self.fields)

    @property
    def is_text(self) -> bool:
        """Whether it is JSON text, or a list or map of it."""
        return self.kind == "text" or (self.item is not None and self.item.is_text)


TEXT = JsonType("text")


def _identity(name: str, inner: JsonType) -> str:
    """Identity of a field: JSON text and strings never share a column (``a`` and ``"a"`` would be equal)."""
    if inner.is_text:
        return f"{name}:json"
    return f"{name}:plain" if name.endswith((":json", ":plain")) else name


def json_type(schema: JsonSchema) -> JsonType:
    """The type of a schema's documents; DataError for a broken ``$ref`` or more columns than `MAX_COLUMNS`."""
    return _Types(schema).of([schema.root], ())


def compile_json(schema: RegistrySchema) -> JsonSchema:
    """Compile a registry's JSON Schema; DataError for an invalid one, or a missing reference."""
    compiled = JsonSchema(schema.schema_id, schema.text, schema.references)
    json_type(compiled)
    return compiled


Key = tuple[int, ...]


class _Types:
    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._count = 0

    def of(self, places: Iterable[SchemaNode], above: tuple[Key, ...]) -> JsonType:
        """The type of a value described by all of these schemas, inside the values `above`."""
        self._count += 1
        if self._count > MAX_COLUMNS:
            raise DataError(f"schema id {self._schema.schema_id} has more than {MAX_COLUMNS} columns")
        parts = self._expand(places)
        if parts is None or len(above) >= MAX_DEPTH:
            return TEXT
        # Detects recursion; schemas that only refer to others do not count.
        key = tuple(sorted(id(p.node) for p in parts if _types_of(p.node) is not None or p.node.keys() & set(_CHOICES)))
        if key and key in above:
            return TEXT
        above = (*above, key)
        choices = self._choices(parts)
        match _allowed(parts):
            case None if choices:
                found = self._one_of(choices, above)
            case ["object"]:
                found = self._object(parts, choices, above)
            case ["array"]:
                found = self._array(parts, above)
            case ["string"]:
                formats = {str(p.node.get("format")) for p in parts} & _FORMATS.keys()
                found = JsonType(_FORMATS[formats.pop()] if len(formats) == 1 else "string")
            case [kind]:
                found = JsonType(kind)
            case _:
                found = TEXT
        return found

    def _expand(self, places: Iterable[SchemaNode]) -> list[SchemaNode] | None:
        """The schemas with those of ``$ref`` and allOf, each once; None: no value is valid."""
        parts: list[SchemaNode] = []
        seen, impossible = set[int](), False
        waiting = deque(places)
        while waiting:
            place = waiting.popleft()
            impossible |= place.node is False
            if id(place.node) in seen or isinstance(place.node, bool):
                continue
            seen.add(id(place.node))
            if not isinstance(place.node, dict):
                raise DataError(f"schema id {self._schema.schema_id} does not compile: {str(place.node)[:80]!r} is no schema")
            parts.append(place)
            if isinstance(reference := place.node.get("$ref"), str):
                waiting.append(self._schema.follow(reference, place))
            waiting += [inner_place(node, place) for node in _get(place.node, "allOf", list)]
        return None if impossible else parts

    def _choices(self, parts: list[SchemaNode]) -> list[list[SchemaNode]]:
        """The alternatives of oneOf and anyOf, except null and impossible ones."""
        inner = [inner_place(node, p) for p in parts for name in _CHOICES for node in _get(p.node, name, list)]
        options = [self._expand([place]) for place in inner]
        return [option for option in options if option is not None and _allowed(option) != []]

    def _one_of(self, choices: list[list[SchemaNode]], above: tuple[Key, ...]) -> JsonType:
        """The common type of all alternatives; objects become one struct with the members of all."""
        found = [self.of(option, above) for option in choices]
        if all(f == found[0] for f in found):
            return found[0]
        return JsonType("struct", tuple(_merged(found).items())) if all(f.kind == "struct" for f in found) else TEXT

    def _object(self, parts: list[SchemaNode], choices: list[list[SchemaNode]], above: tuple[Key, ...]) -> JsonType:
        members: dict[str, list[SchemaNode]] = {}
        for place in parts:
            for name, node in _get(place.node, "properties", dict).items():
                members.setdefault(name, []).append(inner_place(node, place))
        fields = {name: self.of(places, above) for name, places in members.items()}
        # Alternatives may add properties.
        added = _merged([self.of(option, above) for option in choices if any("properties" in p.node for p in option)])
        fields |= added | fields
        if fields:
            return JsonType("struct", tuple(fields.items()))
        extra = [inner_place(p.node["additionalProperties"], p) for p in parts if p.node.get("additionalProperties")]
        values = [p for p in extra if isinstance(p.node, dict)]
        if not values or any("patternProperties" in p.node for p in parts):
            return TEXT
        return JsonType("map", item=self.of(values, above))

    def _array(self, parts: list[SchemaNode], above: tuple[Key, ...]) -> JsonType:
        items = [inner_place(p.node["items"], p) for p in parts if "items" in p.node]
        if any("prefixItems" in p.node for p in parts) or not items or not all(isinstance(p.node, dict) for p in items):
            return TEXT
        return JsonType("list", item=self.of(items, above))


def _merged(structs: list[JsonType]) -> dict[str, JsonType]:
    """The members of all; those of different types become JSON text."""
    fields: dict[str, JsonType] = {}
    for name, inner in (field for struct in structs for field in struct.fields):
        fields[name] = inner if fields.get(name, inner) == inner else TEXT
    return fields


def _allowed(parts: Iterable[SchemaNode]) -> list[str] | None:
    """The types that all of these schemas allow, without null; None: any."""
    known = [types for p in parts if (types := _types_of(p.node)) is not None]
    return sorted(reduce(_both, known) - {"null"}) if known else None


def _types_of(node: dict[str, Any]) -> set[str] | None:
    named = node.get("type")
    if isinstance(named, str | list):
        types = {t for t in ([named] if isinstance(named, str) else named) if isinstance(t, str) and t in _TYPES}
    elif "const" in node or isinstance(node.get("enum"), list):
        values = [node["const"]] if "const" in node else node["enum"]
        types = {_PYTHON[type(value)] for value in values}
    else:
        implied = next((kind for keyword, kind in _IMPLIED.items() if keyword in node), None)
        return None if implied is None else {implied}
    return types - {"integer"} if "number" in types else types


def _both(some: set[str], others: set[str]) -> set[str]:
    """The types that both allow; an integer is a number."""
    both = some & others
    return both | {"integer"} if "integer" in some | others and "number" in some | others else both


def _get(node: dict[str, Any], key: str, kind: type[T]) -> T:
    """A value of the expected type; of another one, an empty value."""
    found = node.get(key)
    return found if isinstance(found, kind) else kind()
