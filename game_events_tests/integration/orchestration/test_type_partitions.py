"""Tables of message types are partitions of an asset of their own, by game and type; a game's partition refreshes them."""

import dagster as dg
import pytest
from deltalake import DeltaTable

from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.fixtures.dagster import logged
from game_events_tests.support.keys import GOLD_KEY, SILVER_KEY

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
TYPES_KEY = dg.AssetKey("silver_events_by_type")


def test_each_type_of_a_game_is_a_partition_and_gold_is_by_game(runs, environment, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_SILVER_PER", "entity_and_type")
    produce(environment, Simulation(games=("rummy", "spades"), records_per_game_and_version=10, gamers_per_game=4))
    first = runs.refresh()
    assert first.success
    typed = {(asset, partition) for asset, partition in logged(first) if asset == TYPES_KEY.path[-1]}
    (kind,) = {partition.partition("/")[2] for _, partition in typed}
    assert typed == {(TYPES_KEY.path[-1], f"{game}/{kind}") for game in ("rummy", "spades")}
    assert sorted(runs.games) == ["rummy", "spades"]
    assert set(runs.instance.get_dynamic_partitions("games_and_types")) == {partition for _, partition in typed}
    assert runs.instance.get_materialized_partitions(GOLD_KEY) == {"rummy", "spades"}
    assert logged(runs.refresh()) == {}
    # A game's partition by hand is of all of its tables.
    table = f"{environment.lakehouse}/silver_rummy__{kind}_events"
    before = DeltaTable(table).version()
    again = runs.materialize(SILVER_KEY, games="rummy", full=True)
    assert again.success
    assert logged(again) == {("silver_events", "rummy"): 1, (TYPES_KEY.path[-1], f"rummy/{kind}"): 1}
    assert DeltaTable(table).version() == before + 1
