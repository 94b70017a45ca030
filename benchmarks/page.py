"""Tables of docs/benchmarks.md, and the formula of docs/scale.md, from published measurements of one commit.

`python -m benchmarks.page --take benchmarks/results/latest.json` publishes a run's scenarios and writes the pages; `--check`
writes nothing, and fails if a page differs from `benchmarks/published.json`, if scenarios are of different commits, or if the
formula does not predict the first loads (`make lint`).
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import scale

ROOT = Path(__file__).parents[1]
PAGE, PUBLISHED = ROOT / "docs" / "benchmarks.md", Path(__file__).with_name("published.json")
SCALE_PAGE = ROOT / "docs" / "scale.md"
#: Scenarios that may be of another commit than the others -> why.
EXCEPTIONS: Mapping[str, str] = {
    "games": "measured again without a sampler, which had counted an idle thread of the driver",
    **dict.fromkeys(("layout", "iceberg", "time_travel", "deduplicate", "types"), "made after the others were measured"),
}
#: What is generated: everything between these two lines.
_PART = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- end of figures -->\n)", re.DOTALL)
#: A figure of one number of games becomes a cell of a line with the others.
_OF_GAMES = re.compile(r"(?P<name>.+), (?P<games>[\d,]+ games)")
#: Table, line and column of a figure that has a cell of its own.
_CELL = re.compile(r"(?P<table>.+) \| (?P<line>.+) \| (?P<column>.+)")
#: Parts of notes that are in the JSON only.
_DETAIL = re.compile(r"of processor time$")
#: Scenarios whose figures are no medians of repetitions -> what they are.
_SAMPLED = "One run: medians of its samples, the lowest and the highest."
OTHER_MEASURES: Mapping[str, str] = {
    **dict.fromkeys(("continuous", "continuous_many", "memory", "rates", "rest"), _SAMPLED),
    "time_breakdown": "Means of 20, 10 and 3 runs; of the whole run the median.",
}
#: Scenario -> names of figures that share a table -> the table, line and column of each (`{unit}`: the figure's).
_THIRDS, _MEMORY = "last third / middle third", "memory(?: of the [a-zA-Z]+)?"
_LATENCIES = [(r"produce to (silver|gold), (p50|p95)( .+)?", r"from produce to ({unit}) | \1 | \2")]
_OURS = "this project(?:, partitioned)?"
TABLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "graph": [
        (r"(.+ games.*) \| (.+) \| (.+)", r"first load: \3 | \2 | \1"),
        (rf"first load: (time) of ({_OURS} / .+), (.+ games)", r"\1 of | \2 | \3"),
        (rf"(every event distinct): (time) of ({_OURS} / .+), (.+ games)", r"\2 of | \3 | \4, \1"),
    ],
    "records": [
        (r"every event distinct, (.+) \| (.+) \| (k events/s)", r"\3 | \2 | \1"),
        (r"(.+): this project's (time) / (.+)", r"k events/s | \2 of this project / \3 | \1"),
    ],
    "increments": [
        (r"(1,000 records), (.+ games.*) \| (.+) \| s", r"\1 (s) | \3 | \2"),
        (rf"increment: (time) of ({_OURS} / .+), (.+ games)", r"\1 of | \2 | \3"),
        (rf"increment (beside many gamers): (time) of ({_OURS} / .+), (.+ games)", r"\2 of | \3 | \4, \1"),
    ],
    "cold": [(r"cold (.+): this project's (time) / (.+)", r"\2 of | this project / \3 | cold \1")],
    "time_breakdown": [(r"(1,000 records), (.+ games) \| (.+) \| ms", r"\1 (ms) | \3 | \2")],
    "rules": [
        (r"(.+), (without rules|five rules)", r"rules | \1 ({unit}) | \2"),
        (r"(.+), (s|s of processor time): (five rules / none)", r"rules | \1 (\2) | \3"),
    ],
    "games": [(r"(.+): (.+) per game, (.+) with news, (.+)", r"\2 for each of \3 with news ({unit}) | \1 | \4")],
    "layouts": [
        (r"(.+), (1,000 games), (tables|partitioned): (.+)", r"\2 | \1: \4 (s) | \3"),
        (r"(.+), (1,000 games): (.+), (partitioned / tables)", r"\2 | \1: \3 (s) | \4"),
    ],
    "continuous": [
        *_LATENCIES,
        (r"(time between bronze's commits), (.+ third)", r"by thirds of the time | \1 ({unit}) | \2"),
        (rf"({_MEMORY}), ({_THIRDS})", r"whole run | \1 (GiB) | \2"),
        (rf"({_MEMORY})", r"whole run | \1 ({unit}) | median"),
        (rf"(files below the lakehouse|open files and sockets), ({_THIRDS})", r"whole run | \1 | \2"),
        (r"(files below the lakehouse|open files and sockets)", r"whole run | \1 | median"),
        (rf"(log and Dagster's storage), ({_THIRDS})", r"whole run | \1 (MiB) | \2"),
        (r"(log and Dagster's storage)", r"whole run | \1 ({unit}) | median"),
    ],
    "continuous_many": _LATENCIES,
    "rates": [(r"(lag) at (.+ events/s)", r"step | \1 ({unit}) | \2")],
    "readers": [(r"(DuckDB|delta-rs)[,:] (.+)", r"reader (s) | \1 | \2")],
    "object_store": [(r"(first load|increment)[,:] (.+)", r"run (s) | \1 | \2")],
    "history": [(r"(a commit) to a table that is (.+)[,:] (.+)", r"\1 to a table that is (ms) | \2 | \3")],
    "decoding": [
        (r"decoder alone, (.+ schema versions?) in a batch", r"in a batch | {unit} | \1"),
        (r"(decode rate), (.+ schema versions) / 1", r"in a batch | \1 / that of 1 version | \2"),
        (r"nested: (.+ / .+)", r"nested messages | ratio | \1"),
        (r"nested: (.+)", r"nested messages | {unit} | \1"),
        (r"(processor time), (protobuf|Avro|JSON), (.+) / good", r"\1, damaged / good | \3 | \2"),
    ],
    "rest": [(r"REST, (.+ rows/call), (.+) x (.+ calls at once)", r"{unit} | \1, \3 | \2")],
}
#: Scenario -> figures that are in the JSON only: they follow from others, or say what another scenario says.
_LEFT_OUT: Mapping[str, str] = {
    "graph": r".+ \| (k events/s|bytes an event|peak memory \(MiB\))",
    "continuous": r"memory of .+",
    "increments": r".+ \| processor time \(s\)",
    "records": r".+ \| (processor time.+|peak memory.+|bytes an event)",
    "time_breakdown": r".+ \| share \(%\)",
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
    own = scale.parts(published) | {"how": how(published)}

    def made(part: re.Match[str]) -> str:
        name = part["name"]
        return part[1] + (own[name] if name in own else _part(name, published)) + part[3]

    return _PART.sub(made, text)


def how(published: Mapping[str, Any]) -> str:
    """How most scenarios were measured."""
    if not published:
        return "Not measured yet.\n"
    common = _common(published)
    said = (
        f"{common['cores']} cores, {common['events']:,} events, commit {common['commit']}, {common['finished']}. Figures are "
        f"medians of {common['pairs']} repetitions in turns, the lowest and the highest in brackets."
    )
    return textwrap.fill(said, 120) + "\n"


def _common(published: Mapping[str, Any]) -> dict[str, Any]:
    """What most scenarios have: cores, events, ..."""
    keys = ("cores", "events", "pairs", "commit", "finished")
    return {key: Counter(measured[key] for measured in published.values()).most_common(1)[0][0] for key in keys}


def _part(name: str, published: Mapping[str, Any]) -> str:
    measured = published.get(name)
    if measured is None:
        return "Not measured yet.\n"
    left_out = _LEFT_OUT.get(name, "$")
    figures = [_placed(name, figure) for figure in measured["figures"] if not re.fullmatch(left_out, figure["name"])]
    cells = [figure for figure in figures if _CELL.fullmatch(figure["name"])]
    lines = {figure["name"]: figure for figure in figures if not _CELL.fullmatch(figure["name"])}
    text = list[str]()
    if said := " ".join(_differences(name, measured, _common(published))):
        text = [said, ""]
    text += _tables(cells)
    if cells and lines:
        text.append("")
    text += _table(lines) if lines else []
    return "\n".join(text) + "\n"


def _differences(name: str, measured: Mapping[str, Any], common: Mapping[str, Any]) -> Iterable[str]:
    """Sentences about what is not as in most scenarios."""
    if name in OTHER_MEASURES:
        yield OTHER_MEASURES[name]
    for key, sentence in {
        "cores": "{} cores.",
        "events": "{:,} events.",
        "pairs": "{} repetitions.",
        "commit": "Commit {}.",
    }.items():
        if measured[key] != common[key]:
            yield sentence.format(measured[key])


def _placed(scenario: str, figure: Mapping[str, Any]) -> Mapping[str, Any]:
    """A figure under the name that says its table, line and column, if `TABLES` gives it one."""
    for pattern, place in TABLES.get(scenario, ()):
        if match := re.fullmatch(pattern, figure["name"]):
            return {**figure, "name": match.expand(place).replace("{unit}", figure["unit"]), "alike": True}
    return figure


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
        goals = {figure["target"] for cells in lines.values() for figure in cells.values()}
        shared = goals.pop() if len(goals) == 1 else None
        title = f"{table}; goal {shared}" if shared else table
        text += ["", f"| {title} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
        for line, cells in lines.items():
            # Columns of different measures, as seconds and MiB, share a run: its spread is shown once.
            alike = any("alike" in figure for figure in cells.values())
            spread = set(columns) if alike else {columns[0]}
            row_goals = {figure["target"] for figure in cells.values()}
            of_row = row_goals.pop() if shared is None and len(row_goals) == 1 and len(cells) > 1 else None
            goal = shared is None and of_row is None
            shown = [_cell_of_many(cells.get(name), spread=name in spread, goal=goal) for name in columns]
            text.append(f"| {line}; goal {of_row} | {' | '.join(shown)} |" if of_row else f"| {line} | {' | '.join(shown)} |")
    return text[1:]


def _cell_of_many(figure: Mapping[str, Any] | None, *, spread: bool, goal: bool) -> str:
    """A median, with its spread and its goal if they are to be shown; a missed goal always is."""
    if figure is None:
        return ""
    said = [f"goal {figure['target']}"] if goal and figure["target"] else []
    said += ["missed"] if figure["target"] and not figure["met"] else []
    value = _cell(figure) if spread and figure["unit"] not in ("MiB", "us") else _number(figure["median"])
    return f"{value}; {', '.join(said)}" if said else value


def _table(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each figure; those of several numbers of games share one. Columns without content are left out."""
    several = len({match["games"] for name in figures if (match := _OF_GAMES.fullmatch(name))}) > 1
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, figure in figures.items():
        of_games = _OF_GAMES.fullmatch(name) if several else None
        line, column = (of_games["name"], of_games["games"]) if of_games else (name, "")
        rows.setdefault(line, {})[column] = figure
    columns = sorted(dict.fromkeys(column for cells in rows.values() for column in cells), key=lambda column: not column)
    table = [["figure", *(column or "median" for column in columns), "goal", "note"]]
    for name, cells in rows.items():
        unit = next(iter(cells.values()))["unit"]
        label = name if unit == "x" else f"{name} ({unit})"
        shown = (_cell(cells[column]) if column in cells else "" for column in columns)
        all_goals = (f["target"] + ("" if f["met"] else " (missed)") for f in cells.values() if f["target"])
        goals = ", ".join(dict.fromkeys(all_goals))
        parts = (part for f in cells.values() for part in f["note"].split("; "))
        notes = "; ".join(dict.fromkeys(part for part in parts if part and not _DETAIL.search(part)))
        table.append([label, *shown, goals, notes])
    kept = [place for place in range(len(table[0])) if any(row[place] for row in table[1:])]
    lines = [f"| {' | '.join(row[place] for place in kept)} |" for row in table]
    return [lines[0], "|---" * len(kept) + "|", *lines[1:]]


def _cell(figure: Mapping[str, Any]) -> str:
    median, low, high = (_number(figure[key]) for key in ("median", "min", "max"))
    return median if low == high else f"{median} ({low}..{high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    typer.run(main)
