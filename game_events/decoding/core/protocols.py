"""What each payload format has: a compiled schema, and a decoder of payloads into columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Protocol

import pyarrow as pa

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.wire_format import IndexPath, Rows, SchemaId

#: Identity of an enum's value across versions (its number, in Avro its name) -> its name, as stored.
EnumValues = Mapping[int | str, str]


@dataclass(frozen=True)
class CompiledSchema(ABC):
    """A compiled schema; picklable, as it is sent to Spark's workers.

    Attributes:
        schema_id: the id, or the GUID.
        indexed: whether frames hold message indexes before the payload: only for protobuf.
    """

    schema_id: SchemaId
    indexed: ClassVar[bool] = False

    @property
    @abstractmethod
    def names(self) -> Mapping[IndexPath, str]:
        """Full names of its message types ("": no name) by index path; formats without indexes have one type, at ``()``."""

    def has(self, path: IndexPath) -> bool:
        """Whether there is a message type at an index path."""
        return path in self.names

    def name_of(self, path: IndexPath) -> str | None:
        """Full name of the message type at an index path, without building a decoder; None: it has no name."""
        return self.names.get(path) or None

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:  # noqa: ARG002 - only protobuf has nested ones
        """Index paths of its message types, in order; of nested types only those with full names in `nested`."""
        return list(self.names)

    def enums(self) -> Mapping[str, EnumValues]:
        """Full names of its enums, imported ones included, with their values; default: none."""
        return {}

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes that it is sent to a worker with; its memory grows with them."""

    def forget(self) -> None:
        """Drop what was made of the fields; it is made again when it is needed."""
        kept = {f.name for f in fields(self)}
        for name in [name for name in vars(self) if name not in kept]:
            del self.__dict__[name]

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: what is made of them may be large, or cannot be pickled."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class SingleTypeSchema(CompiledSchema):
    """Base class of schemas with one message type; `text` and `references`: what decoding needs of the registered ones."""

    text: str
    references: tuple[tuple[str, str], ...] = ()

    def has(self, path: IndexPath) -> bool:
        """See `CompiledSchema.has`; the text is not parsed."""
        return path == ()

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:  # noqa: ARG002
        """See `CompiledSchema.paths`; the text is not parsed."""
        return [()]

    @property
    def size(self) -> int:
        """See `CompiledSchema.size`."""
        return len(self.text) + sum(len(text) for _, text in self.references)


@dataclass
class Decoded:
    """Payloads of one batch and message type, decoded.

    Attributes:
        table: columns of the good rows, named and typed by the column map.
        good: their positions, in the order of the table's rows.
        bad: positions by reason and detail.
        nulled: column -> its values that are NULL because their type does not take them (`ValueRules`).
    """

    table: pa.Table
    good: Rows
    bad: list[tuple[Reason, str, Rows]] = field(default_factory=list)
    nulled: Counter[str] = field(default_factory=Counter)


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
