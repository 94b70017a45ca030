"""Sizes of protobuf values in the canonical encoding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: One size for all values, or one for each.
Sizes = int | npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]

#: The smallest number with a varint of two bytes.
_TWO_BYTES = 128


def varint_size(value: int) -> int:
    """Bytes of one varint, 1 to 10."""
    return max(1, (value.bit_length() + 6) // 7)


def varint_sizes(values: npt.NDArray[np.int64] | Numbers) -> Sizes:
    """Bytes of each varint; ten for negative numbers."""
    if not len(values):
        return 0
    unsigned = values.view(np.uint64)
    low, high = varint_size(int(unsigned.min())), varint_size(int(unsigned.max()))
    if low == high:
        return low
    sizes = np.full(len(values), low, dtype=np.int64)
    for octets in range(low, high):
        sizes += unsigned >= np.uint64(1 << (7 * octets))
    return sizes


def zigzag(values: npt.NDArray[np.int64]) -> Numbers:
    """Signed numbers as encoded by ``sint32`` and ``sint64``."""
    zigzagged: Numbers = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return zigzagged


def delimited(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes of delimited values, lengths included."""
    if len(lengths) and lengths.max() < _TWO_BYTES:
        return lengths + 1
    return lengths + varint_sizes(lengths)


def sums(sizes: Sizes, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum of the sizes of each list's elements; `offsets` of the lists: shape (n + 1,)."""
    if isinstance(sizes, int):
        return np.diff(offsets) * sizes
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    each: npt.NDArray[np.int64] = total[offsets[1:]] - total[offsets[:-1]]
    return each
