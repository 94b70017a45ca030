"""Records that go to quarantine without being decoded: too large ones, and ones that crash a worker, which are searched here.

Large records are cut in the JVM: no worker, no Arrow batch and no file ever holds one whole.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.core.reasons import KEPT_BYTES, Reason, too_large
from game_events.lakehouse.event_expressions import no_headers
from game_events.sources.core.source import MicroBatch, Offsets, Split
from game_events.spark.crashed_workers import DEATHS_ALONE, NOTHING_COMMITTED, WorkerCrashError

#: Columns with a record's reason and detail for quarantine; NULL: it is to be decoded.
WHY = ("reason", "detail")
#: Split and offset of a record that crashes a worker -> detail for quarantine.
Deadly = Mapping[tuple[Split, int], str]


def mark_excluded(
    records: DataFrame, most: int, deadly: Deadly, kept_bytes: int = KEPT_BYTES, header_bytes: int = 0
) -> DataFrame:
    """A source's records with the columns `WHY`; of those that are too large only the first `kept_bytes`.

    `records` has `RAW_COLUMNS`; `most`: bytes of value, key and headers together, a header counts `header_bytes` more than its
    own; `deadly`: records that crash a worker.
    """
    value, key, headers = (F.col(name) for name in ("value", "key", "headers"))
    in_headers = _bytes_of(headers, header_bytes)
    size = F.coalesce(F.length(value), F.lit(0)) + F.coalesce(F.length(key), F.lit(0)) + in_headers
    large = size > most
    before, after = too_large("\0", most).split("\0")
    reason = F.when(large, F.lit(str(Reason.TOO_LARGE)))
    detail = F.when(large, F.concat(F.lit(before), F.format_number(size, 0), F.lit(after)))
    for (split, offset), why in deadly.items():
        here = (F.col("topic_id") == split.topic_id) & (F.col("partition") == split.partition) & (F.col("offset") == offset)
        reason, detail = reason.when(here, F.lit(str(Reason.MALFORMED))), detail.when(here, F.lit(why))

    def kept(column: Column) -> Column:
        return F.when(large, F.substring(column, 1, kept_bytes)).otherwise(column)

    return records.withColumns(
        {
            "value": kept(value),
            "key": kept(key),
            "headers": F.when(large & (in_headers > min(most, kept_bytes)), no_headers()).otherwise(headers),
            WHY[0]: reason,
            WHY[1]: detail,
        }
    )


def _bytes_of(headers: Column, each: int) -> Column:
    """Bytes of a record's headers, as one text: Spark compiles that, and does not compile a function for each header."""
    texts = F.concat(headers["key"], headers["value"].cast("array<string>"))
    found = F.octet_length(F.array_join(texts, "")) + F.size(headers) * each
    return F.when(F.size(headers) > 0, found).otherwise(0)


#: Jobs that may crash for a micro-batch: one record of two million costs 25 of them, each some seconds.
MAX_DEATHS = 60


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
