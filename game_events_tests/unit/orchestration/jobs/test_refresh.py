"""The steps of the job `refresh` on a real Dagster instance; what they do to tables is a stub: no Spark."""

from contextlib import nullcontext

import pytest

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.errors import TransientError
from game_events.lakehouse.tables import BRONZE
from game_events.orchestration import jobs as refresh_job
from game_events.orchestration.keys import DEFAULT
from game_events.pipeline.runs.refresh import OWN_GOLD
from game_events_tests.support.faults import unreadable
from game_events_tests.support.worlds.refresh_job import LAYERS, World, failed_steps, failing_once, fails, landed, materialized

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")


@pytest.fixture
def world(instance, tmp_path):
    return World(instance, tmp_path)


def test_each_layer_is_a_step_and_the_run_is_one_entry_of_the_event_log(world):
    world.work["silver"] = landed("rummy")
    result = world.run()
    assert result.success
    assert world.called == LAYERS
    steps = [e.step_key for e in result.get_step_success_events()]
    assert steps == ["plan", *(refresh_job.STEPS[name][0] for name in LAYERS), "report"]
    assert world.entries == [("refresh#0", "succeeded", 1)]
    assert materialized(result) == [("silver_events", "rummy")]


def test_a_step_that_is_retried_forgets_no_table_that_failed_before_it(world):
    world.work = {"silver": fails("uno"), "gold": failing_once(TransientError("the store does not answer"))}
    result = world.run()
    assert not result.success, "a table failed"
    assert world.called == ["bronze", "silver", "gold", "gold", "unified", OWN_GOLD]
    assert failed_steps(result) == {"refresh_silver": "1 tables failed: uno", "report": "1 tables failed: silver_uno"}
    assert [entry[0] for entry in world.entries] == ["refresh#0"]


@pytest.mark.parametrize("where", ["gold", "checks"])
def test_what_was_committed_before_an_error_is_logged_and_the_entry_says_that_the_run_failed(world, where):
    def broken(*_):
        raise ZeroDivisionError

    world.work["silver"] = landed("rummy")
    if where == "gold":
        world.work["gold"] = broken
    with unreadable(BRONZE, ZeroDivisionError()) if where == "checks" else nullcontext():
        result = world.run()
    assert not result.success
    assert materialized(result) == [("silver_events", "rummy")]
    assert world.entries == [("refresh#0", "ZeroDivisionError", 1)]


def test_options_that_name_what_there_is_not_are_an_entry_of_the_event_log_too(world):
    result = world.run({"ops": {"plan": {"config": {"select": ["nonsense"]}}}})
    assert not result.success
    assert world.called == []
    assert [entry[:2] for entry in world.entries] == [("refresh#0", "ConfigurationError")]


def test_a_run_that_is_executed_again_from_its_last_step_executes_the_steps_before_it(world):
    """Tables that fail alone fail the last step: "from failure" would execute that one only."""
    result = world.run(op_selection=["report"])
    assert result.success
    assert world.called == LAYERS


def test_steps_without_the_one_that_logs_what_they_did_are_refused(world):
    result = world.run(op_selection=["refresh_silver"])
    assert not result.success
    assert world.called == []


def test_a_run_waits_in_the_queue_for_the_pool_of_bronze():
    job = build_defs(load_settings()).resolve_job_def("refresh")
    pools = {node.name: node.definition.pool for node in job.nodes}
    assert pools == {"plan": "bronze", **dict.fromkeys((op for op, _ in refresh_job.STEPS.values()), "bronze"), "report": None}
    assert DEFAULT.named("bronze") == "bronze"
