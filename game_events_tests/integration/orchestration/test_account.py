"""What a Dagster run leaves for people: the event log, results of checks, numbers that the UI can plot."""

import json

import dagster as dg
import pytest

from game_events.orchestration.events import plain
from game_events.orchestration.keys import REPORT
from game_events.pipeline.checks.table_checks import CHECKS
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.fixtures.dagster import materializations
from game_events_tests.support.keys import BRONZE_KEY, QUARANTINE_KEY, SILVER_KEY

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


def wave(**options):
    return Simulation(games=("rummy", "uno"), records_per_game_and_version=10, gamers_per_game=4, **options)


def logged_rows(settings, where="true"):
    columns = 'run_id, kind, layer, "table", game, name, rows, table_rows, delta_version, batch, lag, status, detail'
    found = reconciliation.rows(
        settings, "event_log", f"SELECT {columns} FROM t WHERE {where} ORDER BY time, kind, layer, game, name"
    )
    names = columns.replace('"', "").split(", ")
    return [dict(zip(names, row, strict=True)) for row in found]


def test_the_event_log_says_what_the_tables_and_the_report_say_in_numbers_that_the_ui_plots(runs, environment, monkeypatch):
    sent = produce(environment, wave(poison_share=0.3))
    first = runs.refresh()
    output = [e for e in first.all_events if e.event_type == dg.DagsterEventType.STEP_OUTPUT]
    report = output[-1].step_output_data.metadata[REPORT].data
    mine = logged_rows(environment, f"run_id = '{first.run_id}'")
    tables = {row["table"]: row for row in mine if row["kind"] == "table"}
    assert set(tables) == set(report["tables"])
    for name, row in tables.items():
        assert row["table_rows"] == reconciliation.count(environment, name)
        assert (row["status"], row["batch"]) == ("new" if row["layer"] in ("silver", "gold", "unified") else "changed", 1)
    assert tables["silver_uno_events"]["game"] == "uno"
    by_kind = {row["kind"]: row for row in mine}
    assert by_kind["read"]["rows"] == sent.records_total
    assert {r["name"]: r["rows"] for r in mine if r["kind"] == "rejected"} == report["rejected"]
    assert {r["name"]: r["status"] for r in mine if r["kind"] == "check"} == dict.fromkeys(report["checks"], "passed")
    assert (by_kind["run"]["status"], by_kind["run"]["rows"], by_kind["run"]["lag"]) == ("succeeded", sent.decodable, 0)
    versions = {json.loads(r["detail"])["version"] for r in mine if r["kind"] == "schema" and r["table"] is None}
    assert versions == set(sent.schema_ids)
    columns = {r["name"] for r in mine if r["kind"] == "schema" and r["table"] == "bronze_events"}
    assert {"game_name", "gamer_id"} <= columns
    gamers = {row[0] for row in reconciliation.rows(environment, "bronze_events", "SELECT DISTINCT gamer_id FROM t")}
    assert not [gamer for gamer in gamers if gamer in json.dumps(mine)], "a gamer is named"
    assert_numbers_are_numbers(first)

    # A later schema's columns are news once: the check says so, and the run after it passes.
    produce(environment, wave(versions=(7,), seed=1))
    second = runs.refresh()
    drift = {c.check_name: c for c in second.get_asset_check_evaluations()}["schema_drift"]
    assert (drift.passed, drift.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "col_custom_6 (string): new" in drift.description
    assert second.success, "a warning fails no run"

    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
    produce(environment.model_copy(), wave(versions=(8,), seed=2))
    bad = runs.refresh()
    monkeypatch.undo()
    assert not bad.success
    (row,) = [r for r in logged_rows(environment, f"run_id = '{bad.run_id}'") if r["kind"] == "run"]
    assert row["status"] == "failed"
    error = json.loads(row["detail"])["error"]
    assert error["class"] == "TransientError"
    assert "http://127.0.0.1:9 gave no usable answer" in error["text"]


def assert_numbers_are_numbers(run):
    """So that the assets' page plots them."""
    found = {m.asset_key: m.metadata for m in materializations(run)}
    plotted = [
        "dagster/row_count",
        "rows_committed",
        "dagster/size_bytes",
        "delta_version",
        "layer_seconds",
        "layer_rows_per_second",
    ]
    for key, more in ((BRONZE_KEY, ["lag", "rejected_rows"]), (QUARANTINE_KEY, ["rejected_rows"]), (SILVER_KEY, [])):
        names = plotted[:4] + more if key == QUARANTINE_KEY else plotted + more
        for name in names:
            value = found[key][name]
            assert isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue), (key, name)
            assert isinstance(value.value, int | float), (key, name)


@pytest.mark.parametrize("check", [c.name for c in CHECKS if c.name != "rows_conserved"])
def test_each_check_by_itself_has_a_result_in_dagster_and_in_the_event_log(runs, environment, check):
    if check == "gold_equals_recompute":
        produce(environment, wave())
        assert runs.refresh().success
    found = runs.check(check)
    assert found.passed or check == "fresh"
    assert found.description
    rows = logged_rows(environment, f"name = '{check}'")
    assert rows[-1]["status"] == ("passed" if found.passed else "warned")
    assert json.loads(rows[-1]["detail"])["summary"] == plain(found.description)
    assert [r["status"] for r in logged_rows(environment, f"kind = 'run' AND name = 'check {check}'")] == ["succeeded"]
