"""`game-events quarantine list|replay` and `redecode`, on real parts."""

import pytest

from game_events.lakehouse.tables import BRONZE
from game_events_tests.support.reconciliation import assert_books_balance, count
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.worlds.waves import send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


def test_an_empty_quarantine_is_told_as_such(cli, environment):  # noqa: ARG001 - its lakehouse is read
    said = cli("quarantine", "list", "--json")
    assert (said.code, said.result["groups"], said.result["waiting"]) == (0, [], 0)
    assert "no such rows" in said.err


def test_rows_are_listed_by_reason_replayed_once_and_still_listed(cli, environment, stack, spark, monkeypatch):  # noqa: ARG001
    sent = send(environment, version=2, poison=0.3)
    schema_id = sent.schema_ids[2]
    with registry_proxy(stack.schema_registry_url) as proxy:
        proxy.hide(schema_id)
        monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", proxy.url)
        assert cli("run", "--json").result["rows"]["bronze"] == 0
    listed = cli("quarantine", "list", "--reason", "UNKNOWN_SCHEMA", "--rows", "1", "--json")
    by_id = {g["schema_id"]: (g["rows"], g["replayed"]) for g in listed.result["groups"]}
    assert by_id[str(schema_id)][0] >= sent.decodable
    assert by_id[str(schema_id)][1] == 0
    assert {g["reason"] for g in listed.result["groups"]} == {"UNKNOWN_SCHEMA"}
    (newest,) = listed.result["rows"]
    assert newest["record"].startswith(f"{environment.kafka_topic}[")
    assert "UNKNOWN_SCHEMA" in listed.err

    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_URL", stack.schema_registry_url)
    replayed = cli("quarantine", "replay", "--schema-id", str(schema_id), "--json")
    assert replayed.code == 0, replayed.everything
    assert replayed.result["replayed_rows"] == replayed.result["rows"]["silver"] == sent.decodable
    assert_books_of_the_tables(environment, sent)

    again = cli("quarantine", "replay", "--json")
    assert (again.code, again.result["replayed_rows"]) == (0, 0)
    assert "still not decodable" in again.err
    after = {g["schema_id"]: g["replayed"] for g in cli("quarantine", "list", "--json").result["groups"] if g["replayed"]}
    assert after == {str(schema_id): sent.decodable}


def assert_books_of_the_tables(settings, sent):
    assert count(settings, BRONZE) == sent.decodable
    assert sum(count(settings, f"silver_{game}_events") for game in sent.records) == sent.decodable


def test_redecode_keeps_every_row_and_says_what_it_did(cli, environment, spark):  # noqa: ARG001 - the run finds it
    sent = send(environment, version=3)
    cli("run")
    said = cli("redecode", "--downstream", "--json")
    assert said.code == 0, said.everything
    assert (said.result["redecoded_rows"], said.result["new_columns"], said.result["kept_by_reason"]) == (
        sent.decodable,
        [],
        {},
    )
    assert_books_balance(environment, sent)
