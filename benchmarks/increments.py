"""Increments: 1,000 new records, from Kafka to the unified table, of this project and its peers in turns, warm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arena import WARM_EVENTS, Arena
from benchmarks.figures import Figure, Target
from benchmarks.lakes import require
from benchmarks.peers.running import (
    OURS,
    OURS_ONE,
    PY_GAMES,
    PY_ONE,
    SPARK_GAMES,
    SPARK_ONE,
    TABLES,
    Peer,
    Work,
    measured,
    ratios_to_peers,
    running,
)

RECORDS = 1_000
FAST = (OURS, OURS_ONE, PY_GAMES, PY_ONE, SPARK_ONE)


@dataclass(frozen=True)
class Shape:
    """The lakehouse before: its games, whether each event has a gamer of its own, who has one, and this project's goal."""

    games: int
    peers: tuple[str, ...]
    goal_s: float | None
    distinct: bool = False

    @property
    def label(self) -> str:
        return f"{self.games:,} games"

    def events(self, arena: Arena) -> int:
        """Many gamers, or as many events as the warm-up has."""
        return arena.events // 4 if self.distinct else min(WARM_EVENTS, arena.events)


SHAPES = (
    Shape(10, (*FAST, SPARK_GAMES), 0.6),
    Shape(100, FAST, 1.2),
    Shape(1_000, FAST, 4),
    Shape(10, FAST, None, distinct=True),
)


def increments(arena: Arena) -> list[Figure]:
    """The lakehouses are made outside the clock; one round of each is left out."""
    figures = list[Figure]()
    with running(arena, [*FAST, SPARK_GAMES]) as peers:
        for shape in SHAPES:
            with _loaded(arena, shape, peers) as made:
                gamers = _rounds(arena, shape, peers, made)
            figures += _figures(arena, shape, gamers)
    return figures


@contextmanager
def _loaded(arena: Arena, shape: Shape, peers: dict[str, Peer]) -> Iterator[Path]:
    """A folder with each peer's lakehouse after the first load, on a topic of its own."""
    topic, events = _topic(shape), shape.events(arena)
    arena.produce(topic, events, shape.games, distinct=shape.distinct)
    with arena.lakehouse() as made:
        made.mkdir()
        for name in shape.peers:
            peers[name].load(topic, made / _folder(name), events)
        yield made


def _rounds(arena: Arena, shape: Shape, peers: dict[str, Peer], made: Path) -> int:
    """Produce and load, in turns; every lakehouse must hold every event afterwards. Returns this project's gamers."""
    total, topic = shape.events(arena), _topic(shape)
    for pair in range(-1, arena.pairs):
        arena.produce(topic, RECORDS, shape.games, seed=1_000 + pair, distinct=shape.distinct)
        total += RECORDS
        for name in shape.peers if pair % 2 == 0 else reversed(shape.peers):
            work = Work(topic, made / _folder(name), RECORDS, shape.games, pair)
            measured(arena, peers[name], _step(shape, name), work)
    found = {name: require_all(made, name, total, peers[name]) for name in shape.peers}
    return found[OURS]


def require_all(made: Path, name: str, total: int, peer: Peer) -> int:
    """Compare one peer's lakehouse with what was produced; returns its gamers."""
    return require(made / _folder(name), total, name, unified=peer.kind.layout == TABLES).gamers


def _figures(arena: Arena, shape: Shape, gamers: int) -> list[Figure]:
    table = f"{RECORDS:,} records, {shape.label}" + (f", beside {gamers:,} gamers" if shape.distinct else "")
    figures = list[Figure]()
    for name in shape.peers:
        steps = arena.measured.of(_step(shape, name), shape.games)
        goal = Target("<=", shape.goal_s) if name == OURS and shape.goal_s else None
        columns = {"s": [step.seconds for step in steps], "processor time (s)": [step.cpu_s for step in steps]}
        goals = {"s": goal}
        figures += [Figure(f"{table} | {name} | {what}", what, samples, goals.get(what)) for what, samples in columns.items()]
    seconds = {name: [step.seconds for step in arena.measured.of(_step(shape, name), shape.games)] for name in shape.peers}
    what = "increment beside many gamers" if shape.distinct else "increment"
    figures += ratios_to_peers(seconds, f"{what}: time of {{ours}} / {{peer}}, {shape.games:,} games")
    return figures


def _topic(shape: Shape) -> str:
    return f"bench_increments_{shape.games}" + ("_distinct" if shape.distinct else "")


def _folder(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _step(shape: Shape, name: str) -> str:
    return f"increment, {name}" + (", distinct" if shape.distinct else "")
