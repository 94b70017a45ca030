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
from rich.markup import escape

from benchmarks.arena import Arena, arena
from benchmarks.backlog import memory
from benchmarks.bookkeeping import bookkeeping
from benchmarks.cold import cold
from benchmarks.continuous import continuous, continuous_many
from benchmarks.decoding import decoding
from benchmarks.deduplicate import deduplicate
from benchmarks.figures import Figure, Step
from benchmarks.games import games
from benchmarks.graph import graph
from benchmarks.history import history
from benchmarks.iceberg import iceberg
from benchmarks.increments import increments
from benchmarks.layers import bronze, fan_out
from benchmarks.layout import layout
from benchmarks.layouts import layouts
from benchmarks.message_types import types
from benchmarks.model import model
from benchmarks.object_store import object_store
from benchmarks.output import Result, machine, table
from benchmarks.rates import rates
from benchmarks.readers import readers
from benchmarks.records import records
from benchmarks.rest import rest
from benchmarks.rules import rules
from benchmarks.starts import starts
from benchmarks.time_breakdown import time_breakdown
from benchmarks.time_travel import time_travel
from benchmarks.workers import workers

Scenario = Callable[[Arena], list[Figure]]
#: What `make bench` measures: the comparison with peers, and what a user waits for.
SHORT: dict[str, Scenario] = {
    "graph": graph,
    "increments": increments,
    "bronze": bronze,
    "fan_out": fan_out,
    "rules": rules,
    "continuous": continuous,
    "starts": starts,
}
SCENARIOS = SHORT | {
    "time_breakdown": time_breakdown,
    "records": records,
    "cold": cold,
    "continuous_many": continuous_many,
    "rates": rates,
    "games": games,
    "readers": readers,
    "object_store": object_store,
    "history": history,
    "layouts": layouts,
    "layout": layout,
    "types": types,
    "model": model,
    "memory": memory,
    "workers": workers,
    "bookkeeping": bookkeeping,
    "decoding": decoding,
    "deduplicate": deduplicate,
    "rest": rest,
    "time_travel": time_travel,
    "iceberg": iceberg,
}
QUICK_EVENTS = 100_000
QUICK_S = 20.0
RESULTS = Path(__file__).parent / "results"


def main(  # noqa: PLR0913, PLR0917 - options of a command
    events: Annotated[int, typer.Option(min=10_000, help="events of each topic; memory takes 2.5 times as many")] = 2_000_000,
    pairs: Annotated[int, typer.Option(min=1, help="interleaved repetitions")] = 3,
    seconds: Annotated[float, typer.Option(min=10, help="how long events arrive in continuous mode")] = 120,
    only: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(SCENARIOS)}; may be given again")] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"the others, too: without it {', '.join(SHORT)}")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="100,000 events, one pair, 20 s: does it run, not how fast")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="keep what --out has of this commit with these options")] = False,
    out: Annotated[Path, typer.Option(help="where the JSON goes")] = RESULTS / "latest.json",
) -> None:
    """Measure, print a table, save JSON after each scenario. Fails if one fails; a missed goal is shown, not a failure."""
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

    # The commit that is measured: another one may be there at the end.
    result = Result(machine(), {"events": events, "pairs": pairs, "seconds": seconds, "quick": quick})
    if resume:
        result.take(out)
    with arena(events, pairs, say, seconds) as place:
        for name in wanted:
            if name in result.scenarios:
                say(f"scenario {name}: measured before")
                continue
            result.add(name, *_measured(name, place))
            result.save(out)
    table(
        [figure for name in wanted for figure in result.figures_of(name)], Console(width=None if console.is_terminal else 180)
    )
    console.print(f"saved as {out}")
    if result.failed:
        raise typer.Exit(1)


def _measured(name: str, place: Arena) -> tuple[list[Figure], list[Step], float]:
    """A scenario's figures, steps and seconds; its failure is a line of the result, not the end."""
    place.say(f"scenario {name}")
    began, before = time.monotonic(), len(place.measured.steps)
    try:
        found = SCENARIOS[name](place)
    except Exception as error:  # noqa: BLE001 - see above
        place.say(escape(traceback.format_exc()))
        found = [Figure(name, "", error=f"{type(error).__name__}: {error}")]
    seconds = time.monotonic() - began
    place.say(f"scenario {name} took {seconds:.0f} s")
    return [replace(figure, scenario=name) for figure in found], place.measured.steps[before:], seconds


if __name__ == "__main__":
    typer.run(main)
