"""Avro schemas of a registry: text and references."""

import json
from dataclasses import dataclass
from functools import cached_property

from game_events.decoding.avro.parser import Parser
from game_events.decoding.avro.types import AvroType
from game_events.decoding.core.protocols import SingleTypeSchema
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import IndexPath
from game_events.errors import DataError


@dataclass(frozen=True)
class AvroSchema(SingleTypeSchema):
    """Text and references of one schema id."""

    @cached_property
    def root(self) -> AvroType:
        """The schema's own type."""
        parser = Parser()
        for name, text in self.references:
            self._parse(text, f"reference {name!r}", parser)
        return self._parse(self.text, "its text", parser)

    def _parse(self, text: str, where: str, parser: Parser) -> AvroType:
        try:
            node = json.loads(text)
            # Refuses lone surrogates, which no column name and no enum value can hold.
            json.dumps(node, ensure_ascii=False).encode()
            return parser.parse(node)
        except (ValueError, RecursionError) as error:
            raise DataError(f"schema id {self.schema_id} does not compile: {where}: {error}") from None

    @property
    def names(self) -> dict[IndexPath, str]:
        """Full name of the schema's type; its kind (``union``) if unnamed."""
        return {(): self.root.name}

    def enums(self) -> dict[str, dict[int | str, str]]:
        """Full names of its enums with their symbols."""
        waiting, seen = [self.root], dict[int, AvroType]()
        while waiting:
            kind = waiting.pop()
            if id(kind) not in seen:
                seen[id(kind)] = kind
                waiting += [*kind.items, *(f.type for f in kind.fields)]
        return {kind.name: {symbol: symbol for symbol in kind.symbols} for kind in seen.values() if kind.kind == "enum"}


def compile_avro(schema: RegistrySchema) -> AvroSchema:
    """Compile a registry's Avro schema once; DataError with the invalid part."""
    compiled = AvroSchema(schema.schema_id, schema.text, schema.references)
    _ = compiled.root
    return compiled
