"""Memory: a large backlog, nine tenths of it in one game, through the whole graph in a fresh process with default settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.arena import Arena, make_spark, settings_for
from benchmarks.figures import Figure, Step, Target
from benchmarks.memory import MEASURE, peak_of
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.refresh import refresh

GAMES = 10
HOT_SHARE = 0.9
#: Times the size of the other scenarios: 5 million events beside 2 million.
BACKLOG = 2.5
LIMIT_GIB = 2
TIMEOUT_S = 3600


def memory(arena: Arena) -> list[Figure]:
    """Peak of the process tree while it works the backlog off, JVM start included, broker and registry not."""
    events = int(arena.events * BACKLOG)
    topic = arena.topic(GAMES, events, HOT_SHARE)
    arena.say(f"refreshing a backlog of {events:,} events in a process of its own")
    with arena.lakehouse() as root:
        command = [sys.executable, "-m", "benchmarks.backlog", str(arena.folder), topic, str(root)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        arena.foreign.add(child.pid)
        try:
            with peak_of(child.pid) as peak:
                out, err = child.communicate(timeout=TIMEOUT_S)
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    if child.returncode != 0:
        raise RuntimeError(f"the refresh ended with {child.returncode}: {err[-2000:]}")
    result = json.loads(out.splitlines()[-1])
    assert result["silver"] == events, f"silver has {result['silver']} of {events} rows"
    step = arena.add(Step("backlog", GAMES, 0, events, result["seconds"], peak.mib, peak.cpu_s, "JVM start included"))
    name = f"peak memory, backlog of {events:,} events, 90% in one game"
    note = f"{MEASURE} of driver, JVM and Python workers ({peak.samples} samples), without broker; {step.seconds:.0f} s"
    return [Figure(name, "GiB", [peak.mib / 1024], Target("<=", LIMIT_GIB), note)]


def main(folder: Path, topic: str, lakehouse: Path) -> None:
    """The child: one refresh; prints its rows and seconds."""
    settings = settings_for(folder, topic, lakehouse)
    report = refresh(Pipeline(settings, lambda: make_spark(settings)))
    assert report.success, report.errors
    print(json.dumps({"silver": report.rows("silver"), "seconds": sum(report.seconds.values())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
