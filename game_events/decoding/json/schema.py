"""JSON Schemas of a registry: text, references, and resolution of ``$ref``.

Sources: JSON Schema drafts 4, 6, 7, 2019-09, 2020-12 (``$id``, ``$ref``, ``$anchor``); RFC 6901 (JSON pointers); in a registry
a ``$ref`` names a reference.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from game_events.decoding.core.protocols import SingleTypeSchema
from game_events.decoding.core.wire_format import IndexPath
from game_events.decoding.json.nodes import SchemaNode, anchors, collect, joined, pointed
from game_events.errors import DataError

#: Message name of a schema that has none.
UNNAMED = "json"
#: Keyword of nested schemas -> the type of its value.
INNER: dict[str, type] = {"allOf": list, "oneOf": list, "anyOf": list, "items": dict, "additionalProperties": dict}


@dataclass(frozen=True)
class JsonSchema(SingleTypeSchema):
    """Text and references of one schema id."""

    @cached_property
    def root(self) -> SchemaNode:
        """The schema itself."""
        return SchemaNode.of_document(self._load(self.text, "its text"))

    @cached_property
    def _documents(self) -> dict[str, SchemaNode]:
        """Schemas by address: the schema, its references by name and ``$id``, and nested schemas with an ``$id``."""
        found: dict[str, SchemaNode] = {}
        collect(self.root, found)
        for name, text in self.references:
            place = SchemaNode.of_document(self._load(text, f"reference {name!r}"), name)
            found[name] = found[place.base.partition("#")[0]] = place
            collect(place, found)
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
            target = self._documents.get(address) or self._documents.get(joined(place.base, address))
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
