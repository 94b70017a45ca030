"""Types of Avro schemas, named types resolved, with their logical types.

Source: Apache Avro 1.12 specification, "Logical Types": an unknown or impossible one (a scale above the precision) is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

#: Digits of a decimal: work grows with their square, and as a text one byte may be all of them (see `MAX_SHORT_TEXT`).
MAX_PRECISION = 150
Node = Mapping[str, Any]


@dataclass(frozen=True)
class Logical:
    """A logical type: its name, of decimals precision and scale."""

    name: str
    precision: int = 0
    scale: int = 0


class AvroField(NamedTuple):
    """A field of a record; `identity`: its name, or the name that an alias preserves."""

    name: str
    identity: str
    type: AvroType
    doc: str


@dataclass(eq=False)
class AvroType:
    """One type of a schema; recursive types make the tree a graph.

    Attributes:
        kind: ``record``, ``enum``, ``array``, ``map``, ``fixed``, ``union``, or a primitive's name.
        name: full name of a named type; else the kind.
        logical: its logical type, if known and valid.
        fields: of a record.
        items: of a union its branches; of an array or map the one type of its items.
        symbols: of an enum.
        size: of a fixed, in bytes.
        doc: comment of a named type, or "".
    """

    kind: str
    name: str
    logical: Logical | None = None
    fields: list[AvroField] = field(default_factory=list)
    items: list[AvroType] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    size: int = 0
    doc: str = ""

    @cached_property
    def by_name(self) -> dict[str, AvroField]:
        """The fields by name."""
        return {f.name: f for f in self.fields}

    def records(self) -> Iterator[AvroType]:
        """The records in a type: itself, branches, items, values."""
        if self.kind == "record":
            yield self
        for inner in self.items:
            yield from inner.records()

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]


#: Logical type -> the types it may annotate; a fixed with its size.
_FITS = {
    "date": {"int"}, "time-millis": {"int"}, "time-micros": {"long"}, "uuid": {"string", "fixed16"}, "duration": {"fixed12"},
    **{f"{local}timestamp-{unit}": {"long"} for local in ("", "local-") for unit in ("millis", "micros", "nanos")},
}  # fmt: skip


def logical_type(node: Node) -> Logical | None:
    """The logical type of an annotated type; ValueError for more than `MAX_PRECISION` digits."""
    name, kind = str(node.get("logicalType")), node["type"]
    if name == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(node.get("precision"), node.get("scale", 0))
    fits = (f"fixed{node['size']}" if kind == "fixed" else kind) in _FITS.get(name, ())
    return Logical(name) if fits else None


def _decimal(precision: object, scale: object) -> Logical | None:
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
        return None
    if precision > MAX_PRECISION:
        raise ValueError(f"a decimal of more than {MAX_PRECISION:,} digits")
    return Logical("decimal", precision, scale)
