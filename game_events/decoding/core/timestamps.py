"""Protobuf's timestamps and durations: ranges, conversion to microseconds.

Source: the comments of google/protobuf/timestamp.proto and duration.proto.
"""

import numpy as np
import pyarrow as pa

from game_events.decoding.core.wire_format import Mask

#: Protobuf's own range of times, in microseconds: the years 1 to 9999.
TIMESTAMP_RANGE = (-62_135_596_800_000_000, 253_402_300_799_999_999)

_TIME_SECONDS = (-62_135_596_800, 253_402_300_799)
_DURATION_SECONDS = (-315_576_000_000, 315_576_000_000)
_NANOS = 999_999_999


def microseconds(seconds: pa.Array, nanos: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Times in microseconds, truncated towards zero, and a mask of those outside protobuf's range (value undefined).

    `seconds`, `nanos`: int64, shape (n,), no NULLs; `kind`: a timestamp type, or int64 for durations.
    """
    if not len(seconds):
        return pa.array([], kind), np.zeros(0, dtype=bool)
    whole, parts = seconds.to_numpy(), nanos.to_numpy()
    is_time = pa.types.is_timestamp(kind)
    low, high = _TIME_SECONDS if is_time else _DURATION_SECONDS
    least, most = (0, _NANOS) if is_time else (-_NANOS, _NANOS)
    bad = np.zeros(len(whole), dtype=bool)
    if whole.min() < low or whole.max() > high or parts.min() < least or parts.max() > most:
        bad |= (whole < low) | (whole > high) | (parts < least) | (parts > most)
    if not is_time:
        bad |= (whole > 0) & (parts < 0) | (whole < 0) & (parts > 0)
        # numpy rounds down, protobuf towards zero.
        micros = np.sign(parts) * (np.abs(parts) // 1_000)
    else:
        # Unsigned: numpy divides those twice as fast, and what is negative is bad.
        micros = (parts.view(np.uint64) // np.uint64(1_000)).view(np.int64)
    micros += np.where(bad, 0, whole) * 1_000_000 if bad.any() else whole * 1_000_000
    return pa.Array.from_buffers(kind, len(micros), [None, pa.py_buffer(micros)], 0), bad


def is_in_range(seconds: int, nanos: int, *, is_time: bool) -> bool:
    """Whether protobuf allows one time, or one duration."""
    if is_time:
        return _TIME_SECONDS[0] <= seconds <= _TIME_SECONDS[1] and 0 <= nanos <= _NANOS
    return abs(seconds) <= _DURATION_SECONDS[1] and abs(nanos) <= _NANOS and seconds * nanos >= 0
