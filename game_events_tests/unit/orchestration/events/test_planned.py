"""What Dagster shows of games, assets and steps while the job `refresh` is at work, and after it; no Spark."""

from unittest.mock import patch

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.execution.plan.state import KnownExecutionState
from dagster._core.loader import LoadingContextForTest

from game_events.definitions import build_defs
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn
from game_events.lakehouse.tables import UNIFIED
from game_events.orchestration import jobs as refresh_job
from game_events.orchestration.events import plan_failed, with_event
from game_events.orchestration.keys import DEFAULT
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.runs.refresh import OWN_GOLD
from game_events.plugins.alerts.sensors import alert_of_run
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.refresh_job import LAYERS, World, both, failed_steps, fails, landed, materialized

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")


@pytest.fixture
def world(instance, tmp_path, monkeypatch):
    # The checks after a run ask the broker.
    monkeypatch.setattr(refresh_job, "check_after_run", lambda *_: None)
    return World(instance, tmp_path)


SILVER, GOLD, BRONZE_ASSET, UNIFIED_ASSET = DEFAULT.silver, DEFAULT.gold, DEFAULT.bronze, DEFAULT.unified


def states(world, key=SILVER):
    """Game -> what Dagster's pages and its backfill dialog show."""
    games = world.instance.get_dynamic_partitions("games")
    found = world.instance.get_status_by_partition(key, games, DEFAULT.partitions)
    return {game: state.value if state else None for game, state in found.items()}


def in_progress(world, key):
    """Whether Dagster's automation takes an asset to be in work."""
    asked = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.in_progress())

    @dg.asset(deps=[key], automation_condition=asked)
    def asks():
        return None

    defs = dg.Definitions(assets=[dg.AssetSpec(key), asks])
    found = dg.evaluate_automation_conditions(defs, world.instance, asset_selection=dg.AssetSelection.all())
    return found.total_requested == 1


def tables(world, *games):
    """Bronze, the unified table and silver of some games, each with a row."""
    pipeline = Pipeline(world.settings, no_spark)
    bronze = put(pipeline.bronze, {"game_name": ["uno"], "_batch": [1]}, {Txn.BATCH: 1})
    for table in (pipeline.lakehouse.table(UNIFIED), *map(pipeline.lakehouse.silver, games)):
        put(table, {"gamer_id": ["a"]})
    return pipeline, BronzeIdentity.of(bronze).key


def test_a_game_that_failed_is_shown_as_failed_and_so_is_the_step_of_its_layer_and_nothing_else(world):
    world.work = {"silver": both(landed("rummy"), landed("uno"))}
    assert world.run().success
    world.work = {"silver": both(landed("rummy"), fails("uno")), "gold": landed("rummy", "gold")}
    result = world.run()
    assert failed_steps(result) == {"refresh_silver": "1 tables failed: uno", "report": "1 tables failed: silver_uno"}
    assert world.called[-5:] == LAYERS, "the layers after it are brought up to date for the others"
    assert states(world) == {"rummy": "MATERIALIZED", "uno": "FAILED"}
    assert states(world, GOLD) == {"rummy": "MATERIALIZED", "uno": None}
    # A run that is about other games leaves it as it is; its own next commit ends it.
    world.work = {"silver": landed("rummy")}
    assert world.run().success
    assert states(world) == {"rummy": "MATERIALIZED", "uno": "FAILED"}
    world.work = {"silver": landed("uno")}
    assert world.run().success
    assert states(world) == {"rummy": "MATERIALIZED", "uno": "MATERIALIZED"}


def test_a_game_that_fails_on_its_first_rows_is_a_partition_and_red(world):
    world.work = {"silver": both(fails("new"), fails("no/game"))}
    assert not world.run().success
    assert states(world) == {"new": "FAILED"}


@pytest.mark.parametrize(("layer", "step"), [("gold", "refresh_gold"), ("gold:devices", "refresh_own_aggregates")])
def test_that_holds_for_gold_and_for_aggregates_of_users(world, layer, step):
    world.instance.add_dynamic_partitions("games", ["uno"])
    world.work = {step.removeprefix("refresh_").replace("own_aggregates", OWN_GOLD): fails("uno", layer)}
    assert set(failed_steps(world.run())) == {step, "report"}
    assert states(world, DEFAULT.layer(layer)) == {"uno": "FAILED"}


def test_a_table_that_was_committed_before_it_failed_in_the_same_run_is_shown_as_failed(world):
    world.work = {"silver": both(landed("uno"), fails("uno"))}
    assert not world.run().success
    assert states(world) == {"uno": "FAILED"}


def test_every_failed_game_is_shown_as_failed_whatever_the_cap_of_events(world):
    games = [f"g{n:02}" for n in range(12)]
    world.instance.add_dynamic_partitions("games", games)
    world.work = {"silver": both(*map(fails, games))}
    planned = []
    with patch.object(with_event, "__defaults__", (4,)), patch.object(plan_failed, "__defaults__", (4,)):
        for _ in range(2):
            run = world.run()
            assert not run.success
            assert set(states(world).values()) == {"FAILED"}
            logs = world.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
            planned.append(len([e for e in logs if e.dagster_event.partition]))
        world.work = {"silver": both(*map(landed, games[:3]), *map(fails, games[2:]))}
        assert not world.run().success
    assert planned == [12, 0], "of very many, each failure is logged once"
    assert [game for game, state in states(world).items() if state != "FAILED"] == games[:2]


def test_a_game_that_another_run_has_completed_is_not_shown_as_failed_for_ever(world):
    """Its next run finds nothing left to do, so there is no commit whose event would say that all is well."""
    pipeline, key = tables(world, "uno", "rummy")
    world.work = {"silver": both(fails("uno"), fails("rummy"))}
    world.instance.add_dynamic_partitions("games", ["rummy", "uno"])
    assert not world.run().success
    world.work = {"silver": fails("rummy")}
    result = world.run()
    assert states(world) == {"rummy": "FAILED", "uno": "MATERIALIZED"}
    assert ("silver_events", "uno") in materialized(result)
    # Of a game that waits for its next try nothing is known.
    pipeline.progress.update(key, lambda now: now.pending("silver", ["rummy"], "waits"))
    world.work = {}
    assert world.run().success
    assert states(world) == {"rummy": "FAILED", "uno": "MATERIALIZED"}


def test_bronze_and_the_unified_table_are_not_shown_as_failed_because_a_game_failed(world):
    tables(world, "uno")
    world.work = {"silver": fails("uno")}
    result = world.run()
    assert world.instance.get_run_by_id(result.run_id).status == dg.DagsterRunStatus.FAILURE
    assert materialized(result) == [("bronze_events", None), ("gold_unified_player_agg", None)]
    assert world.run().success is False, "with each further try"


def test_a_run_that_stops_shows_those_layers_as_failed_that_it_did_not_come_to(world):
    tables(world)

    def broken(_report):
        raise ZeroDivisionError

    world.work = {"silver": broken}
    assert materialized(world.run()) == [("bronze_events", None)]


def test_while_a_run_is_at_work_its_layers_are_in_work_and_automation_waits_for_it(world):
    seen = []

    def look(_report):
        seen.append({key.path[-1]: in_progress(world, key) for key in (BRONZE_ASSET, UNIFIED_ASSET)})

    world.work = dict.fromkeys(LAYERS, look)
    assert world.run().success
    assert seen == [{"bronze_events": True, "gold_unified_player_agg": True}] * len(LAYERS)
    assert not in_progress(world, BRONZE_ASSET), "idle layers of a run that is over"


def test_a_run_over_many_games_plans_as_many_events_as_one_over_few(world):
    games = [f"g{n:03}" for n in range(40)]
    world.work = {"silver": both(*map(landed, games))}
    result = world.run()
    planned = world.instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    assert len(planned) == 4, "bronze, silver, gold, unified"


def test_a_run_that_is_executed_again_from_failure_begins_with_the_layer_that_failed(world):
    world.work = {"silver": fails("uno")}
    run = world.instance.get_run_by_id(world.run().run_id)
    steps, _ = KnownExecutionState.build_resume_retry_reexecution(world.instance, run)
    assert "refresh_silver" in steps
    assert "report" in steps
    assert "refresh_bronze" not in steps


def test_an_alert_of_a_run_has_the_tables_of_all_layers_that_failed_and_what_was_written(world):
    world.work = {"silver": both(landed("rummy"), fails("uno")), "gold": fails("rummy", "gold")}
    run = world.instance.get_run_by_id(world.run().run_id)
    alert = alert_of_run(world.instance, run)
    assert (alert.tables, alert.games) == (["silver_uno", "gold_rummy"], ["rummy", "uno"])
    assert alert.counts["silver_rows"] == 1


def stale(world):
    """Why Dagster calls the unified table "Unsynced"."""
    graph = build_defs(world.settings).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(world.instance, graph, LoadingContextForTest(world.instance))
    return [(cause.dependency.partition_key, cause.reason) for cause in resolver.get_stale_causes(UNIFIED_ASSET)]


def test_after_a_refresh_the_unified_table_is_in_sync_unless_a_game_has_no_gold_at_all(world):
    everything = both(*(landed(game, layer) for layer in ("silver", "gold") for game in ("rummy", "uno")))
    for _ in range(2):
        world.work = {"gold": everything, "unified": landed(None, "unified")}
        assert world.run().success
        assert stale(world) == []
    # It is not in the unified table, and Dagster is right to say so.
    world.instance.add_dynamic_partitions("games", ["added by hand"])
    assert stale(world) == [("added by hand", "has a new input")]
    world.instance.delete_dynamic_partition("games", "added by hand")
    assert stale(world) == []
