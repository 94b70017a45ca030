"""The peers while they run: each a warm process, measured in the same way.

`PEERS` is the list of what is compared; each module says what its peer does not do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.arena import PARTITIONS, WARM_EVENTS, Arena, settings_for
from benchmarks.figures import Figure, Step, Target, ratio
from benchmarks.lakes import require
from benchmarks.memory import peak_of
from benchmarks.peers.environment import native_program, spark_jars
from benchmarks.peers.process import PeerProcess, peer_process
from game_events.plugins.local.producer.messages import BUILT_IN, compile_text

OURS, OURS_ONE = "this project", "this project, partitioned"
PY_GAMES, PY_ONE = "Python, table a game", "Python, partitioned"
SPARK_ONE, SPARK_GAMES = "Spark, partitioned", "Spark, table a game"
NATIVE = "native loop"
TABLES, PARTITIONED = "tables", "partitioned"
HERE = Path(__file__).parent
#: Workers of the Python consumer, threads of the native loop: as many as Spark has tasks at a time.
WORKERS = len(os.sched_getaffinity(0))
WARM_LOADS = 2


@dataclass(frozen=True)
class Kind:
    """A peer: the program that runs it, the layout it writes, whether it can go on where it stopped."""

    program: str
    layout: str
    resumes: bool = True


PEERS = {
    OURS: Kind("product", TABLES),
    OURS_ONE: Kind("product", PARTITIONED),
    NATIVE: Kind("native", TABLES, resumes=False),
    PY_GAMES: Kind("python", TABLES),
    PY_ONE: Kind("python", PARTITIONED),
    SPARK_ONE: Kind("spark", PARTITIONED),
    SPARK_GAMES: Kind("spark", TABLES),
}


@dataclass(frozen=True)
class Peer:
    """A peer that is ready to work."""

    name: str
    kind: Kind
    process: PeerProcess
    request: dict[str, object]

    def load(self, topic: str, root: Path, new: int, **more: object) -> dict[str, Any]:
        """Take in what is new, `new` records, and say how many these were and how long each step took."""
        root.mkdir(exist_ok=True)
        own = {"topic": topic, "root": str(root), "layout": self.kind.layout, "new": new}
        return self.process.ask(self.request | own | more)


@dataclass(frozen=True)
class Work:
    """One load: which topic into which lakehouse, how many records are new, games, number of the pair, more of the request."""

    topic: str
    root: Path
    new: int
    games: int
    pair: int
    more: dict[str, object] = field(default_factory=dict)


@contextmanager
def running(arena: Arena, names: Sequence[str]) -> Iterator[dict[str, Peer]]:
    """These peers, warm; without the native loop where there is no compiler for it."""
    with ExitStack() as stack:
        processes: dict[str, PeerProcess] = {}
        peers: dict[str, Peer] = {}
        request = request_of(arena)
        for name in names:
            kind = PEERS[name]
            if kind.program not in processes:
                command = command_of(kind.program, arena)
                if command is None:
                    continue
                made = stack.enter_context(peer_process(command, arena.folder, kind.program))
                arena.foreign.add(made.pid)
                processes[kind.program] = made
            peers[name] = Peer(name, kind, processes[kind.program], request)
        for peer in peers.values():
            _warm_up(arena, peer)
        yield peers


def command_of(program: str, arena: Arena) -> list[str] | None:
    """How a program is started; None: it cannot be had here."""
    if program == "product":
        return [sys.executable, "-m", "benchmarks.peers.product", str(arena.folder)]
    if program == "python":
        return [sys.executable, str(HERE / "python_consumer.py"), str(WORKERS)]
    if program == "spark":
        jars = ",".join(map(str, spark_jars(arena.say)))
        return [sys.executable, str(HERE / "spark_streaming.py"), jars]
    native = native_program(arena.say)
    return None if native is None else [str(native)]


def measured(arena: Arena, peer: Peer, step: str, work: Work) -> Step:
    """One load, with the processor time and the memory of all of the peer's processes.

    Raises:
        RuntimeError: it did not take in so many records.
    """
    os.sync()  # what the one before has written is not this one's work
    with peak_of(peer.process.pid) as peak:
        began = time.monotonic()
        answer = peer.load(work.topic, work.root, work.new, **work.more)
        seconds = time.monotonic() - began
    if answer["records"] != work.new:
        raise RuntimeError(f"{peer.name} took in {answer['records']:,} of {work.new:,} records")
    note = ", ".join(f"{name} {took:.2f}" for name, took in answer["steps"].items())
    return arena.add(Step(step, work.games, work.pair, work.new, seconds, peak.mib, peak.cpu_s, note))


def ratios_to_peers(
    seconds: Mapping[str, list[float]], label: str, goals: Mapping[str, float] = MappingProxyType({})
) -> list[Figure]:
    """This project's time by each peer's, pair by pair; in one table for all games only by peers that write one, too.

    Args:
        seconds: peer, this project included -> its seconds, pair by pair; none of a peer that could not run.
        label: of a ratio, with `{ours}` and `{peer}`.
        goals: peer -> the ratio of the default layout at most.
    """
    figures = list[Figure]()
    for ours in (OURS, OURS_ONE):
        for name, theirs in seconds.items():
            other_layout = ours == OURS_ONE and PEERS[name].layout != PARTITIONED
            if PEERS[name].program == "product" or other_layout or not theirs:
                continue
            goal = Target("<=", goals[name]) if ours == OURS and name in goals else None
            figures.append(ratio(label.format(ours=ours, peer=name), seconds[ours], theirs, goal))
    return figures


def request_of(arena: Arena) -> dict[str, object]:
    """What is the same in every request."""
    descriptor = arena.folder / "version2.desc"
    descriptor.write_bytes(compile_text(BUILT_IN.text(2)).SerializeToString())
    settings = settings_for(arena.folder, "unused", arena.folder / "unused")
    return {
        "servers": settings.kafka_bootstrap_servers,
        "partitions": PARTITIONS,
        "descriptor": str(descriptor),
        "message": BUILT_IN.message_name,
        "workers": WORKERS,
    }


def _warm_up(arena: Arena, peer: Peer) -> None:
    """First loads, so that virtual machines have compiled what they run often; the first one's rows are compared, too."""
    events = min(WARM_EVENTS, arena.events)
    topic = arena.topic(10, events)
    arena.say(f"warming up: {peer.name}")
    for number in range(WARM_LOADS):
        with arena.lakehouse() as root:
            peer.load(topic, root, events)
            if number == 0:
                require(root, events, peer.name, unified=peer.kind.layout == TABLES)
