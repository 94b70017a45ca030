"""Schemas inside a JSON Schema document: nested ones, their addresses, JSON pointers (RFC 6901), anchors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar
from urllib.parse import urljoin

#: Digits of a list index in a JSON pointer at most.
_INDEX_DIGITS = 10
T = TypeVar("T", list[Any], dict[str, Any])


@dataclass(frozen=True)
class SchemaNode:
    """A schema: a dictionary, or true or false; its document, the target of ``#``; the document's address."""

    node: Any
    document: Any
    base: str

    @classmethod
    def of_document(cls, document: object, name: str = "") -> SchemaNode:
        """A whole document; `name`: its address if it has no ``$id`` (draft 4: ``id``)."""
        found = document.get("$id", document.get("id")) if isinstance(document, dict) else None
        return cls(document, document, found if _is_address(found) and found else name)

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


def _is_address(found: object) -> TypeGuard[str]:
    """Whether an ``$id`` is an address, not an anchor."""
    return isinstance(found, str) and not found.startswith("#")


def joined(base: str, address: str) -> str:
    """A possibly relative address; an invalid one is unchanged."""
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def typed(node: dict[str, Any], keyword: str, kind: type[T]) -> T:
    """A keyword's value of the expected type; of another one, an empty value."""
    found = node.get(keyword)
    return found if isinstance(found, kind) else kind()


def collect(place: SchemaNode, found: dict[str, SchemaNode]) -> None:
    """Add all nested schemas with an ``$id``."""
    for here in place.nested():
        if here.base and here.node is here.document:
            found.setdefault(here.base.partition("#")[0], here)


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
    found: dict[str, Any] = {}
    for node in (here.node for here in SchemaNode(document, document, "").nested() if isinstance(here.node, dict)):
        names = [node.get("$anchor"), node.get("$dynamicAnchor")]
        names += [i[1:] for i in (node.get("$id"), node.get("id")) if isinstance(i, str) and i.startswith("#")]
        for name in names:
            if isinstance(name, str):
                found.setdefault(name, node)
    return found
