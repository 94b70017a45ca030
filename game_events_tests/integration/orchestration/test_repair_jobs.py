"""The jobs `replay` and `redecode`, started as the UI's launchpad starts them."""

import dagster as dg
import pytest

from game_events_tests.support.fixtures.dagster import logged
from game_events_tests.support.reconciliation import assert_books_balance
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.worlds.waves import send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


def observed(result):
    events = [e for e in result.all_events if e.event_type == dg.DagsterEventType.ASSET_OBSERVATION]
    return [
        (o.asset_key.path[-1], o.metadata["replayed_rows"].value)
        for o in (e.asset_observation_data.asset_observation for e in events)
    ]


def test_a_replay_makes_new_games_partitions_and_says_what_it_brought(runs, environment, stack, monkeypatch):
    sent = send(environment, version=2, games=("rummy", "uno"), poison=0.3)
    (schema_id,) = sent.schema_ids.values()
    with registry_proxy(stack.schema_registry_url) as proxy:
        proxy.hide(schema_id)
        monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", proxy.url)
        assert runs.refresh().success
    assert runs.games == []
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", stack.schema_registry_url)

    result = runs.job("replay", replay_quarantined_rows={"reasons": ["UNKNOWN_SCHEMA"], "schema_ids": []})

    assert result.success
    games = [(asset, game) for asset in ("silver_events", "gold_player_agg") for game in ("rummy", "uno")]
    assert logged(result) == dict.fromkeys([("bronze_events", None), ("gold_unified_player_agg", None), *games], 1)
    assert observed(result) == [("quarantine_events", sent.decodable)]
    assert sorted(runs.games) == ["rummy", "uno"]
    assert {check.passed for check in result.get_asset_check_evaluations()} == {True}


@pytest.mark.scenario
def test_a_redecode_with_everything_downstream_leaves_the_books_as_they_were(runs, environment):
    sent = send(environment, version=3)
    assert runs.refresh().success
    result = runs.job("redecode", redecode_bronze={"refresh_silver_and_gold": True})
    assert result.success
    assert {asset for asset, _ in logged(result)} == {
        "bronze_events", "silver_events", "gold_player_agg", "gold_unified_player_agg",
    }  # fmt: skip
    assert_books_balance(environment, sent)
