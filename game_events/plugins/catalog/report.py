"""`game-events report`: a page of Plotly's charts from the event log, by SQL and the template `page.html.j2`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import plotly.graph_objects as go
import plotly.io as pio
import pyarrow as pa
import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs
from rich.filesize import decimal

from game_events.cli.output import Json, Output
from game_events.cli.output import since as since_of
from game_events.config.names import Names
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.duckdb_connection import query
from game_events.lakehouse.system_tables import read_events
from game_events.lakehouse.tables import Lakehouse

Rows = list[dict[str, Any]]

#: Games with an own line; the others are one line, as more colours cannot be distinguished.
GAMES_SHOWN = 8

OTHERS = "others"

TABLES_SHOWN = 200
ERRORS_SHOWN = 20

_HEAD = """
SELECT count(*) FILTER (kind = 'run' AND name NOT LIKE 'check %') AS runs,
  count(*) FILTER (kind = 'run' AND status = 'failed') AS failed_runs,
  coalesce(sum(rows) FILTER (kind = 'table' AND layer = 'bronze'), 0)::BIGINT AS bronze_rows,
  coalesce(sum(rows) FILTER (kind = 'rejected'), 0)::BIGINT AS rejected_rows,
  coalesce(sum(rows) FILTER (kind = 'rule'), 0)::BIGINT AS rule_rows,
  arg_max(lag, time) FILTER (kind = 'run' AND lag IS NOT NULL) AS lag,
  min(time) AS first, max(time) AS last, count(DISTINCT game) AS games
FROM events
"""

_RUNS = """
SELECT time_bucket($bucket::INTERVAL, time) AS begins, layer, sum(rows)::BIGINT AS rows, sum(seconds) AS seconds,
  CASE WHEN sum(seconds) > 0 THEN sum(rows) / sum(seconds) END AS rate
FROM events WHERE kind = 'layer' GROUP BY ALL ORDER BY begins, layer
"""

_LAG = """
SELECT time_bucket($bucket::INTERVAL, time) AS begins, max(lag)::BIGINT AS lag
FROM events WHERE kind = 'run' AND lag IS NOT NULL GROUP BY ALL ORDER BY begins
"""

#: Rows of a series; those with few rows are one series.
_SERIES = """
WITH chosen AS ({}),
top AS (SELECT series FROM chosen GROUP BY series ORDER BY sum(rows) DESC, series LIMIT $games)
SELECT time_bucket($bucket::INTERVAL, time) AS begins, CASE WHEN series IN (FROM top) THEN series ELSE $others END AS series,
  sum(rows)::BIGINT AS rows
FROM chosen GROUP BY ALL ORDER BY begins, series
"""

_BY_GAME = _SERIES.format("""
  SELECT time, game AS series, rows FROM events WHERE kind = 'table' AND layer = 'silver' AND game IS NOT NULL AND rows > 0
""")

_BY_TYPE = _SERIES.format("SELECT time, name AS series, rows FROM events WHERE kind = 'rows_by_type' AND rows > 0")

_RULES = _SERIES.format("""
  SELECT time, coalesce(game, layer, '-') || ': ' || name AS series, rows FROM events WHERE kind = 'rule' AND rows > 0
""")

_REJECTED = """
SELECT time_bucket($bucket::INTERVAL, time) AS begins,
  CASE kind WHEN 'unrouted' THEN 'unrouted: ' ELSE '' END || name AS series, sum(rows)::BIGINT AS rows
FROM events WHERE kind IN ('rejected', 'unrouted') GROUP BY ALL ORDER BY begins, series
"""

_TABLES = """
SELECT "table", arg_max(table_rows, time) AS rows, arg_max(table_bytes, time) AS bytes, arg_max(delta_version, time) AS version,
  arg_max(batch, time) AS batch, max(time) AS changed
FROM events WHERE kind = 'table' AND table_rows IS NOT NULL GROUP BY ALL ORDER BY bytes DESC, "table" LIMIT $tables
"""

_CHECKS = """
SELECT name, layer, arg_max(status, time) AS status, max(time) AS looked,
  arg_max(json_extract_string(detail, '$.summary'), time) AS summary, count(*) FILTER (status <> 'passed') AS failures
FROM events WHERE kind = 'check' GROUP BY ALL ORDER BY name
"""

_ERRORS = """
SELECT time, run_id, coalesce("table", name) AS what,
  coalesce(json_extract_string(detail, '$.error.class') || ': ', '') ||
  coalesce(json_extract_string(detail, '$.error.text'), json_extract_string(detail, '$.error'), '') AS error
FROM events WHERE kind IN ('run', 'table') AND status = 'failed' ORDER BY time DESC, what LIMIT $errors
"""


@dataclass(frozen=True)
class ReportData:
    """Everything on the page; `head`: figures at the top, `bucket`: interval of a point or bar."""

    head: dict[str, Any]
    bucket: str
    layers: Rows
    lag: Rows
    games: Rows
    types: Rows
    rejected: Rows
    rules: Rows
    tables: Rows
    checks: Rows
    errors: Rows


def report_data(events: pa.Table) -> ReportData:
    """Query the event log; without events the report is empty."""
    head = query(events, _HEAD)[0]
    bucket = bucket_of(head["first"], head["last"])
    top = {"games": GAMES_SHOWN, "others": OTHERS}
    return ReportData(
        head,
        bucket,
        layers=query(events, _RUNS, bucket=bucket),
        lag=query(events, _LAG, bucket=bucket),
        games=query(events, _BY_GAME, bucket=bucket, **top),
        types=query(events, _BY_TYPE, bucket=bucket, **top),
        rejected=query(events, _REJECTED, bucket=bucket),
        rules=query(events, _RULES, bucket=bucket, **top),
        tables=query(events, _TABLES, tables=TABLES_SHOWN),
        checks=query(events, _CHECKS),
        errors=query(events, _ERRORS, errors=ERRORS_SHOWN),
    )


def bucket_of(first: datetime | None, last: datetime | None) -> str:
    """Interval of one bar, so that a chart has at most about 170."""
    seconds = (last - first).total_seconds() if first and last else 0.0
    for name, length in (("10 seconds", 10), ("1 minute", 60), ("10 minutes", 600), ("1 hour", 3600), ("6 hours", 21600)):
        if seconds <= 170 * length:
            return name
    return "1 day"


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
            _chart([r for r in data.layers if r["rate"]], "rate", "rows/s", LAYER_COLOURS, "layer", bars=False),
        ),
        (
            "Lag (records)",
            f"records left in the topic when a run ended, the most of {data.bucket}",
            _chart(data.lag, "lag", "records", {"lag": COLOURS[0]}, bars=False),
        ),
        (
            f"Rows by {words.entity} (rows)",
            f"rows that came to the {words.entities}' silver tables; {bars}",
            _by_series(data.games, "rows"),
        ),
        ("Rows by message type (rows)", f"rows that came to bronze; {bars}", _by_series(data.types, "rows")),
        (
            "Records not in bronze (records)",
            f"by reason, and rows of no {words.entity}; {bars}",
            _by_series(data.rejected, "records"),
        ),
        ("Violations of rules (rows)", f"by {words.entity} and rule; {bars}", _by_series(data.rules, "rows")),
        (
            "Durations (seconds)",
            f"seconds that the layers took; {bars}",
            _chart(data.layers, "seconds", "s", LAYER_COLOURS, "layer"),
        ),
    ]


def _chart(
    rows: Rows, value: str, unit: str, colours: Mapping[str, str], series: str = "series", *, bars: bool = True
) -> go.Figure | None:
    """Stacked bars, or lines: one colour for each series that has rows."""
    if not rows:
        return None
    figure = go.Figure()
    figure.update_layout(
        height=320,
        margin={"l": 70, "r": 20, "t": 10, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="x unified",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        showlegend=bars or len(colours) > 1,
        barmode="stack" if bars else None,
        font={"family": "system-ui, sans-serif", "size": 12},
        xaxis={"title": None, "type": "date"},
        yaxis={"title": unit, "rangemode": "tozero", "separatethousands": True},
    )
    for name, colour in colours.items():
        own = [r for r in rows if r.get(series, name) == name]
        points = _points(name, own, value)
        if own and bars:
            figure.add_bar(**points, marker={"color": colour, "line": {"width": 0}})
        elif own:
            figure.add_scatter(**points, mode="lines+markers", line={"color": colour, "width": 2})
    return figure


def _points(name: str, rows: Rows, value: str) -> dict[str, Any]:
    """One series of a chart."""
    return {"name": name, "x": [r["begins"] for r in rows], "y": [round(r[value], 3) for r in rows]}


def _by_series(rows: Rows, unit: str) -> go.Figure | None:
    names = {r["series"] for r in rows}
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(sorted(names - {OTHERS}))}
    if OTHERS in names:
        colours[OTHERS] = OTHERS_COLOUR
    return _chart(rows, "rows", unit, colours)
