"""What Dagster shows of a check after a run that did not make it; no Spark."""

import asyncio

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.errors import DataError
from game_events.lakehouse.tables import Layer
from game_events.orchestration import checks as table_checks
from game_events.orchestration import jobs as refresh_job
from game_events.orchestration.checks import AS_OF
from game_events.orchestration.resources import Graph
from game_events.pipeline.checks.audits import RECOMPUTED
from game_events.pipeline.checks.table_checks import TableCheck
from game_events_tests.support.keys import GOLD_KEY, SILVER_KEY
from game_events_tests.support.worlds.refresh_job import World, both, landed

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
RULE = {"name": "positive", "sql": "n > 0", "action": "warn"}


@pytest.fixture
def world(instance, tmp_path, monkeypatch):
    monkeypatch.setattr(refresh_job, "check_after_run", lambda *_: None)
    found = World(instance, tmp_path)
    found.settings = load_settings(lakehouse=found.settings.lakehouse, rules=[RULE])
    return found


def result(key, name, passed, said="it differs"):
    return dg.AssetCheckEvaluation(asset_key=key, check_name=name, passed=passed, description=said, metadata={"n": 3})


def shown(instance, key, name):
    """The result that Dagster's pages and automation have of a check; None: "Not evaluated"."""

    async def found():
        context = LoadingContextForTest(instance)
        record = await AssetCheckExecutionRecord.gen(context, dg.AssetCheckKey(key, name))
        return record.evaluation if record and await record.targets_latest_materialization(context) else None

    return asyncio.run(found())


@pytest.mark.parametrize(("key", "name", "layer"), [(GOLD_KEY, RECOMPUTED, "gold"), (SILVER_KEY, "rule_positive", "silver")])
def test_a_failed_check_stays_failed_after_runs_that_did_not_make_it_with_the_date_of_its_result(world, key, name, layer):
    world.work = {layer: landed("rummy", layer)}
    assert world.run().success
    world.instance.report_runless_asset_event(result(key, name, passed=False))
    for game in ("uno", "rummy"):
        world.work = {layer: landed(game, layer)}
        assert world.run().success
        again = shown(world.instance, key, name)
        assert (again.passed, again.severity, again.metadata["n"].value) == (False, dg.AssetCheckSeverity.ERROR, 3)
        assert again.description.startswith("as of 20")
        assert again.description.endswith("UTC: it differs")
    assert again.description.count("as of") == 1, "the date of the result itself"


def test_a_result_of_the_run_itself_is_not_followed_by_an_older_one(world):
    world.work = {"gold": landed("rummy", "gold")}
    world.instance.report_runless_asset_event(result(GOLD_KEY, RECOMPUTED, passed=True))

    def checked(report):
        report.add_checks(table_checks.CheckResult(RECOMPUTED, Layer.GOLD, False, "now it differs", wrong_rows=True))

    world.work = {"gold": both(landed("rummy", "gold"), checked)}
    run = world.run()
    assert [e.description for e in run.get_asset_check_evaluations()] == ["now it differs"]


def test_a_run_that_wrote_nothing_logs_no_result_again(world):
    world.instance.report_runless_asset_event(result(GOLD_KEY, RECOMPUTED, passed=False))
    assert world.run().get_asset_check_evaluations() == []


def test_a_check_by_hand_that_could_not_be_made_is_a_failed_one_and_stays_it(instance, tmp_path):
    def broken(_pipeline):
        raise DataError("a file of the table is gone")

    graph = Graph.of(load_settings(lakehouse=str(tmp_path)))
    check = table_checks._asset_check(TableCheck(RECOMPUTED, "gold", broken, blocking=True), graph)
    gold = dg.AssetSpec(GOLD_KEY, partitions_def=graph.keys.partitions)
    run = dg.materialize(
        [gold, check],
        selection=dg.AssetSelection.checks(check),
        instance=instance,
        raise_on_error=False,
        resources=graph.resources,
    )
    assert not run.success
    (made,) = run.get_asset_check_evaluations()
    assert (made.passed, made.description) == (False, "could not be made: a file of the table is gone")
    assert AS_OF not in made.metadata


def test_checks_that_a_run_by_hand_does_not_make_keep_their_result_too(instance, tmp_path):
    settings = load_settings(lakehouse=str(tmp_path), rules=[RULE])
    graph, defs = Graph.of(settings), build_defs(settings)
    instance.report_runless_asset_event(result(SILVER_KEY, "volume", passed=True, said="as always"))
    instance.report_runless_asset_event(result(SILVER_KEY, "rule_positive", passed=True, said="none"))

    @dg.asset(key=SILVER_KEY, partitions_def=graph.keys.partitions)
    def silver():
        return None

    chosen = [c for c in defs.asset_checks or () if {k.name for k in c.check_keys} & {"volume", "rule_positive"}]
    instance.add_dynamic_partitions("games", ["uno"])
    other = dg.AssetSpec("other")
    job = dg.Definitions(
        [silver, other], asset_checks=chosen, resources=graph.resources
    ).resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(instance=instance, asset_selection=[SILVER_KEY], partition_key="uno")
    assert run.success
    said = {e.check_name: e.description.rpartition(" UTC: ")[2] for e in run.get_asset_check_evaluations()}
    assert said == {"volume": "as always", "rule_positive": "none"}
    assert shown(instance, SILVER_KEY, "volume").passed
