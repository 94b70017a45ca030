"""`game-events run --continuous` as a user has it: a process that Ctrl-C and SIGTERM end cleanly."""

import json
import os
import signal
import subprocess
import sys

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from game_events.assets.continuous import JOB
from game_events.producer.produce import produce
from game_events.producer.simulator import Simulation
from game_events_tests import books
from game_events_tests.waiting import until

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

COMMAND = [sys.executable, "-c", "from game_events.cli.main import main; main()", "run", "--continuous"]


def wave(seed=0):
    return Simulation(games=("rummy", "uno"), records_per_game_and_version=10, seed=seed)


@pytest.fixture
def start(environment, tmp_path):  # noqa: ARG001 - the command reads it
    """The command in a process of its own, with its streams in files."""
    started = []

    def begin(*options):
        out, err = (tmp_path / f"{name}{len(started)}" for name in ("out", "err"))
        with out.open("w") as stdout, err.open("w") as stderr:
            settings = {"GAME_EVENTS_GOLD_INTERVAL_S": "0", "GAME_EVENTS_POLL_INTERVAL_S": "0.2"}
            process = subprocess.Popen(
                [*COMMAND, *options], env=os.environ | settings, cwd=tmp_path, stdout=stdout, stderr=stderr
            )
        started.append(process)
        return process, out, err

    yield begin
    for process in started:
        process.kill()
        process.wait()


def newest(tmp_path):
    with DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
        return instance.get_runs(limit=1)[0]


@pytest.mark.scenario
def test_ctrl_c_ends_it_with_exit_code_0_and_a_summary_and_a_second_one_at_once(start, cli, environment, tmp_path):
    sent = produce(environment, wave())
    process, out, err = start("--json")
    until(lambda: books.count(environment, "gold_unified_player_agg"), what="the first wave")
    # It is on: a second one beside it is refused with what to do.
    second = cli("run", "--continuous")
    assert second.code == 1
    assert f"continuous mode is on already: run {newest(tmp_path).run_id}" in second.err
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, err.read_text()
    (line,) = out.read_text().splitlines()
    result = json.loads(line)
    assert result["success"] is True
    assert result["rows"]["silver"] == sent.decodable
    assert result["continuous"]["cycles"] >= 1
    assert result["latency"]["gold"]["rows"] == sent.records_total
    said = err.read_text()
    assert "stopping after the step under way" in said
    assert "from produce to visible (s)" in said
    assert "Traceback" not in said
    assert "Py4J" not in said
    assert newest(tmp_path).status == DagsterRunStatus.SUCCESS
    books.assert_books_balance(environment, sent)


@pytest.mark.scenario
def test_a_second_ctrl_c_ends_it_at_once_and_leaves_continuous_mode_off(start, environment, tmp_path):
    produce(environment, wave())
    process, _, err = start()
    until(lambda: "continuous" in err.read_text() + "".join(p.read_text() for p in tmp_path.glob("out*")), what="a line")
    until(lambda: books.count(environment, "bronze_events"), what="the first wave")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130, err.read_text()
    run = newest(tmp_path)
    assert (run.job_name, run.status) == (JOB, DagsterRunStatus.CANCELED)


def test_a_duration_without_continuous_is_refused(cli, environment):  # noqa: ARG001 - no settings of the user's
    found = cli("run", "--duration-s", "5")
    assert found.code == 2
    assert "only with --continuous" in found.err


@pytest.mark.scenario
def test_a_run_that_has_lasted_long_enough_is_followed_by_another_in_the_same_process(
    start, environment, tmp_path, monkeypatch
):
    monkeypatch.setenv("GAME_EVENTS_CONTINUOUS_RUN_H", str(3 / 3600))
    sent = produce(environment, wave())
    process, out, _ = start("--duration-s", "12")
    assert process.wait(400) == 0
    with DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
        runs = instance.get_runs()
    assert len(runs) >= 2
    assert {run.status for run in runs} == {DagsterRunStatus.SUCCESS}
    assert f"run {runs[-1].run_id} has lasted CONTINUOUS_RUN_H; a new one goes on" in " ".join(out.read_text().split())
    books.assert_books_balance(environment, sent)
