"""Automation as behaviour: a layer is materialized by hand, automation looks, what it asks for is run, gold is right.

Once on a real instance with the tests' Spark session, and once as a user has it: `game-events up` in an empty folder, nothing
started but a producer, and the daemon does the rest.
"""

import shutil
import signal
import time
from pathlib import Path

import dagster as dg
import pytest

from game_events.assets.automation import automation
from game_events.assets.keys import BRONZE_KEY, GOLD_KEY, QUARANTINE_KEY, SILVER_KEY, UNIFIED_KEY
from game_events.definitions import build_defs
from game_events.producer.produce import produce
from game_events.producer.simulator import Simulation
from game_events.settings import load_settings
from game_events_tests import books
from game_events_tests.assets.conftest import logged
from game_events_tests.assets.test_ui import STOP_S, Site

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
BY_HAND_S = 180
CARRIED = """query { runsOrError { ... on Runs { results { runId pipelineName status tags { key value } } } } }"""
LAUNCH = """mutation($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) { __typename } }"""


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
        result = runs.materialize(UNIFIED_KEY, tags=dict(automation.run_tags))
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
    books.assert_books_balance(environment, sent)
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
    books.assert_books_balance(environment, sent)
    assert tick(runs) is None
    (found,) = runs.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(SILVER_KEY, "rows_conserved")]
    ).values()
    assert found.status.value == "SUCCEEDED"


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_game_that_fails_every_time_holds_up_no_other_by_hand_and_by_the_job(runs, environment, layer):
    name, key = {"silver": ("silver_rummy_events", SILVER_KEY), "gold": ("gold_rummy_player_agg", GOLD_KEY)}[layer]
    sent = produce(environment, wave("rummy", "spades"))
    assert runs.materialize(BRONZE_KEY, QUARANTINE_KEY).success
    damaged = Path(environment.lakehouse) / name / "_delta_log"
    damaged.mkdir(parents=True)
    (damaged / "00000000000000000000.json").write_text('{"protocol":')
    games = tuple(runs.games)
    if layer == "gold":
        assert runs.materialize(SILVER_KEY, games=games).success
    by_hand = runs.materialize(key, games=games)
    assert not by_hand.success
    # The only one without an event, so the only one that the UI offers for a retry.
    assert logged(by_hand) == {(key.path[-1], "spades"): 1}
    for seed in (1, 2):
        sent = sent.merge(produce(environment, wave("rummy", "spades", seed=seed)))
        result = runs.refresh()
        assert not result.success
        (failure,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
        assert name in failure.step_failure_data.user_failure_data.description
        truth = {g: (t.session_count, t.min_timestamp, t.max_timestamp) for g, t in sent.truth["spades"].items()}
        assert books.gold(environment, "spades") == truth
        sessions = sum(books.gold(environment, "spades")[gamer][0] for gamer in truth)
        sql = "SELECT sum(session_count) FROM t WHERE game_name = 'spades'"
        assert books.rows(environment, "gold_unified_player_agg", sql) == [(sessions,)]
    shutil.rmtree(damaged.parent)
    assert runs.refresh().success
    books.assert_books_balance(environment, sent)


class FreshSite(Site):
    """A folder without any file of the project: what `game-events up` needs comes with the package."""

    def __init__(self, folder):
        super().__init__(folder)
        for name in ("workspace.yaml", "dagster.yaml"):
            (folder / name).unlink()
        self.environment |= {"GAME_EVENTS_MODE": "production"}

    def runs(self):
        return self.ask(CARRIED)["runsOrError"]["results"]

    def wait_for(self, what, seconds):
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, (self.runs(), self.log.read_text()[-3000:])
            time.sleep(0.5)

    def settings(self):
        return load_settings(lakehouse=str(self.lakehouse))


@pytest.mark.scenario
def test_after_up_events_reach_gold_with_no_click_and_what_is_done_by_hand_is_carried_on(tmp_path):
    site = FreshSite(tmp_path)
    process = site.start()
    try:
        small = ("--games", "rummy,uno", "--records", "20")
        sent = site.run("produce", *small)["decodable"]
        unified = "gold_unified_player_agg"

        def events_in_gold():
            found = books.rows(site.settings(), unified, "SELECT sum(session_count) FROM t")
            return int(found[0][0]) if found else 0

        site.wait_for(lambda: events_in_gold() == sent, BY_HAND_S)
        site.wait_for(lambda: all(run["status"] == "SUCCESS" for run in site.runs()), BY_HAND_S)
        assert {run["pipelineName"] for run in site.runs()} == {"refresh"}

        sensors = site.sensors()
        assert {s["status"] for s in sensors.values()} == {"RUNNING"}
        assert set(sensors) == {
            "kafka_lag",
            "schema_versions",
            "new_games",
            "automation",
            "dead_runs",
            "alerts",
            "continuous_mode",
        }
        site.stop_sensor("kafka_lag")
        before = {run["runId"] for run in site.runs()}
        more = site.run("produce", *small, "--seed", "7")["decodable"]
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "game_events",
            "jobName": "__ASSET_JOB",
            "assetSelection": [{"path": [name]} for name in ("bronze_events", "quarantine_events")],
        }
        site.ask(LAUNCH, p={"selector": selector, "mode": "default"})
        site.wait_for(lambda: events_in_gold() == sent + more, BY_HAND_S)
        site.wait_for(lambda: all(run["status"] == "SUCCESS" for run in site.runs()), BY_HAND_S)
        new = [run for run in site.runs() if run["runId"] not in before]
        assert len(new) == 2, "one by hand, one that carries on"
        assert {tag["key"] for run in new for tag in run["tags"]} >= {"game_events/carries", "game_events/process"}
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_S)
    assert code == 0, site.log.read_text()
    assert site.processes() == []
