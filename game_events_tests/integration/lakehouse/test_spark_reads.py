"""Spark finds by predicates what it finds when it reads everything: as Delta's reader, and as the project reads files itself.

The other readers: game_events_tests/unit/lakehouse/data/test_file_statistics.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.maintenance import join_files
from game_events.lakehouse.tables import Lakehouse, Table, paths
from game_events_tests.support.edge_values import Predicate, compacted, handle_of, merged, predicates, written
from game_events_tests.support.readers import Spark
from game_events_tests.support.tables import plan

Read = Callable[[SparkSession, Table], DataFrame]
Make = Callable[[Lakehouse], Table]


def _as_delta(spark: SparkSession, table: Table) -> DataFrame:
    return spark.read.format("delta").load(table.uri)


def _as_files(spark: SparkSession, table: Table) -> DataFrame:
    return read_table(spark, handle_of(table))


def _wanted() -> list[Predicate]:
    """Some of each column; of floating-point ones those with NaN and zeros."""
    found = predicates()
    floats = [
        p for p in found if p.column in {"f", "st.f"} and (str(p.value), p.op) in {("nan", ">"), ("nan", "="), ("1.5", "<>")}
    ]
    zeros = [p for p in found if p.column == "f" and p.value == 0.0 and p.op in {"=", ">="}]
    texts = [p for p in found if p.value == "\U00020bb7\u91ce" and p.op == "="]
    return [*floats, *zeros, *texts, *found[::30]]


@pytest.mark.parametrize(("read", "make"), [(_as_delta, written), (_as_files, compacted), (_as_files, merged)])
def test_a_predicate_finds_the_rows_that_it_is_true_for(spark: SparkSession, tmp_path: Path, read: Read, make: Make) -> None:
    reader, wanted = Spark(read(spark, make(Lakehouse(str(tmp_path))))), _wanted()
    assert dict(zip(wanted, reader.found(wanted), strict=True)) == dict(zip(wanted, reader.read(wanted), strict=True))


def test_the_change_feed_has_replaced_rows_and_no_compacted_ones(spark: SparkSession, tmp_path: Path) -> None:
    table = Lakehouse(str(tmp_path)).gold("uno")
    commit(plan(table, [0], None, 1))
    DeltaTable(table.uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    begin = handle_of(table).version()
    commit(plan(table, [1], 1, 2))
    join_files(table, handle_of(table), paths(handle_of(table)))
    commit(plan(table, [2], 2, 3, replace=True))
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", begin).load(table.uri)
    found = feed.select("_commit_version", "_change_type", "n").collect()
    changes = [(begin + 1, "insert", 1), *((begin + 3, *c) for c in [("delete", 0), ("delete", 1), ("insert", 2)])]
    assert sorted(map(tuple, found)) == changes
