"""What runs of real records register in Unity Catalog, with their grants."""

import polars as pl
import pytest

from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.servers.unity_server import unity_server

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
ANN = "ann@example.com"


def test_a_run_registers_new_tables_with_their_grants_and_no_other_one_again(cli, environment, monkeypatch):
    with unity_server() as unity:
        unity.add_user(ANN)
        monkeypatch.setenv("GAME_EVENTS_CATALOG", f"{unity.catalog}.games")
        monkeypatch.setenv("GAME_EVENTS_UNITY_URL", unity.url)
        monkeypatch.setenv("GAME_EVENTS_UNITY_TOKEN", unity.token)
        monkeypatch.setenv("GAME_EVENTS_GRANTS", f'[{{"layers": ["gold"], "games": ["r*"], "to": ["{ANN}"]}}]')
        assert found(cli) == (True, f"{unity.catalog}.games: the server answers; grants: 0 missing, 0 surplus")
        said = []
        for games in (("rummy",), ("rummy", "uno")):
            produce(environment, Simulation(games=games, records_per_game_and_version=20))
            run = cli("run", "--json")
            assert run.code == 0, run.everything
            assert unity.token not in run.everything
            said.append(run.result["registered"])
        first, more = said
        assert {"bronze_events", "silver_rummy_events", "gold_rummy_player_agg", "gold_unified_player_agg"} <= set(first)
        # The event log is made at the end of a run.
        assert more == ["event_log", "gold_uno_player_agg", "silver_uno_events"]
        granted = {name: unity.privileges("table", f"{unity.catalog}.games.{name}") for name in (*first, *more)}
        assert {name: has for name, has in granted.items() if has} == {"gold_rummy_player_agg": {ANN: {"SELECT"}}}
        client = pl.Catalog(unity.url, bearer_token=unity.token, require_https=False)
        rows = client.scan_table(unity.catalog, "games", "silver_uno_events").select(pl.len()).collect().item()
        assert rows == 40
        # Somebody has given more: `doctor` says so, and goes on.
        unity.grant("table", f"{unity.catalog}.games.bronze_events", ANN, "SELECT")
        is_ok, detail = found(cli)
        assert is_ok
        assert "0 missing, 1 surplus" in detail


def found(cli):
    """What `doctor` says of the catalog."""
    return next((c["ok"], c["detail"]) for c in cli("doctor", "--json").result["checks"] if c["check"] == "catalog")
