"""`game-events demo`: the whole system from nothing, as the first thing that a new user runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from game_events_tests.docs.pages import PAGES, RUN_BY, blocks
from game_events_tests.docs.printed import missing


@pytest.mark.stack
def test_the_demo_is_exact_keeps_its_tables_and_leaves_nothing_running(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "DAGSTER_HOME"} | {
        "GAME_EVENTS_STATE_DIR": str(tmp_path / "state"),
        "GAME_EVENTS_SPARK_MASTER": "local[2]",
    }
    command = Path(sys.executable).with_name("game-events")
    found = subprocess.run(
        [command, "demo", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    (line,) = found.stdout.splitlines()
    body = json.loads(line)
    assert body["success"] is True
    rows = body["rows"]
    assert rows["kafka"] == rows["bronze"] + rows["quarantine"]
    assert rows["quarantine"] > 0
    assert len(body["schema_versions"]) == 3
    assert body["columns_appeared"]
    assert "chess" in body["games"]
    assert len(body["games"]) == 8
    assert Path(body["lakehouse"]).is_relative_to(tmp_path)
    assert (Path(body["lakehouse"]) / "gold_chess_player_agg/_delta_log").is_dir()
    assert "gold of 160 gamers in 8 games equals what the producer sent: yes" in found.stderr
    # README.md shows what a user will see.
    (shown,) = [block.text for block in blocks(PAGES[0]) if block.mark == RUN_BY]
    assert missing(shown, found.stderr) == ""
    assert "Traceback" not in found.stderr
    left = [p.cmdline() for p in psutil.process_iter() if str(tmp_path) in " ".join(_command(p))]
    assert left == []


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []
