"""`game-events report`: a page of Plotly's charts from the event log, by the template `page.html.j2`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import plotly.graph_objects as go
import plotly.io as pio
import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs
from rich.filesize import decimal

from game_events.cli.common.arguments import Json
from game_events.cli.common.arguments import since as since_of
from game_events.cli.common.output import Output
from game_events.cli.report.queries import OTHERS, ReportData, Rows, report_data
from game_events.config.naming import Names
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.lakehouse.tables import Lakehouse

#: One colour for each layer wherever it appears.
LAYER_COLOURS = {"bronze": "#b5651d", "replay": "#a05a8c", "silver": "#6c8ebf", "gold": "#d9a300", "unified": "#4c9f70"}
#: Distinguishable on light and dark ground, for colour-blind readers too (Okabe and Ito's set, without its black and yellow).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8c6bb1", "#7f8c3f")
OTHERS_COLOUR = "#8a8f98"


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


def charts(data: ReportData, words: Names) -> list[tuple[str, str, go.Figure | None]]:
    """(title with unit, description, figure or None without data), in the page's order."""
    each = f"each point: {data.bucket}"
    bars = f"each bar: {data.bucket}"
    return [
        (
            "Throughput (rows per second)",
            f"rows of a layer by the seconds it took; {each}",
            _lines([r for r in data.layers if r["rate"]], "rate", "rows/s", LAYER_COLOURS),
        ),
        (
            "Lag (records)",
            f"records left in the topic when a run ended, the most of {data.bucket}",
            _lines(data.lag, "lag", "records", {"lag": COLOURS[0]}),
        ),
        (
            f"Rows by {words.entity} (rows)",
            f"rows that came to the {words.entities}' silver tables; {bars}",
            _by_series(data.games, "rows"),
        ),
        (
            "Records not in bronze (records)",
            f"by reason, and rows of no {words.entity}; {bars}",
            _by_series(data.rejected, "records"),
        ),
        ("Violations of rules (rows)", f"by {words.entity} and rule; {bars}", _by_series(data.rules, "rows")),
        (
            "Durations (seconds)",
            f"seconds that the layers took; {bars}",
            _bars(data.layers, "seconds", "s", "layer", LAYER_COLOURS),
        ),
    ]


def _figure(unit: str, *, bars: bool = False) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        height=320,
        margin={"l": 70, "r": 20, "t": 10, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="x unified",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        showlegend=True,
        barmode="stack" if bars else None,
        font={"family": "system-ui, sans-serif", "size": 12},
        xaxis={"title": None, "type": "date"},
        yaxis={"title": unit, "rangemode": "tozero", "separatethousands": True},
    )
    return figure


def _lines(rows: Rows, value: str, unit: str, colours: Mapping[str, str]) -> go.Figure | None:
    """A line for each series that has rows."""
    if not rows:
        return None
    figure = _figure(unit)
    for name, colour in colours.items():
        mine = [r for r in rows if r.get("layer", name) == name]
        if mine:
            figure.add_scatter(
                x=[r["begins"] for r in mine],
                y=[round(r[value], 1) for r in mine],
                name=name,
                mode="lines+markers",
                line={"color": colour, "width": 2},
                showlegend=len(colours) > 1,
            )
    return figure


def _bars(rows: Rows, value: str, unit: str, series: str, colours: Mapping[str, str]) -> go.Figure | None:
    """Stacked bars, a colour for each series that has rows."""
    if not rows:
        return None
    figure = _figure(unit, bars=True)
    for name, colour in colours.items():
        mine = [r for r in rows if r[series] == name]
        if mine:
            heights = [round(r[value], 3) for r in mine]
            figure.add_bar(x=[r["begins"] for r in mine], y=heights, name=name, marker={"color": colour, "line": {"width": 0}})
    return figure


def _by_series(rows: Rows, unit: str) -> go.Figure | None:
    names = {r["series"] for r in rows}
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(sorted(names - {OTHERS}))}
    if OTHERS in names:
        colours[OTHERS] = OTHERS_COLOUR
    return _bars(rows, "rows", unit, "series", colours)
