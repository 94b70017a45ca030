"""Wrong settings and wrong usage, for every command: a message and an exit code, never a traceback."""

import socket

import pytest

COMMANDS = [("run",), ("tables",), ("doctor",), ("produce",), ("stack", "status"), ("stack", "up"), ("up",), ("demo",)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_bad_setting_is_named_by_its_key_and_its_value_is_not_repeated(cli, command, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_MAX_RECORDS_PER_BATCH", "secret-by-mistake")
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", "ftp://here")
    # `up` looks at its port first, and this is one that nobody has.
    found = cli(*command, *(("--port", "0") if command == ("up",) else ()))
    assert (found.code, found.out) == (1, "")
    assert "GAME_EVENTS_MAX_RECORDS_PER_BATCH: Input should be a valid integer" in found.err
    assert "GAME_EVENTS_SCHEMA_REGISTRY_URL: Value error, must start with http:// or https://" in found.err
    assert "secret-by-mistake" not in found.err
    assert "Traceback" not in found.err


def test_a_settings_file_that_is_not_there_is_named(cli, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_CONFIG", "nowhere.yaml")
    found = cli("tables")
    assert found.code == 1
    assert "GAME_EVENTS_CONFIG names 'nowhere.yaml', which is not a file" in found.err


def test_a_lakehouse_that_is_a_file_is_named(cli, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path / "file"))
    found = cli("tables", "--json")
    assert found.code == 1
    assert "GAME_EVENTS_LAKEHOUSE" in found.err
    assert found.result["success"] is False
    assert "GAME_EVENTS_LAKEHOUSE" in found.result["error"]
    assert cli("tables").out == ""


def test_a_lakehouse_below_a_file_is_refused_by_every_command(cli, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path / "file" / "below"))
    found = cli("tables", "--json")
    assert (found.code, found.result["error"]) == (1, f"GAME_EVENTS_LAKEHOUSE: {tmp_path / 'file'} is not a folder")


def test_an_object_store_that_the_address_does_not_name_fully_is_refused_in_words(cli, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", "abfss://container/path")
    found = cli("tables", "--json")
    assert found.code == 1
    assert found.result["error"].startswith("object store abfss://container/path cannot be used (Account must be specified)")
    assert "Traceback" not in found.err


def test_a_log_of_the_mock_api_that_cannot_be_written_is_named(cli, tmp_path):
    path = tmp_path / "missing" / "log"
    found = cli("mock-api", "--port", "0", "--log", str(path), "--json")
    assert found.code == 1
    assert found.result["error"] == f"--log: {path} cannot be written: No such file or directory"


def test_a_manifest_that_cannot_be_written_is_named_before_anything_is_sent(cli, tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "manifest.json"
    found = cli("produce", "--manifest", str(path), "--json")
    assert found.code == 1
    assert found.result["error"].startswith(f"--manifest: {path} cannot be written: ")


def test_up_names_a_busy_port_before_anything_starts(cli):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        found = cli("up", "--port", str(port))
    assert found.code == 1
    assert found.err == f"error: port {port} is busy: stop what listens there, or choose another one with --port\n"
    assert found.out == ""


@pytest.mark.parametrize("arguments", [("nonsense",), ("run", "--nonsense"), ("stack", "sideways"), ("up", "--port", "high")])
def test_wrong_usage_has_an_exit_code_of_its_own(cli, arguments):
    found = cli(*arguments)
    assert found.code == 2
    assert "Usage: " in found.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--json", "--nonsense"), "No such option: --nonsense"),
        (("run", "--json", "--duration-s", "5"), "only with --continuous"),
        (("stack", "sideways", "--json"), "No such command 'sideways'"),
    ],
)
def test_wrong_usage_is_a_result_for_programs_too(cli, arguments, said):
    found = cli(*arguments)
    assert found.code == 2
    assert found.result["success"] is False
    assert said in found.result["error"]
    assert "Usage: " in found.err


def test_help_lists_every_command_with_one_line(cli):
    found = cli("--help")
    assert found.code == 0
    for command in ("stack", "demo", "produce", "run", "tables", "doctor", "up"):
        assert command in found.out
