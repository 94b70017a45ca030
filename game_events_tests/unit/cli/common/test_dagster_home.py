"""Dagster's folder, as the first command finds or makes it. Nothing real is needed: the run fails by its settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from game_events.cli.common import run_job as dagster_run
from game_events.config.settings import load_settings

PACKAGED = (Path(dagster_run.__file__).parent / "instance/dagster.yaml").read_text()


def test_the_first_run_in_a_new_dagster_home_prints_nothing_of_dagsters_own(tmp_path):
    environment = os.environ | {
        "DAGSTER_HOME": str(tmp_path / "new/home"),
        "GAME_EVENTS_STATE_DIR": str(tmp_path / "state"),
        "GAME_EVENTS_LAKEHOUSE": str(tmp_path / "lakehouse"),
        "GAME_EVENTS_KAFKA_OPTIONS": '{"group.id": "mine"}',
    }
    command = [sys.executable, "-c", "from game_events.cli.main import main; main()", "run"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = (found.stdout + found.stderr).strip()
    assert found.returncode == 1
    assert len(said.splitlines()) == 1, said
    assert said.startswith("the run failed: GAME_EVENTS_KAFKA_OPTIONS"), said
    assert not (tmp_path / "new/home/.telemetry").exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_dagster_home_gets_the_projects_configuration(monkeypatch, tmp_path, exists):
    home = tmp_path / "home"
    if exists:
        home.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    assert dagster_run.dagster_home(load_settings()) == home
    assert (home / "dagster.yaml").read_text() == PACKAGED


@pytest.mark.parametrize("own", ["dagster.yaml", "history"])
def test_a_dagster_home_that_holds_anything_stays_as_it_is(monkeypatch, tmp_path, own):
    home = tmp_path / "home"
    home.mkdir()
    (home / own).write_text("mine")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    dagster_run.dagster_home(load_settings())
    assert [(item.name, item.read_text()) for item in home.iterdir()] == [(own, "mine")]
