"""The producer of a chaos run, a process of its own: wave after wave until SIGTERM, or until it is killed.

Waves differ in size, pace, schema versions and games; each has poison, duplicates and late rows. A wave that the broker's death
ends is given up: what the topic holds is the truth, not what was meant to be sent.
"""

from __future__ import annotations

import signal
import sys
from random import Random

from game_events.config.settings import load_settings
from game_events.errors import GameEventsError
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation

GAMES = ("rummy", "spades", "uno")
NEWCOMERS = 12
PARTITIONS = 4
VERSIONS = 10


def wave(seed: int, number: int) -> tuple[Simulation, bool]:
    """One wave, and whether it is sent as fast as the broker takes it."""
    draw = Random(f"{seed}/{number}")  # noqa: S311 - simulation, no secrets
    newest = min(VERSIONS, 1 + number // 3)
    versions = tuple(sorted({1, newest, draw.randint(1, newest)}))
    arrived = tuple(f"newcomer_{n:02d}" for n in range(min(NEWCOMERS, 1 + number // 2)))
    games = (*GAMES, *draw.sample(arrived, min(2, len(arrived))))
    return Simulation(
        games=games,
        versions=versions,
        records_per_game_and_version=draw.choice((5, 40, 150)),
        seed=seed * 100_000 + number,
        poison_share=0.02,
        duplicate_share=0.02,
        late_share=0.05,
    ), draw.random() < 0.3


def main() -> None:
    """Produce until told to stop; arguments: seed, records per second, number of the first wave."""
    seed, rate, number = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    settings = load_settings()
    while not stopped:
        simulation, burst = wave(seed, number)
        try:
            sent = produce(settings, simulation, partitions=PARTITIONS, rate=None if burst else rate)
            print(f"wave {number}: {sent.records_total}", flush=True)
        except GameEventsError as error:
            print(f"wave {number} given up: {error}", flush=True)
        number += 1


if __name__ == "__main__":
    main()
