"""The job `continuous` as a user has it: launched as a process of its own, watched while it runs, terminated from the UI."""

import time
from collections import Counter

import dagster as dg
import pytest
import yaml
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster_graphql.client.client_queries import TERMINATE_RUN_JOB_MUTATION
from dagster_graphql.client.query import LAUNCH_PIPELINE_EXECUTION_MUTATION
from dagster_graphql.test.utils import execute_dagster_graphql

from game_events.orchestration.continuous import EVENT_S, OP
from game_events.orchestration.keys import JOB, REPORT
from game_events.orchestration.runs import HANDED_OVER, PROCESS_TAG, is_gone
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.fixtures.dagster import INSTANCE, logged, materializations
from game_events_tests.support.keys import BRONZE_KEY
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS
from game_events_tests.support.waiting import until

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
    # Dagster's client of its code server leaves a socket to the garbage collector.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

#: Not reached unless something hangs: a slow machine may take minutes to start the run's process and its JVM.
LONG_S = 900


def wave(*games, **options):
    return Simulation(games=games, records_per_game_and_version=20, gamers_per_game=5, **options)


@pytest.fixture
def launching(tmp_path, environment, monkeypatch):  # noqa: ARG001 - the run reads it
    """An instance that launches runs at once, and the workspace that a webserver has."""
    monkeypatch.setenv("GAME_EVENTS_GOLD_INTERVAL_S", "0")
    monkeypatch.setenv("GAME_EVENTS_POLL_INTERVAL_S", "0.2")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)  # of the run's own JVM
    home = tmp_path / "launching"
    home.mkdir()
    config = yaml.safe_load((INSTANCE / "dagster.yaml").read_text())
    # A queue needs the daemon.
    config["run_coordinator"] = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    (home / "dagster.yaml").write_text(yaml.safe_dump(config))
    with (
        DagsterInstance.from_config(str(home)) as instance,
        WorkspaceProcessContext(instance, ModuleTarget("game_events.definitions", None, None, "game_events")) as workspace,
    ):
        yield instance, workspace


def events_of(instance, run_id, kind):
    return [r.event_log_entry.dagster_event for r in instance.get_records_for_run(run_id, of_type=kind).records]


def launched(workspace):
    """The id of a run of continuous mode that was launched as the UI launches it."""
    (repository,) = workspace.create_request_context().code_locations[0].get_repositories().values()
    started = execute_dagster_graphql(
        workspace.create_request_context(),
        LAUNCH_PIPELINE_EXECUTION_MUTATION,
        {
            "executionParams": {
                "selector": {
                    "repositoryLocationName": "game_events",
                    "repositoryName": repository.name,
                    "pipelineName": JOB,
                },
                "mode": "default",
            }
        },
    )
    return started.data["launchPipelineExecution"]["run"]["runId"]


@pytest.mark.scenario
@pytest.mark.timeout(3600)
def test_it_tells_what_it_does_while_it_runs_and_terminate_ends_it_as_canceled_with_whole_tables(
    launching, environment, make_pipeline
):
    instance, workspace = launching
    sent = produce(environment, wave("rummy", "uno", poison_share=0.1))
    began = time.monotonic()
    run_id = launched(workspace)

    def told():
        found = events_of(instance, run_id, dg.DagsterEventType.ASSET_MATERIALIZATION)
        return Counter((e.asset_key.path[-1], e.partition) for e in found)

    def told_of_unified():
        run = instance.get_run_by_id(run_id)
        said = [r.event_log_entry.message for r in instance.get_records_for_run(run_id).records] if run.is_finished else ""
        assert not run.is_finished, said
        return ("gold_unified_player_agg", None) in told()

    until(told_of_unified, LONG_S, what="events of the first cycle")
    assert instance.get_run_by_id(run_id).status == DagsterRunStatus.STARTED
    assert not is_gone(instance.get_run_by_id(run_id).tags[PROCESS_TAG])
    assert sorted(instance.get_dynamic_partitions("games")) == ["rummy", "uno"]
    # More rows within the minute are no further events ...
    sent = sent.merge(produce(environment, wave("rummy", seed=1)))
    until(
        lambda: reconciliation.count(environment, "silver_rummy_events") == sum(sent.records["rummy"].values()),
        LONG_S,
        what="the second wave",
    )
    minutes = (time.monotonic() - began) // EVENT_S
    assert max(told().values()) <= 1 + minutes

    ended = execute_dagster_graphql(workspace.create_request_context(), TERMINATE_RUN_JOB_MUTATION, {"runId": run_id})
    assert ended.data["terminateRun"]["__typename"] == "TerminateRunSuccess", ended.data
    until(lambda: instance.get_run_by_id(run_id).is_finished, LONG_S, what="the end of the run")
    assert instance.get_run_by_id(run_id).status == DagsterRunStatus.CANCELED
    # ... until it ends: then everything owed is told, once.
    assert told()[("silver_events", "rummy")] >= 2
    silver = [
        e.step_materialization_data.materialization
        for e in events_of(instance, run_id, dg.DagsterEventType.ASSET_MATERIALIZATION)
        if (e.asset_key.path[-1], e.partition) == ("silver_events", "rummy")
    ]
    assert sum(m.metadata["rows_committed"].value for m in silver) == sum(sent.records["rummy"].values())
    last = events_of(instance, run_id, dg.DagsterEventType.ASSET_OBSERVATION)[-1].asset_observation_data.asset_observation
    assert last.asset_key == BRONZE_KEY
    assert last.metadata["state"].value == "stopped"
    assert last.metadata["produce_to_silver_p50_s"].value > 0
    assert "| p50 |" in last.metadata["latency"].value
    said = " ".join(str(r.event_log_entry.user_message) for r in instance.get_records_for_run(run_id).records)
    assert "Py4J" not in said
    until(lambda: is_gone(instance.get_run_by_id(run_id).tags[PROCESS_TAG]), what="the end of the process", timeout_s=LONG_S)
    # The next run goes on from there, whatever was under way.
    assert refresh(make_pipeline(environment)).success
    reconciliation.assert_books_balance(environment, sent)


@pytest.mark.scenario
def test_a_bounded_run_ends_as_a_success_with_the_books_and_the_whole_report(runs, environment, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_GOLD_INTERVAL_S", "3600")
    sent = produce(environment, wave("rummy", "spades"))
    result = runs.job(JOB, **{OP: {"duration_s": 3.0}})
    assert result.success
    assert logged(result)[("gold_player_agg", "spades")] == 1
    assert {m.metadata["dagster/row_count"].value for m in materializations(result) if m.asset_key == BRONZE_KEY} == {80}
    checks = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert checks["rows_conserved"]
    assert all(checks.values()), checks
    (output,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_OUTPUT]
    metadata = output.step_output_data.metadata
    report = metadata[REPORT].data
    assert report["rows"]["silver"] == sent.decodable
    assert report["continuous"]["state"] == "stopped"
    assert report["latency"]["gold"]["rows"] == sent.records_total
    assert metadata["produce_to_gold_p95_s"].value >= metadata["produce_to_gold_p50_s"].value
    reconciliation.assert_books_balance(environment, sent)


def test_a_loop_that_only_a_person_can_help_fails_with_the_reason_and_what_was_done(runs, environment, monkeypatch):
    produce(environment, wave("rummy"))
    monkeypatch.setenv("GAME_EVENTS_KAFKA_TOPIC", "no_such_topic")
    result = runs.job(JOB)
    assert not result.success
    (failed,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    data = failed.step_failure_data.user_failure_data
    assert data.description.startswith("ConfigurationError: ")
    assert "no topic 'no_such_topic'" in data.description
    assert data.metadata[REPORT].data["continuous"]["cycles"] == 0


@pytest.mark.scenario
def test_a_run_that_has_lasted_long_enough_says_that_another_goes_on(runs, environment, instance, monkeypatch):
    sent = produce(environment, wave("rummy"))
    monkeypatch.setenv("GAME_EVENTS_CONTINUOUS_RUN_H", str(2 / 3600))
    result = runs.job(JOB)
    assert result.success
    assert instance.get_run_by_id(result.run_id).tags[HANDED_OVER] == "true"
    (output,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_OUTPUT]
    report = output.step_output_data.metadata[REPORT].data
    assert report["continuous"]["handed_over"] is True
    assert report["rows"]["gold"] > 0
    reconciliation.assert_books_balance(environment, sent)
