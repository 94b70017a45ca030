"""Work without a new record: rows that settings left out before, and tables that were restored; on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.fixtures.cli import Cli
from game_events_tests.support.reconciliation import assert_books_balance, count
from game_events_tests.support.worlds.own_module import DEVICES, DEVICES_SQL, differences, extension

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


@pytest.fixture
def ready(environment: Settings, spark: object) -> Settings:  # noqa: ARG001 - the run finds it
    return environment


def wave(version: int = 1) -> Simulation:
    return Simulation(games=("rummy", "uno"), records_per_game_and_version=5, versions=(version,))


def found(cli: Cli, *command: str) -> dict[str, str]:
    """Check -> what it says."""
    said = cli(*command, "--json")
    return {check["check"]: check["detail"] for check in json.loads(said.out)["checks"]}


def test_a_game_that_the_allow_list_left_out_comes_with_the_first_run_that_has_it(
    cli: Cli, ready: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = produce(ready, wave())
    monkeypatch.setenv("GAME_EVENTS_GAMES", "rummy")
    assert cli("run", "--json").result["games"].keys() == {"rummy"}
    assert "GAME_EVENTS_GAMES leaves out names in batches 1 to 1" in found(cli, "doctor")["waiting"]
    assert cli("run", "--json").result["tables"] == {}
    monkeypatch.delenv("GAME_EVENTS_GAMES")
    rows = sum(sent.records["uno"].values())
    why = f"{rows} of them left out by the settings until now (uno)"
    assert why in found(cli, "doctor")["waiting"]
    assert why in found(cli, "run", "--dry-run")["plan"]
    run = cli("run", "--json").result
    assert (run["success"], run["rows"]["silver"], run["games"]["uno"]["silver"]) == (True, rows, rows)
    assert any(f"{rows} rows that the settings left out until now" in notice for notice in run["notices"])
    assert_books_balance(ready, sent)
    assert cli("run", "--json").result["tables"] == {}
    assert "left out" not in found(cli, "doctor")["waiting"]


def test_a_restored_table_is_repaired_also_with_an_aggregate_of_the_users_own(
    cli: Cli, ready: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GAME_EVENTS_EXTENSIONS", extension(tmp_path, DEVICES))
    sent = produce(ready, wave())
    assert cli("run", "--json").result["success"]
    sent = sent.merge(produce(ready, wave()))
    assert cli("run", "--json").result["success"]
    rows = count(ready, "silver_uno_events")
    DeltaTable(f"{ready.lakehouse}/silver_uno_events").restore(0)
    assert count(ready, "silver_uno_events") < rows
    run = cli("run", "--json").result
    assert run["success"]
    assert any("silver_uno_events (restored)" in notice for notice in run["notices"])
    assert count(ready, "silver_uno_events") == rows
    assert_books_balance(ready, sent)
    assert differences(ready, ("rummy", "uno"), "devices", DEVICES_SQL) == []
