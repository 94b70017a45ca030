"""JSON Schema -> column types; values without a single type are kept as JSON text.

Only keywords that determine types are read (type, properties, items, format, enum, const, ``$ref``, allOf, oneOf, anyOf); other
validation (required, pattern, minimum) is left to quality rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from game_events.decoding.core.column_map import Field
from game_events.decoding.json.schema import JsonSchema, SchemaNode, typed
from game_events.errors import DataError

#: Depth to which values become columns; deeper ones are JSON text.
MAX_DEPTH = 32
#: Repeated use of definitions can double the columns with every level.
MAX_COLUMNS = 10_000
#: Names of JSON Schema's types.
Types = frozenset[str]
_PYTHON = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array", type(None): "null"}
_TYPES = frozenset(_PYTHON.values())
#: Format -> kind of column, see `JsonType`.
_FORMATS = {"date-time": "timestamp", "date": "date"}
Parts = list[SchemaNode]
#: Identities of the schemas of each value around one.
Above = tuple[tuple[int, ...], ...]
_CHOICES = ("oneOf", "anyOf")
_SCALARS = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "text": pa.string(),
}


@dataclass(frozen=True)
class JsonType:
    """A type: ``struct`` of `fields` (name and type), ``list`` or ``map`` of `item`, ``text`` (JSON), or one of `_SCALARS`."""

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


class _Types:
    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._count = 0
        self._makers: dict[Types | None, Callable[[Parts, list[Parts], Above], JsonType]] = {
            None: self._one_of,
            frozenset({"object"}): self._object,
            frozenset({"array"}): self._array,
            frozenset({"string"}): lambda parts, *_: JsonType(string_kind(parts)),
            frozenset({"boolean"}): lambda *_: JsonType("boolean"),
            frozenset({"integer"}): lambda *_: JsonType("integer"),
            frozenset({"integer", "number"}): lambda *_: JsonType("number"),
        }

    def of(self, places: Iterable[SchemaNode], above: Above) -> JsonType:
        """The type of a value described by all of these schemas, inside the values `above`."""
        self._count += 1
        if self._count > MAX_COLUMNS:
            raise DataError(f"schema id {self._schema.schema_id} has more than {MAX_COLUMNS} columns")
        parts = self._expand(places)
        if parts is None or len(above) >= MAX_DEPTH:
            return TEXT
        # Detects recursion; schemas that only refer to others do not count.
        key = tuple(sorted(id(p.node) for p in parts if allowed_types([p]) is not None or has_keyword([p], *_CHOICES)))
        if key and key in above:
            return TEXT
        choices, make = self._choices(parts), self._makers.get(allowed_types(parts))
        return TEXT if make is None else make(parts, choices, (*above, key))

    def _expand(self, places: Iterable[SchemaNode]) -> Parts | None:
        """The schemas with those of ``$ref`` and allOf, each once; None: no value is valid."""
        parts = list(self._schema.parts(places))
        for place in parts:
            if not isinstance(place.node, dict | bool):
                raise DataError(f"schema id {self._schema.schema_id} does not compile: {str(place.node)[:80]!r} is no schema")
        return None if any(p.node is False for p in parts) else [p for p in parts if isinstance(p.node, dict)]

    def _choices(self, parts: Parts) -> list[Parts]:
        """The alternatives of oneOf and anyOf, except null and impossible ones."""
        inner = [p.inner(node) for p in parts for name in _CHOICES for node in typed(p.node, name, list)]
        options = [self._expand([place]) for place in inner]
        return [option for option in options if option is not None and allowed_types(option) != frozenset()]

    def _one_of(self, _parts: Parts, choices: list[Parts], above: Above) -> JsonType:
        """The common type of all alternatives; objects become one struct with the members of all."""
        found = [self.of(option, above) for option in choices] or [TEXT]
        if len(set(found)) == 1:
            return found[0]
        return JsonType("struct", tuple(_merged(found).items())) if {f.kind for f in found} == {"struct"} else TEXT

    def _object(self, parts: Parts, choices: list[Parts], above: Above) -> JsonType:
        fields = {name: self.of(places, above) for name, places in properties(parts).items()}
        # Alternatives may add properties.
        added = _merged([self.of(option, above) for option in choices if has_keyword(option, "properties")])
        fields |= added | fields
        if fields:
            return JsonType("struct", tuple(fields.items()))
        members = [p.inner(node) for p in parts if (node := typed(p.node, "additionalProperties", dict))]
        if not members or has_keyword(parts, "patternProperties"):
            return TEXT
        return JsonType("map", item=self.of(members, above))

    def _array(self, parts: Parts, _choices: list[Parts], above: Above) -> JsonType:
        items = [p.inner(p.node["items"]) for p in parts if "items" in p.node]
        if has_keyword(parts, "prefixItems") or {type(p.node) for p in items} != {dict}:
            return TEXT
        return JsonType("list", item=self.of(items, above))


def _merged(structs: list[JsonType]) -> dict[str, JsonType]:
    """The members of all; those of different types become JSON text."""
    fields: dict[str, JsonType] = {}
    for name, inner in chain.from_iterable(struct.fields for struct in structs):
        fields[name] = inner if fields.get(name, inner) == inner else TEXT
    return fields


def allowed_types(parts: Iterable[SchemaNode]) -> Types | None:
    """The types that all of these schemas allow, without null; None: any. Of ``number`` also ``integer``."""
    known = [types for part in parts if (types := _types_of(part.node)) is not None]
    return frozenset.intersection(*known) - {"null"} if known else None


def _types_of(node: dict[str, Any]) -> Types | None:
    match node:
        case {"type": str() as name}:
            types = _TYPES & {name}
        case {"type": list() as names}:
            types = frozenset(name for name in _TYPES if name in names)
        case {"const": value}:
            types = frozenset({_PYTHON[type(value)]})
        case {"enum": list() as values}:
            types = frozenset(_PYTHON[type(value)] for value in values)
        case {"properties": _}:
            types = frozenset({"object"})
        case {"items": _} | {"prefixItems": _}:
            types = frozenset({"array"})
        case _:
            return None
    return types | {"integer"} if "number" in types else types


def has_keyword(parts: Iterable[SchemaNode], *keywords: str) -> bool:
    """Whether one of these schemas has one of the keywords."""
    return any(not part.node.keys().isdisjoint(keywords) for part in parts)


def properties(parts: Iterable[SchemaNode]) -> dict[str, list[SchemaNode]]:
    """The schemas of each member of an object."""
    members: dict[str, list[SchemaNode]] = {}
    for part in parts:
        for name, node in typed(part.node, "properties", dict).items():
            members.setdefault(name, []).append(part.inner(node))
    return members


def string_kind(parts: Iterable[SchemaNode]) -> str:
    """The kind of a string's column, by its one known format."""
    formats = {str(part.node.get("format")) for part in parts} & _FORMATS.keys()
    return _FORMATS[formats.pop()] if len(formats) == 1 else "string"
