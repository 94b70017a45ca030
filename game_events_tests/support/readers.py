"""Readers of Delta tables that are not part of the project, each asked the same predicates.

Each gives the values of one column, the key, of the rows that a predicate finds: `found` by the reader's own plan, which leaves
out files and row groups by their statistics; `read` computed from all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from game_events.lakehouse.tables import Table
from game_events_tests.support.edge_values import Literals, Predicate
from game_events_tests.support.reconciliation import database

#: Of each predicate the keys of its rows, sorted.
Found = list[list[Any]]

DUCKDB = Literals("decode(unhex('{}'))", "unhex('{}')", "TIMESTAMPTZ '{}+00'", "TIMESTAMP '{}'")
SPARK = Literals("decode(unhex('{}'), 'UTF-8')", "X'{}'", "TIMESTAMP '{}+00:00'", "TIMESTAMP_NTZ '{}'")
#: Times with a zone are nanoseconds if they are plain literals, which have no year 1 or 9999.
DATAFUSION = Literals(
    "arrow_cast(X'{}', 'Utf8')",
    "X'{}'",
    "arrow_cast('{}', 'Timestamp(Microsecond, Some(\"UTC\"))')",
    "arrow_cast('{}', 'Timestamp(Microsecond, None)')",
    "T",
)


class Reader(Protocol):
    """A reader of one table."""

    def whole(self) -> pa.Table:
        """All rows."""
        ...

    def found(self, wanted: Sequence[Predicate]) -> Found:
        """What each predicate finds."""
        ...

    def count(self) -> int:
        """Number of rows, as the reader counts them: perhaps by statistics alone."""
        ...


def ends_sql(columns: Sequence[str]) -> list[str]:
    """The lowest and the highest value of each column."""
    return [f"{end}({column}) AS {end}_{n}" for n, column in enumerate(columns) for end in ("min", "max")]


def in_order(keys: Sequence[Any]) -> list[Any]:
    """Keys, some of which may be NULL, sorted."""
    return sorted(keys, key=lambda key: (key is not None, key))


def _in_parts(
    sql: Callable[[str], pa.Table], ask: Callable[[Predicate], str], wanted: Sequence[Predicate], key: str, at_once: int = 40
) -> Found:
    """What each predicate finds; many in each query, as a query takes longer to plan than to run."""
    found: Found = [[] for _ in wanted]
    for begin in range(0, len(wanted), at_once):
        asked = enumerate(wanted[begin : begin + at_once], begin)
        parts = [f"SELECT {n} AS k, {key} AS found FROM t WHERE {ask(p)}" for n, p in asked]
        for k, one in zip(*(c.to_pylist() for c in sql(" UNION ALL ".join(parts)).columns), strict=True):
            found[k].append(one)
    return [in_order(keys) for keys in found]


def _chosen(table: pa.Table) -> Found:
    """The keys of the rows for which each of the further columns is true."""
    return [in_order(table.column(0).filter(mask).to_pylist()) for mask in table.columns[1:]]


class DeltaRs:
    """SQL of delta-rs (DataFusion): statistics of the log, then of the footers."""

    def __init__(self, table: Table, key: str = "_batch") -> None:
        self._key = key
        self._builder = QueryBuilder().register("t", DeltaTable(table.uri))

    def rows(self, text: str) -> pa.Table:
        """Rows of a query."""
        return pa.table(self._builder.execute(text).read_all())

    def whole(self) -> pa.Table:
        return self.rows("SELECT * FROM t")

    def count(self) -> int:
        return int(self.rows("SELECT count(*) FROM t").column(0)[0].as_py())

    def ends(self, columns: Sequence[str]) -> list[Any]:
        """See `ends_sql`."""
        return [column[0].as_py() for column in self.rows(f"SELECT {', '.join(ends_sql(columns))} FROM t").columns]

    def found(self, wanted: Sequence[Predicate]) -> Found:
        return _in_parts(self.rows, lambda p: p.sql(DATAFUSION), wanted, self._key)

    def read(self, wanted: Sequence[Predicate]) -> Found:
        """The same, computed from all rows."""
        columns = ", ".join(f"({p.without_in(DATAFUSION)}) AS p{n}" for n, p in enumerate(wanted))
        return _chosen(self.rows(f"SELECT {self._key}, {columns} FROM t"))


class DuckDb:
    """DuckDB over the files that the log names, as `game-events sql`: statistics of the footers."""

    def __init__(self, table: Table, key: str = "_batch") -> None:
        self._key = key
        self._cursor = database().cursor()
        handle = DeltaTable(table.uri)
        files = [unquote(uri.removeprefix("file://")) for uri in handle.file_uris()]
        # The columns are Delta's, so that a predicate may name any of them; no file may have one of them.
        schema = pa.schema(handle.schema())
        self._cursor.register("none_of_it", schema.empty_table())
        options = "union_by_name => true, hive_partitioning => true, hive_types_autocast => false"
        names = ", ".join(f'"{name}"' for name in schema.names)
        union = f" UNION ALL BY NAME SELECT * FROM read_parquet({files}, {options})" if files else ""
        self._cursor.execute(f"CREATE TEMP VIEW t AS SELECT {names} FROM (SELECT * FROM none_of_it{union})")

    def rows(self, text: str) -> pa.Table:
        """Rows of a query."""
        found: pa.Table = self._cursor.sql(text).to_arrow_table()
        return found

    def whole(self) -> pa.Table:
        return self.rows("FROM t")

    def count(self) -> int:
        return int(self.rows("SELECT count(*) FROM t").column(0)[0].as_py())

    def ends(self, columns: Sequence[str]) -> list[Any]:
        """See `ends_sql`."""
        return [column[0].as_py() for column in self.rows(f"SELECT {', '.join(ends_sql(columns))} FROM t").columns]

    def found(self, wanted: Sequence[Predicate]) -> Found:
        return _in_parts(self.rows, lambda p: p.sql(DUCKDB), wanted, self._key)

    def read(self, wanted: Sequence[Predicate]) -> Found:
        """The same, computed from all rows."""
        columns = ", ".join(f"({p.sql(DUCKDB)}) AS p{n}" for n, p in enumerate(wanted))
        return _chosen(self.rows(f"SELECT {self._key}, {columns} FROM t"))


class Polars:
    """`scan_delta`: statistics of the log, then of the footers."""

    def __init__(self, table: Table, key: str = "_batch") -> None:
        self._key = key
        self._rows = pl.scan_delta(table.uri)
        self._types = self._rows.collect_schema()

    def _expression(self, predicate: Predicate) -> pl.Expr:
        column, _, member = predicate.column.partition(".")
        value = pl.col(column).struct.field(member) if member else pl.col(column)
        if predicate.op in {"null", "not null"}:
            return value.is_null() if predicate.op == "null" else value.is_not_null()
        kind = self._types[column]
        of_column = kind if isinstance(kind, pl.Decimal) else None
        found: pl.Expr = predicate.of(value, lambda v: pl.lit(v, of_column))
        return found

    def whole(self) -> pa.Table:
        return self._rows.collect().to_arrow()

    def count(self) -> int:
        return int(self._rows.select(pl.len()).collect().item())

    def found(self, wanted: Sequence[Predicate]) -> Found:
        lazy = [self._rows.filter(self._expression(p)).select(self._key) for p in wanted]
        # Some at a time: each has threads of its own that open files.
        frames = [frame for begin in range(0, len(lazy), 16) for frame in pl.collect_all(lazy[begin : begin + 16])]
        return [in_order(frame[self._key].to_list()) for frame in frames]

    def read(self, wanted: Sequence[Predicate]) -> Found:
        """The same, computed from all rows."""
        columns = [self._expression(p).alias(f"p{n}") for n, p in enumerate(wanted)]
        return _chosen(self._rows.collect().select(self._key, *columns).to_arrow())


class PyArrow:
    """A pyarrow dataset of the files that the log names: statistics of the footers."""

    def __init__(self, table: Table, key: str = "_batch") -> None:
        self._key = key
        delta = DeltaTable(table.uri)
        files = [unquote(uri.removeprefix("file://")) for uri in delta.file_uris()]
        self._dataset = ds.dataset(files, pa.schema(delta.schema()), format="parquet")

    def _expression(self, predicate: Predicate) -> pc.Expression:
        column = pc.field(*predicate.column.split("."))
        if predicate.op in {"null", "not null"}:
            return column.is_null() if predicate.op == "null" else column.is_valid()
        kind = self._dataset.schema
        for name in predicate.column.split("."):
            kind = kind.field(name).type
        found: pc.Expression = predicate.of(column, lambda v: pa.scalar(v, kind))
        return found

    def found(self, wanted: Sequence[Predicate]) -> Found:
        """What each predicate finds."""
        parts = (self._dataset.to_table([self._key], filter=self._expression(p)) for p in wanted)
        return [in_order(part[self._key].to_pylist()) for part in parts]

    def read(self, wanted: Sequence[Predicate]) -> Found:
        """The same, computed from all rows."""
        columns = {self._key: pc.field(self._key), **{f"p{n}": self._expression(p) for n, p in enumerate(wanted)}}
        return _chosen(ds.dataset(self._dataset.to_table()).to_table(columns))


class Spark:
    """A DataFrame of Spark: Delta's own reader, or another one."""

    #: Predicates of one job.
    AT_ONCE = 20

    def __init__(self, rows: DataFrame, key: str = "_batch") -> None:
        self._key, self._rows = key, rows

    @classmethod
    def of_delta(cls, spark: SparkSession, table: Table, key: str = "_batch") -> Spark:
        """Delta's own."""
        return cls(spark.read.format("delta").load(table.uri), key)

    def whole(self) -> pa.Table:
        return self._rows.toArrow()

    def count(self) -> int:
        return self._rows.count()

    def ends(self, columns: Sequence[str]) -> list[Any]:
        """See `ends_sql`."""
        return [column[0].as_py() for column in self._rows.selectExpr(*ends_sql(columns)).toArrow().columns]

    def found(self, wanted: Sequence[Predicate]) -> Found:
        found: Found = [[] for _ in wanted]
        for begin in range(0, len(wanted), self.AT_ONCE):
            asked = enumerate(wanted[begin : begin + self.AT_ONCE], begin)
            parts = [self._rows.where(spark_sql(p)).selectExpr(f"{n} AS k", self._key) for n, p in asked]
            for k, key in reduce(DataFrame.unionAll, parts).collect():
                found[k].append(key)
        return [in_order(keys) for keys in found]

    def read(self, wanted: Sequence[Predicate]) -> Found:
        """The same, computed from all rows."""
        return _chosen(self._rows.selectExpr(self._key, *(f"({spark_sql(p)}) AS p{n}" for n, p in enumerate(wanted))).toArrow())


def spark_sql(predicate: Predicate) -> str:
    """A predicate in Spark's SQL."""
    return predicate.sql(SPARK, "{0}.{1}")
