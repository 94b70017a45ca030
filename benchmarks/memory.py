"""Peak memory and processor time of a process and all its descendants: driver Python, JVM, Python workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
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
    """The highest sum seen, how often was looked, and the processor time spent."""

    mib: float = 0.0
    samples: int = 0
    cpu_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)


def tree(root: int, exclude: Collection[int] = ()) -> Iterator[psutil.Process]:
    """A process and its descendants; `exclude` and what descends from them is left out."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in exclude:
            continue
        try:
            process = psutil.Process(pid)
            children = [child.pid for child in process.children()]
        except psutil.NoSuchProcess:
            continue
        waiting += children
        yield process


def tree_mib(root: int, exclude: Collection[int] = ()) -> float:
    """Memory of a process tree now."""
    return sum(_pss(process.pid) for process in tree(root, exclude)) / MIB


def tree_parts_mib(root: int) -> dict[str, float]:
    """Memory of a Spark driver's process tree now, by part: the driver itself, its JVM, the workers."""
    parts = {"driver": 0.0, "JVM": 0.0, "workers": 0.0}
    for process in tree(root):
        with suppress(psutil.NoSuchProcess):
            part = "driver" if process.pid == root else "JVM" if process.name() == "java" else "workers"
            parts[part] += _pss(process.pid) / MIB
    return parts


def tree_handles(root: int) -> int:
    """File descriptors that a process tree holds now."""
    total = 0
    for process in tree(root):
        with suppress(psutil.Error):
            total += process.num_fds()
    return total


def tree_cpu_s(root: int, exclude: Collection[int] = ()) -> float:
    """Processor time of a process tree so far. Unlike wall time, other programs hardly change it."""
    total = 0.0
    for process in tree(root, exclude):
        with suppress(psutil.NoSuchProcess):
            spent = process.cpu_times()
            total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


def tree_parts_cpu_s(root: int, exclude: Collection[int] = ()) -> dict[str, float]:
    """Processor time of a Spark driver's process tree so far, by part: the driver itself, its JVM, the workers."""
    parts = {"driver": 0.0, "JVM": 0.0, "workers": 0.0}
    for process in tree(root, exclude):
        with suppress(psutil.NoSuchProcess):
            part = "driver" if process.pid == root else "JVM" if process.name() == "java" else "workers"
            spent = process.cpu_times()
            parts[part] += spent.user + spent.system
            if part == "workers":  # the daemon forks them, and some have ended
                parts[part] += spent.children_user + spent.children_system
    return parts


@contextmanager
def peak_of(root: int, exclude: Collection[int] = ()) -> Iterator[Peak]:
    """Sample while the body runs."""
    peak = Peak()

    def watch() -> None:
        pause = 0.0
        while not peak._stop.wait(pause):
            began = time.monotonic()
            peak.mib = max(peak.mib, tree_mib(root, exclude))
            # Now, and not only at the end: a child that has ended tells nothing any more.
            peak.cpu_s = max(peak.cpu_s, tree_cpu_s(root, exclude) - before)
            peak.samples += 1
            pause = max(INTERVAL_S, (time.monotonic() - began) / SHARE)

    thread = threading.Thread(target=watch, daemon=True)
    before = tree_cpu_s(root, exclude)
    thread.start()
    try:
        yield peak
    finally:
        peak.cpu_s = max(peak.cpu_s, tree_cpu_s(root, exclude) - before)
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
