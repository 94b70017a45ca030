"""Search for the records that crash a worker, each by itself: they go to quarantine without being decoded."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from game_events.sources.core.source import MicroBatch, Offsets, Split
from game_events.spark.crashed_workers import DEATHS_ALONE, NOTHING_COMMITTED, WorkerCrashError

#: Jobs that may crash for a micro-batch: one record of two million costs 25 of them, each some seconds.
MAX_DEATHS = 60
#: Split and offset of a record that crashes a worker -> detail for quarantine.
Deadly = Mapping[tuple[Split, int], str]


def deadly_records(part: MicroBatch, error: WorkerCrashError, attempt: Callable[[MicroBatch], None]) -> Deadly:
    """Find the records of a crashed micro-batch that each crash a worker by themselves, twice.

    `error`: the crash; `attempt`: decodes a part of the micro-batch and keeps nothing.

    Raises:
        WorkerCrashError: `error`: nothing of the micro-batch can be decoded, so its records are not the cause; or workers crash
            over too many.
    """
    found: dict[tuple[Split, int], str] = {}
    waiting, alone = deque(_halves(part)), Counter[tuple[Split, int]]()
    crashes, decoded = 1, 0
    while waiting:
        some = waiting.popleft()
        try:
            attempt(some)
            decoded += some.records
        except WorkerCrashError as died:
            crashes += 1
            if crashes >= MAX_DEATHS:
                raise error from None
            if some.records > 1:
                waiting.extend(_halves(some))
                continue
            ((split, offset),) = some.start.items()
            alone[split, offset] += 1
            if alone[split, offset] < DEATHS_ALONE:
                waiting.append(some)
            else:
                found[split, offset] = (
                    f"{str(died).removesuffix(NOTHING_COMMITTED)}; it happened {DEATHS_ALONE} times with no other record"
                )
    if not decoded:
        raise error
    return found


def _halves(part: MicroBatch) -> list[MicroBatch]:
    """The first half of a micro-batch's offsets, split by split, and the second."""
    room = (part.records + 1) // 2
    middle: Offsets = {}
    for split, start in part.start.items():
        middle[split] = min(part.end[split], start + room)
        room -= middle[split] - start
    return [found for found in (_between(part, part.start, middle), _between(part, middle, part.end)) if found.start]


def _between(part: MicroBatch, start: Offsets, end: Offsets) -> MicroBatch:
    splits = [split for split in part.start if start[split] < end[split]]
    return replace(part, start={p: start[p] for p in splits}, end={p: end[p] for p in splits}, gaps=())
