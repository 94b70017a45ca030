"""Peak memory of a process and all its descendants: driver Python, JVM, Python workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

INTERVAL_S = 0.05
#: A sample walks page tables (some ms for a JVM): never more than this share of the time goes into it.
SHARE = 0.05
#: What is summed: shared pages (forked workers, libraries) count once in all, not once for each process.
MEASURE = "PSS"
MIB = 1024 * 1024


@dataclass
class Peak:
    """The highest sum seen; `samples` says how often was looked."""

    mib: float = 0.0
    samples: int = 0
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)


def tree_mib(root: int, exclude: Collection[int] = ()) -> float:
    """Memory of a process and its descendants now; `exclude` and what descends from them is left out."""
    total = 0
    try:
        waiting = [psutil.Process(root)]
    except psutil.NoSuchProcess:
        return 0.0
    while waiting:
        process = waiting.pop()
        if process.pid in exclude:
            continue
        total += _pss(process.pid)
        try:
            waiting += process.children()
        except psutil.NoSuchProcess:
            continue
    return total / MIB


@contextmanager
def peak_of(root: int, exclude: Collection[int] = ()) -> Iterator[Peak]:
    """Sample while the body runs."""
    peak = Peak()

    def watch() -> None:
        pause = 0.0
        while not peak._stop.wait(pause):
            began = time.monotonic()
            peak.mib = max(peak.mib, tree_mib(root, exclude))
            peak.samples += 1
            pause = max(INTERVAL_S, (time.monotonic() - began) / SHARE)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        peak._stop.set()
        thread.join()


def _pss(pid: int) -> int:
    """One process; 0 for one that ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    line = next((part for part in text.splitlines() if part.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024
