"""Dagster's folder, as the first command finds or makes it. Nothing real is needed: the run fails by its settings."""

import os
import subprocess
from pathlib import Path

import pytest

from game_events.cli import dagster_run as module
from game_events.cli.dagster_run import dagster_home, find_dagster_home, share_dagster_home
from game_events.config.settings import load_settings
from game_events_tests.support.commands import GAME_EVENTS

PACKAGED = (Path(module.__file__).parent / "instance/dagster.yaml").read_text()


def test_the_first_run_in_a_new_dagster_home_prints_nothing_of_dagsters_own(tmp_path):
    environment = os.environ | {
        "DAGSTER_HOME": str(tmp_path / "new/home"),
        "GAME_EVENTS_STATE_DIR": str(tmp_path / "state"),
        "GAME_EVENTS_LAKEHOUSE": str(tmp_path / "lakehouse"),
        "GAME_EVENTS_KAFKA_OPTIONS": '{"group.id": "mine"}',
    }
    command = [*GAME_EVENTS, "run"]
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
    assert dagster_home(load_settings()) == home
    assert (home / "dagster.yaml").read_text() == PACKAGED


@pytest.mark.parametrize("own", ["dagster.yaml", "history"])
def test_a_dagster_home_that_holds_anything_stays_as_it_is(monkeypatch, tmp_path, own):
    home = tmp_path / "home"
    home.mkdir()
    (home / own).write_text("mine")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    dagster_home(load_settings())
    assert [(item.name, item.read_text()) for item in home.iterdir()] == [(own, "mine")]


@pytest.fixture
def project(monkeypatch, tmp_path):
    """A folder with a `dagster.yaml` of its own, where neither Dagster's folder nor the state folder is named."""
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.delenv("GAME_EVENTS_STATE_DIR")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dagster.yaml").write_text("version: 1")
    return tmp_path


def made() -> Path:
    """The instance's `dagster.yaml`, after a command."""
    return dagster_home(load_settings()) / "dagster.yaml"


def test_what_the_project_wrote_follows_the_project(project, caplog):
    assert made().read_text() == "version: 1"
    (project / "dagster.yaml").write_text("version: 2")
    assert made().read_text() == "version: 2"
    assert caplog.messages == []
    made().unlink()
    assert made().read_text() == "version: 2"


def test_an_edited_file_stays_and_a_newer_version_is_mentioned_once(project, caplog):
    made().write_text("mine")
    assert made().read_text() == "mine"
    assert caplog.messages == []
    (project / "dagster.yaml").write_text("version: 2")
    assert made().read_text() == "mine"
    assert made().read_text() == "mine"
    (said,) = caplog.messages
    assert str(made()) in said
    assert str(project / "dagster.yaml") in said


def test_a_file_of_which_nobody_knows_who_wrote_it_stays(project, caplog):
    target = project / ".game_events/dagster/dagster.yaml"
    target.parent.mkdir(parents=True)
    target.write_text("of an earlier version")
    assert made() == target
    assert target.read_text() == "of an earlier version"
    assert len(caplog.messages) == 1


def test_an_edited_file_that_became_the_projects_own_follows_it_again(project):
    made().write_text("mine")
    (project / "dagster.yaml").write_text("version: 2")
    made().write_text("version: 2")
    (project / "dagster.yaml").write_text("version: 3")
    assert made().read_text() == "version: 3"


def test_the_folder_is_named_for_dagsters_own_commands(project):
    share_dagster_home(load_settings())
    home = project / ".game_events/dagster"
    assert (project / ".env").read_text() == f"DAGSTER_HOME={home}\n"
    assert (home / "dagster.yaml").read_text() == "version: 1"
    share_dagster_home(load_settings())
    assert (project / ".env").read_text() == f"DAGSTER_HOME={home}\n"


@pytest.mark.parametrize("end", ["", "\n"])
def test_other_lines_of_the_file_stay_and_are_settings_as_before(project, end):
    (project / ".env").write_text("# mine\nOTHER=1\nGAME_EVENTS_KAFKA_TOPIC=theirs" + end)
    share_dagster_home(load_settings())
    lines = (project / ".env").read_text().splitlines()
    assert lines == ["# mine", "OTHER=1", "GAME_EVENTS_KAFKA_TOPIC=theirs", f"DAGSTER_HOME={project}/.game_events/dagster"]
    assert load_settings().kafka_topic == "theirs"


def test_a_path_with_spaces_is_read_as_it_was_written(monkeypatch, project):
    folder = project / "my project # 1"
    folder.mkdir()
    monkeypatch.chdir(folder)
    share_dagster_home(load_settings())
    assert find_dagster_home(load_settings(state_dir="elsewhere")) == folder / ".game_events/dagster"


def test_a_folder_that_the_file_names_is_used_and_not_changed(project):
    line = f"export DAGSTER_HOME={project}/own\n"
    (project / ".env").write_text(line)
    share_dagster_home(load_settings())
    assert (project / ".env").read_text() == line
    assert dagster_home(load_settings()) == project / "own"


@pytest.mark.parametrize("variable", ["DAGSTER_HOME", "GAME_EVENTS_STATE_DIR"])
def test_what_the_environment_names_is_for_this_process_alone(monkeypatch, project, variable):
    monkeypatch.setenv(variable, str(project / "elsewhere"))
    share_dagster_home(load_settings())
    assert not (project / ".env").exists()
    (project / ".env").write_text(f"DAGSTER_HOME={project}/own\n")
    assert find_dagster_home(load_settings()).is_relative_to(project / "elsewhere")


def test_to_look_for_the_folder_makes_nothing(project):
    assert find_dagster_home(load_settings()) == project / ".game_events/dagster"
    assert not (project / ".game_events").exists()


def test_a_file_that_cannot_be_written_is_a_warning_with_the_line(project, caplog):
    (project / ".env").mkdir()  # root may write any file, but no folder
    share_dagster_home(load_settings(state_dir=str(project / "state")))
    assert f"DAGSTER_HOME={project}/state/dagster" in caplog.text
