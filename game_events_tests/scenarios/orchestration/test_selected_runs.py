"""The jobs `refresh` (with a selection) and `validate`, started as the UI's launchpad starts them."""

import dagster as dg
import pytest

from game_events.lakehouse.tables import EVENT_LOG
from game_events_tests.support.fixtures.dagster import logged, materializations
from game_events_tests.support.reconciliation import assert_books_balance
from game_events_tests.support.worlds.waves import send, versions

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


def refresh(runs, **asked):
    return runs.job("refresh", plan=asked)


def held(settings):
    """Versions of all tables but the event log, which tells of every run, refused ones too."""
    return {name: version for name, version in versions(settings).items() if name != EVENT_LOG}


def failure(result):
    (event,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    data = event.step_failure_data
    return data.user_failure_data.description if data.user_failure_data else (data.error.cause or data.error).message


def test_a_selected_run_and_a_full_refresh_log_what_they_wrote_and_a_dry_run_changes_nothing(runs, environment, monkeypatch):
    sent = send(environment)
    assert logged(refresh(runs, select=["bronze"])) == {("bronze_events", None): 1, ("quarantine_events", None): 1}
    assert logged(refresh(runs, select=["silver", "gold"], games=["uno"])) == {
        ("silver_events", "uno"): 1,
        ("gold_player_agg", "uno"): 1,
    }
    assert runs.games == ["uno"]
    assert runs.refresh().success
    assert_books_balance(environment, sent)
    assert logged(refresh(runs, full_refresh=["silver_uno_events"])) == {
        ("silver_events", "uno"): 1,
        ("gold_player_agg", "uno"): 1,
        ("gold_unified_player_agg", None): 1,
    }

    before = held(environment)
    refused = refresh(runs, full_refresh=["bronze_events"])
    assert not refused.success
    assert "bronze_events is protected" in failure(refused)
    wrong = refresh(runs, games=["unu"])
    assert not wrong.success
    assert "--games: there is no 'unu'; games: rummy, spades, uno" in failure(wrong)

    dry = runs.job("validate", check_everything={"select": ["gold"]})
    assert dry.success
    (output,) = [e for e in dry.all_events if e.event_type == dg.DagsterEventType.STEP_OUTPUT]
    found = output.step_output_data.metadata
    assert found["selection"].value == "brought up to date: gold"
    assert found["plan"].value.startswith("0 records to read; silver: 0 games behind")
    with monkeypatch.context() as patch:
        patch.setenv("GAME_EVENTS_KAFKA_TOPIC", "not_there")
        sick = runs.job("validate", check_everything={"games": ["unu"]})
    assert not sick.success
    assert "3 checks failed: kafka: " in failure(sick)
    assert "selection: --games: there is no 'unu'" in failure(sick)
    assert held(environment) == before

    monkeypatch.setenv("GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH", "true")
    whole = refresh(runs, full_refresh=["all"])
    assert whole.success
    tables = {asset for asset, _ in logged(whole)}
    assert tables == {"bronze_events", "quarantine_events", "silver_events", "gold_player_agg", "gold_unified_player_agg"}
    assert {check.passed for check in whole.get_asset_check_evaluations()} == {True}
    (bronze,) = [m for m in materializations(whole) if m.asset_key.path[-1] == "bronze_events"]
    assert bronze.metadata["rows_committed"].value == sent.decodable
    assert_books_balance(environment, sent)
