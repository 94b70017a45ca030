"""`game-events run --continuous`: Ctrl-C and SIGTERM end it cleanly; once as a process with a JVM of its own."""

import json
import os
import signal
import subprocess
import threading
from contextlib import contextmanager

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from game_events.cli.continuous import run_continuously
from game_events.cli.output import Output
from game_events.errors import ConfigurationError
from game_events.orchestration.keys import JOB
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.commands import GAME_EVENTS
from game_events_tests.support.servers.attached_driver import start_driver
from game_events_tests.support.waiting import until

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

COMMAND = [*GAME_EVENTS, "run", "--continuous", "--json"]


def wave(seed=0):
    return Simulation(games=("rummy", "uno"), records_per_game_and_version=10, seed=seed)


@pytest.fixture
def quick(environment, monkeypatch):
    """Settings with short intervals."""
    monkeypatch.setenv("GAME_EVENTS_GOLD_INTERVAL_S", "0")
    monkeypatch.setenv("GAME_EVENTS_POLL_INTERVAL_S", "0.1")
    return environment


@pytest.fixture
def process(quick, tmp_path):
    """The command in a process of its own, with its streams in files; and what was sent before."""
    sent = produce(quick, wave())
    with (tmp_path / "out").open("w") as stdout, (tmp_path / "err").open("w") as stderr:
        started = subprocess.Popen(COMMAND, cwd=tmp_path, stdout=stdout, stderr=stderr)
    yield started, sent
    started.kill()
    started.wait()


def runs_of(tmp_path):
    with DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
        return instance.get_runs()


@contextmanager
def beside(work):
    """Does something in a thread beside the block, which must end by it; then presses Ctrl-C."""
    failures = []

    def act():
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    # Pressed when nothing runs any more, it must not end the tests.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    if failures:
        raise failures[0]


def gold_is_there(settings):
    until(lambda: reconciliation.count(settings, "gold_unified_player_agg"), what="the first wave")


def assert_summary(result, said, sent):
    assert result["success"] is True
    assert result["rows"]["silver"] == sent.decodable
    assert result["continuous"]["cycles"] >= 1
    assert result["latency"]["gold"]["rows"] == sent.records_total
    assert "stopping after the step under way" in said
    assert "from produce to visible (s)" in said
    assert "Traceback" not in said
    assert "Py4J" not in said


@pytest.mark.usefixtures("spark")
def test_ctrl_c_ends_it_with_exit_code_0_and_a_summary_and_beside_it_a_second_one_is_refused(cli, quick, tmp_path):
    sent = produce(quick, wave())

    def second():
        gold_is_there(quick)
        with pytest.raises(ConfigurationError, match=f"continuous mode is on already: run {runs_of(tmp_path)[0].run_id}"):
            run_continuously(Output(as_json=True), quick, None)

    with beside(second):
        said = cli("run", "--continuous", "--json")
    assert said.code == 0, said.everything
    assert_summary(said.result, said.err, sent)
    assert [run.status for run in runs_of(tmp_path)] == [DagsterRunStatus.SUCCESS]
    reconciliation.assert_books_balance(quick, sent)


@pytest.mark.scenario
def test_ctrl_c_ends_the_whole_process_and_beside_it_a_second_command_is_refused(process, cli, quick, tmp_path):
    started, sent = process
    gold_is_there(quick)
    # It is on: a second one beside it is refused with what to do.
    second = cli("run", "--continuous")
    assert second.code == 1
    assert f"continuous mode is on already: run {runs_of(tmp_path)[0].run_id}" in second.err
    started.send_signal(signal.SIGINT)
    assert started.wait(120) == 0, (tmp_path / "err").read_text()
    (line,) = (tmp_path / "out").read_text().splitlines()
    assert_summary(json.loads(line), (tmp_path / "err").read_text(), sent)
    assert runs_of(tmp_path)[0].status == DagsterRunStatus.SUCCESS
    reconciliation.assert_books_balance(quick, sent)


@pytest.mark.scenario
def test_a_second_ctrl_c_ends_it_at_once_and_leaves_continuous_mode_off(quick, spark, tmp_path):
    produce(quick, wave())
    process = start_driver(quick, spark, tmp_path / "log", work="continuous_command")
    until(lambda: reconciliation.count(quick, "bronze_events") or process.poll() is not None, what="the first wave")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 130, (tmp_path / "log").read_text()
    (run,) = runs_of(tmp_path)
    assert (run.job_name, run.status) == (JOB, DagsterRunStatus.CANCELED)


def test_a_duration_without_continuous_is_refused(cli, environment):  # noqa: ARG001 - no settings of the user's
    found = cli("run", "--duration-s", "5")
    assert found.code == 2
    assert "only with --continuous" in found.err


@pytest.mark.usefixtures("spark")
def test_a_run_that_has_lasted_long_enough_is_followed_by_another_in_the_same_process(cli, quick, tmp_path, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_CONTINUOUS_RUN_H", str(0.5 / 3600))
    sent = produce(quick, wave())

    def more():
        gold_is_there(quick)
        until(lambda: len(runs_of(tmp_path)) >= 2, what="the next run")

    with beside(more):
        said = cli("run", "--continuous")
    assert said.code == 0, said.everything
    runs = runs_of(tmp_path)
    assert len(runs) >= 2
    assert {run.status for run in runs} == {DagsterRunStatus.SUCCESS}
    assert f"run {runs[-1].run_id} has lasted CONTINUOUS_RUN_H; a new one continues" in " ".join(said.out.split())
    reconciliation.assert_books_balance(quick, sent)


@pytest.mark.usefixtures("spark")
def test_after_its_duration_it_ends_by_itself_with_every_table_up_to_the_topic(cli, quick, tmp_path):
    sent = produce(quick, wave())
    said = cli("run", "--continuous", "--duration-s", "0.1", "--json")
    assert said.code == 0, said.everything
    assert [run.status for run in runs_of(tmp_path)] == [DagsterRunStatus.SUCCESS]
    reconciliation.assert_books_balance(quick, sent)
