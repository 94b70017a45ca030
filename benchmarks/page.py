"""Tables and charts of docs/benchmarks.md, from the newest published measurement of each scenario.

`python -m benchmarks.page --take benchmarks/results/latest.json` publishes a run's scenarios and writes the page; `--check`
writes nothing, and fails if the page differs from `benchmarks/published.json` (`make lint`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parents[1]
PAGE, PUBLISHED = ROOT / "docs" / "benchmarks.md", Path(__file__).with_name("published.json")
#: What is generated: everything between these two lines.
_PART = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- end of figures -->\n)", re.DOTALL)
#: A figure of one number of games becomes a cell of a line with the others.
_OF_GAMES = re.compile(r"(?P<name>.+), (?P<games>[\d,]+ games)")
#: Parts of notes that are in the JSON only.
_DETAIL = re.compile(r"of processor time$")
#: Scenarios of one long run.
ONE_RUN = {"continuous", "memory", "rates"}
#: Scenario -> charts: title, unit, and label -> name of a figure.
CHARTS: Mapping[str, Sequence[tuple[str, str, Mapping[str, str]]]] = {
    "graph": [
        (
            "The whole graph and its peers",
            "k events/s",
            {
                f"{label}, {games}": f"{name}, {games} games"
                for games in (10, 100)
                for label, name in {
                    "this project": "whole graph",
                    "Python": "Python consumer",
                    "plain Spark": "baseline",
                }.items()
            },
        )
    ],
    "starts": [
        (
            "Commands, from the start of the process",
            "s",
            {
                "cold run": "cold run of 1,000 records",
                "warm run": "run of 1,000 records beside the warm server",
                "nothing to do": "run, nothing to do",
                "doctor": "doctor",
                "sql": "sql",
                "log": "log",
                "tables": "tables",
                "help": "--help",
            },
        )
    ],
}


def main(
    take: Annotated[Path | None, typer.Option(help="publish the scenarios of this result of `make bench`")] = None,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit code 1 if the page is out of date")] = False,
) -> None:
    """Write the generated parts of docs/benchmarks.md."""
    published: dict[str, Any] = json.loads(PUBLISHED.read_text()) if PUBLISHED.exists() else {}
    if take is not None:
        published |= scenarios(json.loads(take.read_text()))
        PUBLISHED.write_text(json.dumps(published, indent=1) + "\n")
    before = PAGE.read_text()
    after = page(before, published)
    if check and before != after:
        sys.exit("docs/benchmarks.md differs from benchmarks/published.json: run `.venv/bin/python -m benchmarks.page`")
    if not check:
        PAGE.write_text(after)


def scenarios(result: Mapping[str, Any]) -> dict[str, Any]:
    """Scenario -> how it was measured, and its figures, of a file that `benchmarks.output.save` has written.

    Raises:
        ValueError: a scenario failed, or was measured with fewer than three repetitions.
    """
    failed = [f"{figure['scenario']}: {figure['error']}" for figure in result["figures"] if figure["error"]]
    if failed or result["options"]["pairs"] < 3:
        raise ValueError(f"not to be published: {'; '.join(failed) or 'fewer than three repetitions'}")
    how = {
        "finished": result["finished"][:10],
        "cores": result["machine"]["cores"],
        "commit": (result["machine"]["commit"] or "")[:10],
        **{name: result["options"][name] for name in ("events", "pairs", "seconds")},
    }
    kept = ("name", "unit", "median", "min", "max", "target", "met", "note")
    return {
        name: how | {"figures": [{key: f[key] for key in kept} for f in result["figures"] if f["scenario"] == name]}
        for name in result["options"]["scenarios"]
    }


def page(text: str, published: Mapping[str, Any]) -> str:
    """The page with its generated parts as they should be."""
    return _PART.sub(lambda part: part[1] + _part(part["name"], published.get(part["name"])) + part[3], text)


def _part(name: str, measured: Mapping[str, Any] | None) -> str:
    if measured is None:
        return "Not measured yet.\n"
    figures = {figure["name"]: figure for figure in measured["figures"]}
    how = f"{measured['events']:,} events, medians of {measured['pairs']} repetitions in turns, the lowest and the highest"
    if name in ONE_RUN:
        how = "one run, medians of what was sampled in it, the lowest and the highest sample"
    lines = [
        f"{measured['cores']} cores, {how} in brackets; commit {measured['commit']}, {measured['finished']}:",
        "",
        *_table(figures),
        *(line for chart in CHARTS.get(name, ()) for line in ("", *_chart(*chart, figures))),
    ]
    return "\n".join(lines) + "\n"


def _table(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each figure; those of several numbers of games share one."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, figure in figures.items():
        found = _OF_GAMES.fullmatch(name)
        rows.setdefault(found["name"] if found else name, {})[found["games"] if found else ""] = figure
    games = list(dict.fromkeys(column for cells in rows.values() for column in cells if column))
    columns = [*games, *([""] if not games or any("" in cells for cells in rows.values()) else [])]
    lines = [f"| figure | {' | '.join(columns)} | goal | note |", "|---" * (3 + len(columns)) + "|"]
    for name, cells in rows.items():
        unit = next(iter(cells.values()))["unit"]
        label = name if unit == "x" else f"{name} ({unit})"
        shown = (_cell(cells[column]) if column in cells else "" for column in columns)
        all_goals = (f["target"] + ("" if f["met"] else " (missed)") for f in cells.values() if f["target"])
        goals = ", ".join(dict.fromkeys(all_goals))
        parts = (part for f in cells.values() for part in f["note"].split("; "))
        notes = "; ".join(dict.fromkeys(part for part in parts if part and not _DETAIL.search(part)))
        lines.append(f"| {' | '.join([label, *shown, goals, notes])} |")
    return lines


def _cell(figure: Mapping[str, Any]) -> str:
    median, low, high = (_number(figure[key]) for key in ("median", "min", "max"))
    return median if low == high else f"{median} ({low} .. {high})"


def _chart(title: str, unit: str, bars: Mapping[str, str], figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A bar for each figure that was measured."""
    found = {label: figures[name]["median"] for label, name in bars.items() if name in figures}
    return [
        "<!-- not run: a chart -->",
        "```mermaid",
        "xychart-beta horizontal",
        f'  title "{title} ({unit})"',
        f"  x-axis [{', '.join(json.dumps(label) for label in found)}]",
        f'  y-axis "{unit}" 0 --> {1.1 * max(found.values()):.3g}',
        f"  bar [{', '.join(f'{value:.3g}' for value in found.values())}]",
        "```",
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    typer.run(main)
