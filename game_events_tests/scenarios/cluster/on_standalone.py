"""What only a cluster can show; run by `test_standalone.py` with GAME_EVENTS_TEST_SPARK=standalone."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from game_events.config.settings import load_settings
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.spark.config import packed, ship_code
from game_events_tests.support.reconciliation import assert_books_balance, count
from game_events_tests.support.servers.spark_kinds import running
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.own_module import extension

pytestmark = pytest.mark.every_spark


def test_workers_run_the_drivers_code_and_the_users_and_none_that_lies_about_on_their_machine(spark, tmp_path):
    helper = tmp_path / "users_helper.py"
    helper.write_text("def twice(number):\n    return 2 * number\n")
    ship_code(spark, load_settings(spark_py_files=[str(helper)]))
    name, place = packed().name, str(tmp_path)

    def look(batches):
        import os  # noqa: PLC0415 - what follows is there, not here
        import socket  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415
        import users_helper  # noqa: PLC0415

        from game_events.workers import fanout as fan_out  # noqa: PLC0415

        rows = sum(batch.num_rows for batch in batches)
        seen = [fan_out.__file__, str(Path.cwd()), os.environ.get("PYTHONPATH", ""), os.environ.get("HOME", "")]
        yield pa.RecordBatch.from_pydict(
            {"host": [socket.gethostname()], "rows": [users_helper.twice(rows)], "seen": [seen]},
        )

    found = spark.range(0, 8, 1, 8).mapInArrow(look, "host string, rows bigint, seen array<string>").collect()
    assert [row["rows"] for row in found] == [2] * 8
    (cluster,) = running
    folders = set()
    for row in found:
        module, folder, python_path, _ = row["seen"]
        assert f"/{name}/game_events/" in module
        assert Path(folder).is_relative_to(cluster.folder), folder
        assert place not in python_path
        folders.add(Path(folder).relative_to(cluster.folder).parts[0])
    assert folders <= {"worker0", "worker1"}


def test_an_extensions_own_functions_and_what_they_import_reach_the_executors(make_settings, make_pipeline, spark, tmp_path):
    helper = tmp_path / "loudness.py"
    helper.write_text("def louder(text):\n    return text.upper() + '!'\n")
    text = """
    from pyspark.sql.functions import udf

    @udf("string")
    def loud(text):
        from loudness import louder
        return louder(text)

    @silver_transformation()
    def shouted(rows):
        return rows.withColumn("shouted", loud("game_name"))
    """
    settings = make_settings(extensions=(extension(tmp_path, text),), spark_py_files=[str(helper)])
    ship_code(spark, settings)
    sent = produce_bulk(settings, BulkSimulation(records=200, pool_per_version=100, games=("chess", "uno")), partitions=2)
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert_books_balance(settings, sent)
    assert "shouted" in {name for name, _ in report.of("silver")[0].columns}


def test_executors_that_are_killed_in_mid_run_cost_time_and_no_row(make_settings, make_pipeline):
    settings = make_settings(max_records_per_batch=500)
    sent = produce_bulk(settings, BulkSimulation(records=3_000, games=("chess", "uno"), pool_per_version=500))
    (cluster,) = running
    reports, failures = [], []

    def work():
        try:
            reports.append(refresh(make_pipeline(settings)))
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    until(lambda: len(cluster.executors()) == len(cluster.workers), what="both executors")
    run = threading.Thread(target=work)
    run.start()
    until(lambda: failures or count(settings, "bronze_events"), what="the first of six slices")
    victims = cluster.executors()
    for victim in victims:
        victim.kill()
    assert not reports
    psutil.wait_procs(victims, 10)
    run.join(300)
    if failures:
        raise failures[0]
    assert reports[0].success, reports[0].errors
    assert reports[0].rows("bronze") == sent.decodable
    assert_books_balance(settings, sent)
    # The workers have started others.
    until(lambda: len(cluster.executors()) == len(cluster.workers), what="both executors again")
    assert not set(victims) & set(cluster.executors())
