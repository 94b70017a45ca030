"""Automation as behaviour: a layer is materialized by hand, automation looks, what it asks for is run, gold is right.

On an instance with the tests' Spark session; as a user has it, with `game-events up` and the daemon: test_ui.py.
"""

import shutil
from pathlib import Path

import dagster as dg
import pytest

from game_events.definitions import build_defs
from game_events.orchestration.assets import build_automation
from game_events.orchestration.resources import Graph
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.fixtures.dagster import logged
from game_events_tests.support.keys import BRONZE_KEY, GOLD_KEY, QUARANTINE_KEY, SILVER_KEY, UNIFIED_KEY

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


def wave(*games, **options):
    return Simulation(games=games, records_per_game_and_version=5, gamers_per_game=2, **options)


@pytest.fixture
def tick(instance, environment):  # noqa: ARG001 - the definitions read it
    """Looks at the instance as the daemon does; runs what is asked for and says what it logged."""
    cursor = None

    def look(runs):
        nonlocal cursor
        found = dg.evaluate_automation_conditions(build_defs(), instance, dg.AssetSelection.all(), cursor=cursor)
        cursor = found.cursor
        if not found.total_requested:
            return None
        assert found.get_num_requested(UNIFIED_KEY) == found.total_requested == 1
        result = runs.materialize(UNIFIED_KEY, tags=dict(build_automation(Graph.of()).run_tags))
        assert result.success
        return logged(result)

    return look


def of(*games):
    return {(asset, game): 1 for asset in ("silver_events", "gold_player_agg") for game in games}


def test_bronze_and_then_one_game_by_hand_are_carried_to_gold_for_the_games_that_changed(tick, runs, environment):
    assert tick(runs) is None
    sent = produce(environment, wave("rummy", "spades"))
    assert runs.materialize(BRONZE_KEY, QUARANTINE_KEY).success
    assert tick(runs) == of("rummy", "spades") | {("gold_unified_player_agg", None): 1}
    reconciliation.assert_books_balance(environment, sent)
    assert [tick(runs), tick(runs)] == [None, None]

    sent = sent.merge(produce(environment, wave("rummy", seed=1)))
    assert runs.refresh().success
    assert tick(runs) is None, "that run has carried everything by itself"

    sent = sent.merge(produce(environment, wave("rummy", "chess", seed=2)))
    assert runs.materialize(BRONZE_KEY, QUARANTINE_KEY).success
    assert runs.materialize(SILVER_KEY, games="rummy").success
    # The game that was done by hand as far as silver, and the new one from bronze on; not the idle one.
    expected = {*of("chess"), ("gold_player_agg", "rummy"), ("gold_unified_player_agg", None)}
    assert set(tick(runs)) == expected
    reconciliation.assert_books_balance(environment, sent)
    assert tick(runs) is None
    (found,) = runs.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(SILVER_KEY, "rows_conserved")]
    ).values()
    assert found.status.value == "SUCCEEDED"


def test_a_game_that_fails_every_time_holds_up_no_other_by_hand_and_by_the_job(runs, environment):
    games = ("chess", "rummy", "spades")
    sent = produce(environment, wave(*games))
    assert runs.materialize(BRONZE_KEY, QUARANTINE_KEY).success
    # One game fails in silver, another in gold.
    damaged = {}
    for name in ("silver_rummy_events", "gold_chess_player_agg"):
        damaged[name] = Path(environment.lakehouse) / name
        log = damaged[name] / "_delta_log"
        log.mkdir(parents=True)
        (log / "00000000000000000000.json").write_text('{"protocol":')
    for key, whole in ((SILVER_KEY, ("chess", "spades")), (GOLD_KEY, ("spades",))):
        by_hand = runs.materialize(key, games=tuple(runs.games))
        assert not by_hand.success
        # Those that fail are without an event, so they are those that the UI offers for a retry.
        assert logged(by_hand) == {(key.path[-1], game): 1 for game in whole}
    for seed in (1, 2):
        sent = sent.merge(produce(environment, wave(*games, seed=seed)))
        result = runs.refresh()
        assert not result.success
        failures = {e.step_key: e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE}
        assert failures.keys() == {"refresh_silver", "refresh_gold", "report"}
        failure = failures["report"]
        assert all(name in failure.step_failure_data.user_failure_data.description for name in damaged)
        truth = {g: (t.session_count, t.min_timestamp, t.max_timestamp) for g, t in sent.truth["spades"].items()}
        assert reconciliation.gold(environment, "spades") == truth
        sessions = sum(reconciliation.gold(environment, "spades")[gamer][0] for gamer in truth)
        sql = "SELECT sum(session_count) FROM t WHERE game_name = 'spades'"
        assert reconciliation.rows(environment, "gold_unified_player_agg", sql) == [(sessions,)]
    for folder in damaged.values():
        shutil.rmtree(folder)
    assert runs.refresh().success
    reconciliation.assert_books_balance(environment, sent)
