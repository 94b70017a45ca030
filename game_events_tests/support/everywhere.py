"""All tables of a lakehouse by six readers: Delta's by DuckDB, delta-rs, Polars and Spark; Iceberg's by pyiceberg and DuckDB.

Each must give the same rows, with and without predicates, the same counts and the same bounds. What a predicate must find is
computed here, from the rows that DuckDB reads from the files that Delta's log names.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg import expressions as ice
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import SparkSession

from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.plugins.iceberg.current import tables_of
from game_events_tests.support.edge_values import COMPARISONS, VALUES, Predicate
from game_events_tests.support.iceberg import caught_up, iceberg_table
from game_events_tests.support.iceberg_readers import read_by_duckdb
from game_events_tests.support.readers import DUCKDB, DeltaRs, DuckDb, Found, Polars, Reader, Spark, in_order

#: Rows that a difference shows.
SHOWN = 3
#: Predicates of a table that Spark is asked, and DuckDB of Iceberg's, which begins anew for each.
FOR_SPARK = 3
FOR_DUCKDB_OF_ICEBERG = 6
#: Of how many tables Spark is asked more than for all rows.
SPARKS_SHARE = 0.3
#: Columns of a table of which the lowest and highest value is asked, and types that have none in some reader.
ENDS = 3
NO_ENDS = (pa.float32(), pa.float64(), pa.bool_(), pa.binary())
#: The greatest number of a column of 32 bits.
MOST_OF_FLOAT = 3.4e38
PYICEBERG = "pyiceberg"
#: The key of a table is the first of these that it has, else its first column.
KEYS = ("_kafka_offset", "gamer_id")
#: Column of `edge_values` whose values are tried beside a column's own.
_TRIED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_string, "s"),
    (pa.types.is_int64, "i"),
    (pa.types.is_floating, "f"),
    (pa.types.is_binary, "bin"),
    (pa.types.is_date, "d"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "t"),
)


class PyIceberg:
    """pyiceberg: bounds in its manifests, then statistics of the footers."""

    def __init__(self, held: IcebergTable, key: str) -> None:
        self._held, self._key = held, key

    def whole(self) -> pa.Table:
        return self._held.scan().to_arrow()

    def count(self) -> int:
        return self._held.scan().count()

    def found(self, wanted: Sequence[Predicate]) -> Found:
        return [in_order(self._rows(p).column(self._key).to_pylist()) for p in wanted]

    def _rows(self, predicate: Predicate) -> pa.Table:
        selected = tuple(dict.fromkeys([self._key, predicate.column]))
        return self._held.scan(row_filter=_iceberg(predicate), selected_fields=selected).to_arrow()


def _iceberg(predicate: Predicate) -> ice.BooleanExpression:
    kinds: dict[str, Any] = {
        "=": ice.EqualTo,
        "<>": ice.NotEqualTo,
        "<": ice.LessThan,
        "<=": ice.LessThanOrEqual,
        ">": ice.GreaterThan,
        ">=": ice.GreaterThanOrEqual,
        "in": ice.In,
    }
    if predicate.op in {"null", "not null"}:
        return ice.IsNull(predicate.column) if predicate.op == "null" else ice.NotNull(predicate.column)
    made: ice.BooleanExpression = kinds[predicate.op](predicate.column, predicate.value)
    # Its `<>` finds the rows of files without the column, too (docs/iceberg.md).
    return ice.And(made, ice.NotNull(predicate.column)) if predicate.op == "<>" else made


def _floats(predicate: Predicate) -> list[float]:
    values = predicate.value if predicate.op == "in" else [predicate.value]
    return [value for value in values if isinstance(value, float)]


def _is_odd_for_pyiceberg(predicate: Predicate) -> bool:
    if "." in predicate.column:
        return True
    # NaN is none of these.
    beyond = any(not abs(value) <= MOST_OF_FLOAT for value in _floats(predicate))
    return beyond or (bool(_floats(predicate)) and predicate.op in {"<>", ">", ">=", "in"})


#: Reader -> predicates that it is not asked, and why.
NOT_ASKED: Mapping[str, tuple[Callable[[Predicate], bool], str]] = {
    "delta-rs": (
        lambda p: p.op == "in" and 0 in _floats(p),
        "DataFusion compares -0.0 and 0.0 as equal by `=`, and in some plans as different by `IN`",
    ),
    PYICEBERG: (
        _is_odd_for_pyiceberg,
        "it has no predicates on members of structs, compares NaN as pyarrow does, tells -0.0 from 0.0 by IN, and finds NULL "
        "by what is beyond a column's type, as infinity is",
    ),
}


def compared(left: Any, right: Any) -> int:
    """-1, 0 or 1, as SQL compares: NaN equals itself and is the greatest number, -0.0 is 0.0."""
    one, other = _sorted(left), _sorted(right)
    return int(one > other) - int(one < other)


def holds(predicate: Predicate, value: Any) -> bool:
    """Whether a predicate is true for a value of its column."""
    if predicate.op in {"null", "not null"}:
        return (value is None) == (predicate.op == "null")
    if value is None:
        return False
    if predicate.op == "in":
        return any(compared(value, one) == 0 for one in predicate.value)
    sign = compared(value, predicate.value)
    return {"=": sign == 0, "<>": sign != 0, "<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[predicate.op]


def value_of(row: Mapping[str, Any], column: str) -> Any:
    """A column's value, or that of a struct's member."""
    name, _, member = column.partition(".")
    return row[name] if not member else (row[name] or {}).get(member)


def text_of(value: Any, kind: pa.DataType) -> str:
    """A value as a text that tells it from every other one of its type, whichever reader gives it."""
    if value is None:
        return "NULL"
    if pa.types.is_struct(kind):
        return "{" + ", ".join(text_of(value.get(field.name), field.type) for field in kind) + "}"
    if pa.types.is_map(kind):
        pairs = [(one["key"], one["value"]) if isinstance(one, dict) else one for one in value]
        return "{" + ", ".join(sorted(f"{key!r}: {text_of(inner, kind.item_type)}" for key, inner in pairs)) + "}"
    if pa.types.is_list(kind):
        return "[" + ", ".join(text_of(one, kind.value_type) for one in value) + "]"
    if isinstance(value, datetime):
        return repr((value.astimezone(UTC) if value.tzinfo is not None else value).isoformat())
    return f"{value:f}" if isinstance(value, Decimal) else repr(value)


def rows_of(table: pa.Table, schema: pa.Schema) -> Counter[tuple[str, ...]]:
    """All rows as texts, each with how often it is there."""
    columns = [[text_of(value, field.type) for value in table.column(field.name).to_pylist()] for field in schema]
    return Counter(zip(*columns, strict=True))


def _without_null_lists(table: pa.Table) -> pa.Table:
    """The rows as pyiceberg 0.12 gives them: a list of structs that is NULL is an empty one (docs/iceberg.md)."""
    for number, field in enumerate(table.schema):
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            table = table.set_column(number, field, pc.fill_null(table.column(number), pa.scalar([], field.type)))
    return table


# --- predicates


def _ordered(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """The columns, and members of structs, that predicates may compare."""
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from (
                (f"{field.name}.{inner.name}", inner.type) for inner in field.type if not pa.types.is_nested(inner.type)
            )
        elif not pa.types.is_nested(field.type):
            yield field.name, field.type


def tried_of(kind: pa.DataType) -> list[Any]:
    """Values that are tried of each column of a type: of 32 bits, as readers that round what they are asked find other rows."""
    tried = list(next((VALUES[name] for is_kind, name in _TRIED if is_kind(kind)), []))
    if not pa.types.is_float32(kind):
        return tried
    return [value for value in tried if math.isnan(value) or value == pa.scalar(value, kind).as_py()]


def drawn(draw: Random, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], most: int) -> list[Predicate]:
    """Predicates on edge values of each column and on values that it has; each column has one of NULL."""
    found: list[Predicate] = []
    for column, kind in _ordered(schema):
        held = list({repr(value): value for row in rows if (value := value_of(row, column)) is not None}.values())
        ends = [min(held, key=_sorted), max(held, key=_sorted)] if held else []
        tried = tried_of(kind)
        values = [*ends, *draw.sample(held, min(2, len(held))), *draw.sample(tried, min(2, len(tried)))]
        found += [Predicate(column, draw.choice(COMPARISONS), value) for value in values]
        if len(values) > 1:
            found.append(Predicate(column, "in", (values[-1], values[0])))
        found.append(Predicate(column, draw.choice(("null", "not null"))))
    return draw.sample(found, min(most, len(found)))


def _sorted(value: Any) -> Any:
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


# --- the readers of a table


class Everywhere:
    """The tables of a pipeline, of which Iceberg has the newest versions, by all readers.

    Attributes:
        problems: what differs: table, reader and query.
        seconds: of each reader.
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession, draw: Random, most: int = 40) -> None:
        """`most`: predicates of each table; Spark is asked a few of them, as each is a scan that it plans."""
        self._pipeline, self._spark, self._draw, self._most = pipeline, spark, draw, most
        self.problems: list[str] = []
        self.seconds = Counter[str]()
        self.rows = self.queries = 0
        done = caught_up(pipeline)
        self._refused = done.refused
        if done.failed:
            self.problems.append(f"Iceberg does not follow: {dict(done.failed)}")
        #: What DuckDB is asked about Iceberg's tables, all at once, as it is a process of its own.
        self._asked: list[tuple[str, str]] = []
        self._expected: list[tuple[str, Counter[tuple[str, ...]], pa.Schema]] = []

    def compare(self, folder: Path) -> list[str]:
        """Ask all readers about all tables; returns what differs. `folder`: a new one, for what DuckDB's process finds."""
        for table in tables_of(self._pipeline.lakehouse):
            self._compare_one(table)
        began = time.monotonic()
        folder.mkdir()
        for (where, rows, schema), found in zip(self._expected, read_by_duckdb(self._asked, folder), strict=True):
            self._differ(where, rows_of(found, schema), rows, schema.names)
        self.seconds["DuckDB from Iceberg"] += time.monotonic() - began
        return self.problems

    def _compare_one(self, table: Table) -> None:
        schema = pa.schema(DeltaTable(table.uri).schema())
        key = next((name for name in KEYS if name in schema.names), schema.names[0])
        reference = DuckDb(table, key).whole()
        must, rows = rows_of(reference, schema), reference.to_pylist()
        of_pyiceberg = rows_of(_without_null_lists(reference), schema)
        wanted = drawn(self._draw, schema, rows, self._most)
        self.rows += len(rows)
        for name, reader in self._readers(table, key).items():
            with_name, began = f"{table.name} by {name}", time.monotonic()
            try:
                self._differ(
                    with_name, rows_of(reader.whole(), schema), of_pyiceberg if name == PYICEBERG else must, schema.names
                )
                is_not_asked, _ = NOT_ASKED.get(name, (lambda _: False, ""))
                asked = [p for p in wanted if not is_not_asked(p)]
                if name == "Spark":
                    asked = asked[: FOR_SPARK if self._draw.random() < SPARKS_SHARE else 0]
                self._compare_predicates(with_name, reader, asked, key, rows)
                self._compare_statistics(with_name, reader, schema, rows)
            except Exception as error:  # noqa: BLE001 - whatever a reader raises is a difference
                self.problems.append(f"{with_name}: {type(error).__name__}: {str(error)[:600]}")
            self.seconds[name] += time.monotonic() - began
        self._note_for_duckdb(table, wanted, rows, schema)

    def _readers(self, table: Table, key: str) -> dict[str, Reader]:
        found: dict[str, Reader] = {
            "DuckDB": DuckDb(table, key),
            "delta-rs": DeltaRs(table, key),
            "Polars": Polars(table, key),
            "Spark": Spark.of_delta(self._spark, table, key),
        }
        return found if table.name in self._refused else found | {PYICEBERG: PyIceberg(self._iceberg(table), key)}

    def _iceberg(self, table: Table) -> IcebergTable:
        held: IcebergTable = iceberg_table(self._pipeline, table)
        return held

    def _compare_predicates(
        self, name: str, reader: Reader, asked: Sequence[Predicate], key: str, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        self.queries += len(asked)
        for predicate, found in zip(asked, reader.found(asked), strict=True):
            held = {row[key]: value_of(row, predicate.column) for row in rows}
            must = in_order([row[key] for row in rows if holds(predicate, value_of(row, predicate.column))])
            if found != must:
                wrong = list(((Counter(found) - Counter(must)) + (Counter(must) - Counter(found))).elements())[:SHOWN]
                shown = [f"{one!r} with {held.get(one)!r}" for one in wrong]
                self.problems.append(f"{name}: {predicate} finds {len(found)} rows, must find {len(must)}: {shown}")

    def _compare_statistics(self, name: str, reader: Reader, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> None:
        """What some readers answer by statistics alone."""
        counted = reader.count()
        if counted != len(rows):
            self.problems.append(f"{name}: count(*) is {counted}, must be {len(rows)}")
        if not isinstance(reader, DuckDb | DeltaRs | Spark):
            return
        comparable = [f.name for f in schema if not (pa.types.is_nested(f.type) or f.type in NO_ENDS)]
        columns = self._draw.sample(comparable, min(ENDS, len(comparable)))
        held = [[row[column] for row in rows if row[column] is not None] for column in columns]
        must = [end(values, default=None) for values in held for end in (min, max)]
        kinds = [schema.field(column).type for column in columns for _ in range(2)]
        found = list(map(text_of, reader.ends(columns), kinds))
        if found != list(map(text_of, must, kinds)):
            self.problems.append(f"{name}: min and max of {columns} are {found}, must be {must}")

    def _note_for_duckdb(
        self, table: Table, wanted: Sequence[Predicate], rows: Sequence[Mapping[str, Any]], schema: pa.Schema
    ) -> None:
        if table.name in self._refused:
            return
        held = self._iceberg(table)
        if held.metadata.current_snapshot() is None:
            return
        texts = rows_in_order(rows, schema)
        for predicate in (None, *wanted[:FOR_DUCKDB_OF_ICEBERG]):
            chosen = [
                text
                for row, text in zip(rows, texts, strict=True)
                if predicate is None or holds(predicate, value_of(row, predicate.column))
            ]
            self._asked.append((held.metadata_location, "true" if predicate is None else predicate.sql(DUCKDB)))
            self._expected.append((f"{table.name} by DuckDB from Iceberg, {predicate}", Counter(chosen), schema))
        self.queries += 1 + len(wanted[:FOR_DUCKDB_OF_ICEBERG])

    def _differ(self, what: str, has: Counter[tuple[str, ...]], must: Counter[tuple[str, ...]], names: Sequence[str]) -> None:
        if has == must:
            return
        extra, missing = list((has - must).elements()), list((must - has).elements())
        shown = "; ".join(_nearest(row, missing, names) for row in extra[:SHOWN])
        self.problems.append(f"{what}: {len(extra)} rows that must not be there, {len(missing)} missing: {shown}")


def _nearest(row: tuple[str, ...], missing: Sequence[tuple[str, ...]], names: Sequence[str]) -> str:
    """In what a row differs from the one of those that are missing that is most like it."""
    others = [[f"{n} is {a}, not {b}" for n, a, b in zip(names, row, other, strict=True) if a != b] for other in missing]
    return ", ".join(min(others, key=len, default=[str(row)]))


def rows_in_order(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[tuple[str, ...]]:
    """Each row as texts."""
    return [tuple(text_of(row[field.name], field.type) for field in schema) for row in rows]
