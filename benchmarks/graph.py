"""First loads of the whole graph, Kafka to the unified table, of this project and its peers in turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import Figure, Step, Target
from benchmarks.lakes import bytes_below, require
from benchmarks.peers.running import (
    NATIVE,
    OURS,
    OURS_ONE,
    PEERS,
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

#: Spark with a table for each game takes minutes for 100 games.
FAST = (OURS, OURS_ONE, NATIVE, PY_GAMES, PY_ONE, SPARK_ONE)


@dataclass(frozen=True)
class Load:
    """What is loaded: games, whether every event is another one, who loads it, and goals: peer -> its time by ours."""

    games: int
    peers: tuple[str, ...]
    goals: Mapping[str, float]
    distinct: bool = False

    @property
    def label(self) -> str:
        return f"{self.games:,} games" + (", every event distinct" if self.distinct else "")

    def events(self, arena: Arena) -> int:
        """Half as many distinct ones: making them takes longer than loading them."""
        return arena.events // 2 if self.distinct else arena.events


#: Peer -> this project's time by the peer's, at most.
REPEATING_GOALS = {SPARK_ONE: 1 / 4, PY_GAMES: 1.1, NATIVE: 1.7}
LOADS = (
    Load(10, (*FAST, SPARK_GAMES), REPEATING_GOALS),
    Load(100, FAST, REPEATING_GOALS),
    Load(1_000, FAST, REPEATING_GOALS),
    Load(10, FAST, {SPARK_ONE: 1 / 4, PY_GAMES: 0.5, NATIVE: 1.7}, distinct=True),
)
CPU_GOAL = Target("<=", 3.5)

#: Label of a load, peer -> bytes written for each event, pair by pair.
Sizes = dict[tuple[str, str], list[float]]


def graph(arena: Arena) -> list[Figure]:
    """Each load on a new lakehouse; whose turn is first changes from pair to pair."""
    sizes: Sizes = defaultdict(list)
    with running(arena, list(PEERS)) as peers:
        for load in LOADS:
            present = [peers[name] for name in load.peers if name in peers]
            for pair in range(arena.pairs):
                for peer in present if pair % 2 == 0 else reversed(present):
                    sizes[load.label, peer.name].append(_load(arena, load, peer, pair))
    figures = list[Figure]()
    for load in LOADS:
        for name in load.peers:
            if (load.label, name) in sizes:
                figures += _figures(arena, load, name, sizes[load.label, name])
        figures += _ratios(arena, load)
    return figures


def _load(arena: Arena, load: Load, peer: Peer, pair: int) -> float:
    """One first load; returns the bytes written for each event."""
    events = load.events(arena)
    topic = arena.topic(load.games, events, distinct=load.distinct)
    with arena.lakehouse() as root:
        measured(arena, peer, _step(load, peer.name), Work(topic, root, events, load.games, pair))
        found = require(root, events, peer.name, unified=peer.kind.layout == TABLES)
        expected = load.games if peer.kind.layout == TABLES else 1
        assert found.gold_tables == expected, f"{peer.name} has {found.gold_tables} gold tables, not {expected}"
        return bytes_below(root) / events


def _step(load: Load, name: str) -> str:
    return f"first load, {name}" + (", distinct" if load.distinct else "")


def _figures(arena: Arena, load: Load, name: str, sizes: list[float]) -> list[Figure]:
    """A line of the load's table."""
    steps = arena.measured.of(_step(load, name), load.games)
    goal = CPU_GOAL if name == OURS and load.games == 10 and not load.distinct else None
    columns = {
        "s": [step.seconds for step in steps],
        "k events/s": [step.rate / 1_000 for step in steps],
        "processor time an event (us)": [step.cpu_s / step.events * 1e6 for step in steps],
        "peak memory (MiB)": [step.peak_mib for step in steps],
        "bytes an event": sizes,
    }
    goals = {"processor time an event (us)": goal}
    return [Figure(f"{load.label} | {name} | {what}", what, samples, goals.get(what)) for what, samples in columns.items()]


def _ratios(arena: Arena, load: Load) -> list[Figure]:
    """This project's time by each peer's, pair by pair."""
    seconds = {name: _seconds(arena.measured.of(_step(load, name), load.games)) for name in load.peers}
    label = f"{_named(load)}: time of {{ours}} / {{peer}}, {load.games:,} games"
    return ratios_to_peers(seconds, label, load.goals)


def _named(load: Load) -> str:
    return "every event distinct" if load.distinct else "first load"


def _seconds(steps: list[Step]) -> list[float]:
    return [step.seconds for step in steps]
