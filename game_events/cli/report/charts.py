"""The charts of `game-events report`: Plotly figures without colours of their own for text and ground (the page sets those)."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from game_events.cli.report.queries import OTHERS, ReportData, Rows
from game_events.config.naming import Words

#: One colour for each layer wherever it appears.
LAYER_COLOURS = {
    "bronze": "#b5651d",
    "replay": "#a05a8c",
    "silver": "#6c8ebf",
    "gold": "#d9a300",
    "unified": "#4c9f70",
}
#: Distinguishable on light and dark ground, for colour-blind readers too (Okabe and Ito's set, without its black and yellow).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8c6bb1", "#7f8c3f")
OTHERS_COLOUR = "#8a8f98"
HEIGHT_PX = 320


def charts(data: ReportData, words: Words) -> list[tuple[str, str, go.Figure | None]]:
    """(title with its unit, what it says, figure or None if there is nothing to show), in the page's order."""
    each = f"each point: {data.bucket}"
    bars = f"each bar: {data.bucket}"
    return [
        ("Throughput (rows per second)", f"rows of a layer by the seconds it took; {each}", _throughput(data.layers)),
        ("Lag (records)", f"records left in the topic when a run ended, the most of {data.bucket}", _lag(data.lag)),
        (
            f"Rows by {words.entity} (rows)",
            f"rows that came to the {words.entities}' silver tables; {bars}",
            _bars(data.games, "rows"),
        ),
        (
            "Records not in bronze (records)",
            f"by reason, and rows of no {words.entity}; {bars}",
            _bars(data.rejected, "records"),
        ),
        ("Violations of rules (rows)", f"by {words.entity} and rule; {bars}", _bars(data.rules, "rows")),
        ("Durations (seconds)", f"seconds that the layers took; {bars}", _durations(data.layers)),
    ]


def _figure(unit: str, *, bars: bool = False) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        height=HEIGHT_PX,
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


def _throughput(rows: Rows) -> go.Figure | None:
    found = [r for r in rows if r["rate"]]
    if not found:
        return None
    figure = _figure("rows/s")
    for layer, colour in LAYER_COLOURS.items():
        mine = [r for r in found if r["layer"] == layer]
        if mine:
            line = {"x": [r["begins"] for r in mine], "y": [round(r["rate"], 1) for r in mine], "name": layer}
            figure.add_scatter(**line, mode="lines+markers", line={"color": colour, "width": 2})
    return figure


def _lag(rows: Rows) -> go.Figure | None:
    if not rows:
        return None
    figure = _figure("records")
    colour = {"color": COLOURS[0], "width": 2}
    figure.add_scatter(
        x=[r["begins"] for r in rows],
        y=[r["lag"] for r in rows],
        name="lag",
        mode="lines+markers",
        line=colour,
        showlegend=False,
    )
    return figure


def _bars(rows: Rows, unit: str) -> go.Figure | None:
    if not rows:
        return None
    figure = _figure(unit, bars=True)
    for series, colour in _coloured([r["series"] for r in rows]):
        mine = [r for r in rows if r["series"] == series]
        figure.add_bar(
            x=[r["begins"] for r in mine],
            y=[r["rows"] for r in mine],
            name=series,
            marker={"color": colour, "line": {"width": 0}},
        )
    return figure


def _coloured(names: Sequence[str]) -> list[tuple[str, str]]:
    series = sorted(set(names) - {OTHERS})
    coloured = [(name, COLOURS[i % len(COLOURS)]) for i, name in enumerate(series)]
    return [*coloured, (OTHERS, OTHERS_COLOUR)] if OTHERS in names else coloured


def _durations(rows: Rows) -> go.Figure | None:
    if not rows:
        return None
    figure = _figure("s", bars=True)
    for layer, colour in LAYER_COLOURS.items():
        mine = [r for r in rows if r["layer"] == layer]
        if mine:
            seconds = [round(r["seconds"], 3) for r in mine]
            figure.add_bar(x=[r["begins"] for r in mine], y=seconds, name=layer, marker={"color": colour, "line": {"width": 0}})
    return figure
