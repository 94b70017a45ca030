"""docs/extending.md, done as it says: from an empty folder, every command and every block of code, nothing else.

Commands are run by this process (support/docs/shell.py) on the servers of the tests.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import STACK_STATE_FILE, Settings, load_settings
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.support.docs.shell import Shell, bare_environment
from game_events_tests.support.reconciliation import count, rows

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "extending.md").read_text().partition("\n## A plug-in\n")[0]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(tmp_path: Path, stack: StackState, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:  # noqa: ARG001 - commands find it
    """An empty folder, where `stack up` gives the broker and the registry of the tests, and `stack down` takes them away."""
    state = tmp_path / ".game_events" / STACK_STATE_FILE

    def up(*_: object, **__: object) -> StackState:
        state.parent.mkdir(parents=True)
        state.write_text(stack.model_copy(update={"kafka": None, "registry": None}).model_dump_json())
        return stack

    def down(*_: object, **__: object) -> bool:
        state.unlink()
        return True

    monkeypatch.setattr(local_stack, "up", up)
    monkeypatch.setattr(local_stack, "down", down)
    made = Shell(tmp_path, bare_environment() | {"GAME_EVENTS_KAFKA_TOPIC": f"extending_{uuid.uuid4().hex[:8]}"}, refused=())
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_the_page_works_from_an_empty_folder(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "game_events.yaml").write_text("".join(blocks("yaml")))
    (tmp_path / "my_events.py").write_text("\n\n".join(blocks("python")))
    said = []
    for script in blocks("sh"):
        assert shell.run(script) == 0, f"{script}\n{shell.said}"
        said.append(shell.said)
    for line in ("by_day", "gold:devices", "gold:session_length", "gold_rummy_devices", "gold_rummy_session_length"):
        assert line in said[1]
    assert "median_length_s" in said[2]
    settings = load_settings(lakehouse=str(tmp_path / "lakehouse"))
    assert count(settings, "bronze_events") == 2 * 1_400
    check(settings)


def check(settings: Settings) -> None:
    """Against SQL over silver, for a game of several."""
    silver = "silver_go_fish_events"
    assert rows(settings, silver, "SELECT count(*) FROM t WHERE hour IS DISTINCT FROM hour(event_timestamp)") == [(0,)]
    sql = """SELECT device_id, count(*), count(*) FILTER (hour(event_timestamp) < 6), min(event_timestamp),
        max(event_timestamp) FROM t GROUP BY 1"""
    assert sorted(rows(settings, "gold_go_fish_devices"), key=repr) == sorted(rows(settings, silver, sql), key=repr)
    sql = """WITH gaps AS (SELECT gamer_id, epoch(event_timestamp) AS s,
            coalesce(s - lag(s) OVER player > 1800, true) AS begins
            FROM t WINDOW player AS (PARTITION BY gamer_id ORDER BY event_timestamp)),
        numbered AS (SELECT *, sum(begins::INT) OVER (PARTITION BY gamer_id ORDER BY s) AS session FROM gaps),
        sessions AS (SELECT gamer_id, session, max(s) - min(s) AS length FROM numbered GROUP BY ALL)
        SELECT gamer_id, count(*), median(length) FROM sessions GROUP BY 1"""
    held, truth = ({r[0]: r[1:] for r in rows(settings, *at)} for at in (("gold_go_fish_session_length",), (silver, sql)))
    assert held.keys() == truth.keys()
    for gamer, (sessions, median) in truth.items():
        assert held[gamer][0] == sessions
        assert held[gamer][1] == pytest.approx(median, abs=1e-3)
