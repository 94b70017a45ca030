"""Avro schemas of a registry: JSON text and references -> a tree of types with resolved names and logical types.

Source: Apache Avro 1.12 specification, "Schema Declaration" and "Logical Types": an unknown or impossible logical type (a scale
above the precision) is ignored. Aliases and defaults are for readers' schemas and change nothing here but a field's identity.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from game_events.decoding.frame import RegistrySchema
from game_events.decoding.projection import SingleTypeSchema
from game_events.errors import DataError

#: Digits of a decimal: work grows with their square, and as a text one byte may be all of them (see `MAX_SHORT_TEXT`).
MAX_PRECISION = 150
Node = Mapping[str, Any]


@dataclass(frozen=True)
class Logical:
    """A logical type: its name, of decimals precision and scale."""

    name: str
    precision: int = 0
    scale: int = 0


class AvroField(NamedTuple):
    """A field of a record; `identity`: its name, or the name that an alias preserves."""

    name: str
    identity: str
    type: AvroType
    doc: str


@dataclass(eq=False)
class AvroType:
    """One type of a schema; recursive types make the tree a graph.

    Attributes:
        kind: ``record``, ``enum``, ``array``, ``map``, ``fixed``, ``union``, or a primitive's name.
        name: full name of a named type; else the kind.
        logical: its logical type, if known and valid.
        fields: of a record.
        items: of a union its branches; of an array or map the one type of its items.
        symbols: of an enum.
        size: of a fixed, in bytes.
        doc: comment of a named type, or "".
    """

    kind: str
    name: str
    logical: Logical | None = None
    fields: list[AvroField] = field(default_factory=list)
    items: list[AvroType] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    size: int = 0
    doc: str = ""

    def records(self) -> Iterator[AvroType]:
        """The records in a type: itself, branches, items, values."""
        if self.kind == "record":
            yield self
        for inner in self.items:
            yield from inner.records()

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]


#: Logical type -> the types it may annotate; a fixed with its size.
_FITS = {
    "date": {"int"}, "time-millis": {"int"}, "time-micros": {"long"}, "uuid": {"string", "fixed16"}, "duration": {"fixed12"},
    **{f"{local}timestamp-{unit}": {"long"} for local in ("", "local-") for unit in ("millis", "micros", "nanos")},
}  # fmt: skip


def logical_type(node: Node) -> Logical | None:
    """The logical type of an annotated type; ValueError for more than `MAX_PRECISION` digits."""
    kind = node["type"]
    match node:
        case {"logicalType": "decimal", "precision": int() as precision} if kind in ("bytes", "fixed"):
            scale = node.get("scale", 0)
            if not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
                return None
            if precision > MAX_PRECISION:
                raise ValueError(f"a decimal of more than {MAX_PRECISION:,} digits")
            return Logical("decimal", precision, scale)
        case {"logicalType": str() as name} if (f"fixed{node['size']}" if kind == "fixed" else kind) in _FITS.get(name, ()):
            return Logical(name)
    return None


PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
#: Key of the items' type.
_ITEMS = {"array": "items", "map": "values"}
#: Attributes of types and fields that change what is decoded, besides the types inside.
_ATTRIBUTES = ("name", "namespace", "size", "logicalType", "precision", "scale")


class _Parser:
    """Builds the types of a schema and its references; raises ValueError with the path of an error."""

    def __init__(self) -> None:
        self._names: dict[str, AvroType] = {}

    def parse(self, node: Any, namespace: str = "", path: str = "") -> AvroType:  # noqa: ANN401 - any JSON
        """The type of a node inside a namespace."""
        match node:
            case str():
                return self._by_name(node, namespace, path)
            case list():
                return self._union(node, namespace, path)
            case {"type": "array" | "map" as kind}:
                if _ITEMS[kind] not in node:
                    raise _error(path, f"a {kind} without {_ITEMS[kind]!r}")
                return AvroType(kind, kind, items=[self.parse(node[_ITEMS[kind]], namespace, f"{path}.{_ITEMS[kind]}")])
            case {"type": "record" | "error" | "enum" | "fixed"}:
                return self._named(node, namespace, path)
            case {"type": str() as kind} if kind in PRIMITIVES:
                return AvroType(kind, kind, logical_type(node))
            case {"type": str() | dict() | list() as inner}:
                return self.parse(inner, namespace, path)
        raise _error(path, f"{json.dumps(node)[:80]} is no type")

    def _by_name(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name, name)
        named = self._names.get(_full_name(name, namespace)) or self._names.get(name)
        if named is None:
            raise _error(path, f"no type is named {name!r}")
        return named

    def _union(self, node: list[Any], namespace: str, path: str) -> AvroType:
        branches = [self.parse(item, namespace, path) for item in node]
        kinds = {branch.name: branch.kind for branch in branches}
        if len(kinds) != len(branches) or "union" in kinds.values() or not branches:
            raise _error(path, "a union needs branches, of which no two are alike and none is a union")
        return AvroType("union", "union", items=branches)

    def _named(self, node: Node, namespace: str, path: str) -> AvroType:
        kind = "record" if node["type"] == "error" else node["type"]
        name = _text(node, "name")
        if not name:
            raise _error(path, f"{kind} without a name")
        full = _full_name(name, _text({"namespace": namespace, **node}, "namespace"))
        if full in self._names or full in PRIMITIVES:
            raise ValueError(f"{full}: the name is defined twice")
        made = self._names[full] = AvroType(kind, full, doc=_text(node, "doc"))
        if kind == "record":
            self._add_fields(made, node)
        elif kind == "enum":
            made.symbols = tuple(_listed(node, "symbols", str, f"{full}: an enum without a list of symbols"))
        else:
            made.size = node.get("size", -1)
            if not isinstance(made.size, int) or made.size < 0:
                raise ValueError(f"{full}: a fixed without a size")
            made.logical = logical_type(node)
        return made

    def _add_fields(self, made: AvroType, node: Node) -> None:
        otherwise = f"{made.name}: a record without a list of named fields"
        fields = _listed(node, "fields", dict, otherwise)
        names = _listed({"names": [item.get("name") for item in fields]}, "names", str, otherwise)
        known = Counter(names)
        if len(known) != len(fields):
            raise ValueError(f"{made.name}: two fields have one name")
        known.update(map(_first_alias, fields))
        inside = made.name.rpartition(".")[0]
        for item, name in zip(fields, names, strict=True):
            # A renamed field stays the column it was, unless the alias is a field of its own or two fields claim it.
            alias = _first_alias(item)
            identity = alias if known[alias] == 1 else name
            inner = self.parse(item.get("type"), inside, f"{made.name}.{name}")
            made.fields.append(AvroField(name, identity, inner, _text(item, "doc")))


@dataclass(frozen=True)
class AvroSchema(SingleTypeSchema):
    """What decoding needs of one schema id: `text` is a list of the schemas that it refers to, and its own at the end.

    `message`: full name of the schema's type; its kind (``union``) if it has none.
    """

    @cached_property
    def root(self) -> AvroType:
        """The schema's own type."""
        parser = _Parser()
        return [parser.parse(node) for node in json.loads(self.text)][-1]

    def enums(self) -> dict[str, dict[int | str, str]]:
        """Full names of its enums with their symbols."""
        waiting = [self.root]
        seen: dict[int, AvroType] = {}
        while waiting:
            kind = waiting.pop()
            if id(kind) not in seen:
                seen[id(kind)] = kind
                waiting += [*kind.items, *(f.type for f in kind.fields)]
        return {kind.name: {symbol: symbol for symbol in kind.symbols} for kind in seen.values() if kind.kind == "enum"}


def read_avro(schema: RegistrySchema) -> tuple[AvroType, list[Any]]:
    """The type of a registered text, and the JSON of its references and itself; DataError with the invalid part."""
    parser = _Parser()
    nodes = []
    made: list[AvroType] = []
    for where, text in (*((f"reference {name!r}", text) for name, text in schema.references), ("its text", schema.text)):
        try:
            nodes.append(json.loads(text))
            # Refuses lone surrogates, which no column name and no enum value can hold.
            json.dumps(nodes[-1], ensure_ascii=False).encode()
            made.append(parser.parse(nodes[-1]))
        except (ValueError, RecursionError) as error:
            raise DataError(f"schema id {schema.schema_id} does not compile: {where}: {error}") from None
    return made[-1], nodes


def compile_avro(schema: RegistrySchema) -> AvroSchema:
    """Compile a registry's Avro schema; without comments, defaults and attributes that the specification does not know."""
    root, nodes = read_avro(schema)
    return AvroSchema(schema.schema_id, json.dumps(_reduced(nodes), ensure_ascii=False, separators=(",", ":")), root.name)


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    # One of a wrong type stays one: without it, its default would apply (a scale of 0, the namespace around).
    return {key: node[key] if isinstance(node[key], str | int) else None for key in _ATTRIBUTES if key in node}


def _reduced(node: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(node, list):
        return [_reduced(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    kept = _attributes(node)
    if "type" in node:
        kept["type"] = _reduced(node["type"])
    match node.get("type"):
        case "array" | "map" as kind:
            kept[_ITEMS[kind]] = _reduced(node[_ITEMS[kind]])
        case "enum":
            kept["symbols"] = node["symbols"]
        case "record" | "error":
            kept["fields"] = [_reduced(item) | {"aliases": [_first_alias(item)]} for item in node["fields"]]
    return kept


def _error(path: str, what: str) -> ValueError:
    return ValueError(f"{path or 'schema'}: {what}")


def _listed(node: Node, key: str, kind: type, otherwise: str) -> list[Any]:
    items = node.get(key)
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        raise ValueError(otherwise)
    return items


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _text(node: Node, key: str) -> str:
    text = node.get(key)
    return text if isinstance(text, str) else ""


def _first_alias(node: Node) -> str:
    """A field's first alias, else its name."""
    match node:
        case {"aliases": [str() as first, *_]}:
            return first
    return str(node["name"])
