"""`game-events run` and `tables`; Spark is the tests' shared session."""

import os
import re
import socket
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from deltalake import DeltaTable

from game_events.config.settings import load_settings
from game_events.lakehouse.tables import EVENT_LOG
from game_events.orchestration.runs import PROCESS_TAG, lakehouse_tag, this_process
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.servers.webhook import TOKEN, Receiver

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


@pytest.fixture
def ready(environment, spark):  # noqa: ARG001 - the run finds it
    return environment


def wave(**options):
    return Simulation(games=("rummy", "uno"), records_per_game_and_version=5, **options)


def log_files(settings):
    """Every file of every Delta log: a commit adds one. But the event log's: it tells of every run."""
    files = sorted(p.relative_to(settings.lakehouse) for p in Path(settings.lakehouse).rglob("_delta_log/*"))
    return [f for f in files if f.parts[0] != EVENT_LOG]


def test_a_run_fills_the_tables_and_one_with_nothing_new_writes_nothing_and_says_so(cli, ready):
    empty = cli("tables", "--json")
    assert (empty.code, empty.result["tables"]) == (0, [])
    assert "`game-events run` makes them" in empty.err

    sent = produce(ready, wave(poison_share=0.3))
    first = cli("run", "--json")
    assert first.code == 0
    body = first.result
    assert (body["success"], body["error"], body["lag"]) == (True, None, 0)
    assert body["rows"]["bronze"] == body["rows"]["silver"] == sent.decodable == 20
    assert body["rows"]["quarantine"] == sum(sent.poison.values())
    assert body["games"]["rummy"]["silver"] == 10
    assert f"tables: {ready.lakehouse}" in first.err
    reconciliation.assert_books_balance(ready, sent)

    files = log_files(ready)
    second = cli("run", "--json")
    assert second.code == 0
    assert second.result["success"] is True
    assert set(second.result["rows"].values()) == {0}
    assert second.result["tables"] == {}
    assert "nothing new: every table is up to date, and none was written" in second.err
    assert log_files(ready) == files

    listed = cli("tables", "--json")
    assert listed.code == 0
    tables = {t["table"]: t for t in listed.result["tables"]}
    assert tables["bronze_events"]["rows"] == 20
    assert tables["silver_uno_events"]["rows"] == 10
    assert all(t["version"] == DeltaTable(t["location"]).version() for t in tables.values())
    assert "silver_uno_events" in cli("tables").out

    # The run that did something is in the Dagster instance that the UI shows.
    assert second.result["run_id"] is None
    with DagsterInstance.from_config(str(ready.state_dir.parent / "dagster")) as instance:
        runs = {r.run_id: r.status for r in instance.get_runs()}
    assert runs == {body["run_id"]: DagsterRunStatus.SUCCESS}


def test_a_run_whose_rows_all_belong_to_no_game_says_so_loudly_and_doctor_names_them(cli, ready):
    produce(ready, Simulation(games=("Rummy.Pro", "UNO"), records_per_game_and_version=5))
    assert cli("run", "--select", "bronze").code == 0
    run = cli("run", "--json")
    assert run.code == 0
    assert run.result["unrouted"] == {"invalid": 20}
    assert any(notice.startswith("MOST ROWS ARE IN NO TABLE OF SILVER") for notice in run.result["notices"])
    assert "(20 of 20 rows)" in run.err
    assert "no table was written: 20 new rows of bronze belong to none" in run.err
    assert "nothing new" not in run.err
    doctor = cli("doctor", "--json")
    (names,) = [check for check in doctor.result["checks"] if check["check"] == "names"]
    assert names["look"]
    assert sorted((one["name"], one["rows"]) for one in names["data"]["unrouted"]) == [("'Rummy.Pro'", 10), ("'UNO'", 10)]
    assert reconciliation.count(ready, "bronze_events") == 20


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9", "GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS"),
        ("SCHEMA_REGISTRY_URL", "http://127.0.0.1:9", "is GAME_EVENTS_SCHEMA_REGISTRY_URL right, and is it up?"),
        ("KAFKA_TOPIC", "not_there", "has no topic 'not_there': create it, or set GAME_EVENTS_KAFKA_TOPIC"),
        ("KAFKA_OPTIONS", '{"group.id": "mine"}', "GAME_EVENTS_KAFKA_OPTIONS: group.id is managed by game_events"),
        ("ENTITY_COLUMN", "team", "set GAME_EVENTS_ENTITY_COLUMN"),
    ],
)
def test_a_run_that_cannot_work_says_what_to_do_in_words(cli, ready, monkeypatch, key, value, hint):
    produce(ready, wave())
    monkeypatch.setenv(f"GAME_EVENTS_{key}", value)
    found = cli("run", "--json")
    assert found.code == 1
    assert found.result["success"] is False
    assert hint in found.result["error"]
    assert f"the run failed: {found.result['error']}" in found.err
    assert "Traceback" not in found.everything
    assert "Stack Trace" not in found.everything


def _but_for_times(text):
    """librdkafka says after how many milliseconds a connection failed."""
    return re.sub(r"\d+ms", "", text)


@pytest.mark.usefixtures("no_waiting")
def test_a_run_that_fails_tells_the_webhook_and_one_that_was_killed_before_holds_it_up_no_more(cli, ready, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    Path(os.environ["DAGSTER_HOME"]).mkdir()
    gone = f"{socket.gethostname()}:4000000:1"
    with Receiver().running() as receiver, DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance:
        tags = {PROCESS_TAG: gone, **lakehouse_tag(load_settings())}
        killed = instance.add_run(DagsterRun(job_name="refresh", status=DagsterRunStatus.STARTED, tags=tags))
        monkeypatch.setenv("GAME_EVENTS_ALERT_WEBHOOK_URL", receiver.url)
        found = cli("run", "--json")
        assert found.code == 1
        assert [(b["event"], b["run_id"]) for b in receiver.bodies] == [("run_failed", found.result["run_id"])]
        assert receiver.bodies[0]["error"] == found.result["error"]
        assert instance.get_run_by_id(killed.run_id).status == DagsterRunStatus.FAILURE
        assert instance.get_run_by_id(found.result["run_id"]).tags[PROCESS_TAG] == this_process()
        assert TOKEN not in found.everything
    # Nobody listens any more: the run fails for its own reason, and the address is in no line.
    again = cli("run", "--json")
    assert _but_for_times(again.result["error"]) == _but_for_times(found.result["error"])
    assert TOKEN not in again.everything
    assert ready


def test_a_dagster_home_that_cannot_be_one_is_named(cli, ready, monkeypatch, tmp_path):
    assert ready
    (tmp_path / "file").write_text("")
    for home, hint in {
        "relative/home": "DAGSTER_HOME: 'relative/home' is not an absolute path",
        str(tmp_path / "file"): f"DAGSTER_HOME: the folder {tmp_path / 'file'} cannot be made",
    }.items():
        monkeypatch.setenv("DAGSTER_HOME", home)
        found = cli("run", "--json")
        assert found.code == 1
        assert hint in found.err
        assert hint in found.result["error"]
        assert "Traceback" not in found.err
    assert not (tmp_path / "relative").exists()


def test_without_a_dagster_home_the_state_folder_has_it_with_the_projects_configuration(cli, ready, monkeypatch, tmp_path):
    monkeypatch.delenv("DAGSTER_HOME")
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    produce(ready, wave())
    assert cli("run", "--json").code == 0
    assert (ready.state_dir / "dagster/dagster.yaml").read_text() == "telemetry:\n  enabled: false\n"
    assert not (tmp_path / "dagster").exists()
