"""The table of commands, and what each imports: a command loads only what it uses, as imports are most of its time."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import game_events
from game_events.cli.main import CORE_COMMANDS, all_commands
from game_events.plugin import installed

#: Prints the exit code of a command and the packages that are imported at its end.
PROGRAM = """
import json, sys
from contextlib import redirect_stdout
from game_events.cli.main import main
try:
    with redirect_stdout(sys.stderr):
        main()
except SystemExit as ended:
    print(json.dumps([ended.code or 0, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def imported(folder, *arguments):
    """Packages that a command imports in an interpreter of its own; it succeeds."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    code, packages = json.loads(done.stdout)
    assert code == 0, done.stderr
    return set(packages)


def commands():
    return CORE_COMMANDS | {name: command for plugin in installed() for name, command in plugin.commands.items()}


def test_the_help_in_the_table_is_that_of_each_command():
    found = {name: (command.name, command.help) for name, command in all_commands().commands.items()}
    assert found == {name: (name, command.help) for name, command in commands().items()}


def test_every_command_of_the_package_is_in_the_table():
    # In the docstring of a module, a paragraph of a command begins with the command's name.
    modules = Path(game_events.__file__).parent.rglob("*.py")
    texts = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in modules]
    named = {name for text in texts for name in re.findall(r"^`game-events ([\w-]+)", text, re.MULTILINE)}
    assert named == set(commands())


def test_a_run_without_an_export_imports_none_of_what_sends_rows(tmp_path):
    program = (
        "import sys; from game_events.definitions import build_defs; from game_events.config.settings import load_settings"
    )
    program += "\nbuild_defs(load_settings()); print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_imports_are_not_searched_for_garbage(tmp_path):
    program = "import gc, sys; import game_events.cli.main as m; sys.exit = print; m.command_line = lambda: lambda **_: None; "
    program += "m.main(); print(gc.get_threshold()[0] == m.OBJECTS_BEFORE_GC)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("qua", ["quarantine"]), ("run --dr", ["--dry-run"]), ("quarantine li", ["list"]), ("stack ", ["up", "down", "status"])],
)
def test_a_shell_completes_commands_and_options(typed, completed, tmp_path):
    words = f"game-events {typed}"
    asked = {"_GAME_EVENTS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", "import sys; sys.argv = ['game-events']; from game_events.cli.main import main; main()"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed


def test_help_imports_no_command(tmp_path):
    slow = {"aiohttp", "confluent_kafka", "dagster", "deltalake", "duckdb", "pandas", "pyarrow", "pydantic_settings", "pyspark"}
    assert not slow & imported(tmp_path, "--help")


def test_the_list_of_tables_imports_no_pandas_though_it_opens_them(tmp_path):
    write_deltalake(tmp_path / "lakehouse" / "bronze_events", pa.table({"n": [1]}))
    assert "pandas" not in imported(tmp_path, "tables")


@pytest.mark.parametrize(
    "command",
    [("tables",), ("log",), ("sql", "select 1"), ("quarantine", "list"), ("history", "--help"), ("archive", "--help")],
    ids=" ".join,
)
def test_commands_that_read_tables_import_neither_dagster_nor_spark(command, tmp_path):
    assert not {"aiohttp", "dagster", "pyspark"} & imported(tmp_path, *command)


@pytest.mark.parametrize(
    "command",
    [("rest", "status"), ("schema", "--help"), ("doctor", "--help"), ("forget", "--help"), ("run", "--help")],
    ids=" ".join,
)
def test_commands_that_run_no_job_import_no_dagster(command, tmp_path):
    assert "dagster" not in imported(tmp_path, *command)
