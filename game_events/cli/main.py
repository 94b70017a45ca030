"""The command line: `game-events`. Each command is in a module of its own."""

from __future__ import annotations

import json
import logging
import sys
import traceback

import typer
from rich.console import Console

from game_events.cli.commands import (
    archive,
    doctor,
    forget,
    history,
    log,
    maintain,
    quarantine,
    redecode,
    rest,
    run,
    schema,
    sql,
    tables,
)
from game_events.cli.common.output import indented
from game_events.cli.local import demo, init, mock_api, produce, stack
from game_events.cli.report import command as report
from game_events.cli.ui import up
from game_events.config.logging import limit_library_loggers
from game_events.config.masking import mask, masked_traceback, settings_to_mask
from game_events.errors import GameEventsError

#: Exit codes: 0 success, 1 the command failed, 2 wrong usage (typer's own).
FAILED, WRONG_USAGE = 1, 2

app = typer.Typer(
    help="Protobuf events from Kafka and a Schema Registry to per-game Delta tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(stack.app, name="stack")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(schema.app, name="schema")
app.add_typer(rest.app, name="rest")
app.command("demo")(demo.demo)
app.command("init")(init.init)
app.command("produce")(produce.produce_events)
app.command("run", cls=run.RunCommand)(run.run)
app.command("redecode")(redecode.redecode)
app.command("maintain")(maintain.maintain)
app.command("archive")(archive.archive)
app.command("forget")(forget.forget)
app.command("tables")(tables.tables)
app.command("history")(history.history)
app.command("sql")(sql.sql)
app.command("log")(log.log)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.command("up")(up.up)
app.command("mock-api")(mock_api.mock_api)


def main() -> None:
    """Run a command; errors of this project become one clear message and exit code 1.

    With ``--json`` the message is the result, too: the last line of stdout is a JSON object, however the command ends.
    """
    limit_library_loggers()
    handler = logging.StreamHandler()
    # On the handler, as a logger below the root may be louder than it: the pipeline's progress has a place of its own.
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(levelname)s %(name)s %(message)s")
    try:
        app()
    except GameEventsError as error:
        message = mask(str(error), settings_to_mask())
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {indented(message)}", style="red", markup=False)
        _print_json_error(message)
        sys.exit(FAILED)
    except Exception as error:  # noqa: BLE001 - what Python would show has not been masked
        settings = settings_to_mask()
        sys.stderr.write(masked_traceback(error, settings) or "".join(traceback.format_exception(error)))
        _print_json_error(mask(f"{type(error).__name__}: {error}", settings))
        sys.exit(FAILED)
    except SystemExit as ended:
        if ended.code == WRONG_USAGE:  # typer has printed it for people
            said = getattr(ended.__context__, "format_message", None)
            _print_json_error(str(said()) if said is not None else "wrong usage")
        raise


def _print_json_error(error: str) -> None:
    if "--json" in sys.argv[1:]:
        print(json.dumps({"success": False, "error": error}), flush=True)
