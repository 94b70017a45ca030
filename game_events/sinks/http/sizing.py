"""Number of tasks and cores that an export needs.

Concurrent calls = calls per second x seconds per call (Little's law). Waiting needs no core: cores follow from the measured
processor time of a call and a row (docs/rest-export.md).
"""

import math
from dataclasses import dataclass

#: Calls, and rows, per second of one core; measured with the receiver on the same machine, and rounded down.
CALLS_PER_CORE, ROWS_PER_CORE = 2_000, 25_000
#: Planned utilization of a core.
BUSY = 0.7


@dataclass(frozen=True)
class Size:
    """Needs of an export of `rows_per_s`.

    Attributes:
        calls_per_s: `rows_per_s` / `rows_per_call`.
        calls_at_once: concurrent calls.
        tasks: Spark tasks, each of which takes a slot.
        cores: busy processor cores.
        one_by_one: tasks that would be needed with one call at a time.
    """

    rows_per_s: float
    latency_ms: float
    rows_per_call: int
    calls_per_task: int
    calls_per_s: float
    calls_at_once: int
    tasks: int
    cores: int
    one_by_one: int


def size(rows_per_s: float, latency_ms: float, rows_per_call: int, calls_per_task: int) -> Size:
    """Tasks and cores for a rate."""
    calls_per_s = rows_per_s / rows_per_call
    at_once = max(1, math.ceil(round(calls_per_s * latency_ms / 1000, 9)))
    cores = max(1, math.ceil((calls_per_s / CALLS_PER_CORE + rows_per_s / ROWS_PER_CORE) / BUSY))
    tasks = math.ceil(at_once / calls_per_task)
    return Size(rows_per_s, latency_ms, rows_per_call, calls_per_task, calls_per_s, at_once, tasks, cores, at_once)
