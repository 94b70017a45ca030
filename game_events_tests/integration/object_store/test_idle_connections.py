"""Connections to an object store that are not used are closed: thousands of handles wait for their next use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pyarrow.fs as pafs
import pytest
from deltalake.fs import DeltaStorageHandler

from game_events.config.settings import load_settings
from game_events.lakehouse.storage import IDLE_TIMEOUT, delta_options
from game_events_tests.support.waiting import until


@pytest.fixture
def server() -> Iterator[tuple[str, Callable[[], int]]]:
    """Its port, and what counts its open connections."""
    command = [sys.executable, "-m", "game_events_tests.support.servers.one_object_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def connections() -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield process.stdout.readline().strip(), connections
        process.stdin.close()


def test_a_client_that_waits_closes_its_connection(
    server: tuple[str, Callable[[], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, connections = server
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    settings = load_settings(lakehouse="s3://bucket/root", storage_endpoint=f"http://127.0.0.1:{port}")
    options = delta_options(settings)
    assert options["pool_idle_timeout"] == IDLE_TIMEOUT
    client = pafs.PyFileSystem(DeltaStorageHandler(settings.lakehouse, options | {"pool_idle_timeout": "2s"}))
    for _ in range(2):
        client.open_input_file("object").close()
        assert connections() > 0
        until(lambda: connections() == 0, 30)
