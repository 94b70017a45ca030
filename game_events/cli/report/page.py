"""The page of `game-events report`: one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from string import Template
from typing import Any

import plotly.io as pio
from plotly.offline import get_plotlyjs

from game_events.cli.report.charts import charts
from game_events.cli.report.queries import ReportData, Rows
from game_events.config.naming import Words

EMPTY = (
    "There are no events in this time. Every <code>game-events run</code> leaves some: run it, or ask for a longer time with "
    "<code>--since</code>."
)

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>game_events: $title</title>
<style>
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1d2733; --soft: #5b6775; --line: #dde2e8;
  --bad: #b3261e; --good: #1b7f4b; --look: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161b; --card: #1b2129; --ink: #e4e9ef; --soft: #9aa6b3;
  --line: #313a45; --bad: #ff8a80; --good: #6fd19e; --look: #f0c05a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1400px; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 16px; margin: 0; }
p.soft, .note { color: var(--soft); margin: 2px 0 0; font-size: 13px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 18px 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px; }
.tile b { display: block; font-size: 24px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); gap: 12px; }
section { margin-bottom: 12px; min-width: 0; } .charts section { margin: 0; }
.none { color: var(--soft); padding: 30px 0; text-align: center; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; margin-top: 8px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.w { overflow-wrap: anywhere; min-width: 260px; }
.failed { color: var(--bad); font-weight: 600; } .passed { color: var(--good); }
.warned { color: var(--look); font-weight: 600; }
</style>
<script>$plotly</script></head><body>
<h1>game_events</h1><p class="soft">$subtitle</p>
$body
<script>
// Text and grid take the page's colours, whichever of the two the reader's system asks for, and when it changes.
// Resized as well: the first chart was drawn before there was a second column.
function paint() {
  const css = getComputedStyle(document.documentElement), of = name => css.getPropertyValue(name).trim();
  document.querySelectorAll(".plotly-graph-div").forEach(div => Plotly.relayout(div, {
    "font.color": of("--ink"), "xaxis.gridcolor": of("--line"), "yaxis.gridcolor": of("--line"),
    "xaxis.linecolor": of("--line"), "yaxis.zerolinecolor": of("--line"),
    "hoverlabel.bgcolor": of("--card"), "hoverlabel.font.color": of("--ink"), "hoverlabel.bordercolor": of("--line") })
    .then(Plotly.Plots.resize));
}
paint(); matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
</script></body></html>
""")


def page(data: ReportData, root: str, made: datetime, words: Words) -> str:
    """The whole file.

    Args:
        data: what it shows.
        root: where the tables are.
        made: now.
        words: what people call an entity.
    """
    head = data.head
    body = f'<section><p class="none">{EMPTY}</p></section>' if head["last"] is None else _body(data, words)
    times = f"{head['first']:%Y-%m-%d %H:%M} to {head['last']:%Y-%m-%d %H:%M} UTC" if head["last"] else "no events"
    return _PAGE.substitute(
        title=escape(times),
        subtitle=escape(f"{times} · {root} · made {made:%Y-%m-%d %H:%M} UTC from the table event_log"),
        plotly=get_plotlyjs(),
        body=body,
    )


def _body(data: ReportData, words: Words) -> str:
    shown = []
    for title, note, figure in charts(data, words):
        inside = (
            pio.to_html(figure, include_plotlyjs=False, full_html=False, config={"displayModeBar": False, "responsive": True})
            if figure is not None
            else '<p class="none">nothing in this time</p>'
        )
        shown.append(f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{inside}</section>')
    return "\n".join(
        [
            _tiles(data.head, words),
            _errors(data.errors),
            f'<div class="charts">{"".join(shown)}</div><br>',
            _checks(data.checks),
            _tables(data.tables),
        ]
    )


def _tiles(head: dict[str, Any], words: Words) -> str:
    shown = [
        ("runs", head["runs"]),
        ("failed runs", head["failed_runs"]),
        ("rows into bronze", head["bronze_rows"]),
        ("records rejected", head["rejected_rows"]),
        ("violations of rules", head["rule_rows"]),
        ("records behind (newest run)", head["lag"] if head["lag"] is not None else "-"),
        (words.entities, head["games"]),
    ]
    tiles = (
        f'<div class="tile"><b class="{"failed" if name == "failed runs" and value else ""}">{_text(value)}</b>'
        f"<span>{escape(name)}</span></div>"
        for name, value in shown
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _errors(rows: Rows) -> str:
    if not rows:
        return '<section><h2>Last errors</h2><p class="note passed">none in this time</p></section>'
    lines = [[_time(r["time"]), r["run_id"][:8], r["what"], r["error"]] for r in rows]
    return _section("Last errors", f"newest first, at most {len(rows)}", ("time (UTC)", "run", "what", "error"), lines)


def _checks(rows: Rows) -> str:
    if not rows:
        return ""
    lines = [[r["name"], r["layer"], r["status"], _time(r["looked"]), r["failures"], r["summary"]] for r in rows]
    columns = ("check", "layer", "last result", "time (UTC)", "not passed", "what it found")
    return _section("Checks", "the newest result of each, and how often it did not pass", columns, lines)


def _tables(rows: Rows) -> str:
    lines = [[r["table"], r["rows"], _bytes(r["bytes"]), r["version"], r["batch"], _time(r["changed"])] for r in rows]
    columns = ("table", "rows", "size", "Delta version", "bronze batch", "changed (UTC)")
    return _section("Tables", "as the newest run that changed each of them left it, largest first", columns, lines)


def _section(title: str, note: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    numeric = [all(isinstance(r[i], int | None) for r in rows) or columns[i] == "size" for i in range(len(columns))]
    heads = "".join(f"<th{' class=n' if n else ''}>{escape(c)}</th>" for c, n in zip(columns, numeric, strict=True))
    lines = "".join(f"<tr>{''.join(_cell(value, right=n) for value, n in zip(row, numeric, strict=True))}</tr>" for row in rows)
    table = f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
    return f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{table}</section>'


def _cell(value: object, *, right: bool) -> str:
    text = _text(value)
    kind = "n" if right else str(value) if value in ("passed", "failed", "warned") else "w" if len(text) > 60 else ""
    return f'<td class="{kind}">{text}</td>'


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _time(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}"


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
