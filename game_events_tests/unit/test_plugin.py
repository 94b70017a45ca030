"""A plug-in of a user: found by its entry point, its parts are used as the project's own are, and what is wrong is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A whole plug-in, as a user writes it.
MODULE = '''
from collections.abc import Iterator
from typing import ClassVar

import typer

from game_events.config.pipeline_settings import SettingsGroup
from game_events.config.settings import load_settings
from game_events.plugin import Command, Plugin


class StudioSettings(SettingsGroup):
    """Settings of the studio."""

    group: ClassVar[str] = "studio"

    studio_name: str = "nobody"
    studio_password: str = ""

    def further_secrets(self) -> Iterator[str]:
        yield self.studio_password


def greet() -> None:
    """Say hello."""
    typer.echo(f"hello from {StudioSettings.of(load_settings()).studio_name}")


def fail() -> None:
    """Repeat a secret."""
    raise RuntimeError("the password is " + StudioSettings.of(load_settings()).studio_password)


def definitions(graph):
    import dagster as dg

    return dg.Definitions(assets=[dg.AssetSpec("studio_report", deps=[graph.keys.gold])])


def doctor(settings):
    return {"studio": lambda: f"the studio is {StudioSettings.of(settings).studio_name}"}


PLUGIN = Plugin(
    "studio",
    settings="studio:StudioSettings",
    commands={
        "greet": Command("studio:greet", "Say hello.", former="salute"),
        "fail": Command("studio:fail", "Repeat a secret."),
        "absent": Command("studio_parts_that_are_not_there:app", "Needs a package."),
    },
    packages=("studio_parts_that_are_not_there",),
    definitions="studio:definitions",
    doctor="studio:doctor",
)
'''


def install(folder: Path, module: str = MODULE, value: str = "studio:PLUGIN") -> None:
    """Put the plug-in into a folder as `pip install` would."""
    (folder / "studio.py").write_text(module)
    information = folder / "studio-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: studio\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[game_events.plugins]\nstudio = {value}\n")


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder, with the plug-in installed."""
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"} | variables
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run([sys.executable, *arguments], cwd=work, env=environment, capture_output=True, text=True, check=False)


def command(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `game-events`."""
    program = "import sys; sys.argv[0] = 'game-events'; from game_events.cli.main import main; main()"
    return python(folder, "-c", program, *arguments, **variables)


def test_its_commands_are_listed_and_run_also_under_a_former_name_and_with_its_settings(tmp_path):
    install(tmp_path)
    listed = command(tmp_path, "--help").stdout
    assert "Commands of the plug-in studio" in listed
    assert "greet" in listed
    assert "salute" not in listed
    for name in ("greet", "salute"):
        said = command(tmp_path, name, GAME_EVENTS_STUDIO_NAME="North")
        assert (said.returncode, said.stdout) == (0, "hello from North\n"), said.stderr


def test_its_settings_are_read_from_the_settings_file_under_their_group(tmp_path):
    install(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "game_events.yaml").write_text("studio: {name: South}\n")
    assert command(tmp_path, "greet").stdout == "hello from South\n"


def test_its_secrets_are_hidden_in_errors(tmp_path):
    install(tmp_path)
    said = command(tmp_path, "fail", GAME_EVENTS_STUDIO_PASSWORD="planted-secret-1")  # noqa: S106
    assert said.returncode == 1
    assert "the password is ***" in said.stderr
    assert "planted-secret-1" not in said.stdout + said.stderr


def test_its_assets_are_in_the_graph_and_its_checks_in_doctor(tmp_path):
    install(tmp_path)
    program = """
import json
from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.pipeline.runs.preflight import environment_checks

keys = [key.to_user_string() for key in build_defs().resolve_asset_graph().get_all_asset_keys()]
print(json.dumps([sorted(keys), environment_checks(load_settings(studio_name="East"))["studio"]()]))
"""
    said = python(tmp_path, "-c", program)
    assert said.returncode == 0, said.stderr
    keys, studio = json.loads(said.stdout)
    assert {"studio_report", "bronze_events", "silver_events", "gold_player_agg"} <= set(keys)
    assert studio == "the studio is East"


def test_a_package_that_is_missing_is_said_with_what_installs_it(tmp_path):
    install(tmp_path)
    said = command(tmp_path, "absent")
    assert said.returncode == 1
    assert "pip install 'game-events[studio]'" in said.stderr


@pytest.mark.parametrize(
    ("module", "value", "message"),
    [
        ("raise ValueError('broken')", "studio:PLUGIN", "the plug-in studio (studio:PLUGIN) cannot be loaded: broken"),
        ("PLUGIN = 7", "studio:PLUGIN", "is no game_events.plugin.Plugin"),
        (MODULE.replace('"studio",\n    settings', '"export",\n    settings'), "studio:PLUGIN", "the plug-in 'export'"),
        (MODULE.replace('"greet": Command', '"export": Command'), "studio:PLUGIN", "the command 'export'"),
        (MODULE.replace('"greet": Command', '"run": Command'), "studio:PLUGIN", "'run', which is the core's own"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_with_the_reason(tmp_path, module, value, message):
    install(tmp_path, module, value)
    said = command(tmp_path, "tables")
    assert said.returncode == 1
    assert message in " ".join(said.stderr.split())


def test_a_setting_that_is_there_already_is_refused(tmp_path):
    install(tmp_path, MODULE.replace("studio_password", "kafka_topic"))
    said = command(tmp_path, "tables")
    assert said.returncode == 1
    assert "there are settings kafka_topic already" in " ".join(said.stderr.split())


def test_without_any_plugin_of_the_project_the_core_works(tmp_path):
    program = """
import json, sys
from importlib.abc import MetaPathFinder


class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("game_events.plugins"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
from game_events.cli.main import all_commands
from game_events.config.settings import load_settings
from game_events.definitions import build_defs

keys = [key.to_user_string() for key in build_defs(load_settings()).resolve_asset_graph().get_all_asset_keys()]
print(json.dumps([sorted(all_commands().commands), sorted(keys)]))
"""
    said = python(tmp_path, "-c", program)
    assert said.returncode == 0, said.stderr
    commands, keys = json.loads(said.stdout)
    assert {"run", "doctor", "tables", "history", "log"} <= set(commands)
    assert not {"export", "erase", "demo", "sql", "archive"} & set(commands)
    assert {"bronze_events", "silver_events", "gold_player_agg"} <= set(keys)
    assert "rest_export" not in keys
