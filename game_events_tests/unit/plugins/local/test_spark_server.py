"""How the shared server is watched, with a process in its place that greets."""

from __future__ import annotations

import os
import signal
import socket as socket_module
import stat
import sys
from pathlib import Path

import pytest

from game_events.config.settings import load_settings
from game_events.plugins.local.servers.server_process import ServerProcess, find, listens, spawn
from game_events.plugins.local.up import WarmSpark
from game_events_tests.support.waiting import until

#: A server that answers each connection with a word.
SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
accepted = []
while True:
    accepted.append(listener.accept()[0])
    accepted[-1].sendall(b"hello")
"""


@pytest.fixture
def ready():
    """The files with which the started processes say that they can make sessions."""
    return []


@pytest.fixture
def started():
    """The processes that were started, each with its address."""
    return []


@pytest.fixture
def make(tmp_path, ready, started):
    def start(_conf, folder, *, port, token, log, shared_workers):
        ready.append(shared_workers)
        folder.mkdir(parents=True, exist_ok=True)
        started.append((spawn([sys.executable, "-c", SERVER, str(port)], port=port, cwd=folder, log=log), port, token))
        return started[-1][0]

    quick = {"look_s": 0.02, "first_pause_s": 0.01, "start": start}
    return lambda said: WarmSpark(load_settings(state_dir=tmp_path / "state"), said.append, **quick)


def test_a_server_that_dies_has_a_successor_at_the_same_address_and_with_the_same_token(started, make, tmp_path):
    said = []
    warm = make(said)
    before = warm.environment
    warm.start()
    for number in (1, 2):
        os.kill(started[-1][0].pid, signal.SIGKILL)
        until(lambda wanted=number + 1: len(started) == wanted, 20, what="a successor")
    (token,) = {token for _, _, token in started}
    assert warm.environment == before
    assert warm.environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == token
    # No port: whoever takes one is sent nothing (unit/stack/test_private_socket.py).
    socket = Path(warm.environment["GAME_EVENTS_SPARK_REMOTE"].removeprefix("unix:"))
    assert socket.is_socket()
    assert stat.S_IMODE(socket.parent.stat().st_mode) == stat.S_IMODE((tmp_path / "state/spark").stat().st_mode) == 0o700
    assert len(said) == 2
    assert token not in "".join(said)
    warm.end()
    assert [find(process) for process, _, _ in started] == [None] * 3
    assert list((tmp_path / "state").rglob("*.json")) == []
    assert not socket.exists()


def test_one_that_a_killed_up_has_left_is_stopped_by_the_next_one(started, make, tmp_path):
    make([])._start()  # as if the process had ended here
    recorded = ServerProcess.model_validate_json((tmp_path / "state" / "spark" / "connect.json").read_text())
    assert find(recorded) is not None
    after = make([])
    after.start()
    assert find(recorded) is None
    assert find(started[-1][0]) is not None
    after.end()


def test_connections_are_closed_until_the_server_can_make_sessions(started, ready, make):
    warm = make([])
    warm.start()
    until(lambda: listens(started[0][1]), 20)
    socket = warm.environment["GAME_EVENTS_SPARK_REMOTE"].removeprefix("unix:")

    def answer():
        with socket_module.socket(socket_module.AF_UNIX) as client:
            client.connect(socket)
            return client.recv(10)

    assert answer() == b""
    ready[0].touch()
    assert answer() == b"hello"
    warm.end()
    assert not ready[0].exists()
