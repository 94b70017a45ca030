"""The page of `game-events report`: values for the template `page.html.j2`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import plotly.io as pio
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from game_events.cli.report.charts import charts
from game_events.cli.report.queries import ReportData
from game_events.config.naming import Names


def page(data: ReportData, root: str, made: datetime, words: Names) -> str:
    """The whole file.

    Args:
        data: rows of the event log.
        root: address of the lakehouse.
        made: now.
        words: display names of an entity.
    """
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
        tables=[(r["table"], r["rows"], _bytes(r["bytes"]), r["version"], r["batch"], r["changed"]) for r in data.tables],
    )


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(value: int | None) -> str | None:
    if value is None:
        return None
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
