"""A triggered run whose broker dies fails with the reason, or goes on; once it is back no row is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from game_events.config.settings import Settings
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.local_stack import StackState
from game_events.sources.kafka import source as kafka
from game_events.sources.kafka import source as kafka_admin
from game_events_tests.support.fixtures.cli import Cli
from game_events_tests.support.reconciliation import assert_books_balance, coordinates
from game_events_tests.support.servers.own_stack import OwnStack
from game_events_tests.support.worlds.waves import at_point, send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
#: Workers give up after two minutes without a record: with a broker that is known to be dead, sooner.
SILENCE_S = 5.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnStack]:
    own = OwnStack(tmp_path / "own-stack")
    yield own
    local_stack.down(own.folder, delete_data=True)


@pytest.fixture
def stack(broker: OwnStack) -> StackState:
    """Instead of the one that all tests share."""
    return broker.state


@pytest.mark.usefixtures("spark")
def test_a_run_whose_broker_dies_ends_with_the_reason_or_goes_on_when_it_is_back_and_every_row_is_there_once(
    cli: Cli, environment: Settings, broker: OwnStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "SILENCE_S", SILENCE_S)
    monkeypatch.setenv("GAME_EVENTS_MAX_RECORDS_PER_BATCH", "10")
    servers = environment.kafka_bootstrap_servers
    sent = send(environment)

    with monkeypatch.context() as patch:
        at_point(patch, "bronze_committed", broker.kill)
        failed = cli("run", "--json")
    assert failed.code == 1
    assert failed.result["success"] is False
    assert f"Kafka at {servers}" in failed.result["error"]
    assert "is it up" in failed.result["error"]
    assert "Traceback" not in failed.everything
    first = coordinates(environment, "bronze_events") + coordinates(environment, "quarantine_events")
    assert 0 < len(first) <= 10, "what was committed before stays, and nothing else is there"

    with monkeypatch.context() as patch:
        patch.setattr(kafka_admin, "TIMEOUT_S", 1.0)
        away = cli("run", "--json")
    assert away.code == 1
    assert f"Kafka at {servers}" in away.result["error"]
    assert "is it up" in away.result["error"]
    assert "Traceback" not in away.everything

    broker.start()
    # In production mode a run waits; here somebody starts the broker in that pause.
    monkeypatch.setenv("GAME_EVENTS_MODE", "production")
    paused: list[int] = []

    def pause(_settings: Settings, attempt: int) -> float:
        paused.append(attempt)
        broker.start()
        return 0.1

    monkeypatch.setattr("game_events.orchestration.runs.delay_s", pause)
    sent = sent.merge(send(environment, version=3))
    at_point(monkeypatch, "bronze_committed", broker.kill)
    done = cli("run", "--json")
    assert (done.code, done.result["success"], paused) == (0, True, [0]), done.everything
    assert_books_balance(environment, sent)
