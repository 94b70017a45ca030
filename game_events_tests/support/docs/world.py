"""What a page finds when its blocks are run: a broker and a registry, tables of a run, and a folder of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import yaml
from deltalake import DeltaTable

from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import STACK_STATE_FILE, load_settings, settings_class
from game_events.definitions import build_defs
from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.support.docs.pages import Block
from game_events_tests.support.docs.printed import missing
from game_events_tests.support.docs.shell import Shell, bare_environment

#: Variables with the settings' prefix that are no settings: where settings come from, and the folder of the Java parts.
OTHER_VARIABLES = {
    "TEST_SPARK",
    "TEST_SERVERS",
    "TEST_NO_SKIPS",
    "TEST_EXAMPLES",
    "TEST_ORDER",
    "TEST_LAYOUT",
    "TEST_UNITY",
    "CONFIG",
    "SECRETS_DIR",
    "CACHE",
}


class World:
    """A broker, a registry, and tables that each page gets a copy of."""

    def __init__(self, folder: Path, stack: StackState) -> None:
        self._folder = folder
        self._base = folder / "base"
        local = self._base / ".game_events" / Path(STACK_STATE_FILE).parent
        local.mkdir(parents=True)
        # As `game-events stack up` would have left it; without the processes, which are not a page's to stop.
        state = stack.model_copy(update={"kafka": None, "registry": None})
        (local / Path(STACK_STATE_FILE).name).write_text(state.model_dump_json())
        self._environment = bare_environment() | {
            "GAME_EVENTS_KAFKA_TOPIC": f"docs_{uuid.uuid4().hex[:8]}",
            "GAME_EVENTS_MODE": "development",
            "GAME_EVENTS_SPARK_MASTER": "local[2]",
        }

    def fill(self) -> None:
        """Make the tables: events of seven games, some of them undecodable."""
        shell = Shell(self._base, self._environment)
        try:
            code = shell.run("game-events produce --poison-share 0.02\ngame-events run")
        finally:
            shell.close()
        assert code == 0, shell.said
        shutil.rmtree(self._base / ".venv")

    def reader(self, page: str) -> Reader:
        """Whoever does what a page says."""
        folder = self._folder / Path(page).stem
        shutil.copytree(self._base, folder)
        return Reader(Shell(folder, self._environment))


class Reader:
    """Does what the blocks of one page say, in order."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._said = ""
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def do(self, block: Block) -> None:
        """Run a block, or compare it with what the last one printed; anything that is not as it says is an AssertionError."""
        by_language = {
            "sh": self._sh, "python": self._python, "sql": self._sql, "yaml": self._yaml, "json": self._json, "text": self._text
        }  # fmt: skip
        assert block.language in by_language, (
            f"{block}: nobody knows how to run a block of {block.language!r}; there are {', '.join(by_language)}. "
            f"Mark it: <!-- not run: why --> (docs/contributing.md)"
        )
        by_language[block.language](block)

    def look_at(self, block: Block) -> None:
        """A block of shell that is not run: its commands and options must be there, and its settings good."""
        assert self.shell.run(block.text) == 0, f"{block}: bash does not read it:\n{self.shell.said}"
        assert not self.shell.wrong, f"{block}: {self.shell.wrong}"
        self._settings(block)

    def _sh(self, block: Block) -> None:
        code = self.shell.run(block.text)
        self._said = self.shell.said
        assert code == 0, (
            f"{block}: ended with {code}. If it cannot run in the tests put <!-- not run: why --> above it, or "
            f"<!-- run by: path of the test --> (docs/contributing.md).\n{block.text}\n{self._said}"
        )
        self._settings(block)

    def _python(self, block: Block) -> None:
        said = StringIO()
        with self._here(), redirect_stdout(said), redirect_stderr(said):
            # Lines of its own file are shown in the traceback of what goes wrong.
            # It is a module of its own: this one's `annotations` are not its.
            code = compile("\n" * block.line + block.text, f"docs/{block.page}", "exec", dont_inherit=True)
            exec(code, self._names)  # noqa: S102
        self._said = said.getvalue()

    def _sql(self, block: Block) -> None:
        with self._here(), duckdb.connect() as connection:
            self._said = str(connection.sql(re.sub(r"delta_scan\('([^']+)'\)", _as_parquet, block.text)))

    def _yaml(self, block: Block) -> None:
        content = yaml.safe_load(block.text)
        assert isinstance(content, dict), f"{block}: no mapping"
        if "ops" in content:
            with self._here():
                job = build_defs(load_settings()).resolve_job_def("refresh")
            assert dg.validate_run_config(job, content)
            return
        unknown = {key.lower() for key in content} - set(settings_class().model_fields)
        assert not unknown, f"{block}: no settings: {unknown}. If it is no game_events.yaml: <!-- not run: what it is -->"
        path = self.shell.folder / "game_events.yaml"
        path.write_text(block.text)
        self._settings(block)

    def _json(self, block: Block) -> None:
        json.loads(block.text)

    def _text(self, block: Block) -> None:
        left = missing(block.text, self._said)
        assert not left, f"{block}: this was not printed:\n{left}\n\nbut:\n{self._said}"

    def _settings(self, block: Block) -> None:
        """What the page has exported and written are settings, and good ones."""
        names = {k.removeprefix(ENV_PREFIX) for k in self.shell.environment if k.startswith(ENV_PREFIX)}
        unknown = names - {n.upper() for n in settings_class().model_fields} - OTHER_VARIABLES
        assert not unknown, f"{block}: no settings: {unknown}"
        with self._here():
            load_settings()

    @contextmanager
    def _here(self):
        with ExitStack() as stack:
            before, folder = dict(os.environ), Path.cwd()
            stack.callback(os.environ.update, before)
            stack.callback(os.environ.clear)
            stack.callback(os.chdir, folder)
            os.environ.clear()
            os.environ.update(self.shell.environment)
            os.chdir(self.shell.folder)
            yield


def _as_parquet(found: re.Match[str]) -> str:
    """DuckDB's extension `delta` would be downloaded: the same rows without it."""
    return f"read_parquet({DeltaTable(found[1]).file_uris()})"
