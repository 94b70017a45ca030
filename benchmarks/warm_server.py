"""One run with a JVM of its own against one on the server of `game-events up`: `python -m benchmarks.warm_server [PAIRS]`.

Each run is a process, as Dagster starts them, and finds 100 new records of each simulated game: the time is that of a small
materialization, start of the process included. The two kinds take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from game_events.cli.local.spark_server import WarmSpark
from game_events.config.settings import load_settings
from game_events.stack import local_stack

COMMAND = (sys.executable, "-c", "from game_events.cli.main import main; main()")
OWN, SHARED = "own JVM", "shared server"


def _call(environment: Mapping[str, str], folder: Path, *arguments: str) -> dict[str, object]:
    """A command's `--json` result."""
    done = subprocess.run(
        [*COMMAND, *arguments, "--json"], env=dict(environment), cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(pairs: int) -> dict[str, list[float]]:
    """Kind -> seconds of each run, without a first one of each kind, which makes tables and warms the server."""
    found: dict[str, list[float]] = {OWN: [], SHARED: []}
    with tempfile.TemporaryDirectory(prefix="game-events-bench-") as name:
        folder = Path(name)
        own = {key: value for key, value in os.environ.items() if not key.startswith("GAME_EVENTS_") or key.endswith("_CACHE")}
        own |= {"GAME_EVENTS_STATE_DIR": str(folder / "state"), "GAME_EVENTS_LAKEHOUSE": str(folder / "lakehouse")}
        local_stack.up(folder / "state")
        warm = WarmSpark(load_settings(state_dir=folder / "state"), print)
        try:
            warm.start()
            for number in range(pairs + 1):
                for kind, environment in ((OWN, own | {"GAME_EVENTS_WARM_SPARK": "false"}), (SHARED, own)):
                    _call(own, folder, "produce", "--records", "100", "--seed", str(2 * number + (kind == SHARED)))
                    began = time.monotonic()
                    report = _call(environment, folder, "run")
                    seconds = time.monotonic() - began
                    print(f"{kind:14} {seconds:6.1f} s  layers {report['seconds']}", flush=True)
                    if number:
                        found[kind].append(seconds)
        finally:
            warm.end()
            local_stack.down(folder / "state")
    return found


if __name__ == "__main__":
    for kind, times in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5).items():
        print(f"{kind}: median {statistics.median(times):.1f} s of {len(times)} runs")
