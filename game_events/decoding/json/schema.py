"""JSON Schemas from what a registry holds: text and references, and what a ``$ref`` in them leads to.

Sources: JSON Schema drafts 4, 6, 7, 2019-09, 2020-12 (``$id``, ``$ref``, ``$anchor``); RFC 6901 (JSON pointers); in a registry
the name of a reference is what a ``$ref`` says.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import unquote, urljoin

from game_events.decoding.core.wire_format import IndexPath, SchemaId
from game_events.errors import DataError

#: Message name of a schema that has none.
UNNAMED = "json"
#: No list in a schema has an index of so many digits.
_INDEX_DIGITS = 10


@dataclass(frozen=True)
class SchemaNode:
    """A schema inside a document.

    Attributes:
        node: the schema: a dictionary, or true or false.
        document: the document it stands in, which ``#`` means.
        base: the document's own address, which relative addresses start from.
    """

    node: Any
    document: Any
    base: str


@dataclass(frozen=True)
class JsonSchema:
    """One schema id's text and references: small and picklable (see `payloads.CompiledSchema`)."""

    schema_id: SchemaId
    text: str
    references: tuple[tuple[str, str], ...] = ()
    indexed: ClassVar[bool] = False

    @cached_property
    def root(self) -> SchemaNode:
        """The schema itself."""
        document = self._load(self.text, "its text")
        return SchemaNode(document, document, _address(document))

    @cached_property
    def _documents(self) -> dict[str, SchemaNode]:
        """Schemas by address: references by name and by ``$id``, whatever has an ``$id`` inside them, and the schema itself."""
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

    def has(self, path: IndexPath) -> bool:
        """Whether there is a type at an index path: the one of the schema, at ``()``."""
        return path == ()

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:  # noqa: ARG002 - none is nested
        """The one path there is."""
        return [()]

    def name_of(self, path: IndexPath) -> str | None:
        """Its name: title, else ``$id``, else ``json``."""
        return self.message if self.has(path) else None

    def enums(self) -> dict[str, dict[int | str, str]]:
        """None: an `enum` of JSON Schema is a list of values without a name, and is not looked at."""
        return {}

    def follow(self, reference: str, place: SchemaNode) -> SchemaNode:
        """The schema that a ``$ref`` leads to.

        Raises:
            DataError: there is none.
        """
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
        """What a JSON pointer or an anchor names in a document."""
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
        """Anchors of the documents that a reference has looked into, by the documents' own identity."""
        return {}

    def _load(self, text: str, where: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            document = json.loads(text)
            # Half of a surrogate pair can be in no name of a column.
            json.dumps(document, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise DataError(f"schema id {self.schema_id} does not compile: {where} is no JSON: {error}") from None
        if not isinstance(document, dict | bool):
            raise DataError(f"schema id {self.schema_id} does not compile: {where} is no object")
        return document

    def __getstate__(self) -> dict[str, object]:
        """Without the parsed documents: a worker parses the text once."""
        return {"schema_id": self.schema_id, "text": self.text, "references": self.references}


def _file(address: str) -> str:
    """An address without its fragment."""
    return address.partition("#")[0]


def _joined(base: str, address: str) -> str:
    """An address that may be relative to another one; one that is no address stays as it is."""
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def _address(node: Any) -> str:  # noqa: ANN401 - any JSON
    """``$id``, in draft 4 ``id``, if it is an address and not only an anchor."""
    found = node.get("$id", node.get("id")) if isinstance(node, dict) else None
    return found if isinstance(found, str) and not found.startswith("#") else ""


def inner_place(node: Any, outer: SchemaNode) -> SchemaNode:  # noqa: ANN401 - any JSON
    """Where a schema inside another one stands: one with an ``$id`` is a document of its own."""
    address = node.get("$id") if isinstance(node, dict) else None
    if isinstance(address, str) and not address.startswith("#"):
        return SchemaNode(node, node, _joined(outer.base, address))
    return SchemaNode(node, outer.document, outer.base)


def _collect(place: SchemaNode, found: dict[str, SchemaNode]) -> None:
    """Adds every schema with an ``$id`` of its own, from a place downwards."""
    stack = [place]
    while stack:
        here = stack.pop()
        if here.base and here.node is here.document:
            found.setdefault(_file(here.base), here)
        children = here.node.values() if isinstance(here.node, dict) else here.node if isinstance(here.node, list) else ()
        stack += [inner_place(child, here) for child in children]


def _pointed(document: Any, pointer: str) -> Any:  # noqa: ANN401 - any JSON
    """What a JSON pointer names in a document; None: nothing."""
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
