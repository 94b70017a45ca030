"""Real ALTER TABLE statements of Spark: what is written afterwards keeps them true, or the refusal takes them back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.maintenance import FULL_GOAL, join_files, small_files
from game_events.lakehouse.tables import Lakehouse, Table
from game_events_tests.support.altered_tables import altered
from game_events_tests.support.tables import SCHEMA, assert_nothing_left_over, numbers, plan

ALTERS = {
    "CHECK": "ADD CONSTRAINT few CHECK (n < 100)",
    "row tracking": "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "times in commits": "SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
    "clustering": "CLUSTER BY (n)",
    "change feed": "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "type widening": "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
    "defaults": "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
    "vacuum": "SET TBLPROPERTIES ('delta.feature.vacuumProtocolCheck' = 'supported')",
}
#: Every one of them, two on a table.
TOGETHER = [
    ("CHECK", "row tracking"),
    ("times in commits", "clustering"),
    ("change feed", "type widening"),
    ("defaults", "vacuum"),
]
NUMBERED = "SELECT n, _metadata.row_id, _metadata.row_commit_version FROM delta.`{}`"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with one row."""
    table = Lakehouse(str(tmp_path)).silver("uno")
    commit(plan(table, [0], None, 1))
    return table


def by_spark(spark: SparkSession, table: Table, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query, `{}` is the table."""
    return sorted(tuple(row) for row in spark.sql(sql.format(table.uri)).collect())


def compacted(table: Table, order: tuple[str, ...] = ()) -> None:
    """As maintenance does it."""
    for group in small_files(table, table.open(), FULL_GOAL):
        join_files(table, table.open(), group, order)


def assert_both_read(spark: SparkSession, table: Table, expected: list[int]) -> None:
    """Spark and delta-rs read these rows."""
    assert numbers(table) == expected
    assert [n for (n,) in by_spark(spark, table, "SELECT n FROM delta.`{}`")] == expected


def test_every_way_to_alter_a_table_is_tried() -> None:
    assert sorted(name for names in TOGETHER for name in names) == sorted(ALTERS)


@pytest.mark.scenario
@pytest.mark.parametrize("names", TOGETHER, ids=", ".join)
def test_a_table_that_spark_has_altered_is_written_on_by_both(
    table: Table, spark: SparkSession, names: tuple[str, ...]
) -> None:
    for name in names:
        spark.sql(f"ALTER TABLE delta.`{table.uri}` {ALTERS[name]}")
    before = DeltaTable(table.uri).protocol().writer_features
    commit(plan(table, [1], 1, 2))
    wider = pa.schema([*SCHEMA, ("at", pa.timestamp("us"))])
    row = pa.table({"n": [2], "s": ["2"], "at": [None]}, wider)
    commit(plan(table, [], 2, 3, schema=wider, files=staged(table, row)))
    compacted(table)
    assert_both_read(spark, table, [0, 1, 2])
    spark.sql(f"INSERT INTO delta.`{table.uri}` (n, s) VALUES (3, '3')")
    commit(plan(table, [4], 3, 4))
    assert_both_read(spark, table, [0, 1, 2, 3, 4])
    table.open().create_checkpoint()
    compacted(table)
    assert_both_read(spark, table, [0, 1, 2, 3, 4])
    spark.sql(f"DELETE FROM delta.`{table.uri}` WHERE n = 3")
    spark.sql(f"OPTIMIZE delta.`{table.uri}`")
    commit(plan(table, [7, 8], 4, 5, replace=True, reshape=True))
    spark.sql(f"INSERT INTO delta.`{table.uri}` (n, s) VALUES (9, '9')")
    assert_both_read(spark, table, [7, 8, 9])
    after = DeltaTable(table.uri).protocol().writer_features
    assert set(before or ()) <= set(after or before or ())
    assert spark.sql(f"DESCRIBE HISTORY delta.`{table.uri}`").count() == DeltaTable(table.uri).version() + 1


def test_spark_takes_the_features_of_the_setting_as_its_own(table: Table, spark: SparkSession) -> None:
    commit(plan(table, [1], 1, 2))
    wanted = replace(table, features=("changeDataFeed", "inCommitTimestamp", "rowTracking"))
    assert enable(wanted, wanted.open())
    first = DeltaTable(table.uri).version() + 1
    before = by_spark(spark, table, NUMBERED)
    assert [(n, number) for n, number, _ in before] == [(0, 0), (1, 1)]
    commit(plan(table, [2], 2, 3))
    compacted(table)
    spark.sql(f"INSERT INTO delta.`{table.uri}` VALUES (3, '3')")
    spark.sql(f"UPDATE delta.`{table.uri}` SET s = 'x' WHERE n = 1")
    after = by_spark(spark, table, NUMBERED)
    assert [(n, number) for n, number, _ in after][:3] == [(0, 0), (1, 1), (2, 2)]
    changes = f"SELECT n, _change_type FROM table_changes_by_path('{table.uri}', {first}, {first + 2})"
    assert by_spark(spark, table, changes) == [(2, "insert"), (3, "insert")]
    assert_both_read(spark, table, [0, 1, 2, 3])


def test_rows_keep_their_number_and_version_for_spark(table: Table, spark: SparkSession) -> None:
    spark.sql(f"ALTER TABLE delta.`{table.uri}` {ALTERS['row tracking']}")
    commit(plan(table, [1, 2], 1, 2))
    spark.sql(f"INSERT INTO delta.`{table.uri}` VALUES (3, '3')")
    commit(plan(table, [4], 2, 3))
    before = by_spark(spark, table, NUMBERED)
    assert len({number for _, number, _ in before}) == 5
    compacted(table, ("s",))
    assert by_spark(spark, table, NUMBERED) == before
    spark.sql(f"INSERT INTO delta.`{table.uri}` VALUES (5, '5')")
    spark.sql(f"OPTIMIZE delta.`{table.uri}`")
    commit(plan(table, [6], 3, 4))
    table.open().create_checkpoint()
    compacted(table)
    after = by_spark(spark, table, NUMBERED)
    assert after[:5] == before
    assert len({number for _, number, _ in after}) == 7
    assert [f.name for f in DeltaTable(table.uri).schema().fields] == ["n", "s"], "no reader sees the columns of the numbers"


def test_spark_travels_by_the_times_in_commits(table: Table, spark: SparkSession) -> None:
    spark.sql(f"ALTER TABLE delta.`{table.uri}` {ALTERS['times in commits']}")
    for number in range(1, 4):
        commit(plan(table, [number], number, number + 1))
    # As texts in the session's zone: as Python's own they would be in the machine's. Delta shifts times of SQL's
    # TIMESTAMP AS OF where the JVM's zone is another one than the session's.
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.uri}`").selectExpr("version", "CAST(timestamp AS STRING) AS at")
    times = {row["version"]: row["at"] for row in history.orderBy("version").collect() if row["version"] >= 1}
    assert list(times) == [1, 2, 3, 4]
    assert list(times.values()) == sorted(set(times.values()))
    for version in (2, 3, 4):
        found = spark.read.format("delta").option("timestampAsOf", times[version]).load(table.uri).collect()
        assert sorted(row["n"] for row in found) == list(range(version))


def test_a_clustered_table_stays_so_and_sparks_own_clustering_takes_our_files(table: Table, spark: SparkSession) -> None:
    spark.sql(f"ALTER TABLE delta.`{table.uri}` {ALTERS['clustering']}")
    commit(plan(table, [2, 1], 1, 2))
    compacted(table)
    spark.sql(f"OPTIMIZE delta.`{table.uri}`")
    commit(plan(table, [3], 2, 3))
    assert spark.sql(f"DESCRIBE DETAIL delta.`{table.uri}`").collect()[0]["clusteringColumns"] == ["n"]
    assert_both_read(spark, table, [0, 1, 2, 3])


def test_the_change_feed_has_the_rows_of_runs_and_none_of_compaction(table: Table, spark: SparkSession) -> None:
    spark.sql(f"ALTER TABLE delta.`{table.uri}` {ALTERS['change feed']}")
    first = DeltaTable(table.uri).version() + 1
    commit(plan(table, [1, 2], 1, 2))
    commit(plan(table, [3], 2, 3))
    compacted(table)
    changes = f"SELECT n, _change_type, _commit_version - {first} FROM table_changes_by_path('{table.uri}', {first})"
    assert by_spark(spark, table, changes) == [(1, "insert", 0), (2, "insert", 0), (3, "insert", 1)]
    commit(plan(table, [2, 9], 3, 4, replace=True))
    replaced = [row for row in by_spark(spark, table, changes) if row[2] == 3]
    deleted = [(n, "delete", 3) for n in (0, 1, 2, 3)]
    assert replaced == sorted([*deleted, (2, "insert", 3), (9, "insert", 3)]), "all old rows, and all new ones"


def test_a_row_that_breaks_a_constraint_is_never_written(table: Table, spark: SparkSession) -> None:
    spark.sql(f"ALTER TABLE delta.`{table.uri}` ADD CONSTRAINT few CHECK (length(s) < 3 AND n % 2 = 0)")
    columns = [("_kafka_topic", pa.string()), ("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64())]
    schema = pa.schema([*SCHEMA, *columns])

    def rows(*numbers: int | None) -> pa.Table:
        count = len(numbers)
        place = {"_kafka_topic": ["t"] * count, "_kafka_partition": [1] * count, "_kafka_offset": list(range(count))}
        return pa.table({"n": numbers, "s": ["a"] * count, **place}, schema)

    commit(plan(table, [], 1, 2, schema=schema, files=staged(table, rows(2, 4))))
    wrong = r"3 new rows break the constraint few \(.*\) of the table, e.g. offset [123] of t\[1\]"
    with pytest.raises(DataError, match=wrong):
        commit(plan(table, [], 2, 3, schema=schema, files=staged(table, rows(2, 3, None, 5))))
    assert_nothing_left_over(table)
    compacted(table)
    commit(plan(table, [], 2, 3, schema=schema, files=staged(table, rows(8)), replace=True))
    with pytest.raises(Exception, match="CHECK constraint few"):
        spark.sql(f"INSERT INTO delta.`{table.uri}` (n, s) VALUES (3, '3')")
    assert_both_read(spark, table, [8])


def test_a_constraint_that_spark_cannot_evaluate_any_more_lets_nothing_in(table: Table, spark: SparkSession) -> None:
    spark.range(0).collect()
    altered(table, features=["checkConstraints"], properties={"delta.constraints.gone": "no_column > 0"})
    with pytest.raises(DataError, match=r"constraints cannot be evaluated: gone \(no_column > 0\)"):
        commit(plan(table, [1], 1, 2))
    altered(table, properties={"delta.constraints.gone": "java_method('java.lang.System', 'exit', 1) = 1"})
    with pytest.raises(DataError, match="runs other code"):
        commit(plan(table, [1], 1, 2))
    assert_nothing_left_over(table)


@pytest.mark.parametrize(
    "alter",
    [
        lambda _, table: altered(table, features=["rowTracking", "v2Checkpoint", "domainMetadata"], reader=["v2Checkpoint"]),
        lambda spark, table: spark.sql(f"ALTER TABLE delta.`{table.uri}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')"),
    ],
    ids=["numbers in checkpoints of the second version", "append only"],
)
def test_the_statement_of_the_refusal_takes_back_what_spark_has_altered(
    tmp_path: Path, spark: SparkSession, alter: Callable[[SparkSession, Table], object]
) -> None:
    table = Lakehouse(str(tmp_path)).gold("uno")
    commit(plan(table, [0], None, 1))
    alter(spark, table)
    with pytest.raises(DataError, match="was altered") as refused:
        table.open()
    (undo,) = re.findall(r"take it back by (ALTER TABLE .*?), or delete", str(refused.value))
    for statement in undo.split("; "):
        spark.sql(statement)
    commit(plan(table, [1], 1, 2))
    assert numbers(table) == [0, 1]
