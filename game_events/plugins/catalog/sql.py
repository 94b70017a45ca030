"""`game-events sql`: queries over the tables, by DuckDB in this process, without Spark."""

import sys
from itertools import islice
from typing import Annotated

import typer

from game_events.cli.output import Json, Output, nested_as_json
from game_events.cli.output import since as time_of
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.catalog.query import TablesSql, plain

#: Rows that are shown unless somebody wants more.
ROWS = 100
#: Longer values are cut in the table for people; `--csv` and `--json` have all of them.
SHOWN_CHARS = 80


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT; `-` reads it from stdin.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="All rows as CSV on stdout, as they come.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help=f"So many rows; default: {ROWS}, with --csv all.")] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="The tables as they were then: 30m, 12h (ago), or a date or time.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Query the tables, each by its name: nothing is written, and no Spark is started."""
    if as_csv and as_json:
        raise typer.BadParameter("either --csv or --json", param_hint="--csv")
    output = Output(as_json=as_json)
    text = _text(query)
    settings = load_settings()
    then = time_of(as_of, option="--as-of")
    with TablesSql(Lakehouse.of(settings), then, settings.sql_memory_bytes, settings.sql_disk_bytes) as tables:
        columns, rows = tables.query(text)
        if as_csv:
            output.csv(columns, map(plain, islice(rows, limit)))
            return
        wanted = limit or ROWS
        shown = list(islice(rows, wanted + 1))
        more = len(shown) > wanted
        shown = shown[:wanted]
    output.table("", columns, [[_shown(value) for value in row] for row in shown], wide=True)
    if more:
        output.say(f"only {wanted:,} rows are shown: --limit shows more, --csv all of them")
    output.result({"columns": columns, "rows": [plain(row) for row in shown], "more": more})


def _text(query: str) -> str:
    try:
        return sys.stdin.read() if query == "-" else query
    except UnicodeDecodeError:
        raise ConfigurationError("the query is not UTF-8") from None


def _shown(value: object) -> object:
    if value is None or isinstance(value, bool | float):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return value
    text = str(nested_as_json(*plain([value])))
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."
