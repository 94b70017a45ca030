"""Avro schemas of a registry: JSON text and references -> a tree of types with resolved names.

Source: Apache Avro 1.12 specification, "Schema Declaration" and "Logical Types". By it, a logical type that is unknown or
impossible (a scale above the precision) is ignored; aliases and defaults are for readers' schemas and change nothing here but
a field's identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from game_events.decoding.core.protocols import SingleTypeSchema
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import IndexPath, SchemaId
from game_events.errors import DataError

#: Digits of a decimal: work grows with their square.
MAX_PRECISION = 1_000
#: Key of the items' type.
_ITEMS = {"array": "items", "map": "values"}
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


@dataclass(frozen=True)
class Logical:
    """A logical type: its name, of decimals precision and scale."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(eq=False)
class AvroType:
    """One type of a schema; recursive types make the tree a graph.

    Attributes:
        kind: ``record``, ``enum``, ``array``, ``map``, ``fixed``, ``union``, or a primitive's name.
        name: full name of a named type; else the kind.
        logical: its logical type, if known and valid.
        fields: of a record: (name, identity, type).
        items: of a union its branches; of an array or map the one type of its items.
        symbols: of an enum.
        size: of a fixed, in bytes.
    """

    kind: str
    name: str
    logical: Logical | None = None
    fields: list[tuple[str, str, AvroType]] = field(default_factory=list)
    items: list[AvroType] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    size: int = 0

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class AvroSchema(SingleTypeSchema):
    """Text and references of one schema id (see `protocols.CompiledSchema`)."""

    schema_id: SchemaId
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @cached_property
    def root(self) -> AvroType:
        """The schema's own type."""
        names: dict[str, AvroType] = {}
        for name, text in self.references:
            self._parse(text, f"reference {name!r}", names)
        return self._parse(self.text, "its text", names)

    def _parse(self, text: str, where: str, names: dict[str, AvroType]) -> AvroType:
        try:
            node = json.loads(text)
            # Refuses lone surrogates, which no column name and no enum value can hold.
            json.dumps(node, ensure_ascii=False).encode()
            return _Parser(names).parse(node, "", "")
        except (ValueError, RecursionError) as error:
            raise DataError(f"schema id {self.schema_id} does not compile: {where}: {error}") from None

    def name_of(self, path: IndexPath) -> str | None:
        """Full name of the schema's type; its kind (``union``) if unnamed."""
        return self.root.name if self.has(path) else None

    def enums(self) -> dict[str, dict[int | str, str]]:
        """Full names of its enums with their symbols."""
        found: dict[str, dict[int | str, str]] = {}
        waiting, seen = [self.root], set[int]()
        while waiting:
            kind = waiting.pop()
            if id(kind) not in seen:
                seen.add(id(kind))
                waiting += [*kind.items, *(inner for _, _, inner in kind.fields)]
                if kind.kind == "enum":
                    found[kind.name] = {symbol: symbol for symbol in kind.symbols}
        return found

    def __getstate__(self) -> dict[str, object]:
        """Without the parsed tree."""
        return {"schema_id": self.schema_id, "text": self.text, "references": self.references}


def compile_avro(schema: RegistrySchema) -> AvroSchema:
    """Compile a registry's Avro schema once.

    Raises:
        DataError: the text is no schema; the message says which part of it.
    """
    compiled = AvroSchema(schema.schema_id, schema.text, schema.references)
    _ = compiled.root
    return compiled


class _Parser:
    """Builds types; raises ValueError with the path of an error."""

    def __init__(self, names: dict[str, AvroType]) -> None:
        self._names = names

    def parse(self, node: Any, namespace: str, path: str) -> AvroType:  # noqa: ANN401 - any JSON
        match node:
            case str() if node in PRIMITIVES:
                return AvroType(node, node)
            case str():
                named = self._names.get(_full_name(node, namespace)) or self._names.get(node)
                if named is None:
                    raise ValueError(f"{path or 'schema'}: no type is named {node!r}")
                return named
            case list():
                return self._union(node, namespace, path)
            case {"type": dict() | list() as inner}:
                return self.parse(inner, namespace, path)
            case {"type": str() as kind}:
                return self._complex(kind, node, namespace, path)
            case _:
                raise ValueError(f"{path or 'schema'}: {json.dumps(node)[:80]} is no type")

    def _union(self, node: list[Any], namespace: str, path: str) -> AvroType:
        branches = [self.parse(item, namespace, path) for item in node]
        if any(b.kind == "union" for b in branches) or len({b.name for b in branches}) != len(branches) or not branches:
            raise ValueError(f"{path or 'schema'}: a union needs branches, of which no two are alike and none is a union")
        return AvroType("union", "union", items=branches)

    def _complex(self, kind: str, node: Mapping[str, Any], namespace: str, path: str) -> AvroType:
        if kind in PRIMITIVES:
            return AvroType(kind, kind, _logical(node, kind, 0))
        if kind in _ITEMS:
            key = _ITEMS[kind]
            if key not in node:
                raise ValueError(f"{path or 'schema'}: a {kind} without {key!r}")
            return AvroType(kind, kind, items=[self.parse(node[key], namespace, f"{path}.{key}")])
        make = {"record": self._record, "error": self._record, "enum": self._enum, "fixed": self._fixed}.get(kind)
        return self.parse(kind, namespace, path) if make is None else make(node, namespace, path)

    def _enum(self, node: Mapping[str, Any], namespace: str, path: str) -> AvroType:
        made = self._named("enum", node, namespace, path)
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
            raise ValueError(f"{made.name}: an enum without a list of symbols")
        made.symbols = tuple(symbols)
        return made

    def _fixed(self, node: Mapping[str, Any], namespace: str, path: str) -> AvroType:
        made = self._named("fixed", node, namespace, path)
        made.size = node.get("size", -1)
        if not isinstance(made.size, int) or made.size < 0:
            raise ValueError(f"{made.name}: a fixed without a size")
        made.logical = _logical(node, "fixed", made.size)
        return made

    def _record(self, node: Mapping[str, Any], namespace: str, path: str) -> AvroType:
        made = self._named("record", node, namespace, path)
        inside = made.name.rpartition(".")[0]
        fields = node.get("fields")
        if not isinstance(fields, list) or not all(isinstance(f, dict) and isinstance(f.get("name"), str) for f in fields):
            raise ValueError(f"{made.name}: a record without a list of named fields")
        names = [f["name"] for f in fields]
        if len(set(names)) != len(names):
            raise ValueError(f"{made.name}: two fields have one name")
        claimed = [_first_alias(f) for f in fields]
        for item, alias in zip(fields, claimed, strict=True):
            # A renamed field stays the column it was, unless the alias is a field of its own or two fields claim it.
            old = alias if alias is not None and alias not in names and claimed.count(alias) == 1 else item["name"]
            made.fields.append((item["name"], old, self.parse(item.get("type"), inside, f"{made.name}.{item['name']}")))
        return made

    def _named(self, kind: str, node: Mapping[str, Any], namespace: str, path: str) -> AvroType:
        name = node.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{path or 'schema'}: {kind} without a name")
        space = node.get("namespace", namespace)
        full = _full_name(name, space if isinstance(space, str) else "")
        if full in self._names or full in PRIMITIVES:
            raise ValueError(f"{full}: the name is defined twice")
        made = self._names[full] = AvroType(kind, full)
        return made


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _first_alias(node: Mapping[str, Any]) -> str | None:
    aliases = node.get("aliases")
    return aliases[0] if isinstance(aliases, list) and aliases and isinstance(aliases[0], str) else None


#: Logical type -> the types it may annotate; a fixed with its size.
_FITS = {
    "date": {"int"}, "time-millis": {"int"}, "time-micros": {"long"}, "uuid": {"string", "fixed16"}, "duration": {"fixed12"},
    **{f"{local}timestamp-{unit}": {"long"} for local in ("", "local-") for unit in ("millis", "micros", "nanos")},
}  # fmt: skip


def _logical(node: Mapping[str, Any], kind: str, size: int) -> Logical | None:
    name = node.get("logicalType")
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = node.get("precision"), node.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0:
            if precision > MAX_PRECISION:
                raise ValueError(f"a decimal of more than {MAX_PRECISION:,} digits")
            return Logical(name, precision, scale)
        return None
    fits = isinstance(name, str) and (f"{kind}{size}" if kind == "fixed" else kind) in _FITS.get(name, ())
    return Logical(str(name)) if fits else None
