"""docs/extending.md, done as it says: from an empty folder, every command and every block of code, nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from game_events.settings import Settings, load_settings
from game_events_tests.books import count, rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLE = ROOT / "examples" / "my_events.py"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def shell(folder: Path, script: str) -> str:
    """What a script says; it must succeed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GAME_EVENTS_") or k == "GAME_EVENTS_CACHE"}
    environment.pop("DAGSTER_HOME", None)
    binaries = Path(sys.executable).parent
    environment |= {"PATH": f"{binaries}{os.pathsep}{environment['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_example_is_the_pages_code() -> None:
    assert "\n\n".join(blocks("python")) == EXAMPLE.read_text()


@pytest.mark.scenario
def test_the_page_works_from_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "game_events.yaml").write_text("".join(blocks("yaml")))
    (tmp_path / "my_events.py").write_text("\n\n".join(blocks("python")))
    try:
        said = [shell(tmp_path, script) for script in blocks("sh")]
    finally:
        shell(tmp_path, "game-events stack down")
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
