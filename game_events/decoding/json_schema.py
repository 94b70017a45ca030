"""JSON Schemas from what a registry holds: text and references, and what a ``$ref`` in them leads to.

Sources: JSON Schema drafts 4, 6, 7, 2019-09, 2020-12 (``$id``, ``$ref``, ``$anchor``); RFC 6901 (JSON pointers); in a registry
the name of a reference is what a ``$ref`` says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import unquote, urldefrag, urljoin

from game_events.decoding.frames import IndexPath, SchemaId
from game_events.errors import DataError

#: Message name of a schema that has none.
UNNAMED = "json"


@dataclass(frozen=True)
class Place:
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
    def root(self) -> Place:
        """The schema itself."""
        document = self._load(self.text, "its text")
        return Place(document, document, _address(document))

    @cached_property
    def _documents(self) -> dict[str, Place]:
        """Schemas by address: references by name and by ``$id``, whatever has an ``$id`` inside them, and the schema itself."""
        found: dict[str, Place] = {}
        _collect(self.root, found)
        for name, text in self.references:
            document = self._load(text, f"reference {name!r}")
            place = Place(document, document, _address(document) or name)
            found[name] = found[urldefrag(place.base).url] = place
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

    def paths(self) -> list[IndexPath]:
        """The one path there is."""
        return [()]

    def name_of(self, path: IndexPath) -> str | None:
        """Its name: title, else ``$id``, else ``json``."""
        return self.message if self.has(path) else None

    def follow(self, reference: str, place: Place) -> Place:
        """The schema that a ``$ref`` leads to.

        Raises:
            DataError: there is none.
        """
        address, fragment = urldefrag(reference)
        target: Place | None = Place(place.document, place.document, place.base)
        if address:
            target = self._documents.get(address) or self._documents.get(urldefrag(urljoin(place.base, address)).url)
        if target is not None and fragment:
            target = _inside(target, unquote(fragment))
        if target is None:
            raise DataError(f"schema id {self.schema_id} does not compile: $ref {reference!r} leads nowhere")
        return target

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


def _address(node: Any) -> str:  # noqa: ANN401 - any JSON
    """``$id``, in draft 4 ``id``, if it is an address and not only an anchor."""
    found = node.get("$id", node.get("id")) if isinstance(node, dict) else None
    return found if isinstance(found, str) and not found.startswith("#") else ""


def inner_place(node: Any, outer: Place) -> Place:  # noqa: ANN401 - any JSON
    """Where a schema inside another one stands: one with an ``$id`` is a document of its own."""
    address = node.get("$id") if isinstance(node, dict) else None
    if isinstance(address, str) and not address.startswith("#"):
        return Place(node, node, urljoin(outer.base, address))
    return Place(node, outer.document, outer.base)


def _collect(place: Place, found: dict[str, Place]) -> None:
    """Adds every schema with an ``$id`` of its own, from a place downwards."""
    stack = [place]
    while stack:
        here = stack.pop()
        if here.base and here.node is here.document:
            found.setdefault(urldefrag(here.base).url, here)
        children = here.node.values() if isinstance(here.node, dict) else here.node if isinstance(here.node, list) else ()
        stack += [inner_place(child, here) for child in children]


def _inside(place: Place, fragment: str) -> Place | None:
    """What a JSON pointer or an anchor names in a document."""
    node = place.document
    if not fragment.startswith("/"):
        return next((Place(n, place.document, place.base) for n in _nodes(node) if _is_anchor(n, fragment)), None)
    for step in fragment[1:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return Place(node, place.document, place.base)


def _is_anchor(node: dict[str, Any], name: str) -> bool:
    return name in (node.get("$anchor"), node.get("$dynamicAnchor")) or f"#{name}" in (node.get("$id"), node.get("id"))


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
