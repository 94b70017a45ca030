"""Tables and charts of docs/benchmarks.md, and the formula of docs/scale.md, from published measurements of one commit.

`python -m benchmarks.page --take benchmarks/results/latest.json` publishes a run's scenarios and writes the pages; `--check`
writes nothing, and fails if a page differs from `benchmarks/published.json`, if scenarios are of different commits, or if the
formula does not predict the first loads (`make lint`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import scale

ROOT = Path(__file__).parents[1]
PAGE, PUBLISHED = ROOT / "docs" / "benchmarks.md", Path(__file__).with_name("published.json")
SCALE_PAGE = ROOT / "docs" / "scale.md"
#: Scenarios that may be of another commit than the others -> why.
EXCEPTIONS: Mapping[str, str] = {"games": "measured again without a sampler, which had counted an idle thread of the driver"}
#: What is generated: everything between these two lines.
_PART = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- end of figures -->\n)", re.DOTALL)
#: A figure of one number of games becomes a cell of a line with the others.
_OF_GAMES = re.compile(r"(?P<name>.+), (?P<games>[\d,]+ games)")
#: Table, line and column of a figure that has a cell of its own.
_CELL = re.compile(r"(?P<table>.+) \| (?P<line>.+) \| (?P<column>.+)")
#: Parts of notes that are in the JSON only.
_DETAIL = re.compile(r"of processor time$")
#: Scenarios of one long run.
ONE_RUN = {"continuous", "continuous_many", "memory", "rates", "rest"}
#: Charts of a scenario: title, unit, and label -> name of a figure.
Charts = Sequence[tuple[str, str, Mapping[str, str]]]
_PEERS = ("native loop", "Python, partitioned", "Python, table a game", "this project", "Spark, partitioned")
CHARTS: Mapping[str, Charts] = {
    "graph": [
        ("First load of 10 games", "k events/s", {name: f"10 games | {name} | k events/s" for name in _PEERS}),
        (
            "First load of 10 games, every event distinct",
            "k events/s",
            {name: f"10 games, every event distinct | {name} | k events/s" for name in _PEERS},
        ),
    ],
    "increments": [
        (
            "1,000 records, from Kafka to the unified table",
            "s",
            {
                f"{name}, {games} games": f"1,000 records, {games} games | {name} | s"
                for games in ("10", "1,000")
                for name in ("this project", "Python, table a game", "Spark, partitioned")
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
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit code 1 if a page is out of date")] = False,
) -> None:
    """Write the generated parts of docs/benchmarks.md and docs/scale.md."""
    published: dict[str, Any] = json.loads(PUBLISHED.read_text()) if PUBLISHED.exists() else {}
    if take is not None:
        published |= scenarios(json.loads(take.read_text()))
        PUBLISHED.write_text(json.dumps(published, indent=1) + "\n")
    problems = [*other_commits(published, EXCEPTIONS), *scale.disagreements(published)]
    for path in (PAGE, SCALE_PAGE):
        before = path.read_text()
        after = page(before, published)
        if check and before != after:
            problems.append(f"{path.relative_to(ROOT)} differs from published.json: run `.venv/bin/python -m benchmarks.page`")
        if not check:
            path.write_text(after)
    if problems:
        sys.exit("\n".join(problems))


def scenarios(result: Mapping[str, Any]) -> dict[str, Any]:
    """Scenario -> how it was measured, and its figures, of a file that `benchmarks.output.Result` has saved.

    Raises:
        ValueError: a scenario failed, or was measured with fewer than three repetitions.
    """
    measured = result["scenarios"]
    failed = [f"{name}: {figure['error']}" for name, part in measured.items() for figure in part["figures"] if figure["error"]]
    if failed or result["options"]["pairs"] < 3:
        raise ValueError(f"not to be published: {'; '.join(failed) or 'fewer than three repetitions'}")
    how = {
        "cores": result["machine"]["cores"],
        "commit": (result["machine"]["commit"] or "")[:10],
        **{name: result["options"][name] for name in ("events", "pairs", "seconds")},
    }
    kept = ("name", "unit", "median", "min", "max", "target", "met", "note")
    return {
        name: how | {"finished": part["finished"][:10], "figures": [{key: f[key] for key in kept} for f in part["figures"]]}
        for name, part in measured.items()
    }


def other_commits(published: Mapping[str, Any], exceptions: Mapping[str, str]) -> list[str]:
    """A sentence if scenarios were measured at different commits, without those that are excepted."""
    commits: dict[str, list[str]] = {}
    for name, measured in published.items():
        if name not in exceptions:
            commits.setdefault(measured["commit"], []).append(name)
    if len(commits) < 2:
        return []
    found = "; ".join(f"{commit}: {', '.join(names)}" for commit, names in commits.items())
    return [f"published scenarios are of different commits ({found}): measure them again at one, or name them in EXCEPTIONS"]


def page(text: str, published: Mapping[str, Any]) -> str:
    """The page with its generated parts as they should be."""
    own = scale.parts(published)

    def made(part: re.Match[str]) -> str:
        name = part["name"]
        return part[1] + (own[name] if name in own else _part(name, published.get(name))) + part[3]

    return _PART.sub(made, text)


def _part(name: str, measured: Mapping[str, Any] | None) -> str:
    if measured is None:
        return "Not measured yet.\n"
    cells = [figure for figure in measured["figures"] if _CELL.fullmatch(figure["name"])]
    lines = {figure["name"]: figure for figure in measured["figures"] if not _CELL.fullmatch(figure["name"])}
    how = f"{measured['events']:,} events, medians of {measured['pairs']} repetitions in turns, the lowest and the highest"
    if name in ONE_RUN:
        how = "one run, medians of what was sampled in it, the lowest and the highest sample"
    if name == "time_breakdown":
        how = "means of 20, 10 and 3 runs; of the whole run the median, the lowest and the highest"
    text = [
        f"{measured['cores']} cores, {how} in brackets; commit {measured['commit']}, {measured['finished']}:",
        *_tables(cells),
        *(["", *_table(lines)] if lines else []),
    ]
    by_name = {figure["name"]: figure for figure in measured["figures"]}
    for chart in CHARTS.get(name, ()):
        text += _chart(*chart, by_name)
    return "\n".join(text) + "\n"


def _tables(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tables of figures whose names say table, line and column."""
    found: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for figure in figures:
        place = _CELL.fullmatch(figure["name"])
        assert place is not None
        found.setdefault(place["table"], {}).setdefault(place["line"], {})[place["column"]] = figure
    text = list[str]()
    for table, lines in found.items():
        columns = list(dict.fromkeys(column for cells in lines.values() for column in cells))
        text += ["", f"| {table} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
        for line, cells in lines.items():
            shown = (_cell_of_many(cells.get(column), spread=column == columns[0]) for column in columns)
            text.append(f"| {line} | {' | '.join(shown)} |")
    return text


def _cell_of_many(figure: Mapping[str, Any] | None, *, spread: bool) -> str:
    """A median, its spread in the first column only, and the goal if there is one."""
    if figure is None:
        return ""
    goal = f"; goal {figure['target']}{'' if figure['met'] else ', missed'}" if figure["target"] else ""
    return (_cell(figure) if spread else _number(figure["median"])) + goal


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
    """A bar for each figure that was measured; nothing if none was."""
    found = {label: figures[name]["median"] for label, name in bars.items() if name in figures}
    if not found:
        return []
    return [
        "",
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
