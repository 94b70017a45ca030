"""Registration in a real Hive metastore (Derby), each step in a Spark of its own: what is registered outlives the session."""

import json
import os
import subprocess
import sys

import pytest

from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS
from game_events_tests.unit.plugins.catalog.test_registration import make

#: For each line: in a session of its own, registers what runs have made, of each lakehouse twice, then asks for tables by name.
STEPS = """
import json, sys
from game_events.orchestration.resources import SparkResource
from game_events.pipeline.context import Pipeline
from game_events.plugins.catalog.observer import register_tables, tables_registered
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableReport
from game_events.config.settings import load_settings

for line in sys.stdin:
    asked = json.loads(line)
    spark = SparkResource().spark_session
    found, checks = [], []
    for lakehouse in asked["lakehouses"]:
        pipeline = Pipeline(load_settings(lakehouse=lakehouse), lambda: spark)
        for _ in range(2):
            report = RunReport(tables=[TableReport("bronze", "bronze_events", "")])
            register_tables(pipeline, report)
            found.append((report.registered, report.notices))
        checks.append(tables_registered(pipeline).summary)
    rows = {name: spark.sql(f"SELECT count(*) FROM games.{name}").first()[0] for name in asked["names"]}
    comment = spark.sql("DESCRIBE TABLE games.bronze_events").where("col_name = '_batch'").first()["comment"]
    context = spark.sparkContext.applicationId
    spark.stop()
    print(json.dumps({"found": found, "rows": rows, "checks": checks, "comment": comment, "context": context}), flush=True)
"""


@pytest.fixture
def step(tmp_path):
    """Has `STEPS` do one: all in one process with a JVM of its own, as Hive's catalog is a setting of the JVM's context."""
    conf = {
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        "spark.sql.warehouse.dir": f"{tmp_path}/warehouse",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    environment = os.environ | {
        "GAME_EVENTS_CATALOG": "games",
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

        def run(lakehouses, *names):
            process.stdin.write(json.dumps({"lakehouses": [str(root) for root in lakehouses], "names": names}) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, log.read_text()[-3000:]
            return json.loads(answer)

        yield run
        process.stdin.close()
        assert process.wait() == 0, log.read_text()[-3000:]


def test_tables_are_in_a_metastore_once_and_found_by_name_from_any_session(step, tmp_path):
    root = tmp_path / "it's a lake"
    make(root, "bronze_events", "silver_a_events")
    first = step([root], "bronze_events", "silver_a_events")
    assert first["found"] == [[["bronze_events", "silver_a_events"], []], [[], []]]
    assert first["rows"] == {"bronze_events": 2, "silver_a_events": 2}
    assert first["checks"] == ["all 2 tables are registered"]
    assert first["comment"] == "Number of the commit of bronze_events that brought the row"
    # A new game, another session; then another lakehouse under the same names.
    make(root, "silver_b_events")
    other = tmp_path / "other"
    make(other, "bronze_events", "silver_c_events")
    second = step([root, other], "bronze_events", "silver_b_events")
    assert second["found"][0] == [["silver_b_events"], []]
    assert second["rows"] == {"bronze_events": 2, "silver_b_events": 2}
    assert second["context"] != first["context"], "no part of Spark that knew of the first"
    registered, notices = second["found"][2]
    assert registered == []
    assert f"games.bronze_events of the catalog is {root}/bronze_events, not {other}/bronze_events" in notices[0]
    assert second["checks"][1].startswith("the catalog could not be asked: ConfigurationError")
