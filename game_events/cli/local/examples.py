"""The examples that come with this project: a settings file, a `.proto` and a README for each domain."""

import os
from importlib.resources import files
from pathlib import Path

from game_events.config.groups.values import ENV_PREFIX
from game_events.errors import ConfigurationError

SETTINGS_FILE = "game_events.yaml"
CONFIG = ENV_PREFIX + "CONFIG"


def examples() -> dict[str, Path]:
    """Name -> folder."""
    folder = Path(str(files(__package__))) / "example_files"
    return {found.name: found.resolve() for found in sorted(folder.iterdir()) if (found / SETTINGS_FILE).is_file()}


def use_example(name: str) -> None:
    """Take this process's settings, and those of what it starts, from an example's file.

    Raises:
        ConfigurationError: there is no such example.
    """
    there = examples()
    if name not in there:
        raise ConfigurationError(f"--example: there is no {name!r}; there are {', '.join(there)}")
    os.environ[CONFIG] = str(there[name] / SETTINGS_FILE)
