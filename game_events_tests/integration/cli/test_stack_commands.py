"""`game-events stack` and `doctor`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def state(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAME_EVENTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path / "lakehouse"))
    return tmp_path / "state"


@pytest.mark.scenario
def test_up_status_and_down_as_a_script_uses_them(cli, state):
    assert state.parent.is_dir()
    nothing = cli("stack", "status", "--json")
    assert (nothing.code, nothing.result) == (
        1,
        {"running": False, "kafka_bootstrap_servers": None, "schema_registry_url": None},
    )
    try:
        up = cli("stack", "up", "--json")
        assert up.code == 0
        assert "starting Kafka" in up.err
        assert up.result["running"] is True
        again = cli("stack", "up", "--json")
        assert (again.code, again.result) == (0, up.result)
        assert "starting" not in again.err

        status = cli("stack", "status", "--json")
        assert (status.code, status.result) == (0, up.result)
        plain = cli("stack", "status")
        assert plain.code == 0
        assert f"kafka:    {up.result['kafka_bootstrap_servers']} running" in plain.out

        # Nobody named an address: the commands find the stack that runs here. There is no topic yet.
        sick = cli("doctor", "--json")
        assert sick.code == 1
        failed = {c["check"]: c["detail"] for c in sick.result["checks"] if not c["ok"]}
        assert list(failed) == ["kafka"]
        assert "has no topic 'game_events': create it, or set GAME_EVENTS_KAFKA_TOPIC" in failed["kafka"]
        assert cli("produce", "--records", "1", "--games", "rummy", "--versions", "1", "--json").code == 0
        healthy = cli("doctor", "--json")
        assert (healthy.code, healthy.result["success"]) == (0, True)
        details = {c["check"]: c["detail"] for c in healthy.result["checks"]}
        assert "topic game_events, 4 partitions, 1 record" in details["kafka"]
        assert "subject game_events-value, 1 version" in details["schema registry"]
    finally:
        down = cli("stack", "down", "--delete-data", "--json")
    assert (down.code, down.result) == (0, {"running": False, "stopped": True})
    assert cli("stack", "status").code == 1
    once_more = cli("stack", "down")
    assert (once_more.code, once_more.out) == (0, "nothing was running\n")


@pytest.mark.usefixtures("no_waiting")
def test_doctor_names_everything_that_is_missing_and_what_to_do(cli, state, monkeypatch):
    assert not state.exists()
    Path("file").write_text("")
    monkeypatch.setenv("GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", "file")
    found = cli("doctor", "--json")
    assert found.code == 1
    assert found.result["success"] is False
    details = {c["check"]: (c["ok"], c["detail"]) for c in found.result["checks"]}
    assert details["java"][0]
    assert details["java parts"][0]
    for check, hint in {
        "kafka": "GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS",
        "schema registry": "GAME_EVENTS_SCHEMA_REGISTRY_URL",
        "lakehouse": "GAME_EVENTS_LAKEHOUSE",
    }.items():
        assert not details[check][0]
        assert hint in details[check][1]
    assert "Traceback" not in found.everything


def test_the_installed_command_prints_json_as_its_only_line_of_stdout_and_exits_with_its_code(state):
    assert not state.exists()
    command = Path(sys.executable).with_name("game-events")
    found = subprocess.run([command, "stack", "status", "--json"], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert json.loads(found.stdout)["running"] is False
    assert found.stderr.splitlines() == ["kafka:    - not running", "registry: - not running"]
