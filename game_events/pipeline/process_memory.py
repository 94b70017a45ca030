"""What this process, its JVM and Spark's Python workers hold in memory."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

MIB = 1024 * 1024


def memory_mib() -> dict[str, float]:
    """Resident MiB of `driver`, `jvm` and `workers` now.

    Pages that forked workers share count once for each, so `workers` is an upper bound. With Spark Connect there is no JVM
    below this process, and only `driver` is told.
    """
    held = {"driver": psutil.Process(os.getpid()).memory_info().rss / MIB}
    for jvm in psutil.Process(os.getpid()).children():
        with suppress(psutil.Error):
            if any("org.apache.spark" in part for part in jvm.cmdline()):
                held["jvm"] = held.get("jvm", 0.0) + jvm.memory_info().rss / MIB
                held["workers"] = held.get("workers", 0.0) + sum(map(_rss, jvm.children(recursive=True))) / MIB
    return {name: round(mib, 1) for name, mib in held.items()}


def _rss(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
