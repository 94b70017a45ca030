"""The command line: `game-events`. The module of a command is imported when the command is called."""

import functools
import gc
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, cast

import typer
import typer.main
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from game_events.cli.output import indented
from game_events.config.logging import limit_library_loggers
from game_events.errors import ConfigurationError, GameEventsError
from game_events.plugin import Command, Plugin, installed

#: New objects before Python looks for garbage: its own 700 are a quarter of the time of all imports, which make none.
OBJECTS_BEFORE_GC = 100_000
#: Exit codes: 0 success, 1 the command failed; typer's own: 2 wrong usage, 130 Ctrl-C.
FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
#: The core's commands. Those of plug-ins follow (`game_events.plugin`).
CORE_COMMANDS = {
    "run": Command(
        "game_events.cli.run:app",
        "Read the topic up to its end, bring every table up to date, and stop; with --continuous go on until Ctrl-C.",
    ),
    "doctor": Command(
        "game_events.cli.run:doctor",
        "Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand.",
    ),
    "tables": Command(
        "game_events.cli.inspection:tables",
        "List the tables: rows, Delta version, files, size, columns, owners; `game-events schema TABLE` shows one's columns.",
    ),
    "history": Command(
        "game_events.cli.inspection:history",
        "A table's versions that can be read, newest first: when, what kind, rows, batch, offsets, run; maintenance too.",
    ),
    "log": Command(
        "game_events.cli.inspection:log",
        "What the runs did, newest first: tables, offsets, rejections, checks, schema changes, who ran them.",
    ),
    "quarantine": Command("game_events.cli.repair:app", "Rows that are in no other table: list them, and replay them."),
    "redecode": Command(
        "game_events.cli.repair:redecode",
        "Decode every row of bronze again, without Kafka, in one atomic commit; rows, batches and progress stay.",
    ),
    "maintain": Command(
        "game_events.cli.repair:maintain",
        "Join small files, renew outdated ones, delete unneeded ones and rows by age, shorten logs, whoever is at work.",
    ),
    "migrate": Command(
        "game_events.cli.repair:migrate",
        "Give the tables of a lakehouse of game_events 0.1 today's names; no row changes. Killed, it is run again.",
    ),
}


class LazyCommand(TyperCommand):
    """A command or group known by its name and help: its module is imported when it is called."""

    #: Gives the function or typer app.
    target: Callable[[], object]

    def load(self) -> TyperCommand | TyperGroup:
        """The command or group itself."""
        app = self.target()
        if not isinstance(app, typer.Typer):
            function = cast(Callable[..., object], app)
            app = typer.Typer(add_completion=False)
            app.command(self.name)(function)
        command = cast(TyperCommand | TyperGroup, typer.main.get_command(app))
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401 - typer's own
        """The context of the command itself."""
        return self.load().make_context(info_name, args, parent, **extra)


@functools.cache
def command_line() -> typer.Typer:
    """The command line: the core's commands, then those of each plug-in; none is imported yet.

    Raises:
        ConfigurationError: a plug-in cannot be loaded, or brings a command that is there already.
    """
    app = typer.Typer(
        help="Events of many games from Kafka and a Schema Registry to Delta tables of each game.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    core = Plugin("core", commands=CORE_COMMANDS)
    for plugin in (core, *installed()):
        panel = None if plugin is core else f"Commands of the plug-in {plugin.name}"
        for name, command in plugin.commands.items():
            if plugin is not core and name in CORE_COMMANDS:
                raise ConfigurationError(f"the plug-in {plugin.name} brings the command {name!r}, which is the core's own")
            target = functools.partial(plugin.load, command.target)
            lazy = type("Lazy", (LazyCommand,), {"target": staticmethod(target)})
            app.command(name, cls=lazy, help=command.help, rich_help_panel=panel)(lambda: None)
            if command.former is not None:
                app.command(command.former, cls=lazy, help=command.help, hidden=True)(lambda: None)
    return app


def all_commands() -> TyperGroup:
    """The command line with every listed command imported, for what reads all of them: documents and tests."""
    group = typer.main.get_group(command_line())
    group.commands = {
        name: command.load()
        for name, command in group.commands.items()
        if isinstance(command, LazyCommand) and not command.hidden
    }
    return group


def main() -> None:
    """Run a command; errors of this project become one clear message and exit code 1.

    With ``--json`` the message is the result, too: the last line of stdout is a JSON object, however the command ends.
    """
    _open_streams()
    gc.set_threshold(OBJECTS_BEFORE_GC, *gc.get_threshold()[1:])
    limit_library_loggers()
    handler = logging.StreamHandler()
    # On the handler, as a logger below the root may be louder than it: the pipeline's progress has a place of its own.
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not hasattr(record, "is_shown"))
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(name)s %(message)s")
    try:
        for argument in sys.argv:
            # Python's marks of bytes that are no UTF-8.
            if any("\ud800" <= character <= "\udfff" for character in argument):
                raise ConfigurationError(f"the argument {argument!a} is not UTF-8")
        command_line()(prog_name="game-events")
    except Exception as error:  # noqa: BLE001 - what Python would show has not been masked
        _print_error(error)
        sys.exit(FAILED)
    except SystemExit as ended:
        if ended.code == WRONG_USAGE:  # typer has printed it for people
            said = getattr(ended.__context__, "format_message", None)
            _print_json_error(str(said()) if said is not None else "wrong usage")
        elif ended.code == INTERRUPTED:
            _print_json_error("interrupted")
        raise


def _open_streams() -> None:
    """Stdin is UTF-8, and stdout takes any text; where a stream is closed Python has none."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _print_error(error: Exception) -> None:
    """Print an error without secrets: its message if it is this project's, else its traceback."""
    from game_events.config.masking import mask, masked_traceback, settings_to_mask

    settings = settings_to_mask()
    if isinstance(error, GameEventsError):
        message = mask(str(error), settings)
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {indented(message)}", style="red", markup=False)
    else:
        sys.stderr.write(masked_traceback(error, settings) or "".join(traceback.format_exception(error)))
        message = mask(f"{type(error).__name__}: {error}", settings)
    _print_json_error(message)


def _print_json_error(error: str) -> None:
    if "--json" in sys.argv[1:]:
        with suppress(OSError):  # stdout is a closed pipe, or on a full disk; the exit code says that the command failed
            print(json.dumps({"success": False, "error": error}), flush=True)
