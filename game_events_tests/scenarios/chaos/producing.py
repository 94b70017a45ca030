"""The producer of a chaos run, a process of its own: wave after wave until SIGTERM, or until it is killed.

Waves differ in source, message type, size, pace, schema versions and games; each has poison, late rows, and events that are
sent twice, one right after the other. Some waves are sent again, perhaps to the other source, as by a client without an answer.
A wave that the broker's death ends is given up: what the topics hold is the truth, not what was meant to be sent.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from random import Random

from game_events.config.settings import Settings, load_settings
from game_events.errors import GameEventsError
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events.plugins.local.settings import Generator, SampleData
from game_events_tests.scenarios.chaos.declared import GAMES, MESSAGES, OTHER_NAMES, SOURCES, proto_text

NEWCOMERS = 12
PARTITIONS = 4
VERSIONS = 10
#: Numbers of waves of one producer; the next one's begin there.
WAVES_EACH = 1_000
#: So many waves back is one that is sent again.
MOST_BACK = 4
DEVICES = Generator(kind="numbered", prefix="device_", count=10)


@dataclass(frozen=True)
class Wave:
    """One wave; `burst`: it is sent as fast as the broker takes it."""

    source: str
    message: str
    simulation: Simulation
    burst: bool


def wave(seed: int, number: int) -> Wave:
    """The wave of that number: a new one, or one of those before it once more."""
    draw = Random(f"{seed}/{number}")  # noqa: S311 - simulation, no secrets
    message = draw.choice(list(MESSAGES))
    if number % WAVES_EACH and draw.random() < 0.3:
        before = wave(seed, number - draw.randint(1, min(MOST_BACK, number % WAVES_EACH)))
        return replace(before, source=draw.choice(MESSAGES[before.message][0]))
    newest = min(VERSIONS, 1 + number // 3)
    versions = tuple(sorted({1, newest, draw.randint(1, newest)}))
    arrived = tuple(f"newcomer_{n:02d}" for n in range(min(NEWCOMERS, 1 + number // 2)))
    games = (*GAMES, *OTHER_NAMES, *draw.sample(arrived, min(2, len(arrived))))
    simulation = Simulation(
        games=games,
        versions=versions,
        records_per_game_and_version=draw.choice((5, 40, 150)),
        seed=seed * 100_000 + number,
        poison_share=0.02,
        duplicate_share=0.02,
        late_share=0.05,
    )
    return Wave(draw.choice(MESSAGES[message][0]), message, simulation, draw.random() < 0.3)


def settings_of(settings: Settings, wave: Wave) -> Settings:
    """Those of the source, with the wave's message."""
    proto = settings.state_dir / f"{wave.message}.proto"
    proto.write_text(proto_text(wave.message))
    sample = SampleData(proto=proto, fields={"device_id": DEVICES})
    return settings.model_copy(update={"sources": {}, "kafka_topic": SOURCES[wave.source], "producer": sample})


def main() -> None:
    """Produce until told to stop; arguments: seed, records per second, number of the first wave."""
    seed, rate, number = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    settings = load_settings()
    while not stopped:
        next_one = wave(seed, number)
        how = settings_of(settings, next_one)
        try:
            sent = produce(how, next_one.simulation, partitions=PARTITIONS, rate=None if next_one.burst else rate)
            print(f"wave {number}: {sent.records_total} {next_one.message} to {next_one.source}", flush=True)
        except GameEventsError as error:
            print(f"wave {number} given up: {error}", flush=True)
        number += 1


if __name__ == "__main__":
    main()
