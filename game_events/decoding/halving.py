"""Finding the bad rows of a batch with a decoder that only says "something here is bad"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from game_events.decoding.frames import Rows
from game_events.errors import DataError

#: Attempts that may fail before halving is given up: two or three bad rows cost that many in a batch of 100,000. With more of
#: them, looking at each row by itself is cheaper.
MAX_FAILURES = 48


def decode_by_halves(
    payloads: pa.BinaryArray,
    rows: Rows,
    attempt: Callable[[pa.BinaryArray], pa.RecordBatch],
    max_failures: int | None = MAX_FAILURES,
) -> tuple[list[tuple[Rows, pa.RecordBatch]], Rows, list[tuple[int, DataError]]]:
    """Decode rows, halving a part that fails until the bad rows stand alone, or until that has cost enough.

    Args:
        payloads: the batch, shape (n,).
        rows: positions to decode.
        attempt: decodes an array whole, one row out for each row in, or raises `DataError`.
        max_failures: attempts that may fail; None: no limit.

    Returns:
        the decoded parts with the positions they hold, the positions given up on, and each bad position with its error.
    """
    done: list[tuple[Rows, pa.RecordBatch]] = []
    bad: list[tuple[int, DataError]] = []
    stack = [rows] if len(rows) else []
    failures = 0
    while stack and (max_failures is None or failures < max_failures):
        part = stack.pop()
        try:
            done.append((part, attempt(payloads if len(part) == len(payloads) else payloads.take(pa.array(part)))))
        except DataError as failure:
            failures += 1
            if len(part) > 1:
                half = len(part) // 2
                stack += [part[half:], part[:half]]
            else:
                bad.append((int(part[0]), failure))
    return done, np.concatenate([*stack, np.empty(0, dtype=np.int64)]), bad
