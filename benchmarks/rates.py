"""Continuous mode: the highest rate at which the lag stays flat."""

from __future__ import annotations

import json
import signal
import time

import numpy as np

from benchmarks.arena import Arena, settings_for
from benchmarks.continuous import GAMES, STOP_S, lag_of, loop_process, rows_of, steady_producer, until
from benchmarks.figures import Figure, Target
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.sources.factory import make_source

WARM_EVENTS = 20_000
#: Events a second, one step after the other on the same tables, and how long each is sent.
RATES, STEP_S, SAMPLE_S = (40_000, 80_000, 120_000, 160_000), 30.0, 0.5
#: Flat: the median lag of the last third of a step by that of the middle one.
FLAT = 1.3
TOPIC = "bench_rates"


def rates(arena: Arena) -> list[Figure]:
    """The lag at each rate, until it grows; the run fails unless silver holds every record that was acknowledged."""
    flat, figures, sent = [0], list[Figure](), WARM_EVENTS
    with arena.lakehouse() as root:
        settings = settings_for(arena.folder, TOPIC, root)
        produce_bulk(settings, BulkSimulation(records=WARM_EVENTS, games=GAMES, versions=2), partitions=8)
        topic = make_source(settings)
        with loop_process(arena, settings) as loop:
            until(lambda: rows_of(root, "gold"), "the warm-up", loop)
            for rate in RATES:
                lag = list[float]()
                with steady_producer(arena, settings, rate, STEP_S) as producer:
                    began = time.monotonic()
                    while producer.poll() is None:
                        time.sleep(SAMPLE_S)
                        assert loop.poll() is None, "the loop has ended"
                        lag.append(lag_of(topic, settings) / rate)
                    produced = int(producer.communicate()[0].splitlines()[-1])
                sent += produced
                _, middle, last = (float(np.median(part)) for part in np.array_split(np.array(lag), 3))
                reached = produced / (time.monotonic() - began)
                note = f"{reached:,.0f} events/s were sent; last third / middle third {last / middle:.2f}"
                arena.say(f"  {rate:,} events/s: lag {middle:.2f} s, {last:.2f} s; {note}")
                figures.append(Figure(f"lag at {rate:,} events/s", "s", lag, note=note))
                until(lambda total=sent: rows_of(root, "silver") == total, "the last rows in silver", loop)
                if last > FLAT * middle:
                    break
                flat.append(int(min(rate, reached)))
            loop.send_signal(signal.SIGINT)
            out, err = loop.communicate(timeout=STOP_S)
        assert loop.returncode == 0, err[-2000:]
        assert json.loads(out.splitlines()[-1])["rows"]["silver"] == sent
    return [*figures, Figure("highest rate with a flat lag", "events/s", [float(flat[-1])], Target(">=", 100_000))]
