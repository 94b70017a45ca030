"""The command line as a user has it: exit code, stdout, stderr.

In this process where a process of its own would add nothing but seconds; `game_events.cli.main.main` is the entry point of the
installed command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from game_events.cli.main import main
from game_events.config.settings import Settings


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def everything(self) -> str:
        """Both streams."""
        return self.out + self.err

    @property
    def result(self) -> dict[str, Any]:
        """The JSON object in the last line of stdout; with `--json` there is no other line."""
        assert len(self.out.splitlines()) == 1, self.out
        return dict(json.loads(self.out))


Cli = Callable[..., Said]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command."""

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["game-events", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0 if code is None else 1, out, err)

    return run


@pytest.fixture
def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """The test's settings as environment variables, and a folder without settings files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    for key in ("kafka_bootstrap_servers", "schema_registry_url", "kafka_topic", "lakehouse", "state_dir", "spark_master"):
        monkeypatch.setenv(f"GAME_EVENTS_{key.upper()}", str(getattr(settings, key)))
    return settings


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not there is given up on after a second."""
    monkeypatch.setattr("game_events.sources.kafka.admin.TIMEOUT_S", 1.0)
    monkeypatch.setattr("game_events.sources.kafka.client.CONNECT_TIMEOUT_S", 1)
