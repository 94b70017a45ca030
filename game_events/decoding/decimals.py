"""Decimals from unscaled whole numbers, exactly: Python's own arithmetic rounds to 28 digits."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

#: Digits that Spark's and Delta's decimals hold.
MAX_DIGITS = 38


def decimal_array(unscaled: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """An array of decimal128(p, s).

    Args:
        unscaled: the numbers times 10^s, below 10^p; None for NULL.
        kind: the type.
    """
    raw = b"".join(b"\0" * 16 if v is None else v.to_bytes(16, "little", signed=True) for v in unscaled)
    valid = pa.array([v is not None for v in unscaled], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(kind, len(unscaled), [valid, pa.py_buffer(raw)])


def decimal_text(unscaled: int, scale: int) -> str:
    """``decimal_text(-1234, 2)`` is ``-12.34``."""
    sign, digits = ("-" if unscaled < 0 else ""), str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else sign + digits
