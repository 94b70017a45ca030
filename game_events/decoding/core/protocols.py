"""What a payload format brings: a compiled schema, and decoders that turn payloads into columns."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.wire_format import IndexPath, Rows, SchemaId

#: What a value of an enum is known by from version to version (its number, in Avro its name) -> its name, as it is stored.
EnumValues = Mapping[int | str, str]


class CompiledSchema(Protocol):
    """One schema id's meaning: picklable, as it travels to Spark's workers."""

    @property
    def schema_id(self) -> SchemaId:
        """The id, or the GUID."""

    @property
    def indexed(self) -> bool:
        """Whether frames hold message indexes in front of the payload: protobuf alone."""

    def has(self, path: IndexPath) -> bool:
        """Whether the schema has a message type at an index path; formats without indexes have one, at ``()``."""

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:
        """Index paths of its message types, in order: of nested ones only those named in full in `nested`."""

    def name_of(self, path: IndexPath) -> str | None:
        """Full name of the message type at an index path it has, without building a decoder; None: it has no name."""

    def enums(self) -> Mapping[str, EnumValues]:
        """Full names of its enums, those of what it imports included, with their values."""


@dataclass
class Decoded:
    """Payloads of one batch and message type, decoded.

    Attributes:
        table: columns of the good rows, named and typed by the column map.
        good: their positions, in the order of the table's rows.
        bad: positions by reason and detail.
    """

    table: pa.Table
    good: Rows
    bad: list[tuple[Reason, str, Rows]] = field(default_factory=list)


class PayloadDecoder(Protocol):
    """Decodes payloads of one message type of one schema.

    Attributes:
        message: full name of the type: the first part of its fields' identity. Holds no ``#``.
        fields: its fields, nested ones included.
    """

    message: str
    fields: tuple[Field, ...]

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode a batch.

        Args:
            payloads: messages without frames, shape (n,), no NULLs.
            columns: the map, which must know this message type.

        Returns:
            every position once, in `good` or in `bad`: one bad payload never costs another.
        """
