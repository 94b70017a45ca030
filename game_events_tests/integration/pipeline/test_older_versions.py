"""Older versions that stay, with gaps in the log between them, as Spark, DuckDB and delta-rs read them."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.versions import HOUR_S, OldVersions, readable_versions
from game_events.lakehouse.tables import Lakehouse, Table
from game_events_tests.support.tables import numbers, plan

#: Hours of the history, with four versions each.
HOURS = 9


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """With a number for each version, as maintenance leaves it."""
    table = Lakehouse(str(tmp_path)).table("silver_uno_events")
    began = time.time() // HOUR_S * HOUR_S - HOURS * HOUR_S + 60
    for n in range(4 * HOURS):
        commit(plan(table, [n], n or None, n + 1))
        for file in Path(table.uri, "_delta_log").glob(f"{n:020}.*"):
            os.utime(file, (began + n * HOUR_S / 4,) * 2)
    OldVersions(table, few=3).thin_out(table.open())
    return table


@pytest.mark.scenario
def test_versions_between_gaps_are_read_by_number_and_time_and_one_of_them_is_restored(
    table: Table, spark: SparkSession
) -> None:
    readable = readable_versions(table)
    gaps = [version for version in readable if version - 1 not in readable]
    assert len(gaps) >= 4
    newest = 4 * HOURS - 1
    for version in (*gaps, newest - 1, newest):
        rows = spark.read.format("delta").option("versionAsOf", version).load(table.uri).collect()
        assert sorted(row.n for row in rows) == list(range(version + 1)), version
        files = DeltaTable(table.uri, version).file_uris()
        assert duckdb.sql(f"SELECT count(*) FROM read_parquet({files})").fetchall() == [(version + 1,)]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.uri}`").collect()
    assert sorted(row.version for row in history) == readable
    made = {row.version: row.timestamp.astimezone(UTC) for row in history}
    for version in gaps:
        then = datetime.fromtimestamp(made[version].timestamp() + 120, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        assert spark.read.format("delta").option("timestampAsOf", then).load(table.uri).count() == version + 1
    spark.sql(f"RESTORE TABLE delta.`{table.uri}` TO VERSION AS OF {gaps[2]}")
    assert spark.read.format("delta").load(table.uri).count() == gaps[2] + 1
    assert numbers(table) == list(range(gaps[2] + 1))
