"""Reads `doc` of Avro's fields, and of the schema itself.

Source: Apache Avro 1.12 specification, "Complex Types".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from game_events.decoding.avro.schema import compile_avro
from game_events.decoding.core.registry_schema import RegistrySchema

_INSIDE = {"array": "items", "map": "values"}


class AvroComments:
    """The comments of a schema (see `comments.Comments`)."""

    def __init__(self, schema: RegistrySchema) -> None:
        """Raises DataError for an invalid schema."""
        self._message = compile_avro(schema).root.name
        self._root = json.loads(schema.text)
        #: Definitions by short name: comments do not justify resolving namespaces.
        self._named: dict[str, Mapping[str, Any]] = {}
        self._by_name: dict[int, Mapping[str, Mapping[str, Any]]] = {}
        for text in (*(text for _, text in schema.references), schema.text):
            for node in _definitions(json.loads(text)):
                self._named[str(node["name"]).rpartition(".")[2]] = node

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        """See `comments.Comments.of`."""
        if message != self._message:
            return ""
        nodes, text = [self._root], self._doc(self._root)
        if names and isinstance(self._root, list):  # each branch of a union at the top is a column
            nodes = [n for n in self._root if self._name(n) == names[0].rpartition(".")[2]]
            text, names = next(map(self._doc, nodes), ""), names[1:]
        for name in names:
            found = [self._fields(r).get(name) for node in nodes for r in self._records(node)]
            fields = [f for f in found if f is not None]
            nodes = [f.get("type") for f in fields]
            text = next((str(f["doc"]) for f in fields if isinstance(f.get("doc"), str)), "")
        return text

    def _fields(self, record: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """A record's fields by name."""
        known = self._by_name.get(id(record))
        if known is None:
            known = self._by_name[id(record)] = {f["name"]: f for f in record.get("fields", ())}
        return known

    def _resolved(self, node: Any) -> Any:  # noqa: ANN401 - any JSON
        return self._named.get(node.rpartition(".")[2], node) if isinstance(node, str) else node

    def _name(self, node: Any) -> str:  # noqa: ANN401 - any JSON
        found = self._resolved(node)
        return str(found.get("name", found.get("type"))).rpartition(".")[2] if isinstance(found, Mapping) else str(found)

    def _doc(self, node: Any) -> str:  # noqa: ANN401 - any JSON
        found = self._resolved(node)
        return str(found["doc"]) if isinstance(found, Mapping) and isinstance(found.get("doc"), str) else ""

    def _records(self, node: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 - any JSON
        """The records in a type: itself, branches, items, values."""
        stack, seen = [node], 0
        while stack and seen < 1_000:
            seen += 1
            here = self._resolved(stack.pop())
            if isinstance(here, list):
                stack += here
            elif isinstance(here, Mapping):
                kind = here.get("type")
                if kind in ("record", "error"):
                    yield here
                elif isinstance(kind, str) and kind in _INSIDE:
                    stack.append(here.get(_INSIDE[kind]))
                elif not isinstance(kind, str):
                    stack.append(kind)


def _definitions(node: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 - any JSON
    stack = [node]
    while stack:
        here = stack.pop()
        if isinstance(here, Mapping):
            if isinstance(here.get("name"), str) and here.get("type") in ("record", "error", "enum", "fixed"):
                yield here
            stack += here.values()
        elif isinstance(here, list):
            stack += here
