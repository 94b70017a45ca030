"""Command lines, as the command line itself understands them, without doing anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from typer.core import TyperCommand

from game_events.cli.main import all_commands

NAME = "game-events"


def wrong_usage(arguments: Sequence[str]) -> str:
    """What is wrong with a command's arguments; empty if nothing is."""
    command: Any = all_commands()
    with patch.object(TyperCommand, "invoke", lambda *_: None):
        try:
            command.main(args=list(arguments), prog_name=NAME, standalone_mode=False)
        except Exception as error:  # noqa: BLE001 - typer's own kinds are not public
            said = getattr(error, "format_message", None)
            return said() if said else repr(error)
    return ""


def wrong_synopsis(text: str) -> str:
    """What is wrong with a command as texts name it, `game-events schema show|diff [--from N]`; values are not looked at."""
    command: Any = all_commands()
    for word in text.replace("[", " ").replace("]", " ").split()[1:]:
        if word == "...":
            continue
        if word.startswith("-"):
            if word.split("=")[0].rstrip(".,;:") not in {name for p in command.params for name in p.opts} | {"--help"}:
                return f"`{text}`: {command.name} has no option {word}"
        elif hasattr(command, "commands"):
            for name in word.split("|"):
                if name not in command.commands:
                    return f"`{text}`: there is no command {name}"
            command = command.commands[word.split("|")[0]]
    return ""
