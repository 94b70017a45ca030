"""JSON Schemas of a registry: text, references, and resolution of ``$ref``.

Sources: JSON Schema drafts 4, 6, 7, 2019-09, 2020-12 (``$id``, ``$ref``, ``$anchor``); RFC 6901 (JSON pointers); in a registry
a ``$ref`` names a reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urljoin

from game_events.decoding.core.protocols import SingleTypeSchema
from game_events.decoding.core.wire_format import IndexPath, SchemaId
from game_events.errors import DataError

#: Message name of a schema that has none.
UNNAMED = "json"
#: Digits of a list index in a JSON pointer at most.
_INDEX_DIGITS = 10


@dataclass(frozen=True)
class SchemaNode:
    """A schema inside a document.

    Attributes:
        node: the schema: a dictionary, or true or false.
        document: its document, the target of ``#``.
        base: the document's address, for relative addresses.
    """

    node: Any
    document: Any
    base: str


@dataclass(frozen=True)
class JsonSchema(SingleTypeSchema):
    """Text and references of one schema id (see `protocols.CompiledSchema`)."""

    schema_id: SchemaId
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @cached_property
    def root(self) -> SchemaNode:
        """The schema itself."""
        document = self._load(self.text, "its text")
        return SchemaNode(document, document, _address(document))

    @cached_property
    def _documents(self) -> dict[str, SchemaNode]:
        """Schemas by address: the schema, its references by name and ``$id``, and nested schemas with an ``$id``."""
        found: dict[str, SchemaNode] = {}
        _collect(self.root, found)
        for name, text in self.references:
            document = self._load(text, f"reference {name!r}")
            place = SchemaNode(document, document, _address(document) or name)
            found[name] = found[_file(place.base)] = place
            _collect(place, found)
        return found

    @property
    def message(self) -> str:
        """Its name: title, else ``$id``."""
        node = self.root.node if isinstance(self.root.node, dict) else {}
        for name in (node.get("title"), self.root.base):
            if isinstance(name, str) and name.strip("# "):
                return name.strip("# ").replace("#", "_")
        return UNNAMED

    def name_of(self, path: IndexPath) -> str | None:
        """Its name: title, else ``$id``, else ``json``."""
        return self.message if self.has(path) else None

    def follow(self, reference: str, place: SchemaNode) -> SchemaNode:
        """The target of a ``$ref``; DataError if it does not exist."""
        target: SchemaNode | None = SchemaNode(place.document, place.document, place.base)
        address, _, fragment = reference.partition("#")
        if address:
            target = self._documents.get(address) or self._documents.get(_file(_joined(place.base, address)))
        if target is not None and fragment:
            target = self._inside(target, unquote(fragment))
        if target is None:
            raise DataError(f"schema id {self.schema_id} does not compile: $ref {reference!r} leads nowhere")
        return target

    def _inside(self, place: SchemaNode, fragment: str) -> SchemaNode | None:
        """The target of a JSON pointer or an anchor in a document."""
        if fragment.startswith("/"):
            node = _pointed(place.document, fragment)
        else:
            known = self._anchors.get(id(place.document))
            if known is None:
                known = self._anchors[id(place.document)] = _anchors(place.document)
            node = known.get(fragment)
        return None if node is None else SchemaNode(node, place.document, place.base)

    @cached_property
    def _anchors(self) -> dict[int, dict[str, Any]]:
        """Cache: anchors by the identity of their document."""
        return {}

    def _load(self, text: str, where: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            document = json.loads(text)
            # Refuses lone surrogates, which no column name can hold.
            json.dumps(document, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise DataError(f"schema id {self.schema_id} does not compile: {where} is no JSON: {error}") from None
        if not isinstance(document, dict | bool):
            raise DataError(f"schema id {self.schema_id} does not compile: {where} is no object")
        return document

    def __getstate__(self) -> dict[str, object]:
        """Without the parsed documents."""
        return {"schema_id": self.schema_id, "text": self.text, "references": self.references}


def _file(address: str) -> str:
    return address.partition("#")[0]


def _joined(base: str, address: str) -> str:
    """A possibly relative address; an invalid one is unchanged."""
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def _address(node: Any) -> str:  # noqa: ANN401 - any JSON
    """``$id`` (draft 4: ``id``) if it is an address, not an anchor."""
    found = node.get("$id", node.get("id")) if isinstance(node, dict) else None
    return found if isinstance(found, str) and not found.startswith("#") else ""


def inner_place(node: Any, outer: SchemaNode) -> SchemaNode:  # noqa: ANN401 - any JSON
    """The place of a nested schema: one with an ``$id`` is a document."""
    address = node.get("$id") if isinstance(node, dict) else None
    if isinstance(address, str) and not address.startswith("#"):
        return SchemaNode(node, node, _joined(outer.base, address))
    return SchemaNode(node, outer.document, outer.base)


def _collect(place: SchemaNode, found: dict[str, SchemaNode]) -> None:
    """Add all nested schemas with an ``$id``."""
    stack = [place]
    while stack:
        here = stack.pop()
        if here.base and here.node is here.document:
            found.setdefault(_file(here.base), here)
        children = here.node.values() if isinstance(here.node, dict) else here.node if isinstance(here.node, list) else ()
        stack += [inner_place(child, here) for child in children]


def _pointed(document: Any, pointer: str) -> Any:  # noqa: ANN401 - any JSON
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


def _anchors(document: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """Anchor -> the first node that has it."""
    found: dict[str, Any] = {}
    for node in _nodes(document):
        names = [node.get("$anchor"), node.get("$dynamicAnchor")]
        names += [i[1:] for i in (node.get("$id"), node.get("id")) if isinstance(i, str) and i.startswith("#")]
        for name in names:
            if isinstance(name, str):
                found.setdefault(name, node)
    return found


def _nodes(node: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON
    """All dictionaries of a document."""
    found, stack = [], [node]
    while stack:
        here = stack.pop()
        if isinstance(here, dict):
            found.append(here)
            stack += here.values()
        elif isinstance(here, list):
            stack += here
    return found
