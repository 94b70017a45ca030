"""Rows that were sent twice: which of the rows with one key are left out, because an earlier one is there.

Rows come sorted by key, and those of one key in bronze's order, so a worker needs few of them at a time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.workers.rules import FILE, ROW

#: Columns of the rows: the key as a text, with game and entry; the entry's number; the time in microseconds; whether the row
#: is in silver already.
KEY = "_key"
ENTRY = "_entry"
TIME = "_time"
OLD = "_old"
SORTED_ROWS = pa.schema(
    [
        (KEY, pa.string()),
        (ENTRY, pa.int32()),
        (TIME, pa.int64()),
        (OLD, pa.bool_()),
        (FILE, pa.string()),
        (ROW, pa.int64()),
    ]
)

#: Columns of the rows that are left out.
LEFT_OUT = pa.schema([(FILE, pa.string()), (ROW, pa.int64())])

#: Rows that are looked at together.
ROWS_AT_ONCE = 250_000

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FindDuplicates:
    """For `mapInArrow`: rows as `SORTED_ROWS` -> those that are left out, as `LEFT_OUT`; picklable.

    `windows_us`: of each entry. `at_once`: rows that are looked at together; of a key with more of them, those that are kept
    stay in memory.
    """

    windows_us: tuple[int, ...]
    at_once: int = ROWS_AT_ONCE

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that are left out."""
        open_key = SORTED_ROWS.empty_table()
        for part in _in_parts(batches, self.at_once):
            rows = pa.concat_tables([open_key, part]).combine_chunks()
            groups = _groups(rows)
            old = rows.column(OLD).to_numpy()
            windows = np.array(self.windows_us, np.int64)[rows.column(ENTRY).to_numpy()]
            left_out = duplicates(groups, rows.column(TIME).to_numpy(), old, windows)
            yield from rows.filter(pa.array(left_out)).select(LEFT_OUT.names).cast(LEFT_OUT).combine_chunks().to_batches()
            # The next part may have more rows of the last key: what is kept of it is as good as old then.
            kept = rows.filter(pa.array((groups == groups[-1]) & ~left_out))
            open_key = kept.set_column(rows.schema.get_field_index(OLD), OLD, pa.repeat(True, kept.num_rows))


def _in_parts(batches: Iterable[pa.RecordBatch], at_once: int) -> Iterator[pa.Table]:
    """The rows, at least so many together."""
    waiting = list[pa.RecordBatch]()
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= at_once:
            yield pa.Table.from_batches(waiting).cast(SORTED_ROWS)
            waiting = []
            rows = 0
    if rows:
        yield pa.Table.from_batches(waiting).cast(SORTED_ROWS)


def _groups(rows: pa.Table) -> Times:
    """The number of each row's key; rows of one key follow each other."""
    keys = rows.column(KEY).combine_chunks()
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.chunk(0)
    begins = np.ones(rows.num_rows, bool)
    begins[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return np.cumsum(begins) - 1


def duplicates(groups: Times, times: Times, old: Mask, windows: Times) -> Mask:
    """Mask of the rows that are left out.

    `groups`: ascending; those of a group are in bronze's order, and its `old` rows are kept. `windows`: of each row; one for a
    group.

    By time, the rows of a group fall apart into clusters with gaps larger than the window, which have nothing to do with each
    other. Nearly always a cluster is no longer than the window: then its first row, or its old ones, keep out all others.
    """
    left_out = np.zeros(len(groups), bool)
    same = groups[1:] == groups[:-1]
    rows = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if not len(rows):
        return left_out
    rows = rows[np.lexsort((times[rows], groups[rows]))]
    by_time = times[rows]
    window = windows[rows].view(np.uint64)
    begins = np.ones(len(rows), bool)
    begins[1:] = (groups[rows][1:] != groups[rows][:-1]) | (_between(by_time[:-1], by_time[1:]) > window[1:])
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(rows))
    is_short = _between(by_time[starts], by_time[ends - 1]) <= window[starts]
    has_old = np.logical_or.reduceat(old[rows], starts)
    first = np.minimum.reduceat(rows, starts)
    of_cluster = np.cumsum(begins) - 1
    is_kept = old[rows] | ((rows == first[of_cluster]) & ~has_old[of_cluster])
    left_out[rows] = ~is_kept
    for number in np.flatnonzero(~is_short):
        cluster = np.sort(rows[starts[number] : ends[number]])
        left_out[cluster] = _one_by_one(times[cluster].tolist(), old[cluster].tolist(), int(window[starts[number]]))
    return left_out


def _between(earlier: Times, later: Times) -> npt.NDArray[np.uint64]:
    """Differences that are not negative: of times that are far apart, too."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _one_by_one(times: Sequence[int], old: Sequence[bool], window: int) -> list[bool]:
    """Which rows of a cluster longer than the window are left out, in bronze's order."""
    kept = sorted(time for time, is_old in zip(times, old, strict=True) if is_old)
    left_out = list[bool]()
    for time, is_old in zip(times, old, strict=True):
        at = bisect_left(kept, time)
        is_near = (at > 0 and time - kept[at - 1] <= window) or (at < len(kept) and kept[at] - time <= window)
        left_out.append(is_near and not is_old)
        if not is_near:
            insort(kept, time)
    return left_out
