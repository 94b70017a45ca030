"""JSON Schemas of a registry: text, references, nested schemas with their addresses, and resolution of ``$ref``.

Sources: JSON Schema drafts 4, 6, 7, 2019-09, 2020-12 (``$id``, ``$ref``, ``$anchor``); RFC 6901 (JSON pointers); in a registry
a ``$ref`` names a reference.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard, TypeVar
from urllib.parse import unquote, urljoin

from game_events.decoding.core.protocols import SingleTypeSchema
from game_events.decoding.core.wire_format import IndexPath
from game_events.errors import DataError

#: Message name of a schema that has none.
UNNAMED = "json"
#: Keyword of nested schemas -> the type of its value.
INNER: dict[str, type] = {"allOf": list, "oneOf": list, "anyOf": list, "items": dict, "additionalProperties": dict}
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


@dataclass(frozen=True)
class JsonSchema(SingleTypeSchema):
    """Text and references of one schema id."""

    @cached_property
    def root(self) -> SchemaNode:
        """The schema itself."""
        return SchemaNode.of_document(self._load(self.text, "its text"))

    @cached_property
    def documents(self) -> dict[str, SchemaNode]:
        """Schemas by address: the schema, its references by name and ``$id``, and nested schemas with an ``$id``."""
        found: dict[str, SchemaNode] = {}

        def collect(place: SchemaNode) -> None:
            for here in place.nested():
                if here.base and here.node is here.document:
                    found.setdefault(here.base.partition("#")[0], here)

        collect(self.root)
        for name, text in self.references:
            place = SchemaNode.of_document(self._load(text, f"reference {name!r}"), name)
            found[name] = found[place.base.partition("#")[0]] = place
            collect(place)
        return found

    @property
    def message(self) -> str:
        """Its name: title, else ``$id``."""
        node = self.root.node if isinstance(self.root.node, dict) else {}
        for name in (node.get("title"), self.root.base):
            if isinstance(name, str) and name.strip("# "):
                return name.strip("# ").replace("#", "_")
        return UNNAMED

    @property
    def names(self) -> dict[IndexPath, str]:
        """Its name: title, else ``$id``, else ``json``."""
        return {(): self.message}

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
        waiting, seen = deque(places), set[int]()
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

    @cached_property
    def _anchors(self) -> dict[int, dict[str, Any]]:
        """Cache: anchors by the identity of their document."""
        return {}

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
