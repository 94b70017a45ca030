"""`make bench`, `make bench-all`: scenarios in one run on one machine, so that ratios mean something."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.arena import Arena, arena
from benchmarks.backlog import memory
from benchmarks.bookkeeping import bookkeeping
from benchmarks.continuous import continuous
from benchmarks.decoding import decoding
from benchmarks.figures import Figure
from benchmarks.games import games
from benchmarks.graph import graph
from benchmarks.history import history
from benchmarks.increments import increments
from benchmarks.layers import bronze, fan_out
from benchmarks.layouts import layouts
from benchmarks.model import model
from benchmarks.output import machine, save, table
from benchmarks.rates import rates
from benchmarks.rest import rest
from benchmarks.rules import rules
from benchmarks.starts import starts
from benchmarks.workers import workers

Scenario = Callable[[Arena], list[Figure]]
#: What `make bench` measures.
SHORT: dict[str, Scenario] = {
    "decoding": decoding,
    "bronze": bronze,
    "fan_out": fan_out,
    "graph": graph,
    "increments": increments,
    "games": games,
    "continuous": continuous,
    "starts": starts,
}
SCENARIOS = SHORT | {
    "history": history,
    "layouts": layouts,
    "model": model,
    "bookkeeping": bookkeeping,
    "memory": memory,
    "rates": rates,
    "rest": rest,
    "rules": rules,
    "workers": workers,
}
QUICK_EVENTS = 200_000
QUICK_S = 20.0
RESULTS = Path(__file__).parent / "results"


def main(
    events: Annotated[int, typer.Option(min=1_000, help="events of each topic; memory takes 2.5 times as many")] = 1_000_000,
    pairs: Annotated[int, typer.Option(min=1, help="interleaved repetitions")] = 3,
    seconds: Annotated[float, typer.Option(min=10, help="how long events arrive in continuous mode")] = 120,
    only: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(SCENARIOS)}; may be given again")] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"the others, too: without it {', '.join(SHORT)}")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="200,000 events, one pair, 20 s: does it run, not how fast")] = False,
    out: Annotated[Path, typer.Option(help="where the JSON goes")] = RESULTS / "latest.json",
) -> None:
    """Measure, print a table, save JSON. Fails if a scenario fails; a missed target is shown, not a failure."""
    wanted = only or list(SCENARIOS if everything else SHORT)
    unknown = sorted(set(wanted) - set(SCENARIOS))
    if unknown:
        raise typer.BadParameter(f"no scenario {', '.join(unknown)}: give {', '.join(SCENARIOS)}", param_hint="--only")
    if quick:
        events, pairs, seconds = QUICK_EVENTS, 1, QUICK_S
    # A polite kill unwinds as Ctrl-C does, so that servers stop and folders go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(soft_wrap=True)
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.0f} s[/] {line}", highlight=False)

    figures: list[Figure] = []
    # The commit that is measured: another one may be there at the end.
    began_on = machine()
    with arena(events, pairs, say, seconds) as place:
        for name in wanted:
            say(f"scenario {name}")
            try:
                found = SCENARIOS[name](place)
            except Exception as error:  # noqa: BLE001 - one scenario's failure is a line of the result, not the end
                say(traceback.format_exc())
                found = [Figure(name, "", error=f"{type(error).__name__}: {error}")]
            figures += [replace(figure, scenario=name) for figure in found]
        options = {"events": events, "pairs": pairs, "seconds": seconds, "scenarios": wanted, "quick": quick}
        save(out, options, began_on, figures, place.measured.steps)
    table(figures, Console(width=None if console.is_terminal else 180))
    console.print(f"saved as {out}")
    if any(figure.error is not None for figure in figures):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
