"""A producer in a process of its own: events at a steady rate, evenly over the games, for a number of seconds."""

from __future__ import annotations

import signal
import sys
import time
from itertools import cycle
from pathlib import Path
from types import FrameType

from benchmarks.arena import PARTITIONS, settings_for
from game_events.plugins.local.producer.messages import KafkaWriter
from game_events.plugins.local.producer.produce import EventEncoder, encode_pool, register_versions
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.schema_registry import registry_client
from game_events.sources.kafka.client import ensure_topic

#: Batches a second: an event waits at most that long before it is stamped and sent.
STEPS = 50
POOL = 20_000


def main(folder: Path, topic: str, shape: tuple[int, int], rate: int, seconds: float) -> None:
    """Prints `ready`, waits for a line, sends; prints how many records were acknowledged, at the end or when asked to stop.

    `shape`: games, and gamers of each.
    """
    stopped = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    settings = settings_for(folder, topic, folder / "unused")
    ensure_topic(settings, PARTITIONS)
    games, gamers = shape
    pool = max(POOL, games * gamers // 2)
    simulation = BulkSimulation(records=pool, games=games, versions=2, gamers_per_game=gamers, pool_per_version=pool // 2)
    registry = registry_client(settings)
    encoder = EventEncoder(register_versions(registry, settings, simulation.version_numbers), registry)
    messages = encode_pool(simulation.pool(), encoder)
    size = max(1, rate // STEPS)
    chunks = cycle([messages[start : start + size] for start in range(0, len(messages) - size + 1, size)])
    print("ready", flush=True)
    sys.stdin.readline()
    sent, began = 0, time.monotonic()
    with KafkaWriter(settings, {"linger.ms": 5}) as writer:
        while not stopped and time.monotonic() - began < seconds:
            chunk = next(chunks)
            writer.write_batch(chunk)
            sent += len(chunk)
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
    print(sent, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], (int(sys.argv[3]), int(sys.argv[4])), int(sys.argv[5]), float(sys.argv[6]))
