"""The event log: what a run did is there once, whatever became of the run; nothing of it is secret. Needs no service."""

from __future__ import annotations

import json
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from game_events.config.settings import load_settings
from game_events.errors import QUOTED, ConflictError, ExtensionError, TransientError
from game_events.lakehouse.system_tables import KINDS, ProgressTable, append_events, read_events
from game_events.lakehouse.tables import EVENT_LOG, Lakehouse, add_actions
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import RunFacts, RunLog, event_rows, recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import COUNTER_KINDS, NOTICES_KEPT, CheckResult, TableReport
from game_events_tests.support.faults import unreadable
from game_events_tests.support.offsets import splits

SECRETS = ("planted-registry-1", "planted-kafka-22", "planted-store-333")


@pytest.fixture
def settings(tmp_path):
    return load_settings(
        lakehouse=str(tmp_path / "lakehouse"),
        schema_registry_user="reader",
        schema_registry_password=SECRETS[0],
        kafka_options={"sasl.username": "reader", "sasl.password": SECRETS[1]},
        spark_conf={"spark.hadoop.fs.s3a.secret.key": SECRETS[2], "spark.ui.enabled": "false"},
        max_games=7,
    )


@pytest.fixture
def make_pipeline(settings):
    def no_spark():
        raise AssertionError("the event log needs no Spark")

    return lambda run_id="run-1": Pipeline(settings, no_spark, run_id)


def table(layer, name, game=None, rows=10, **more):
    return TableReport(layer, name, f"/somewhere/{name}", game, rows=rows, table_rows=rows + 5, version=3, batch=2, **more)


def a_report():
    columns = [("a", "int64"), ("a__string", "string"), ("b", "int64")]
    bronze = table("bronze", "bronze_events", columns=columns, new_columns=["a__string", "b"])
    return RunReport(
        tables=[
            bronze,
            table("silver", "silver_rummy_events", "rummy"),
            table("gold", "gold_rummy_player_agg", "rummy", rows=4),
            table("silver", "silver_uno_events", "uno", error=f"cannot log in with {SECRETS[1]}"),
        ],
        offsets=splits("game_events", "id", {0: (5, 15), 1: (0, 3)}),
        lag=splits("game_events", "id", {0: 2, 1: 0}),
        batches=[2],
        schema_ids={7},
        new_schemas={7: ("game_events-value", 3)},
        rejected=Counter(EMPTY=3),
        other_types=Counter({"shop.Heartbeat": 5}),
        unrouted=Counter(invalid=1),
        replayed=2,
        seconds={"bronze": 1.5, "silver": 0.5},
        checks=[CheckResult("fresh", "bronze", False, "too old", {"seconds_since_last_commit": 99.0})],
    )


def events(pipeline, **where):
    found = sorted(read_events(pipeline.lakehouse).to_pylist(), key=lambda r: (r["time"], r["part"]))
    return [r for r in found if all(r[k] == v for k, v in where.items())]


def test_every_kind_of_event_comes_from_the_report_and_says_what_it_says(settings):
    rows = event_rows(a_report(), RunFacts("refresh", 2.0), settings)
    kinds = Counter(r["kind"] for r in rows)
    assert kinds == {
        "run": 1,
        "layer": 2,
        "read": 1,
        "table": 4,
        "rejected": 1,
        "other_types": 1,
        "unrouted": 1,
        "replayed": 1,
        "schema": 3,
        "check": 1,
    }
    assert set(kinds) <= {*KINDS, *COUNTER_KINDS}
    by_kind = {r["kind"]: r for r in rows}
    assert (by_kind["other_types"]["name"], by_kind["other_types"]["rows"]) == ("shop.Heartbeat", 5)
    read = by_kind["read"]
    assert (read["rows"], read["lag"]) == (13, 2)
    assert json.loads(read["detail"])["partitions"] == {"0": [5, 15, 2], "1": [0, 3, 0]}
    tables = {r["table"]: r for r in rows if r["kind"] == "table"}
    gold = tables["gold_rummy_player_agg"]
    assert (gold["rows"], gold["table_rows"], gold["delta_version"], gold["batch"], gold["status"]) == (4, 9, 3, 2, "changed")
    assert json.loads(gold["detail"])["inputs"] == [{"table": "silver_rummy_events", "batch": 2}]
    assert tables["silver_uno_events"]["status"] == "failed"
    schema = {r["name"]: (r.get("status"), json.loads(r["detail"])) for r in rows if r["kind"] == "schema"}
    assert schema == {
        "schema id 7": (None, {"schema_id": 7, "subject": "game_events-value", "version": 3}),
        "a__string": ("column of another kind", {"type": "string", "other_kind_of": "a", "kind": "string"}),
        "b": ("new column", {"type": "int64"}),
    }
    assert (by_kind["check"]["name"], by_kind["check"]["status"]) == ("fresh", "warned")
    run = by_kind["run"]
    assert (run["name"], run["status"], run["rows"], run["lag"]) == ("refresh", "failed", 10, 2)
    detail = json.loads(run["detail"])
    assert set(detail["started_by"]) == {"user", "host", "version"}
    assert all(detail["started_by"].values())
    assert detail["settings"]["max_games"] == 7
    assert "entity_column" not in detail["settings"], "a default says nothing"
    assert detail["settings"]["kafka_options"] == {"sasl.password": "***", "sasl.username": "***"}


def test_no_secret_of_the_settings_is_in_any_event(settings):
    error = TransientError(f"no answer from http://reader:{SECRETS[0]}@registry:8081 with {SECRETS[2]}")
    text = json.dumps(event_rows(a_report(), RunFacts("refresh", 2.0, error), settings), default=str)
    assert "registry:8081" in text
    assert [s for s in SECRETS if s in text] == []


def test_no_word_that_may_quote_a_row_is_in_any_event(settings):
    """What Spark or a function of the user's own stumbles over, it says: the log outlives that player's rows."""
    whom = "rummy-0007"
    spark = PySparkException(f"[CAST_INVALID_INPUT] The value '{whom}' cannot be cast", "CAST_INVALID_INPUT", {})
    own = ExtensionError(f"silver transformation f failed while running, nothing was committed.{QUOTED}ValueError: {whom}")
    report = a_report()
    report.add(RunReport(tables=[replace(report.tables[-1], error=str(own))]))
    for error, says in ((spark, "run's log"), (own, "silver transformation f"), (ValueError(whom), "ValueError")):
        text = json.dumps(event_rows(report, RunFacts("refresh", 2.0, error), settings), default=str)
        assert says in text
        assert whom not in text
    table = ProgressTable(Lakehouse.of(settings))
    table.update("b", lambda now: now.done("silver", 1, {}, {"uno": str(own)}))
    assert [whom in why for why in table.read("b").failed.values()] == [False]
    assert whom in str(own), "who looks at the run is told"


def test_a_run_is_in_the_log_with_its_end_whether_it_succeeded_failed_or_was_stopped(make_pipeline):
    ends = {"a": None, "b": TransientError("the broker is away"), "c": KeyboardInterrupt(), "d": KeyError("p")}
    ends["d"].__context__ = KeyboardInterrupt()  # what the next call into Spark makes of a stop
    for run_id, error in ends.items():
        try:
            with recorded(make_pipeline(run_id), RunReport(), "refresh"):
                if error is not None:
                    raise error
        except (TransientError, KeyboardInterrupt, KeyError) as raised:
            assert raised is error
    found = {r["run_id"]: r for r in events(make_pipeline(), kind="run")}
    assert {run_id: r["status"] for run_id, r in found.items()} == {
        "a": "succeeded",
        "b": "failed",
        "c": "stopped",
        "d": "stopped",
    }
    assert json.loads(found["d"]["detail"])["error"]["class"] == "KeyboardInterrupt"
    assert json.loads(found["b"]["detail"])["error"] == {"class": "TransientError", "text": "the broker is away"}
    assert all(r["time"].tzinfo is not None and r["seconds"] >= 0 for r in found.values())


def test_what_is_written_twice_is_there_once_and_each_attempt_and_step_of_a_run_is_there(make_pipeline):
    pipeline = make_pipeline()
    for job, attempt in [("refresh", 0), ("refresh", 0), ("refresh", 1), ("check volume", 0)]:
        with recorded(pipeline, RunReport(), job, attempt):
            pass
    assert Counter(r["part"] for r in events(pipeline)) == {"refresh#0": 1, "refresh#1": 1, "check volume#0": 1}
    assert pipeline.lakehouse.table(EVENT_LOG).open().version() == 2


def test_runs_that_end_at_the_same_moment_all_get_into_the_log_each_once(tmp_path):
    lakehouse = Lakehouse(str(tmp_path / "lakehouse"))
    row = {"time": datetime.now(UTC), "kind": "run"}
    # Each run twice, as if it did not know that its first commit landed.
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda n: append_events(lakehouse, [row, row], f"run-{n % 8}", "refresh#0"), range(16)))
    assert sum(wrote) == 8
    assert Counter(r["run_id"] for r in read_events(lakehouse).to_pylist()) == {f"run-{n}": 2 for n in range(8)}
    # One transaction for all runs: a log that named every run would grow for ever.
    assert lakehouse.table(EVENT_LOG).open().transaction_version("commits") == 8


def test_a_log_that_cannot_be_written_is_a_warning_with_the_reason_and_the_run_goes_on(make_pipeline, caplog):
    conflict = ConflictError(f"concurrent runs won with {SECRETS[0]}")
    with unreadable(EVENT_LOG, conflict), recorded(make_pipeline(), RunReport(), "refresh"):
        pass
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "run_id=run-1" in line.getMessage()
    assert "concurrent runs won with ***" in line.getMessage()


def test_of_a_run_without_an_end_cycles_are_added_up_idle_ones_leave_nothing_and_what_failed_goes_with_the_next(
    make_pipeline,
):
    pipeline = make_pipeline()
    log = RunLog(pipeline, "continuous", interval_s=3600)
    log.add(RunReport())
    read, lag = (splits("game_events", "id", {0: at}) for at in ((15, 20), 0))
    first, second = a_report(), replace(a_report(), offsets=read, lag=lag)
    log.add(first)
    log.add(second)
    assert events(pipeline) == [], "not due yet"
    log._began -= 3600
    with unreadable(EVENT_LOG, OSError("disk full")):
        log.add(RunReport())
    assert events(pipeline) == []
    log.close()
    (read,) = events(pipeline, kind="read")
    assert json.loads(read["detail"])["partitions"] == {"0": [5, 20, 0], "1": [0, 3, 0]}
    tables = {r["table"]: r["rows"] for r in events(pipeline, kind="table")}
    assert (tables["bronze_events"], tables["gold_rummy_player_agg"]) == (20, 4)
    assert {r["rows"] for r in events(pipeline, kind="rejected")} == {6}
    assert len(events(pipeline, kind="run")) == 1

    log.add(a_report())
    log.close(TransientError("gone"))
    assert [r["part"] for r in events(pipeline, kind="run")] == ["continuous#0.0", "continuous#0.1"]
    assert events(pipeline, kind="run")[-1]["status"] == "failed"


def test_a_table_that_failed_and_then_changed_is_no_failure_of_the_sum():
    good, bad = table("silver", "silver_uno_events", "uno"), table("silver", "silver_uno_events", "uno", error="locked")
    assert RunReport(tables=[bad]).merge(RunReport(tables=[good])).success
    assert not RunReport(tables=[good]).merge(RunReport(tables=[bad])).success


def test_a_sum_tells_each_notice_once_and_keeps_no_more_than_some():
    whole = RunReport()
    for cycle in range(3 * NOTICES_KEPT):
        whole = whole.merge(RunReport(notices=["the same each time", f"cycle {cycle}"]))
    assert len(whole.notices) == NOTICES_KEPT
    assert whole.notices[-1] == f"cycle {cycle}"
    assert RunReport(notices=["a", "b"]).merge(RunReport(notices=["b", "a"])).notices == ["a", "b"]


def test_a_look_at_the_last_day_opens_no_file_without_rows_of_it(tmp_path):
    lakehouse, now = Lakehouse(str(tmp_path / "lakehouse")), datetime.now(UTC)
    for days in range(4):
        append_events(lakehouse, [{"time": now - timedelta(days=days), "kind": "run"}], f"run-{days}", "refresh#0")
    log = lakehouse.table(EVENT_LOG)
    for old in add_actions(log.open()).sort_by("modification_time").column("path").to_pylist()[2:]:
        Path(log.uri, old).unlink()
    assert {r["run_id"] for r in read_events(lakehouse, now - timedelta(hours=30)).to_pylist()} == {"run-0", "run-1"}
    assert [r["run_id"] for r in read_events(lakehouse, newest_files=1).to_pylist()] == ["run-0"]


def test_a_check_that_could_not_be_made_shows_no_secret():
    check = CheckResult("fresh", "bronze", False, "could not be made: GET http://me:hunter22@store/x failed")
    report = RunReport(checks=[check])
    rows = list(event_rows(report, RunFacts("run", 1.0), load_settings()))
    assert [r for r in rows if r["kind"] == "check"]
    assert "hunter22" not in str(rows)
