"""The generated parts of docs/scale.md: the formula of a run, its errors, and what follows for 1 and 10 TB a day.

All from the published scenario `model`; the published first loads (`graph`) check it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Names of the parts.
FORMULA, CHECKED, DAILY = "formula", "formula_checked", "daily"
#: Terms of a layer -> what they are called in the formula, and per how many.
TERMS = {"constant": ("", 1), "games": ("games", 1), "made": ("new games", 1), "rows": ("per million rows", 1e6)}
TERMS["old"] = ("per million old rows", 1e6)
LAYERS = ("bronze", "silver", "gold", "unified")
#: Most by which the formula may miss a published first load.
LIMIT = 0.3
_FIRST_LOAD = re.compile(r"(?P<games>[\d,]+) games \| this project \| s")
_ERROR = re.compile(r"(?P<run>.+): error of the formula")
#: Of the example: bytes a record, games, old rows, and TB a day -> cores.
RECORD_BYTES, GAMES, OLD_ROWS = 200, 200, 10_000_000
CORES = {1: (2,), 10: (8, 16)}
DAY_S = 86_400


@dataclass(frozen=True)
class Formula:
    """Constants: layer -> term -> seconds for one."""

    constants: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, measured: Mapping[str, Any]) -> Formula:
        """From the published figures, which are in s, ms or s a million."""
        scales = {"s": 1.0, "ms a game": 1e-3, "ms a new game": 1e-3, "s a million": 1e-6}
        constants: dict[str, dict[str, float]] = {layer: {} for layer in LAYERS}
        for figure in measured["figures"]:
            layer, _, term = figure["name"].partition(": ")
            if layer in constants and term in TERMS:
                constants[layer][term] = figure["median"] * scales[figure["unit"]]
        return cls(constants)

    def of_term(self, term: str) -> float:
        """Of all layers together."""
        return sum(terms.get(term, 0.0) for terms in self.constants.values())

    def seconds(self, *, games: float = 0, made: float = 0, rows: float = 0, old: float = 0) -> float:
        """Of a whole run."""
        values = {"constant": 1.0, "games": games, "made": made, "rows": rows, "old": old}
        return sum(self.of_term(term) * value for term, value in values.items())


def parts(published: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text of each generated part."""
    measured = published.get("model")
    if measured is None:
        return dict.fromkeys((FORMULA, CHECKED, DAILY), "Not measured yet.\n")
    formula = Formula.of(measured)
    where = f"{measured['cores']} cores, commit {measured['commit']}, {measured['finished']}"
    return {
        FORMULA: _formula(formula, where),
        CHECKED: _checked(measured, formula, published.get("graph")),
        DAILY: _daily(formula),
    }


def first_loads(published: Mapping[str, Any]) -> dict[int, tuple[float, int]]:
    """Games -> seconds of the published first load, and its events."""
    graph = published.get("graph") or {"figures": ()}
    found = dict[int, tuple[float, int]]()
    for figure in graph["figures"]:
        if match := _FIRST_LOAD.fullmatch(figure["name"]):
            found[int(match["games"].replace(",", ""))] = figure["median"], graph["events"]
    return found


def disagreements(published: Mapping[str, Any]) -> list[str]:
    """A sentence for each published first load that the formula misses, and one if they are of different commits."""
    model, graph = published.get("model"), published.get("graph")
    if model is None or graph is None:
        return []
    if model["commit"] != graph["commit"]:
        return [f"the formula is of commit {model['commit']}, the first loads are of {graph['commit']}: measure both at one"]
    formula, problems = Formula.of(model), list[str]()
    for games, (seconds, events) in first_loads(published).items():
        said = formula.seconds(games=games, made=games, rows=events)
        if abs(said - seconds) > LIMIT * seconds:
            problems.append(f"the formula says {said:.2f} s for a first load of {games:,} games that took {seconds:.2f} s")
    return problems


def _formula(formula: Formula, where: str) -> str:
    lines = ["<!-- not run: a formula -->", "```text"]
    together = {term: formula.of_term(term) for term in TERMS}
    for name, terms in (*formula.constants.items(), ("together", together)):
        shown = []
        for term, (label, per) in TERMS.items():
            value = terms.get(term, 0.0) * per
            between = " * " if term in ("games", "made") else " "
            shown.append(f"{value:.4f}{between}{label}" if per == 1 and label else f"{value:.2f}{between}{label}".rstrip())
        kept = [text for text, term in zip(shown, TERMS, strict=True) if terms.get(term)]
        lines.append(f"{name:<9} {' + '.join(kept)}")
    return "\n".join([f"{where}:", "", *lines, "```"]) + "\n"


def _checked(measured: Mapping[str, Any], formula: Formula, graph: Mapping[str, Any] | None) -> str:
    lines = ["| run | formula and measured | error |", "|---|---|---|"]
    for figure in measured["figures"]:
        if match := _ERROR.fullmatch(figure["name"]):
            lines.append(f"| {match['run']} | {figure['note']} | {figure['median']:.0%} |")
    for games, (seconds, events) in first_loads({"graph": graph} if graph else {}).items():
        said = formula.seconds(games=games, made=games, rows=events)
        run = f"first load of {events:,} rows of {games:,} games ([benchmarks](benchmarks.md))"
        lines.append(f"| {run} | {said:.2f} s for {seconds:.2f} s | {abs(said - seconds) / seconds:.0%} |")
    return "\n".join(lines) + "\n"


def _daily(formula: Formula) -> str:
    """Runs one after the other, each over what came during the one before."""
    fixed = formula.seconds(games=GAMES, old=OLD_ROWS)
    each = formula.of_term("rows")
    lines = ["| | records a second | work for new records, each second | cores | a run takes | a record is in gold after |"]
    lines.append("|---" * 6 + "|")
    for terabytes, cores in CORES.items():
        rate = terabytes * 1e12 / RECORD_BYTES / DAY_S
        for count in cores:
            busy = each * rate * 2 / count
            run = fixed / (1 - busy) if busy < 1 else float("inf")
            took = f"{run:.0f} s | {run / 2:.0f} to {2 * run:.0f} s" if busy < 1 else "longer and longer | never"
            lines.append(f"| {terabytes} TB a day | {rate:,.0f} | {each * rate:.2f} s on 2 cores | {count} | {took} |")
    text = f"A run over all of {GAMES} games costs {fixed:.1f} s, whatever is new, and {each * 1e6:.2f} us for each new record."
    return "\n".join([text, "", *lines]) + "\n"
