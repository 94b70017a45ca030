"""The charts of `game-events report`: Plotly figures; the page sets the colours of text and background."""

from collections.abc import Mapping

import plotly.graph_objects as go

from game_events.cli.report.queries import OTHERS, ReportData, Rows
from game_events.config.naming import Names

#: One colour for each layer wherever it appears.
LAYER_COLOURS = {"bronze": "#b5651d", "replay": "#a05a8c", "silver": "#6c8ebf", "gold": "#d9a300", "unified": "#4c9f70"}
#: Distinguishable on light and dark ground, for colour-blind readers too (Okabe and Ito's set, without its black and yellow).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8c6bb1", "#7f8c3f")
OTHERS_COLOUR = "#8a8f98"


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
