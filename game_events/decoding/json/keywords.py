"""What the keywords of all schemas of one value determine together: its types, members, items, format."""

from collections.abc import Iterable
from typing import Any

from game_events.decoding.json.nodes import SchemaNode, typed

Types = frozenset[str]
_PYTHON = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array", type(None): "null"}
_TYPES = frozenset(_PYTHON.values())
#: Format -> kind of column, see `JsonType`.
_FORMATS = {"date-time": "timestamp", "date": "date"}


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
