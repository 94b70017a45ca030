"""The command line: `game-events`. Each command is in a module of its own, imported when the command is called."""

import atexit
import functools
import gc
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any, cast

import typer
import typer.main
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from game_events.cli.output import indented
from game_events.config.logging import limit_library_loggers
from game_events.errors import ConfigurationError, GameEventsError

#: New objects before Python looks for garbage: its own 700 are a quarter of the time of all imports, which make none.
OBJECTS_BEFORE_GC = 100_000
#: Exit codes: 0 success, 1 the command failed; typer's own: 2 wrong usage, 130 Ctrl-C.
FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

#: Command -> its function or typer app, as `module:attribute` below `game_events`, and its help.
COMMANDS = {
    "demo": (
        "plugins.local.demo:demo",
        "Broker, registry, producer, Spark, Delta and Dagster from nothing to checked tables; leaves nothing running.",
    ),
    "init": (
        "plugins.local.init:init",
        "Write a settings file, a .proto and a README for another domain; the commands in it work as they are.",
    ),
    "produce": (
        "plugins.local.demo:produce_events",
        "Register the schema versions, write events to the topic, and say exactly what was sent.",
    ),
    "run": (
        "cli.commands.run:app",
        "Read the topic up to its end, bring every table up to date, and stop; with --continuous go on until Ctrl-C.",
    ),
    "redecode": (
        "cli.commands.jobs:redecode",
        "Decode every row of bronze again, without Kafka, in one atomic commit; rows, batches and progress stay.",
    ),
    "maintain": (
        "cli.commands.jobs:maintain",
        "Join small files, renew outdated ones, delete unneeded ones, shorten logs; no row changes, whoever is at work.",
    ),
    "archive": (
        "cli.commands.jobs:archive",
        "Add the raw records that came since the last time to an archive, with keys, headers, coordinates and schemas.",
    ),
    "forget": (
        "plugins.governance.command:forget",
        "Erase gamers from every table; what still comes of them, from Kafka or a replay, is counted and kept out.",
    ),
    "tables": (
        "cli.commands.inspection:tables",
        "List the tables: rows, Delta version, files, size, columns, owners; `game-events schema TABLE` shows one's columns.",
    ),
    "history": (
        "cli.commands.inspection:history",
        "A table's versions, newest first: when, what kind, rows, batch, offsets, run; restores and maintenance too.",
    ),
    "sql": ("plugins.catalog.sql:sql", "Query the tables, each by its name: nothing is written, and no Spark is started."),
    "log": (
        "cli.commands.inspection:log",
        "What the runs did, newest first: tables, offsets, rejections, checks, schema changes, who ran them.",
    ),
    "report": (
        "plugins.catalog.report:report",
        "One HTML page, which loads nothing from anywhere: throughput, lag, games, rejections, durations, tables, errors.",
    ),
    "doctor": (
        "cli.commands.doctor:doctor",
        "Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand.",
    ),
    "up": (
        "plugins.local.up:up",
        "Start the local stack, the Dagster UI and the daemon that runs sensors; Ctrl-C stops all of it.",
    ),
    "mock-api": ("plugins.local.mock_api:mock_api", "Take rows on loopback until Ctrl-C; nothing is kept but the log."),
    "stack": ("plugins.local.stack:app", "The local Apache Kafka broker and schema registry."),
    "quarantine": ("cli.commands.jobs:app", "Rows that are in no other table: list them, and replay them."),
    "schema": (
        "cli.commands.schema:app",
        "The versions of the topic's schema and the columns they become; with a table's name: its columns.",
    ),
    "rest": ("plugins.export.command:app", "Rows POSTed to an HTTP receiver (GAME_EVENTS_REST_URL)."),
}


class LazyCommand(TyperCommand):
    """A command or group known by its name and help: its module is imported when it is called."""

    def load(self) -> TyperCommand | TyperGroup:
        """The command or group itself."""
        module, attribute = COMMANDS[str(self.name)][0].split(":")
        found = getattr(import_module(f"game_events.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command(self.name)(function)
        command = cast(TyperCommand | TyperGroup, typer.main.get_command(found))
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401 - typer's own
        """The context of the command itself."""
        return self.load().make_context(info_name, args, parent, **extra)


app = typer.Typer(
    help="Protobuf events from Kafka and a Schema Registry to per-game Delta tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, (_, _help) in COMMANDS.items():
    app.command(_name, cls=LazyCommand, help=_help)(lambda: None)


def all_commands() -> TyperGroup:
    """The command line with every command imported, for what reads all of them: documents and tests."""
    group = typer.main.get_group(app)
    group.commands = {name: command.load() for name, command in group.commands.items() if isinstance(command, LazyCommand)}
    return group


def run_here() -> None:
    """Run the command as this process, and end it without Python's own end.

    After `main` and all that is registered by `atexit`, Python would free each object by itself: more than a second after a run
    that has imported Dagster and Spark. The operating system frees them at once.
    """
    codes = exit_codes()
    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            codes.append(ended.code or 0)
        raise
    codes.append(0)


@functools.cache
def exit_codes() -> list[int]:
    """Where the exit code of this process is put, for its end at once: that is registered by the first call, and comes last."""
    codes: list[int] = []
    atexit.register(_end_at_once, codes)
    return codes


def _end_at_once(codes: Sequence[int]) -> None:
    """End the process with an exit code; without one Python ends it."""
    # A stream that cannot be written to (closed pipe, full disk) is Python's to report, with an exit code of its own.
    with suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for code in codes:
            os._exit(code & 0xFF)
    gc.unfreeze()  # else libraries complain of what a fork server has frozen


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
        _refuse_other_encodings(sys.argv)
        app(prog_name="game-events")
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


def _refuse_other_encodings(arguments: list[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"the argument {argument!a} is not UTF-8") from None


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
