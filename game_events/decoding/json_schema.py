"""JSON Schemas of a registry: text, references, resolution of ``$ref``; their column types; and what decoding needs of them.

Sources: JSON Schema drafts 4, 6, 7, 2019-09, 2020-12 (``$id``, ``$ref``, ``$anchor``); RFC 6901 (JSON pointers); in a registry
a ``$ref`` names a reference. Only keywords that determine types are read (type, properties, items, format, enum, const,
``$ref``, allOf, oneOf, anyOf); other validation (required, pattern, minimum) is left to quality rules. Values without a single
type are kept as JSON text. A compiled schema is only that type: what is not read is kept by no process.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeGuard, TypeVar
from urllib.parse import unquote, urljoin

import pyarrow as pa

from game_events.decoding.columns import Field
from game_events.decoding.frame import MAX_TEXTS, RegistrySchema
from game_events.decoding.projection import SingleTypeSchema
from game_events.errors import DataError

#: Message name of a schema that has none.
UNNAMED = "json"
#: Keyword of nested schemas -> the type of its value.
INNER: dict[str, type] = {"allOf": list, "oneOf": list, "anyOf": list, "items": dict, "additionalProperties": dict}
#: Digits of a list index in a JSON pointer at most.
_INDEX_DIGITS = 10
T = TypeVar("T", list[Any], dict[str, Any])
StoredType = str | list["StoredType"] | dict[str, "StoredType"]


@dataclass(frozen=True)
class SchemaNode:
    """A schema: a dictionary, or true or false; its document, the target of ``#``; the document's address."""

    node: Any
    document: Any
    base: str

    @classmethod
    def of_document(cls, document: object, name: str = "") -> SchemaNode:
        """A whole document; `name`: its address if it has no ``$id`` (draft 4: ``id``)."""
        address = document.get("$id", document.get("id")) if isinstance(document, dict) else None
        return cls(document, document, address if _is_address(address) and address else name)

    def inner(self, node: object) -> SchemaNode:
        """A nested schema: one with an ``$id`` is a document."""
        address = node.get("$id") if isinstance(node, dict) else None
        if _is_address(address):
            return SchemaNode(node, node, joined(self.base, address))
        return SchemaNode(node, self.document, self.base)

    def nested(self) -> Iterator[SchemaNode]:
        """A schema and everything in it."""
        stack = [self]
        while stack:
            here = stack.pop()
            yield here
            children = here.node.values() if isinstance(here.node, dict) else here.node if isinstance(here.node, list) else ()
            stack += map(here.inner, children)


@dataclass(frozen=True)
class JsonSchema(SingleTypeSchema):
    """What decoding needs of one schema id: `text` is the type of its documents."""

    @property
    def type(self) -> JsonType:
        """The type of its documents."""
        return JsonType.from_json(json.loads(self.text))


class SchemaText:
    """A registered text, parsed, with its references."""

    def __init__(self, schema: RegistrySchema) -> None:
        """DataError for a text that is no JSON Schema."""
        self.schema_id = schema.schema_id
        self._references = schema.references
        self.root = SchemaNode.of_document(self._load(schema.text, "its text"))
        #: Anchors by the identity of their document.
        self._anchors: dict[int, dict[str, Any]] = {}

    @cached_property
    def documents(self) -> dict[str, SchemaNode]:
        """Schemas by address: the schema, its references by name and ``$id``, and nested schemas with an ``$id``."""
        documents: dict[str, SchemaNode] = {}

        def collect(place: SchemaNode) -> None:
            for here in place.nested():
                if here.base and here.node is here.document:
                    documents.setdefault(here.base.partition("#")[0], here)

        collect(self.root)
        for name, text in self._references:
            place = SchemaNode.of_document(self._load(text, f"reference {name!r}"), name)
            documents[name] = documents[place.base.partition("#")[0]] = place
            collect(place)
        return documents

    @property
    def title(self) -> str | None:
        """Its title; None: it has none."""
        return _as_name(self.root.node.get("title") if isinstance(self.root.node, dict) else None)

    @property
    def message(self) -> str:
        """Its name, as identities of fields have it: title, else ``$id``, else ``json``."""
        return self.title or _as_name(self.root.base) or UNNAMED

    def follow(self, reference: str, place: SchemaNode) -> SchemaNode:
        """The target of a ``$ref``; DataError if it does not exist."""
        target: SchemaNode | None = SchemaNode(place.document, place.document, place.base)
        address, _, fragment = reference.partition("#")
        if address:
            target = self.documents.get(address) or self.documents.get(joined(place.base, address))
        if target is not None and fragment:
            target = self._inside(target, unquote(fragment))
        if target is None:
            raise DataError(f"schema id {self.schema_id} does not compile: $ref {reference!r} leads nowhere")
        return target

    def parts(self, places: Iterable[SchemaNode], keywords: Iterable[str] = ("allOf",)) -> Iterator[SchemaNode]:
        """These schemas, targets of ``$ref``, and those of the keywords: breadth first, each once; raises as `follow`."""
        waiting = deque(places)
        seen: set[int] = set()
        while waiting:
            place = waiting.popleft()
            if id(place.node) in seen:
                continue
            seen.add(id(place.node))
            yield place
            if not isinstance(place.node, dict):
                continue
            if isinstance(reference := place.node.get("$ref"), str):
                waiting.append(self.follow(reference, place))
            for keyword in keywords:
                inner = place.node.get(keyword)
                if isinstance(inner, INNER[keyword]):
                    waiting += map(place.inner, inner if isinstance(inner, list) else [inner])

    def _inside(self, place: SchemaNode, fragment: str) -> SchemaNode | None:
        """The target of a JSON pointer or an anchor in a document."""
        if fragment.startswith("/"):
            node = pointed(place.document, fragment)
        else:
            known = self._anchors.get(id(place.document))
            if known is None:
                known = self._anchors[id(place.document)] = anchors(place.document)
            node = known.get(fragment)
        return None if node is None else SchemaNode(node, place.document, place.base)

    def _load(self, text: str, where: str) -> dict[str, Any] | bool:
        try:
            document = json.loads(text)
            # Refuses lone surrogates, which no column name can hold.
            json.dumps(document, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise DataError(f"schema id {self.schema_id} does not compile: {where} is no JSON: {error}") from None
        if not isinstance(document, dict | bool):
            raise DataError(f"schema id {self.schema_id} does not compile: {where} is no object")
        return document


def _is_address(identity: object) -> TypeGuard[str]:
    return isinstance(identity, str) and not identity.startswith("#")


def joined(base: str, address: str) -> str:
    """A possibly relative address; an invalid one is unchanged."""
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def typed(node: dict[str, Any], keyword: str, kind: type[T]) -> T:
    """A keyword's value of the expected type; of another one, an empty value."""
    value = node.get(keyword)
    return value if isinstance(value, kind) else kind()


def pointed(document: object, pointer: str) -> object:
    """The target of a JSON pointer, or None."""
    node = document
    for step in pointer[1:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and len(key) < _INDEX_DIGITS and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def anchors(document: object) -> dict[str, Any]:
    """Anchor -> the first node that has it."""
    first: dict[str, Any] = {}
    for here in SchemaNode(document, document, "").nested():
        node = here.node
        if isinstance(node, dict):
            names = [node.get("$anchor"), node.get("$dynamicAnchor")]
            names += [i[1:] for i in (node.get("$id"), node.get("id")) if isinstance(i, str) and i.startswith("#")]
            for name in names:
                if isinstance(name, str):
                    first.setdefault(name, node)
    return first


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

    def to_json(self) -> StoredType:
        """As JSON: a struct's types by name, a list or map as a pair."""
        if self.kind == "struct":
            return {name: inner.to_json() for name, inner in self.fields}
        return self.kind if self.item is None else [self.kind, self.item.to_json()]

    @classmethod
    def from_json(cls, stored: Any) -> JsonType:  # noqa: ANN401 - a StoredType
        """The type that `to_json` gave."""
        match stored:
            case dict():
                return cls("struct", tuple((name, cls.from_json(inner)) for name, inner in stored.items()))
            case [kind, item]:
                return cls(kind, item=cls.from_json(item))
        return cls(stored)


TEXT = JsonType("text")


def _identity(name: str, inner: JsonType) -> str:
    """Identity of a field: JSON text and strings never share a column (``a`` and ``"a"`` would be equal)."""
    if inner.is_text:
        return f"{name}:json"
    return f"{name}:plain" if name.endswith((":json", ":plain")) else name


def _as_name(text: object) -> str | None:
    return text.strip("# ").replace("#", "_") or None if isinstance(text, str) else None


def json_type(schema: SchemaText) -> JsonType:
    """The type of a schema's documents; DataError for a broken ``$ref`` or more columns than `MAX_COLUMNS`."""
    return _Types(schema).of([schema.root], ())


class _Types:
    def __init__(self, schema: SchemaText) -> None:
        self._schema = schema
        self._count = 0

    def of(self, places: Iterable[SchemaNode], above: Above) -> JsonType:
        """The type of a value described by all of these schemas, inside the values `above`."""
        self._count += 1
        if self._count > MAX_COLUMNS:
            raise DataError(f"schema id {self._schema.schema_id} has more than {MAX_COLUMNS} columns")
        parts = self._expand(places)
        if parts is None or len(above) >= MAX_DEPTH:
            return TEXT
        key = _identities(parts)
        if key and key in above:
            return TEXT
        choices = self._choices(parts)
        types = allowed_types(parts)
        if types is None:
            return self._one_of(choices, (*above, key))
        return self._of_types(types, parts, choices, (*above, key))

    def _of_types(self, types: Types, parts: Parts, choices: list[Parts], above: Above) -> JsonType:
        """The type of a value that has one of these types of JSON."""
        made = TEXT
        match sorted(types):
            case ["object"]:
                made = self._object(parts, choices, above)
            case ["array"]:
                made = self._array(parts, above)
            case ["string"]:
                made = JsonType(string_kind(parts))
            case ["boolean" | "integer" as kind]:
                made = JsonType(kind)
            case ["integer", "number"]:
                made = JsonType("number")
        return made

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

    def _one_of(self, choices: list[Parts], above: Above) -> JsonType:
        """The common type of all alternatives; objects become one struct with the members of all."""
        types = [self.of(option, above) for option in choices] or [TEXT]
        if len(set(types)) == 1:
            return types[0]
        return JsonType("struct", tuple(_merged(types).items())) if {t.kind for t in types} == {"struct"} else TEXT

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

    def _array(self, parts: Parts, above: Above) -> JsonType:
        items = [p.inner(p.node["items"]) for p in parts if "items" in p.node]
        if has_keyword(parts, "prefixItems") or {type(p.node) for p in items} != {dict}:
            return TEXT
        return JsonType("list", item=self.of(items, above))


def _identities(parts: Parts) -> tuple[int, ...]:
    """By which recursion is detected; schemas that only refer to others do not count."""
    return tuple(sorted(id(p.node) for p in parts if allowed_types([p]) is not None or has_keyword([p], *_CHOICES)))


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
        case _:
            return _types_of_keywords(node)
    return types | {"integer"} if "number" in types else types


def _types_of_keywords(node: dict[str, Any]) -> Types | None:
    """Without a type: what its keywords are of."""
    if "properties" in node:
        return frozenset({"object"})
    if "items" in node or "prefixItems" in node:
        return frozenset({"array"})
    return None


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


def compile_json(schema: RegistrySchema) -> JsonSchema:
    """Compile a registry's JSON Schema to what decoding needs; DataError for an invalid one, or a missing reference."""
    registered = SchemaText(schema)
    text = json.dumps(json_type(registered).to_json(), ensure_ascii=False, separators=(",", ":"))
    if len(text) > MAX_TEXTS:
        raise DataError(f"schema id {schema.schema_id} has columns whose names have more than {MAX_TEXTS:,} characters")
    return JsonSchema(schema.schema_id, text, registered.message)
