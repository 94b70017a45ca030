"""What only a Connect server can show; run by `test_connect.py` with GAME_EVENTS_TEST_SPARK=connect."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from game_events.config.logging import CONNECT_LOGGER, limit_library_loggers
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.orchestration.resources import SparkResource
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.plugins.local.servers import connect_server
from game_events.plugins.local.servers.server_process import ServerProcess
from game_events.plugins.local.up import WarmSpark
from game_events.spark.config import packed, ship_code
from game_events.spark.connect import TOKEN_VARIABLE, close_session, connect, is_session_lost
from game_events_tests.support.fixtures.dagster import environment, instance, runs  # noqa: F401 - fixtures
from game_events_tests.support.reconciliation import assert_books_balance, count
from game_events_tests.support.servers.small_jvm import OF_A_COMMAND
from game_events_tests.support.servers.spark_kinds import REMOTE
from game_events_tests.support.waiting import until

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
#: A client with a job that beats like a heart, in a file's time, until it is ended.
CLIENT = """
import sys
from game_events.spark.connect import connect
from game_events.config.settings import load_settings
from game_events_tests.scenarios.cluster.on_connect import beating
session = connect(load_settings(), {})
beating(session, sys.argv[1]).collect()
"""


def beating(session, file):
    def beat(batches):
        import time  # noqa: PLC0415 - in the worker
        from pathlib import Path  # noqa: PLC0415

        for _ in range(600):
            Path(file).touch()
            time.sleep(0.2)
        yield from batches

    return session.range(0, 1, 1, 1).mapInArrow(beat, "id bigint")


def has_stopped(file, still_s=3.0):
    return time.time() - file.stat().st_mtime > still_s


def test_without_the_servers_token_nobody_is_let_in(spark, monkeypatch):  # noqa: ARG001 - the server must be up
    monkeypatch.setenv(TOKEN_VARIABLE, "another one")
    with pytest.raises(ConfigurationError, match=f"refuses this client: set {TOKEN_VARIABLE}") as refused:
        connect(load_settings(), {"spark.sql.session.timeZone": "UTC"})
    assert os.environ[TOKEN_VARIABLE] not in str(refused.value)


def test_the_clients_own_log_repeats_no_plan_however_loud_logging_is(spark, caplog):  # noqa: ARG001 - the server must be up
    session = connect(load_settings(), {})
    limit_library_loggers()
    logging.getLogger(CONNECT_LOGGER).disabled = False  # as `logging.config` does
    with caplog.at_level(logging.DEBUG):
        assert session.range(1).where("'hush' = 'hush'").count() == 1
    assert "hush" not in caplog.text
    close_session(session)


def test_workers_of_a_server_elsewhere_run_the_clients_code(spark):  # noqa: ARG001 - the server must be up
    settings = load_settings(spark_ship_code="always")
    session = connect(settings, {})
    ship_code(session, settings)

    def look(batches):
        import pyarrow as pa  # noqa: PLC0415

        from game_events.workers import fanout as fan_out  # noqa: PLC0415

        yield from (pa.RecordBatch.from_pydict({"file": [fan_out.__file__]}) for _ in batches)

    (row,) = session.range(0, 1, 1, 1).mapInArrow(look, "file string").collect()
    assert f"/{packed().name}/game_events/" in row["file"]
    close_session(session)


def test_the_job_of_a_session_that_is_given_back_or_whose_client_was_killed_is_ended(spark, tmp_path):  # noqa: ARG001
    cancelled, orphaned = tmp_path / "cancelled", tmp_path / "orphaned"
    child = subprocess.Popen([sys.executable, "-c", CLIENT, str(orphaned)], cwd=Path(__file__).parents[3])
    session = connect(load_settings(), {})
    errors = []

    def work():
        try:
            beating(session, str(cancelled)).collect()
        except Exception as error:  # noqa: BLE001 - PySpark's, or grpc's own of a channel that was closed meanwhile
            errors.append(error)

    job = threading.Thread(target=work)
    job.start()
    until(cancelled.exists, what="the first job")
    close_session(session)
    until(lambda: has_stopped(cancelled), 30, what="the end of a cancelled run's job")
    job.join(60)
    assert errors
    until(orphaned.exists, what="the second job")
    assert child.poll() is None
    child.kill()
    assert child.wait() == -signal.SIGKILL
    until(lambda: has_stopped(orphaned), 2 * connect_server.DETACHED_S + 30, what="the end of a killed client's job")


def test_a_run_leaves_no_session_on_the_server(spark):  # noqa: ARG001 - the server must be up
    resource = SparkResource()
    session = resource.spark_session
    assert session.range(3).count() == 3
    resource.release()
    again = SparkSession.builder.remote(f"{os.environ[REMOTE]}/;session_id={session.session_id}").create()
    with pytest.raises(PySparkException) as closed:
        again.range(3).count()
    assert "INVALID_HANDLE.SESSION_CLOSED" in str(closed.value)
    assert is_session_lost(closed.value)
    close_session(again)
    # Who asks the resource again gets another one.
    assert resource.spark_session.range(2).count() == 2
    resource.release()


def test_a_session_that_ends_at_any_moment_leaves_the_calls_of_others_alone(spark):  # noqa: ARG001 - the server must be up
    ours, theirs = connect(load_settings(), {}), connect(load_settings(), {})
    assert ours.range(3).count() == 3
    # While a session hands over what it has read, the garbage collector may end another one, in whatever thread it runs.
    with ExecutePlanResponseReattachableIterator._lock:
        end = threading.Thread(target=close_session, args=(theirs,))
        end.start()
        end.join(30)
        assert not end.is_alive()
    assert ours.range(2).count() == 2
    assert ExecutePlanResponseReattachableIterator._release_thread_pool_instance is not None
    close_session(ours)


def test_a_server_that_is_killed_in_mid_run_is_started_again_and_the_run_goes_on(settings, runs, monkeypatch):  # noqa: F811
    said = []
    of_server = load_settings(state_dir=settings.state_dir, spark_master="local[2]", spark_conf=OF_A_COMMAND)
    warm = WarmSpark(of_server, said.append)
    for name, value in warm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GAME_EVENTS_MODE", "production")
    monkeypatch.setenv("GAME_EVENTS_MAX_RECORDS_PER_BATCH", "500")
    sent = produce_bulk(settings, BulkSimulation(records=3_000, games=("chess", "uno"), pool_per_version=500))
    results: list[dg.ExecuteInProcessResult] = []
    warm.start()
    try:
        run = threading.Thread(target=lambda: results.append(runs.refresh()))
        run.start()
        until(lambda: results or count(settings, "bronze_events"), what="the first of six slices")
        assert not results
        recorded = settings.state_dir.resolve() / "spark" / "connect.json"
        first = ServerProcess.model_validate_json(recorded.read_text())
        os.kill(first.pid, signal.SIGKILL)
        run.join(300)
        assert ServerProcess.model_validate_json(recorded.read_text()).pid != first.pid
    finally:
        warm.end()
    (result,) = results
    assert runs.instance.get_run_by_id(result.run_id).status == DagsterRunStatus.SUCCESS
    assert [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_UP_FOR_RETRY]
    assert_books_balance(settings, sent)
    assert any("the shared Spark server ended" in line for line in said)
    assert not recorded.exists()
