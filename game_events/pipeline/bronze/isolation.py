"""Records that kill Spark's worker when they are decoded: found by halves of their slice, so that all others arrive."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.decoding.core.reasons import Reason
from game_events.pipeline.bronze.record_size import WHY
from game_events.sources.core.source import MicroBatch, Offsets, Split
from game_events.spark.crashed_workers import DEATHS_ALONE, NOTHING_COMMITTED, WorkerCrashError

#: Jobs that may die for a slice: one record of two million costs 25 of them, each some seconds.
MAX_DEATHS = 60
#: A record: its lane and position -> what is said of it.
Deadly = Mapping[tuple[Split, int], str]


def deadly_records(part: MicroBatch, error: WorkerCrashError, attempt: Callable[[MicroBatch], None]) -> Deadly:
    """The records of a slice that each kill a worker by themselves, twice; none: it was not the records.

    Args:
        part: the slice; its job died.
        error: how.
        attempt: decodes a part of it and keeps nothing.

    Raises:
        WorkerCrashError: `error`: nothing of the slice can be decoded, so something else is wrong than its records; or workers
            die of too many.
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
            ((lane, offset),) = some.start.items()
            alone[lane, offset] += 1
            if alone[lane, offset] < DEATHS_ALONE:
                waiting.append(some)
            else:
                found[lane, offset] = (
                    f"{str(died).removesuffix(NOTHING_COMMITTED)}; it happened {DEATHS_ALONE} times with no other record"
                )
    if not decoded:
        raise error
    return found


def marked(records: DataFrame, deadly: Deadly) -> DataFrame:
    """A source's records with the columns `WHY`, in which those that kill workers go to quarantine without being decoded."""
    reason, detail = map(F.col, WHY)
    new_reason, new_detail = reason, detail
    for (lane, offset), why in deadly.items():
        here = (F.col("topic_id") == lane.topic_id) & (F.col("partition") == lane.partition) & (F.col("offset") == offset)
        new_reason = F.when(here & reason.isNull(), F.lit(str(Reason.MALFORMED))).otherwise(new_reason)
        new_detail = F.when(here & reason.isNull(), F.lit(why)).otherwise(new_detail)
    return records.withColumns(dict(zip(WHY, (new_reason, new_detail), strict=True)))


def _halves(part: MicroBatch) -> list[MicroBatch]:
    """The first half of a slice's positions, lane after lane, and the second."""
    room = (part.records + 1) // 2
    split: Offsets = {}
    for lane, start in part.start.items():
        split[lane] = min(part.end[lane], start + room)
        room -= split[lane] - start
    return [found for found in (_between(part, part.start, split), _between(part, split, part.end)) if found.start]


def _between(part: MicroBatch, start: Offsets, end: Offsets) -> MicroBatch:
    lanes = [lane for lane in part.start if start[lane] < end[lane]]
    return replace(part, start={p: start[p] for p in lanes}, end={p: end[p] for p in lanes}, gaps=())
