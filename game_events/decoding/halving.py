"""Finding the bad rows of a batch with a decoder that only says "something here is bad"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from game_events.decoding.frames import Rows
from game_events.decoding.reasons import Reason
from game_events.errors import DataError

Bad = tuple[Reason, str, Rows]


def decode_by_halves(
    payloads: pa.BinaryArray,
    rows: Rows,
    attempt: Callable[[pa.BinaryArray], pa.RecordBatch],
    diagnose: Callable[[bytes, DataError], tuple[Reason, str]],
) -> tuple[list[pa.RecordBatch], Rows, list[Bad]]:
    """Decode rows, halving a part that fails until the bad rows stand alone: O(bad * log n) calls on top of one.

    Args:
        payloads: the batch, shape (n,).
        rows: positions to decode.
        attempt: decodes an array whole, one row out for each row in, or raises `DataError`.
        diagnose: why a single payload failed.

    Returns:
        the decoded parts, the positions they hold in that order, and the bad positions.
    """
    batches: list[pa.RecordBatch] = []
    kept: list[Rows] = []
    bad: list[Bad] = []
    stack = [rows] if len(rows) else []
    while stack:
        part = stack.pop()
        try:
            batches.append(attempt(payloads if len(part) == len(payloads) else payloads.take(pa.array(part))))
            kept.append(part)
        except DataError as failure:
            if len(part) > 1:
                half = len(part) // 2
                stack += [part[half:], part[:half]]
            else:
                bad.append((*diagnose(payloads[int(part[0])].as_py(), failure), part))
    return batches, (np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)), bad
