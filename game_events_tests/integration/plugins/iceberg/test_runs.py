"""`ICEBERG=on` with real runs: after each command Iceberg's tables have the rows of Delta's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.iceberg.current import tables_of
from game_events_tests.support.iceberg import entries_in_history, iceberg_table, rows_in_delta, rows_in_iceberg, run_ended
from game_events_tests.support.worlds.quality import Event, send_events
from game_events_tests.support.worlds.waves import send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
WHOM = "gamer-to-forget"
AS_IN_DELTA = "tables are in Iceberg as they are in Delta"
KEY = "a key of the tests, long enough"


@pytest.fixture
def iceberg(environment, monkeypatch, spark):  # noqa: ARG001 - the session that commands find
    """The settings of the command line, with Iceberg on."""
    monkeypatch.setenv("GAME_EVENTS_ICEBERG", "on")
    return environment.model_copy(update={"iceberg": True})


def assert_same(settings) -> dict[str, int]:
    """All tables have the same rows in both formats; returns how many snapshots each has."""
    pipeline = Pipeline(settings, no_spark)
    snapshots = {}
    for table in tables_of(Lakehouse.of(settings)):
        held = iceberg_table(pipeline, table)
        assert rows_in_iceberg(held) == rows_in_delta(table), table.name
        snapshots[table.name] = len(held.metadata.snapshots)
    return snapshots


@pytest.mark.scenario
def test_runs_and_maintenance_leave_iceberg_as_delta(cli, iceberg, monkeypatch):
    send(iceberg)
    ran = cli("run", "--json")
    assert ran.code == 0, ran.err
    tables = tables_of(Lakehouse.of(iceberg))
    assert ran.result["iceberg"]["tables"] >= len(tables)
    assert ran.result["iceberg"]["failed"] == {}
    assert assert_same(iceberg).keys() >= {"bronze_events", "gold_unified_player_agg"}

    send(iceberg, version=2)  # more columns
    assert cli("run", "--json").code == 0
    assert max(assert_same(iceberg).values()) == 2

    for name in ("EVERY_VERSION_H", "REPLACED_FILES_H", "DERIVED_REPLACED_FILES_H"):
        monkeypatch.setenv(f"GAME_EVENTS_{name}", "0.000001")
    assert cli("maintain", "--json").code == 0
    assert set(assert_same(iceberg).values()) <= {1, 2}

    (check,) = [c for c in cli("doctor", "--json").result["checks"] if c["check"] == "iceberg"]
    assert (check["ok"], check["detail"]) == (
        True,
        f"{len(tables)} of {len(tables)} tables are in Iceberg as they are in Delta",
    )
    logged = [json.loads(line) for line in cli("log", "--kind", "iceberg", "--json").out.splitlines()]
    assert "iceberg" in str(logged)


@pytest.mark.scenario
def test_an_erased_person_is_in_no_snapshot_and_in_no_metadata(cli, iceberg, make_pipeline, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_ERASURE_KEY", KEY)
    for number in range(2):
        send_events(iceberg, [Event("chess", 2 * number + n, gamer=gamer) for n in range(2) for gamer in (WHOM, "ann")])
        refresh(make_pipeline(iceberg))
        run_ended(Pipeline(iceberg, no_spark))
    said = cli("erase", "--gamer-id", WHOM, "--vacuum", "--json")
    assert said.code == 0, said.err
    assert set(assert_same(iceberg).values()) == {1}
    for table in tables_of(Lakehouse.of(iceberg)):
        held = iceberg_table(Pipeline(iceberg, no_spark), table)
        assert WHOM not in Path(held.metadata_location.removeprefix("file://")).read_text()
        for entry in entries_in_history(held):
            assert WHOM.encode() not in b"".join([*entry.lower_bounds.values(), *entry.upper_bounds.values()])


@pytest.mark.scenario
@pytest.mark.parametrize("layout", ["tables", "partitioned"])
def test_refreshes_of_everything_are_in_iceberg_too(cli, iceberg, monkeypatch, layout):
    monkeypatch.setenv("GAME_EVENTS_SILVER_LAYOUT", layout)
    monkeypatch.setenv("GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH", "true")
    settings = iceberg.model_copy(update={"silver_layout": layout})
    send(settings)
    assert cli("run", "--json").code == 0
    assert_same(settings)
    assert cli("redecode", "--json").code == 0
    assert_same(settings)
    done = cli("run", "--full-refresh", "--json")
    assert done.code == 0, done.err
    assert_same(settings)
