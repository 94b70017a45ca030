"""How many tasks and cores an export needs: Little's law, in both directions.

Calls under way at the same time = calls a second x seconds that a call takes (J. D. C. Little, 1961). Waiting needs no core, so
cores are counted by what a call and a row cost a processor, which was measured (docs/rest-export.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Calls that one core makes in a second of processor time, and rows that it turns into JSON, cuts and reads in one; both are
#: rounded down from what was measured, with the receiver's own share in them.
CALLS_PER_CORE, ROWS_PER_CORE = 2_000, 25_000
#: A core is not to be planned beyond this share.
BUSY = 0.7


@dataclass(frozen=True)
class Size:
    """What an export of `rows_per_s`, with the given latency and options, needs.

    Attributes:
        calls_per_s: rows a second through rows per call.
        calls_at_once: of Little's law.
        tasks: Spark tasks, each a slot, that have so many calls under way.
        cores: processor cores that are busy with it.
        one_by_one: tasks that would be needed if each made one call at a time.
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
