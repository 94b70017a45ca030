"""`game-events report`: a page of charts from the event log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from game_events.cli.common.arguments import Json
from game_events.cli.common.arguments import since as since_of
from game_events.cli.common.output import Output
from game_events.cli.report.page import page
from game_events.cli.report.queries import report_data
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.lakehouse.tables import Lakehouse


def report(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    since: Annotated[str, typer.Option(help="Only events since then: 12h, 7d, 4w, or a date.")] = "7d",
    as_json: Json = False,
) -> None:
    """One HTML page, which loads nothing from anywhere: throughput, lag, games, rejections, durations, tables, errors."""
    output = Output(as_json=as_json)
    settings = load_settings()
    lakehouse = Lakehouse.of(settings)
    data = report_data(read_events(lakehouse, since_of(since)))
    try:
        out.write_text(page(data, lakehouse.root, datetime.now(UTC), settings.names), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--out: {out} cannot be written: {error.strerror}") from error
    if data.head["last"] is None:
        output.say("there are no events in this time: every `game-events run` leaves some (--since asks for a longer time)")
    output.say(f"open it in a browser: {out.resolve()}")
    output.result({"report": str(out.resolve()), **{k: v for k, v in data.head.items() if k not in ("first", "last")}})
