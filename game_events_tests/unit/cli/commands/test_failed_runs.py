"""A run that broke off says so in its JSON, although no table of it failed."""

import pytest

from game_events.cli.commands import continuous
from game_events.cli.commands import run as command
from game_events.cli.common.summary import JobResult


@pytest.mark.parametrize("option", ["--continuous", "--select=silver"])
def test_the_json_of_a_run_that_broke_off_says_that_it_failed_and_why(cli, monkeypatch, option):
    broken = JobResult("run-1", False, {"success": True, "errors": []}, "Spark's JVM ended")
    monkeypatch.setattr(continuous, "run_continuously", lambda *_: broken)
    monkeypatch.setattr(command, "run_and_show", lambda *_: broken)
    said = cli("run", option, "--json")
    assert said.code == 1
    assert said.result == {"success": False, "run_id": "run-1", "error": "Spark's JVM ended", "errors": []}
