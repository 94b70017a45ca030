"""Aggregates of one's own in Dagster: in the graph, by run, by hand."""

import dagster as dg
import pytest

from game_events.definitions import build_defs
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.fixtures.dagster import logged, materializations
from game_events_tests.support.worlds.own_module import DEVICES, DEVICES_SQL, differences, extension
from game_events_tests.unit.orchestration.assets.test_per_game import DEVICES_KEY


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_a_run_logs_the_games_that_changed_and_one_game_by_hand_is_that_game(runs, environment, monkeypatch, tmp_path):
    path = extension(
        tmp_path, DEVICES.replace('keys=["gamer_id", "device_id"]', 'keys=["gamer_id", "device_id"], interval_s=3600')
    )
    monkeypatch.setenv("GAME_EVENTS_EXTENSIONS", path)
    wave = Simulation(games=("rummy", "spades"), records_per_game_and_version=5)
    produce(environment, wave)
    first = runs.refresh()
    assert first.success
    mine = {(asset, game): n for (asset, game), n in logged(first).items() if asset == "gold_devices"}
    assert mine == {("gold_devices", "rummy"): 1, ("gold_devices", "spades"): 1}
    for event in materializations(first):
        if event.asset_key == DEVICES_KEY:
            name = f"gold_{event.partition}_devices"
            assert event.metadata["dagster/table_name"].value == name
            assert event.metadata["dagster/row_count"].value == reconciliation.count(environment, name) > 0
    assert runs.instance.get_materialized_partitions(DEVICES_KEY) == {"rummy", "spades"}

    # Its hour has not passed: the next run leaves it, by hand it is done at once, and only that game.
    produce(environment, wave.model_copy(update={"seed": 1}))
    assert ("gold_devices", "rummy") not in logged(runs.refresh())
    by_hand = runs.materialize(DEVICES_KEY, games="rummy")
    assert by_hand.success
    assert logged(by_hand) == {("gold_devices", "rummy"): 1}
    assert differences(environment, ("rummy",), "devices", DEVICES_SQL) == []
    asked = runs.job("refresh", plan={"ignore_intervals": True})
    assert logged(asked) == {("gold_devices", "spades"): 1}
    assert differences(environment, ("rummy", "spades"), "devices", DEVICES_SQL) == []


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_one_of_some_games_counts_only_these_and_takes_no_other(runs, environment, monkeypatch, tmp_path):
    monkeypatch.setenv(
        "GAME_EVENTS_EXTENSIONS", extension(tmp_path, DEVICES.replace("keys=", 'games=["rummy", "chess"], keys='))
    )
    produce(environment, Simulation(games=("rummy", "spades"), records_per_game_and_version=5))
    first = runs.refresh()
    assert first.success
    assert {game for asset, game in logged(first) if asset == "gold_devices"} == {"rummy"}
    partitions = build_defs().resolve_asset_graph().get(DEVICES_KEY).partitions_def
    assert set(partitions.get_partition_keys()) - runs.instance.get_materialized_partitions(DEVICES_KEY) == {"chess"}
    assert logged(runs.materialize(DEVICES_KEY, games="rummy")) == {("gold_devices", "rummy"): 1}
    with pytest.raises(dg.DagsterUnknownPartitionError):
        runs.materialize(DEVICES_KEY, games="spades")
