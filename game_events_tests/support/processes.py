"""What runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import psutil


def running() -> Iterator[psutil.Process]:
    """All processes.

    `psutil` keeps its objects from call to call: one of a process that has ended stands for the next process of that id, too,
    and neither ends it nor reads its environment.
    """
    psutil.process_iter.cache_clear()
    return psutil.process_iter()
