"""What a warm run costs, as a formula with constants measured here; and its error for runs that it was not fitted to.

Seconds of each layer: ``constant + games * (a game with news) + made * (a game that is new) + rows * (a new row)
+ old * (an old row of a game with news)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.arena import Arena
from benchmarks.figures import Figure, Target
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh

#: Runs alike; the median counts.
REPEATED = 3
#: Distinct events of each version.
POOL = 150_000
ERROR = Target("<=", 0.3)


@dataclass(frozen=True)
class Shape:
    """A lakehouse: games, gamers of each, the records of its first load, and the new ones of the runs after it."""

    games: int
    gamers: int
    first: int
    fitted: tuple[int, ...]
    checked: tuple[int, ...] = ()

    @property
    def topic(self) -> str:
        """A topic of its own."""
        return f"bench_model_{self.games}_{self.gamers}"


SHAPES = (
    Shape(10, 100, 1_000_000, fitted=(1_000, 100_000, 1_000_000), checked=(400_000,)),
    Shape(100, 100, 300_000, fitted=(1_000, 300_000)),
    Shape(10, 30_000, 300_000, fitted=(1_000, 100_000), checked=(300_000,)),
    Shape(500, 100, 300_000, fitted=(10_000, 300_000)),
    Shape(200, 2_000, 400_000, fitted=(), checked=(5_000, 200_000)),
)
#: Layer -> what its seconds depend on, beside a constant.
LAYERS = {
    "bronze": ("games", "made", "rows"),
    "silver": ("games", "made", "rows"),
    "gold": ("games", "made", "rows", "old"),
    "unified": ("games", "made"),
}
#: Shown per so many.
UNITS = {
    "constant": (1, "s"),
    "games": (1_000, "ms a game"),
    "made": (1_000, "ms a new game"),
    "rows": (1_000_000, "s a million"),
    "old": (1_000_000, "s a million"),
}


@dataclass(frozen=True)
class Run:
    """What a run found (`made`: games without tables before), and the seconds of its layers."""

    games: int
    made: int
    rows: int
    old: int
    seconds: dict[str, float]

    def terms(self, layer: str) -> list[float]:
        """What the layer's constants are multiplied with."""
        return [1.0, *(float(getattr(self, name)) for name in LAYERS[layer])]


def model(arena: Arena) -> list[Figure]:
    """The constants of each layer, and the errors of whole runs that were not used for them."""
    fitted, checked = list[Run](), list[Run]()
    for shape in SHAPES:
        with arena.lakehouse() as root:
            fitted.append(_first_loads(arena, shape))
            _load(arena, shape, root, shape.first, -1)
            for runs, sizes in ((fitted, shape.fitted), (checked, shape.checked)):
                runs += [_measured(arena, shape, root, rows) for rows in sizes]
    constants = {layer: fit(fitted, layer) for layer in LAYERS}
    figures = [_constant(layer, name, value) for layer in LAYERS for name, value in _named(layer, constants[layer])]
    for run in checked:
        real, said = sum(run.seconds.values()), sum(predicted(run, layer, constants[layer]) for layer in LAYERS)
        name = f"{run.rows:,} new rows of {run.games:,} games beside {run.old:,} gamers: error of the formula"
        figures.append(Figure(name, "x", [abs(said - real) / real], ERROR, note=f"{said:.2f} s for {real:.2f} s"))
    return figures


def fit(runs: Iterable[Run], layer: str) -> list[float]:
    """The constants with the least squares of relative errors; one that would be negative is 0."""
    kept = list(range(1 + len(LAYERS[layer])))
    terms = np.array([run.terms(layer) for run in runs])
    seconds = np.array([run.seconds[layer] for run in runs])
    while True:
        found, *_ = np.linalg.lstsq(terms[:, kept] / seconds[:, None], np.ones(len(seconds)))
        if found.min() >= 0:
            return [float(found[kept.index(at)]) if at in kept else 0.0 for at in range(terms.shape[1])]
        del kept[int(found.argmin())]


def predicted(run: Run, layer: str, constants: Iterable[float]) -> float:
    """Seconds of the layer by the formula."""
    return sum(constant * term for constant, term in zip(constants, run.terms(layer), strict=True))


def _named(layer: str, constants: list[float]) -> Iterable[tuple[str, float]]:
    return zip(("constant", *LAYERS[layer]), constants, strict=True)


def _constant(layer: str, name: str, value: float) -> Figure:
    times, unit = UNITS[name]
    return Figure(f"{layer}: {name}", unit, [value * times])


def _first_loads(arena: Arena, shape: Shape) -> Run:
    """The same records into new lakehouses."""
    arena.produce(shape.topic, shape.first, shape.games, gamers_per_game=shape.gamers, pool_per_version=POOL)
    runs = list[Run]()
    for number in range(REPEATED):
        with arena.lakehouse() as root:
            runs.append(_load(arena, shape, root, shape.first, number))
    return Run(shape.games, shape.games, shape.first, 0, _medians(runs))


def _measured(arena: Arena, shape: Shape, root: Path, rows: int) -> Run:
    """Runs over so many new records each."""
    runs = list[Run]()
    for number in range(REPEATED):
        seed = rows + number
        arena.produce(shape.topic, rows, shape.games, seed, gamers_per_game=shape.gamers, pool_per_version=POOL)
        runs.append(_load(arena, shape, root, rows, seed))
    return Run(runs[0].games, 0, rows, runs[0].old, _medians(runs))


def _medians(runs: Sequence[Run]) -> dict[str, float]:
    return {layer: median(run.seconds[layer] for run in runs) for layer in LAYERS}


def _load(arena: Arena, shape: Shape, root: Path, rows: int, pair: int) -> Run:
    """One run over what is new."""
    reports = list[RunReport]()
    pipeline = arena.pipeline(shape.topic, root)
    arena.timed(f"run over {rows:,} records", shape.games, pair, lambda: reports.append(refresh(pipeline)), rows)
    (report,) = reports
    assert report.success, report.errors
    assert report.rows("silver") == rows, f"silver has {report.rows('silver')} new rows of {rows}"
    gold = report.of("gold")
    seconds = {layer: report.seconds[layer] for layer in LAYERS}
    return Run(len(gold), 0, rows, sum(table.table_rows for table in gold), seconds)
