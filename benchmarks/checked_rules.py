"""Rules: a first load and increments with five ordinary rules, beside the same without, in turns."""

from __future__ import annotations

from benchmarks.arena import WARM_EVENTS, Arena
from benchmarks.figures import Figure, ratio
from benchmarks.lakes import require
from benchmarks.peers.running import OURS, Peer, Work, measured, running

GAMES, RECORDS = 10, 1_000
#: Range, not null, set, pattern, and a comparison of two columns; every event satisfies them.
CONDITIONS = {
    "time_in_range": "event_timestamp BETWEEN TIMESTAMP '2020-01-01' AND TIMESTAMP '2040-01-01'",
    "has_a_gamer": "gamer_id IS NOT NULL",
    "known_device": "device_id IN (" + ", ".join(f"'device_{number}'" for number in range(10)) + ")",
    "gamer_has_a_number": "gamer_id RLIKE '^[a-z_0-9]+-[0-9]{4,}$'",
    "gamer_is_not_the_device": "gamer_id <> device_id",
}
RULES = [{"name": name, "sql": sql, "action": "quarantine"} for name, sql in CONDITIONS.items()]
HOW: dict[str, dict[str, object]] = {"without rules": {}, "with five rules": {"rules": RULES}}


def rules(arena: Arena) -> list[Figure]:
    """One round of each is left out."""
    with running(arena, [OURS]) as peers:
        for pair in range(-1, arena.pairs):
            for how, settings in HOW.items():
                _first_load(arena, peers[OURS], how, settings, pair)
        _increments(arena, peers[OURS])
    figures = list[Figure]()
    for what in ("first load", "increment"):
        plain, ruled = (arena.measured.of(f"{what} {how}", GAMES) for how in HOW)
        for how, steps in zip(HOW, (plain, ruled), strict=True):
            figures.append(Figure(f"{what} {how}", "s", [step.seconds for step in steps]))
            figures.append(Figure(f"{what} {how}, processor time", "s", [step.cpu_s for step in steps]))
        times = ([step.seconds for step in ruled], [step.seconds for step in plain])
        figures.append(ratio(f"{what}: with five rules / without", *times))
        spent = ([step.cpu_s for step in ruled], [step.cpu_s for step in plain])
        figures.append(ratio(f"{what}: processor time with five rules / without", *spent))
    return figures


def _first_load(arena: Arena, peer: Peer, how: str, settings: dict[str, object], pair: int) -> None:
    topic = arena.topic(GAMES)
    with arena.lakehouse() as root:
        more: dict[str, object] = {"settings": settings}
        measured(arena, peer, f"first load {how}", Work(topic, root, arena.events, GAMES, pair, more))
        require(root, arena.events, peer.name)


def _increments(arena: Arena, peer: Peer) -> None:
    topic, total = "bench_rules", min(WARM_EVENTS, arena.events)
    arena.produce(topic, total, GAMES)
    with arena.lakehouse() as made:
        made.mkdir()
        for number, settings in enumerate(HOW.values()):
            peer.load(topic, made / str(number), total, settings=settings)
        for pair in range(-1, arena.pairs):
            arena.produce(topic, RECORDS, GAMES, seed=1_000 + pair)
            total += RECORDS
            for number, (how, settings) in enumerate(HOW.items()):
                more: dict[str, object] = {"settings": settings}
                measured(arena, peer, f"increment {how}", Work(topic, made / str(number), RECORDS, GAMES, pair, more))
        for number in range(len(HOW)):
            require(made / str(number), total, peer.name)
