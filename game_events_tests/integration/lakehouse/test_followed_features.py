"""A lakehouse of which Spark has altered tables of each layer: runs, maintenance and erasure go on, and keep what was set."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.lakehouse.tables import Lakehouse, gold_name, silver_name
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.governance.run import erase
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.worlds.quality import Event, assert_checks_pass, send_events

GONE, STAYS = "gamer-to-forget", "gamer-who-stays"
FEATURES = "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true', 'delta.enableInCommitTimestamps' = 'true')"
ALTERS = {
    "bronze_events": (FEATURES, "ADD CONSTRAINT placed CHECK (_kafka_offset >= 0)"),
    silver_name("chess"): (
        FEATURES,
        "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "ADD CONSTRAINT few CHECK (amount < 1000)",
    ),
    gold_name("chess"): (FEATURES, "CLUSTER BY (gamer_id)"),
}
NUMBERS = "SELECT _kafka_offset, _metadata.row_id, _metadata.row_commit_version FROM delta.`{}`"


def wave(settings: Any, *amounts: int) -> None:
    """Events of two gamers in two games."""
    send_events(settings, [Event(game, n, gamer=who) for n in amounts for who in (GONE, STAYS) for game in ("chess", "go")])


def test_altered_tables_of_each_layer_go_through_runs_maintenance_and_erasure(
    make_settings: MakeSettings, make_pipeline: MakePipeline, spark: SparkSession
) -> None:
    settings = make_settings(erasure_key="a key of the tests, long enough")
    wave(settings, 1)
    refresh(make_pipeline(settings))
    tables = {key: Lakehouse(settings.lakehouse).table(key) for key in ALTERS}
    for key, alters in ALTERS.items():
        for alter in alters:
            spark.sql(f"ALTER TABLE delta.`{tables[key].uri}` {alter}")

    def numbers(key: str) -> dict[int, tuple[int, int]]:
        rows = spark.sql(NUMBERS.format(tables[key].uri)).collect()
        assert len({row["row_id"] for row in rows}) == len(rows)
        return {row["_kafka_offset"]: (row["row_id"], row["row_commit_version"]) for row in rows}

    silver = silver_name("chess")
    first = DeltaTable(tables[silver].uri).version() + 1
    for amount in (2, 3):
        wave(settings, amount)
        assert refresh(make_pipeline(settings)).errors == []
    before = {key: numbers(key) for key in ("bronze_events", silver)}
    report = RunReport()
    maintain(make_pipeline(settings), report)
    assert [done.error for done in report.maintenance.values() if done.error] == []
    assert {key: numbers(key) for key in before} == before
    changes = spark.sql(f"SELECT _change_type, amount FROM table_changes_by_path('{tables[silver].uri}', {first})").collect()
    assert sorted(tuple(row) for row in changes) == [("insert", 2), ("insert", 2), ("insert", 3), ("insert", 3)]
    erased = RunReport()
    erase(make_pipeline(settings), erased, frozenset({GONE}))
    assert erased.errors == []
    for key, rows in before.items():
        after = numbers(key)
        assert len(after) == len(rows) // 2
        assert after.items() <= rows.items(), "rows of others keep their numbers, and the version that they came with"
    wave(settings, 5000)
    report = refresh(make_pipeline(settings))
    assert {entry.game for entry in report.errors} == {"chess"}
    said = [entry.error for entry in report.errors if entry.error]
    assert said
    assert all("1 new rows break the constraint few (amount < 1000)" in error for error in said)
    spark.sql(f"ALTER TABLE delta.`{tables[silver].uri}` DROP CONSTRAINT few")
    assert refresh(make_pipeline(settings)).errors == []
    assert_checks_pass(make_pipeline(settings))
    for table in tables.values():
        handle = DeltaTable(table.uri)
        assert {"rowTracking", "inCommitTimestamp"} <= set(handle.protocol().writer_features or ())
        assert spark.read.format("delta").load(table.uri).count() == handle.to_pyarrow_table().num_rows
        times = [
            row[0]
            for row in spark.sql(f"DESCRIBE HISTORY delta.`{table.uri}`").orderBy("version").select("timestamp").collect()
        ]
        assert times == sorted(times)
    assert spark.sql(f"DESCRIBE DETAIL delta.`{tables[gold_name('chess')].uri}`").collect()[0]["clusteringColumns"] == [
        "gamer_id"
    ]
