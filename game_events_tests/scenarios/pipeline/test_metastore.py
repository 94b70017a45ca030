"""Registration in a real Hive metastore, each step in a Spark of its own: what is registered outlives the session."""

import json
import os
import subprocess
import sys

import pytest

from game_events_tests.support.servers.hive_metastore import hive_metastore
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS
from game_events_tests.support.typed_tables import add_types
from game_events_tests.unit.plugins.catalog.test_registration import make

#: For each line: registers what runs have made, of each lakehouse twice, then asks for rows. A session may go on with the next.
STEPS = """
import json, sys
from game_events.orchestration.resources import SparkResource
from game_events.pipeline.context import Pipeline
from game_events.plugins.catalog.catalogs.registration import register_tables, tables_registered
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableReport
from game_events.config.settings import load_settings

for line in sys.stdin:
    asked = json.loads(line)
    spark = SparkResource().spark_session
    found, checks, rows = [], [], {}
    for lakehouse in asked["lakehouses"]:
        pipeline = Pipeline(load_settings(lakehouse=lakehouse), lambda: spark)
        for _ in range(2):
            changed = [TableReport("bronze", "bronze_events", ""), TableReport("silver", "silver_a_events", "", "a")]
            report = RunReport(tables=changed)
            register_tables(pipeline, report)
            found.append((report.registered, report.notices))
        checks.append(tables_registered(pipeline).summary)
    # What runs do without the catalog, which need not be there.
    spark.createDataFrame([(1,)], "a int").selectExpr("sum(a)").collect()
    for query in asked["queries"]:
        rows[query] = [list(row) for row in spark.sql(query).collect()]
    context = spark.sparkContext.applicationId
    if asked["ends"]:
        spark.stop()
    print(json.dumps({"found": found, "rows": rows, "checks": checks, "context": context}), flush=True)
"""


@pytest.fixture
def metastore(tmp_path):
    with hive_metastore(tmp_path / "hive") as server:
        yield server


@pytest.fixture
def step(tmp_path, metastore):
    """Has `STEPS` do one: all in one process with a JVM of its own, as Hive's catalog is a setting of the JVM's context."""
    conf = {
        **metastore.spark_conf,
        "spark.hadoop.hive.metastore.connect.retries": "1",
        "spark.hadoop.hive.metastore.failure.retries": "0",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    environment = os.environ | {
        "GAME_EVENTS_CATALOG": "games",
        "GAME_EVENTS_CATALOG_VIEWS": "types",
        "GAME_EVENTS_SPARK_MASTER": "local[1]",
        "GAME_EVENTS_SPARK_CONF": json.dumps(conf),
    }
    log = tmp_path / "steps.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", STEPS],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        def run(lakehouses, *queries, ends=True):
            asked = {"lakehouses": [str(root) for root in lakehouses], "queries": queries, "ends": ends}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, log.read_text()[-3000:]
            return json.loads(answer)

        yield run
        process.stdin.close()
        assert process.wait() == 0, log.read_text()[-3000:]


COUNTS = {name: f"SELECT count(*) FROM games.{name}" for name in ("bronze_events", "silver_b_events")}
STARTS = "SELECT * FROM games.silver_a__start_events"


def test_tables_and_views_of_types_are_in_a_metastore_once_and_found_by_name_from_any_session(step, metastore, tmp_path):
    root = tmp_path / "it's a lake"
    make(root, "bronze_events")
    add_types(root, {"t.Start": {"level": "3"}, "t.Paid": {"amount": "7"}})
    metastore.stop()
    away = step([root], ends=False)
    (registered, notices), _ = away["found"]
    assert registered == []
    assert notices[0].startswith("tables could not be registered in the catalog games: ")
    assert away["checks"][0].startswith("the catalog could not be asked: ")
    metastore.start()
    views = ["silver_a__paid_events", "silver_a__start_events"]
    first = step([root], COUNTS["bronze_events"], STARTS, "SELECT amount FROM games.silver_a__paid_events")
    assert first["found"] == [[["bronze_events", "silver_a_events", *views], []], [[], []]]
    assert list(first["rows"].values()) == [[[2]], [["t.Start", 1, "a", "3"]], [["7"]]]
    assert first["checks"] == ["all 2 tables are registered"]
    # A new game, a type with a new column, another session; then another lakehouse under the same names.
    make(root, "silver_b_events")
    add_types(root, {"t.Start": {"level": "4", "mode": "hard"}})
    other = tmp_path / "other"
    make(other, "bronze_events", "silver_c_events")
    second = step([root, other], *COUNTS.values(), f"{STARTS} ORDER BY level")
    assert second["found"][0] == [["silver_b_events", "silver_a__start_events"], []]
    counted, of_b, starts = second["rows"].values()
    assert (counted, of_b) == ([[2]], [[2]])
    assert starts == [["t.Start", 1, "a", "3", None], ["t.Start", 2, "a", "4", "hard"]]
    assert second["context"] != first["context"], "no part of Spark that knew of the first"
    registered, notices = second["found"][2]
    assert registered == []
    assert f"games.bronze_events of the catalog is {root}/bronze_events, not {other}/bronze_events" in notices[0]
    assert second["checks"][1].startswith("the catalog could not be asked: ConfigurationError")
