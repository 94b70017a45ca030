"""Protocols of a payload format: compiled schema, and decoder of payloads into columns."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.wire_format import IndexPath, Rows, SchemaId

#: Identity of an enum's value across versions (its number, in Avro its name) -> its name, as stored.
EnumValues = Mapping[int | str, str]


class CompiledSchema(Protocol):
    """A compiled schema; picklable, as it is sent to Spark's workers."""

    @property
    def schema_id(self) -> SchemaId:
        """The id, or the GUID."""

    @property
    def indexed(self) -> bool:
        """Whether frames hold message indexes before the payload: only for protobuf."""

    def has(self, path: IndexPath) -> bool:
        """Whether the schema has a message type at an index path; formats without indexes have one, at ``()``."""

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:
        """Index paths of its message types, in order; of nested types only those with full names in `nested`."""

    def name_of(self, path: IndexPath) -> str | None:
        """Full name of the message type at an index path, without building a decoder; None: it has no name."""

    def enums(self) -> Mapping[str, EnumValues]:
        """Full names of its enums, imported ones included, with their values."""


@dataclass(frozen=True)
class SingleTypeSchema:
    """Base class of schemas with one message type, at the index path ``()``; `text` and `references` as registered."""

    schema_id: SchemaId
    text: str
    references: tuple[tuple[str, str], ...] = ()
    indexed: ClassVar[bool] = False

    def has(self, path: IndexPath) -> bool:
        """See `CompiledSchema`."""
        return path == ()

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:  # noqa: ARG002 - none is nested
        """See `CompiledSchema`."""
        return [()]

    def enums(self) -> Mapping[str, EnumValues]:
        """None, unless a subclass has them."""
        return {}

    def __getstate__(self) -> dict[str, object]:
        """Without the parsed text."""
        return {"schema_id": self.schema_id, "text": self.text, "references": self.references}


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

    @classmethod
    def of(cls, table: pa.Table, good: list[int], bad: Mapping[tuple[Reason, str], list[int]]) -> Decoded:
        """From lists of positions."""
        return cls(table, np.array(good, np.int64), [(*why, np.array(rows, np.int64)) for why, rows in bad.items()])


class PayloadDecoder(Protocol):
    """Decodes payloads of one message type of one schema.

    Attributes:
        message: full name of the type, the first part of its fields' identity, without ``#``.
        fields: its fields, nested ones included.
    """

    message: str
    fields: tuple[Field, ...]

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode payloads without frames, shape (n,), no NULLs; `columns` must know this message type.

        Each position is returned once, in `good` or in `bad`: a bad payload affects no other one.
        """
