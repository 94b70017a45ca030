"""`game-events report`: a page of charts from the event log, by the template `page.html.j2`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import plotly.io as pio
import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs
from rich.filesize import decimal

from game_events.cli.common.arguments import Json
from game_events.cli.common.arguments import since as since_of
from game_events.cli.common.output import Output
from game_events.cli.report.charts import charts
from game_events.cli.report.queries import ReportData, report_data
from game_events.config.naming import Names
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


def page(data: ReportData, root: str, made: datetime, words: Names) -> str:
    """The HTML file; `root`: address of the lakehouse, `made`: current time, `words`: display names of an entity."""
    html = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    html.filters |= {"shown": _shown, "minute": lambda time: f"{time:%Y-%m-%d %H:%M}"}
    options = {"include_plotlyjs": False, "full_html": False, "config": {"displayModeBar": False, "responsive": True}}
    return html.get_template("page.html.j2").render(
        data=data,
        head=data.head,
        root=root,
        made=made,
        words=words,
        plotly=get_plotlyjs(),
        charts=[
            (title, note, pio.to_html(figure, **options) if figure is not None else None)
            for title, note, figure in charts(data, words)
        ],
        errors=[(r["time"], r["run_id"][:8], r["what"], r["error"]) for r in data.errors],
        checks=[(r["name"], r["layer"], r["status"], r["looked"], r["failures"], r["summary"]) for r in data.checks],
        tables=[
            (r["table"], r["rows"], None if r["bytes"] is None else decimal(r["bytes"]), r["version"], r["batch"], r["changed"])
            for r in data.tables
        ],
    )


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:,}" if isinstance(value, int) else str(value)
