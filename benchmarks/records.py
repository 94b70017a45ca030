"""First loads by the shape of the data: sizes of records, and one game with most; this project and its peers in turns."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.figures import Figure, ratio
from benchmarks.lakes import bytes_below, require
from benchmarks.peers.running import NATIVE, OURS, PY_GAMES, Peer, Work, measured, running

GAMES = 10
NAMES = (OURS, NATIVE, PY_GAMES)
#: Bytes of an event without more, frame included: 66 or 82.
PLAIN_BYTES = 75


@dataclass(frozen=True)
class Data:
    """What is loaded: its name, the characters that each event has more, and the share of the first game."""

    label: str
    more_bytes: int = 0
    hot_share: float | None = None


DATA = (
    Data("80 bytes a record"),
    Data("300 bytes a record", more_bytes=300 - PLAIN_BYTES),
    Data("2,000 bytes a record", more_bytes=2_000 - PLAIN_BYTES),
    Data("80% in one game", hot_share=0.8),
)


def records(arena: Arena) -> list[Figure]:
    """An eighth of the events, each another one, as making them takes longer than loading them; one round is left out."""
    sizes: dict[tuple[str, str], list[float]] = {}
    with running(arena, NAMES) as peers:
        for data in DATA:
            for pair in range(-1, arena.pairs):
                for peer in peers.values():
                    written = _load(arena, data, peer, pair)
                    if pair >= 0:
                        sizes.setdefault((data.label, peer.name), []).append(written)
    figures = list[Figure]()
    for (label, name), bytes_each in sizes.items():
        steps = arena.measured.of(_step(label, name), GAMES)
        columns: dict[str, list[float]] = {
            "k events/s": [step.rate / 1_000 for step in steps],
            "processor time an event (us)": [step.cpu_s / step.events * 1e6 for step in steps],
            "peak memory (MiB)": [step.peak_mib for step in steps],
            "bytes an event": bytes_each,
        }
        figures += [Figure(f"every event distinct, {label} | {name} | {what}", what, found) for what, found in columns.items()]
    for data in DATA:
        ours, theirs = (arena.measured.seconds([_step(data.label, name)], GAMES) for name in (OURS, PY_GAMES))
        figures.append(ratio(f"{data.label}: this project's time / {PY_GAMES}", ours, theirs))
    return figures


def _load(arena: Arena, data: Data, peer: Peer, pair: int) -> float:
    events = arena.events // 8
    topic = arena.topic(GAMES, events, data.hot_share, distinct=True, more_bytes=data.more_bytes)
    with arena.lakehouse() as root:
        measured(arena, peer, _step(data.label, peer.name), Work(topic, root, events, GAMES, pair))
        require(root, events, peer.name)
        return bytes_below(root) / events


def _step(label: str, name: str) -> str:
    return f"{label}, {name}"
