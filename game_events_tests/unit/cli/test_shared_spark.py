"""Runs of the command line on the server of `game-events up`: only if it is there, mine, and as my own JVM would be."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from game_events.cli.shared_spark import FILE, leave, publish, shared_spark, use, withdraw
from game_events.config.settings import load_settings
from game_events.jvm.private_folders import private_folder
from game_events.spark.connect import CONNECT_MODE
from game_events.spark.session import READY_FILE


@pytest.fixture
def address():
    """Something listens there."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = str(Path(folder) / "socket")
        server.bind(path)
        server.listen()
        yield f"unix:{path}"


@pytest.fixture
def make(tmp_path):
    private_folder(tmp_path / "state" / "spark")
    return lambda **more: load_settings(state_dir=tmp_path / "state", **more)


def test_it_is_found_while_it_is_there(make, address):
    assert shared_spark(make()) is None
    publish(make(), address, "secret")
    found = shared_spark(make(lakehouse="elsewhere", kafka_topic="another"))
    assert found is not None
    assert found.environment == {"GAME_EVENTS_SPARK_REMOTE": address, "SPARK_CONNECT_AUTHENTICATE_TOKEN": "secret"}
    assert "secret" not in repr(found)
    assert (make().state_dir / FILE).stat().st_mode & 0o777 == 0o600
    withdraw(make())
    assert shared_spark(make()) is None


@pytest.mark.parametrize(
    "other",
    [
        {"spark_conf": {"spark.sql.ansi.enabled": "false"}},
        {"spark_driver_memory": "3g"},
        {"spark_master": "local[1]"},
        {"warm_spark": False},
        {"spark_remote": "sc://localhost:1"},
        {"lakehouse": "s3://bucket/lake", "storage_endpoint": "http://127.0.0.1:9"},
    ],
)
def test_a_run_that_needs_another_spark_has_its_own(make, address, other):
    publish(make(), address, "secret")
    assert shared_spark(make(**other)) is None


def test_another_python_environment_has_its_own(make, address, monkeypatch):
    publish(make(), address, "secret")
    monkeypatch.setenv("PYTHONPATH", "/another")
    assert shared_spark(make()) is None


@pytest.mark.parametrize("path", ["lib", "/lib:", "/lib:../mine"])
def test_a_relative_path_of_modules_is_not_that_of_the_server(make, address, monkeypatch, path):
    monkeypatch.setenv("PYTHONPATH", path)
    publish(make(), address, "secret")
    assert shared_spark(make()) is None


def test_a_run_that_ships_files_has_its_own(make, address, tmp_path):
    file = tmp_path / "helper.py"
    file.write_text("")
    publish(make(spark_py_files=[str(file)]), address, "secret")
    assert shared_spark(make(spark_py_files=[str(file)])) is None


def test_a_run_whose_code_was_edited_since_the_server_began_has_its_own(make, address, tmp_path):
    helper = tmp_path / "helper_of_an_extension.py"
    helper.write_text("NAME = 'first'")
    extension = tmp_path / "an_extension.py"
    extension.write_text(f"import sys\nsys.path.append({str(tmp_path)!r})\nimport helper_of_an_extension")
    ready = make().state_dir / READY_FILE
    ready.touch()
    settings = make(extensions=[str(extension)])
    publish(settings, address, "secret")
    assert shared_spark(settings) is not None
    later_ns = ready.stat().st_mtime_ns + 1
    os.utime(helper, ns=(later_ns, later_ns))
    assert shared_spark(settings) is None
    sys.path.remove(str(tmp_path))
    del sys.modules["helper_of_an_extension"]


def test_a_server_that_is_gone_is_not_used(make, address):
    publish(make(), f"{address}-of-before", "secret")
    assert shared_spark(make()) is None


def test_a_file_that_another_user_could_have_written_is_not_believed(make, address):
    publish(make(), address, "secret")
    # Nor is a socket that another user could have made.
    for path in (make().state_dir / FILE, make().state_dir / FILE.parent, Path(address.removeprefix("unix:")).parent):
        before = path.stat().st_mode & 0o777
        path.chmod(before | 0o022)
        assert shared_spark(make()) is None
        path.chmod(before)
    assert shared_spark(make()) is not None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"address": 1}'])
def test_a_damaged_file_is_as_none(make, text):
    (make().state_dir / FILE).write_text(text)
    assert shared_spark(make()) is None


def test_a_process_uses_it_and_leaves_it(make, address, monkeypatch):
    for name in ("GAME_EVENTS_SPARK_REMOTE", "SPARK_CONNECT_AUTHENTICATE_TOKEN", CONNECT_MODE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    publish(make(), address, "secret")
    found = shared_spark(make())
    assert found is not None
    before = dict(os.environ)
    use(found)
    assert make().spark_remote == address
    os.environ[CONNECT_MODE] = "1"  # as PySpark does
    leave(found)
    assert dict(os.environ) == before
