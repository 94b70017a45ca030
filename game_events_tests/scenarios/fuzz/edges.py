"""Columns of every type that records can give, with the values at its edges: how each form of a record writes them.

A row has what was written, bit by bit: so truth needs no more than the values that were drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from random import Random
from typing import Any

import pyarrow as pa

from game_events_tests.support import edge_values

#: Forms of records.
JSON, PARQUET, AVRO, PROTOBUF = "json", "parquet", "avro", "protobuf"


@dataclass(frozen=True)
class Edge:
    """A column, and how each form declares it; a form without a declaration has no such column.

    Attributes:
        values: those that are drawn, besides none.
        protobuf: the field's type; of a single value it is an optional field.
    """

    name: str
    values: Sequence[Any]
    parquet: pa.DataType | None = None
    avro: Any = None
    json: Mapping[str, Any] | None = None
    protobuf: str = ""

    def is_in(self, form: str) -> bool:
        """Whether a form of records has it."""
        return bool(getattr(self, form))

    def values_in(self, form: str) -> Sequence[Any]:
        """Those that a form can write: JSON has finite numbers only."""
        return [value for value in self.values if form != JSON or not isinstance(value, float) or isfinite(value)]


_INT = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
_TEXT = [*edge_values.VALUES["s"], "\ud7ff", "\ue000", "z" * 300, "zz\U0010ffff" + "z" * 62]
_MEMBERS = [
    {"x": -(2**63), "f": 1.5, "s": "\U00020bb7"},
    {"x": 2**63 - 1, "f": -0.0, "s": ""},
    {"x": None, "f": None, "s": None},
    {"x": 0, "f": None, "s": "\uffff"},
]
_AVRO_MEMBERS = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": n, "type": ["null", t], "default": None} for n, t in (("x", "long"), ("f", "double"), ("s", "string"))],
}
_JSON_MEMBERS = {n: {"type": t} for n, t in (("x", "integer"), ("f", "number"), ("s", "string"))}
EDGES = (
    Edge("e_text", _TEXT, pa.string(), "string", {"type": "string"}, "string"),
    Edge("e_int", _INT, pa.int64(), "long", {"type": "integer"}, "int64"),
    Edge("e_unsigned", [0, 2**63, 2**64 - 1], protobuf="uint64"),
    Edge("e_number", edge_values.VALUES["f"], pa.float64(), "double", {"type": "number"}, "double"),
    Edge("e_single", edge_values.VALUES["f32"], pa.float32(), "float", protobuf="float"),
    Edge("e_flag", [True, False], pa.bool_(), "boolean", {"type": "boolean"}, "bool"),
    Edge("e_bytes", edge_values.VALUES["bin"], pa.binary(), "bytes", protobuf="bytes"),
    Edge(
        "e_day",
        edge_values.VALUES["d"],
        pa.date32(),
        {"type": "int", "logicalType": "date"},
        {"type": "string", "format": "date"},
    ),
    Edge(
        "e_at",
        edge_values.VALUES["t"],
        pa.timestamp("us", "UTC"),
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "string", "format": "date-time"},
        "google.protobuf.Timestamp",
    ),
    Edge(
        "e_price",
        edge_values.VALUES["price"],
        pa.decimal128(9, 2),
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    ),
    Edge(
        "e_wide",
        [Decimal("0." + "0" * 17 + "1"), Decimal("9" * 20 + "." + "9" * 18), Decimal("-" + "9" * 20 + "." + "9" * 18)],
        pa.decimal128(38, 18),
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18},
    ),
    Edge(
        "e_parts",
        _MEMBERS,
        pa.struct([("x", pa.int64()), ("f", pa.float64()), ("s", pa.string())]),
        _AVRO_MEMBERS,
        {"type": "object", "properties": _JSON_MEMBERS},
        "Inner",
    ),
    Edge(
        "e_list",
        [[], ["", None, "\U0010ffff"], ["a" * 65]],
        pa.list_(pa.string()),
        {"type": "array", "items": ["null", "string"]},
        {"type": "array", "items": {"type": ["string", "null"]}},
    ),
    Edge("e_numbers", [[-0.0], [1.5, 5e-324]], protobuf="repeated double"),
    Edge(
        "e_map",
        [{}, {"": -(2**63), "\U00020bb7": 0}],
        pa.map_(pa.string(), pa.int64()),
        {"type": "map", "values": "long"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        "map<string, int64>",
    ),
)
#: Columns that protobuf's records have a value in, even without one.
NEVER_NULL = {"e_numbers": [], "e_map": {}}
ARROW = [(edge.name, edge.parquet) for edge in EDGES if edge.parquet is not None]
JSON_PROPERTIES = {edge.name: edge.json for edge in EDGES if edge.json is not None}
AVRO_TYPES = {edge.name: edge.avro for edge in EDGES if edge.avro is not None}
PROTOBUF_TYPES = {"Inner": "optional int64 x = 1; optional double f = 2; optional string s = 3;"}


def protobuf_fields(first: int) -> str:
    """Declarations of fields, numbered from the first."""
    of_form = [edge for edge in EDGES if edge.is_in(PROTOBUF)]
    return " ".join(
        f"{'' if edge.name in NEVER_NULL else 'optional '}{edge.protobuf} {edge.name} = {number};"
        for number, edge in enumerate(of_form, first)
    )


def drawn_edges(draw: Random, form: str) -> dict[str, Any]:
    """A value for each column of a form; None: it is not written."""
    found = {edge.name: draw.choice([None, *edge.values_in(form)]) for edge in EDGES if edge.is_in(form)}
    return {name: NEVER_NULL.get(name) if form == PROTOBUF and value is None else value for name, value in found.items()}


def as_json(value: Any) -> Any:
    """A value as a JSON document has it."""
    if isinstance(value, datetime):
        return f"{value.year:04d}-{value:%m-%dT%H:%M:%S.%fZ}"
    if isinstance(value, date):
        return value.isoformat()
    return value


def plain(value: Any) -> Any:
    """A value that equals another one if both are the same bit by bit: structs and maps by their names, times in UTC."""
    if isinstance(value, dict):
        return sorted((name, plain(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        pairs = [(one[0], plain(one[1])) for one in value if isinstance(one, tuple)]
        return sorted(pairs) if pairs else [plain(one) for one in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return repr(value) if isinstance(value, float) else value
