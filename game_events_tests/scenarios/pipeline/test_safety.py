"""Safe by default: certificates are verified, servers are of this machine, names lead nowhere, nothing foreign is executed."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess

import psutil

from game_events.plugins.local.servers.server_process import free_ports
from game_events_tests.support.commands import GAME_EVENTS
from game_events_tests.support.waiting import until
from game_events_tests.unit.test_safety import listening


def test_the_dagster_ui_and_all_that_it_starts_listen_on_this_machine_only(tmp_path):
    (port,) = free_ports(1)
    command = [*GAME_EVENTS, "up", "--no-stack", "--port", str(port)]
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path / "dagster"), "GAME_EVENTS_STATE_DIR": str(tmp_path / "state")}
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: f"Dagster UI: http://127.0.0.1:{port}" in (tmp_path / "log").read_text(), timeout_s=150)
        found = listening(psutil.Process(started.pid))
    finally:
        started.send_signal(signal.SIGINT)
        started.wait(60)
    assert found, "nothing listens: the test looks at the wrong processes"
    assert {ip for ip in found if not ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback} == set()
