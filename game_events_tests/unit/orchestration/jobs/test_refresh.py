"""The steps of the job `refresh` on a real Dagster instance; what they do to tables is a stub: no Spark."""

import json
from contextlib import nullcontext

import dagster as dg
import pytest

from game_events.config.settings import SettingsSource, load_settings
from game_events.definitions import build_defs
from game_events.errors import TransientError
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table
from game_events.orchestration.graph import LAKEHOUSE
from game_events.orchestration.jobs import refresh as refresh_job
from game_events.orchestration.keys import DEFAULT
from game_events.orchestration.resources import LakehouseResource, SparkResource
from game_events.pipeline.reporting.tables import TableReport
from game_events.pipeline.runs.refresh import OWN_GOLD, TriggeredRun
from game_events_tests.support.faults import unreadable

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
LAYERS = ["bronze", "silver", "gold", "unified", OWN_GOLD]


class World:
    """Runs whose steps do what a test says, and the entries of the event log."""

    def __init__(self, instance, settings):
        self.instance, self.settings = instance, settings
        self.work, self.called = {}, []

    def step(self, name, run):
        self.called.append(name)
        self.work.get(name, lambda _: None)(run.report)

    @property
    def entries(self):
        """Of each: the part of the run, how that ended, and the number of tables it names."""
        rows = read_events(Lakehouse.of(self.settings)).to_pylist()
        tables = [row["part"] for row in rows if row["kind"] == "table"]
        runs = [(row["part"], row["status"], json.loads(row["detail"]).get("error")) for row in rows if row["kind"] == "run"]
        return [(part, error["class"] if error else status, tables.count(part)) for part, status, error in runs]

    def lakehouse(self):
        """The resource, with these steps."""
        world = self

        class Run(TriggeredRun):
            @property
            def steps(self):
                return {name: lambda name=name: world.step(name, self) for name in LAYERS}

        class StubbedLakehouse(LakehouseResource):
            def shared(self, run_id, name, begin):
                return super().shared(run_id, name, lambda *given: Run(**vars(begin(*given))))

        source = SettingsSource(self.settings)
        return StubbedLakehouse(spark=SparkResource(source=source), source=source)

    def run(self, config=None, **more):
        job = build_defs(self.settings).resolve_job_def("refresh")
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}} | (config or {})
        more["resources"] = {LAKEHOUSE: self.lakehouse()}
        return job.execute_in_process(instance=self.instance, raise_on_error=False, run_config=quiet, **more)


@pytest.fixture
def world(instance, tmp_path):
    settings = load_settings(lakehouse=str(tmp_path / "lakehouse"), mode="production", retry_delay_s=0.01)
    return World(instance, settings)


def landed(game):
    def work(report):
        report.add(_result(TableReport("silver", f"silver_{game}", "/x", game, rows=1)))

    return work


def _result(table):
    from game_events.pipeline.reporting.result import LayerResult  # noqa: PLC0415

    return LayerResult(tables=[table])


def failing_once(error):
    times = []

    def work(_report):
        times.append(1)
        if len(times) == 1:
            raise error

    return work


def materialized(result):
    return [(e.asset_key.path[-1], e.partition) for e in result.all_events if e.event_type_value == "ASSET_MATERIALIZATION"]


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
    def one_fails(report):
        report.add_failed("silver", Table("silver_uno_events", "/x"), "its log cannot be read", "uno")

    world.work = {"silver": one_fails, "gold": failing_once(TransientError("the store does not answer"))}
    result = world.run()
    assert not result.success, "a table failed"
    assert world.called == ["bronze", "silver", "gold", "gold", "unified", OWN_GOLD]
    (failure,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    assert "silver_uno_events" in failure.step_failure_data.user_failure_data.description
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
