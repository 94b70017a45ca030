"""What to drop so that a number of bytes is not exceeded: that which was not used for longest."""

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")

#: Bytes of the schemas whose texts and compiled forms are kept, in the driver and in each worker: others are made again when
#: they are needed. A compiled form takes up to some 15 times as much memory. Most schemas have a few thousand bytes.
KEPT_SCHEMA_BYTES = 2**25


class RecentlyUsed(Generic[Key]):
    """Keys by their last use, with the bytes of what they stand for."""

    def __init__(self, most: int = KEPT_SCHEMA_BYTES) -> None:
        """`most`: bytes in all."""
        self._most = most
        self._sizes: OrderedDict[Key, int] = OrderedDict()
        self._total = 0

    def use(self, key: Key, size: int) -> list[Key]:
        """Note a use; returns what is to be dropped, never `key` itself."""
        self._total += size - self._sizes.pop(key, 0)
        self._sizes[key] = size
        dropped = []
        while self._total > self._most and len(self._sizes) > 1:
            oldest, bytes_ = self._sizes.popitem(last=False)
            self._total -= bytes_
            dropped.append(oldest)
        return dropped
