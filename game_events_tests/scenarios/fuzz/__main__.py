"""`python -m game_events_tests.scenarios.fuzz`: random steps against real Spark; what fails is printed and made shorter."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from game_events_tests.scenarios.fuzz.running import FILES, KAFKA, SOURCES, Failure, Fuzz
from game_events_tests.scenarios.fuzz.steps import Step, sequence
from game_events_tests.support.servers import shared_servers
from game_events_tests.support.servers.spark_kinds import LOCAL, spark_of


def seeds(text: str) -> Sequence[int]:
    """``1-20``, ``7`` or ``3,5-9``."""
    parts = [part.partition("-") for part in text.split(",")]
    return list(chain.from_iterable(range(int(low), int(high or low) + 1) for low, _, high in parts))


def main() -> int:
    """Exit code 0 if every table was right at every look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=seeds("1-5"), help="1-20, 7 or 3,5-9")
    parser.add_argument("--steps", type=int, default=60, help="of each seed; fewer are its first ones")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="seeds that are begun later are left out")
    parser.add_argument("--source", choices=SOURCES, default=FILES)
    parser.add_argument("--replay", help="these steps instead, as a failure prints them")
    parser.add_argument("--shorten", type=float, default=5.0, help="minutes that are spent on making a failure shorter")
    parser.add_argument("--quiet", action="store_true", help="only what fails")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    say = (lambda _: None) if given.quiet else (lambda line: print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True))
    failed: list[int] = []
    with environment(), shared_servers.servers_of_this_run():
        servers = Path(os.environ[shared_servers.VARIABLE])
        stack = shared_servers.SharedServers(servers).stack() if given.source == KAFKA else None
        with tempfile.TemporaryDirectory() as folder, spark_of(LOCAL, Path(folder), servers) as spark:
            fuzz = Fuzz(spark, given.source, stack, say)
            if given.replay:
                found = fuzz.failure([Step.parse(word) for word in given.replay.split()])
                print(found or "all is right")
                return int(found is not None)
            for seed in given.seeds:
                if time.monotonic() > until:
                    break
                began = time.monotonic()
                found = fuzz.failure(sequence(seed, given.steps), until)
                print(f"seed {seed}: {'FAILED' if found else 'right'}, {time.monotonic() - began:.0f} s", flush=True)
                if found is not None:
                    failed.append(seed)
                    _tell(fuzz, found, given.shorten)
            for what, places in (("killed", fuzz.killed), ("met other work", fuzz.met)):
                print(f"{what} at {', '.join(f'{name} {times}' for name, times in sorted(places.items()))}")
    print(f"failed: {failed or 'none'}")
    return int(bool(failed))


def _tell(fuzz: Fuzz, found: Failure, minutes: float) -> None:
    print(found, flush=True)
    shorter = fuzz.shorter(found, time.monotonic() + 60 * minutes)
    if len(shorter.steps) < len(found.steps):
        print(f"\nshorter:\n{shorter}", flush=True)


@contextmanager
def environment() -> Iterator[None]:
    """As the tests have it: neither the user's settings nor the user's stack."""
    saved = dict(os.environ)
    for name in [n for n in os.environ if n.startswith("GAME_EVENTS_") and n not in KEPT]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"GAME_EVENTS_STATE_DIR": f"{home}/state", "GAME_EVENTS_MODE": "development", "DAGSTER_HOME": home}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(saved)


KEPT = ("GAME_EVENTS_CACHE", shared_servers.VARIABLE, shared_servers.OWNER)

if __name__ == "__main__":
    sys.exit(main())
