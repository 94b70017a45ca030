"""`game-events run` with a selection, a full refresh, or dry; Spark is the tests' shared session."""

from pathlib import Path

import pytest

from game_events.lakehouse.tables import EVENT_LOG
from game_events_tests.support.reconciliation import assert_books_balance
from game_events_tests.support.worlds.waves import send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


@pytest.fixture
def ready(environment, spark):  # noqa: ARG001 - the run finds it
    return environment


def files(folder):
    """Every file below a folder with its size and time; but the event log's: it tells of every run, refused ones too."""
    found = [p for p in Path(folder).rglob("*") if p.is_file() and EVENT_LOG not in p.parts]
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in found}


def test_a_selection_a_full_refresh_and_a_dry_run_from_the_command_line(cli, ready, monkeypatch):
    sent = send(ready)
    first = cli("run", "--dry-run", "--json")
    assert first.code == 0
    assert not Path(ready.lakehouse).exists()
    needed = [
        "settings",
        "java",
        "java parts",
        "kafka",
        "schema registry",
        "lakehouse",
        "encryption",
        "tables",
        "erased people",
    ]
    planned = ["rules", "graph", "selection", "plan"]
    assert {c["check"]: c["ok"] for c in first.result["checks"]} == dict.fromkeys([*needed, *planned], True)
    plan = first.result["checks"][-1]["data"]
    assert sum(plan["records"].values()) == sent.records_total
    some = cli("run", "--json", "--select", "bronze, silver", "--select", "gold")
    assert some.code == 0, some.everything
    assert some.result["rows"]["unified"] == 0
    rest = cli("run", "--json", "--select", "unified")
    assert set(rest.result["tables"]) == {"gold_unified_player_agg"}
    assert_books_balance(ready, sent)

    held = files(ready.lakehouse)
    for words in (["--select", "silver_ludo_events"], ["--games", "rummy,ludo"], ["--full-refresh", "brnze"]):
        wrong = cli("run", *words)
        assert wrong.code == 1
        assert "there is no" in wrong.err
        assert "rummy, spades, uno" in wrong.err
        assert "Traceback" not in wrong.everything
    refused = cli("run", "--full-refresh", "bronze", "--json")
    assert refused.code == 1
    assert "set GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true" in refused.result["error"]
    dry = cli("run", "--dry-run", "--full-refresh", "--json")
    assert dry.code == 0
    said = {c["check"]: c["detail"] for c in dry.result["checks"]}
    assert "replaced: silver, gold, unified; bronze_events is protected" in said["selection"]
    assert files(ready.lakehouse) == held

    everything = cli("run", "--full-refresh", "--json")
    assert everything.code == 0
    assert everything.result["rows"]["silver"] == sent.decodable
    assert everything.result["rows"]["bronze"] == 0
    assert "bronze_events is protected and was not replaced" in everything.err
    assert_books_balance(ready, sent)

    # All that is wrong is listed.
    (Path(ready.lakehouse) / "gold_uno_player_agg/_delta_log/00000000000000000000.json").write_text("{")
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
    sick = cli("run", "--dry-run", "--select", "nothing", "--full-refresh", "bronze", "--json")
    assert sick.code == 1
    failed = {c["check"]: c["detail"] for c in sick.result["checks"] if not c["ok"]}
    assert set(failed) == {"schema registry", "tables", "selection", "plan"}
    assert "gold_uno_player_agg" in failed["tables"]
    assert failed["plan"] == "not known while this fails: tables"
    monkeypatch.setenv("GAME_EVENTS_MAX_GAMES", "many")
    unread = cli("run", "--dry-run", "--json")
    assert unread.code == 1
    assert "GAME_EVENTS_MAX_GAMES" in unread.result["checks"][0]["detail"]
