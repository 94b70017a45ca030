"""An installation without the packages of an extra: its commands say what to install, everything else works."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

#: Packages that only extras bring.
PACKAGES = ("aiohttp", "dagster_webserver", "fsspec", "jinja2", "openlineage", "plotly", "pyiceberg")

HIDE = "import os, sys\nsys.modules |= dict.fromkeys(os.environ['HIDDEN'].split())  # an import of None is an error\n"

COMMAND = f"{HIDE}\nsys.argv[0] = 'game-events'\nfrom game_events.cli.main import main\nmain()"

GRAPH = f"""{HIDE}
import json
from game_events.definitions import build_defs

keys = [key.to_user_string() for key in build_defs().resolve_asset_graph().get_all_asset_keys()]
print(json.dumps(sorted(keys)))
"""


def python(folder, program: str, *arguments: str, hidden: tuple[str, ...] = PACKAGES) -> subprocess.CompletedProcess[str]:
    """Run a program in an empty folder, in which these packages cannot be imported."""
    environment = os.environ | {"HIDDEN": " ".join(hidden), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["report"], "plotly", "catalog"),
        (["report"], "jinja2", "catalog"),
        (["sql", "SELECT 1"], "fsspec", "catalog"),
        (["export", "status"], "aiohttp", "export"),
        (["mock-api"], "aiohttp", "local"),
        (["up"], "dagster_webserver", "local"),
        (["iceberg"], "pyiceberg", "iceberg"),
    ],
)
def test_a_command_says_which_package_it_needs_and_what_installs_it(tmp_path, arguments, package, extra):
    said = python(tmp_path, COMMAND, *arguments, hidden=(package,))
    assert said.returncode == 1
    message = " ".join(said.stderr.split())
    assert f"the plug-in {extra} needs the package {package}" in message
    assert f"pip install 'game-events[{extra}]'" in message
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["tables"], ["log"], ["erase", "--help"], ["stack", "status"]])
def test_all_other_commands_work(tmp_path, arguments):
    said = python(tmp_path, COMMAND, *arguments)
    assert "needs the package" not in said.stderr
    assert "Traceback" not in said.stderr
    assert said.returncode == (1 if arguments == ["stack", "status"] else 0), said.stderr


def test_the_graph_is_built(tmp_path):
    said = python(tmp_path, GRAPH)
    assert said.returncode == 0, said.stderr
    assert {"bronze_events", "silver_events", "gold_player_agg"} <= set(json.loads(said.stdout))
