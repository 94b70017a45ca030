"""The commands with several sources: what `doctor`, `run` and its dry run say of one that is down; secrets are never shown."""

from __future__ import annotations

import json

import pytest

from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.quality import SCHEMA
from game_events_tests.support.worlds.topic import register
from game_events_tests.support.worlds.two_clusters import ELSEWHERE, amounts, by_source, event, remarks, send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
SECRET = "a-secret-of-the-second"


@pytest.fixture
def ready(environment, us, monkeypatch, spark):  # noqa: ARG001 - the run finds the session
    """Both sources in the environment, a secret of the second one in a variable of its own; records in both."""
    names = ("kafka_bootstrap_servers", "schema_registry_url")
    monkeypatch.setenv("GAME_EVENTS_SOURCES", json.dumps({"eu": {}, "us": {name: getattr(us, name) for name in names}}))
    monkeypatch.setenv("GAME_EVENTS_SOURCES__US__SCHEMA_REGISTRY_PASSWORD", SECRET)
    send(environment, register(environment, SCHEMA), [event("uno", amounts(n)) for n in range(2)])
    send(us, register(us, ELSEWHERE), [event("uno", remarks("a"))])
    return environment


@pytest.mark.usefixtures("no_waiting")
def test_one_source_is_down_the_run_reads_the_other_fails_by_its_name_and_the_next_one_catches_up(cli, ready, us, monkeypatch):
    healthy = cli("doctor", "--json")
    checks = {check["check"]: check for check in healthy.result["checks"]}
    assert all(checks[name]["ok"] for name in ("kafka eu", "kafka us", "schema registry eu", "schema registry us"))

    monkeypatch.setenv("GAME_EVENTS_SOURCES__US__KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    sick = cli("doctor", "--json")
    checks = {check["check"]: check["ok"] for check in sick.result["checks"]}
    assert sick.code == 1
    assert {name for name, ok in checks.items() if not ok} == {"kafka us"}
    dry = cli("run", "--dry-run", "--json")
    (plan,) = [check for check in dry.result["checks"] if check["check"] == "plan"]
    assert plan["look"] and "the run would be without us: " in plan["detail"]
    assert (sum(plan["data"]["records"].values()), list(plan["data"]["sources_left_out"])) == (2, ["us"])

    run = cli("run", "--json")
    assert run.code == 1
    assert run.result["success"] is False
    assert "1 source left out, the others were read: us: " in run.result["error"]
    assert run.result["sources"]["eu"] == {"read": 2, "lag": 0}
    assert "127.0.0.1:9" in run.result["sources"]["us"]["left_out"]
    assert run.result["rows"]["gold"] == 1
    assert by_source(ready) == {"eu": 2}
    found = rows(ready, "event_log", "SELECT kind, name, status FROM t WHERE kind IN ('run', 'left_out')")
    assert sorted(found) == [("left_out", "us", "failed"), ("run", "refresh", "failed")]

    monkeypatch.delenv("GAME_EVENTS_SOURCES__US__KAFKA_BOOTSTRAP_SERVERS")
    again = cli("run", "--json")
    assert (again.code, again.result["sources"]) == (0, {"eu": {"lag": 0}, "us": {"read": 1, "lag": 0}})
    assert by_source(ready) == {"eu": 2, "us": 1}
    send(us, 4_000_000_000, [event("uno")])
    assert cli("run", "--json").code == 0
    held = cli("quarantine", "list", "--rows", "1", "--schema-id", "us/4000000000", "--json").result
    assert [(group["schema_id"], group["rows"]) for group in held["groups"]] == [("us/4000000000", 1)]
    assert held["rows"][0]["record"] == f"us/{us.kafka_topic}[0]@1"
    shown = cli("schema", "show", "--subject", f"us/{us.kafka_topic}-value", "--json")
    assert (shown.code, "remark" in shown.out) == (0, True)
    settings_logged = rows(ready, "event_log", "SELECT detail FROM t WHERE kind = 'run'")
    everything = "".join(said.everything for said in (healthy, sick, dry, run, again)) + repr(settings_logged)
    assert SECRET not in everything
