"""Strict reader of Avro's binary encoding of single values.

Source: Apache Avro 1.12 specification, "Binary Encoding". Each function takes the payload and a position, and returns the value
and the position after it. A truncated payload raises IndexError (see `reasons.as_damage`).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from game_events.decoding.avro.types import AvroType
from game_events.decoding.core.expansion import CellBudget
from game_events.decoding.core.reasons import DamageError, Reason

#: Items without bytes (null, empty records) of one payload: a few bytes can announce 2^62 of them.
MAX_EMPTY_ITEMS = 10_000
INT_RANGE = (-(2**31), 2**31 - 1)
LONG_RANGE = (-(2**63), 2**63 - 1)
_LAST_BYTE = 9
T = TypeVar("T")


def read_long(buf: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint of at most 64 bits."""
    octet = buf[at]
    if octet < 0x80:
        return (octet >> 1) ^ -(octet & 1), at + 1
    value, shift, end = octet & 0x7F, 7, at + 1
    while True:
        octet = buf[end]
        value |= (octet & 0x7F) << shift
        end += 1
        if octet < 0x80:
            break
        shift += 7
        if end - at > _LAST_BYTE:
            raise DamageError(Reason.MALFORMED, "a number of more than 64 bits")
    if value >> 64:
        raise DamageError(Reason.MALFORMED, "a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), end


def read_bytes(buf: bytes, at: int) -> tuple[bytes, int]:
    """A length and as many bytes."""
    size, at = read_long(buf, at)
    if size < 0:
        raise DamageError(Reason.MALFORMED, "a length below zero")
    return take(buf, at, size)


def take(buf: bytes, at: int, size: int) -> tuple[bytes, int]:
    """So many bytes."""
    end = at + size
    if end > len(buf):
        raise DamageError(Reason.TRUNCATED, f"more bytes announced than the {len(buf) - at} that are left")
    return buf[at:end], end


def read_index(buf: bytes, at: int, count: int, what: str) -> tuple[int, int]:
    """The index of a union's branch or an enum's symbol."""
    index, at = read_long(buf, at)
    if not 0 <= index < count:
        raise DamageError(Reason.MALFORMED, f"{what} outside 0..{count - 1}")
    return index, at


def read_text(buf: bytes, at: int) -> tuple[str, int]:
    """A string."""
    raw, at = read_bytes(buf, at)
    return str(raw, "utf-8"), at


def enum_reader(type_: AvroType) -> Callable[[bytes, int], tuple[str, int]]:
    """A reader of an enum's symbols."""
    symbols = type_.symbols

    def read(buf: bytes, at: int) -> tuple[str, int]:
        index, at = read_index(buf, at, len(symbols), "enum symbol")
        return symbols[index], at

    return read


def read_boolean(buf: bytes, at: int) -> tuple[bool, int]:
    """One byte, 0 or 1."""
    octet = buf[at]
    if octet > 1:
        raise DamageError(Reason.MALFORMED, "a boolean that is neither 0 nor 1")
    return octet == 1, at + 1


#: Simple type -> reader of its values.
SIMPLE: Mapping[str, Callable[[AvroType], Callable[[bytes, int], tuple[Any, int]]]] = {
    "null": lambda _: lambda _, at: (None, at),
    "boolean": lambda _: read_boolean,
    "int": lambda _: read_long,
    "long": lambda _: read_long,
    "float": lambda _: lambda buf, at: (struct.unpack_from("<f", buf, at)[0], at + 4),
    "double": lambda _: lambda buf, at: (struct.unpack_from("<d", buf, at)[0], at + 8),
    "bytes": lambda _: read_bytes,
    "string": lambda _: read_text,
    "enum": enum_reader,
    "fixed": lambda type_: lambda buf, at: take(buf, at, type_.size),
}


class ByType(Generic[T]):
    """Functions of (payload, position) by type, each made once; a recursive type refers to its own."""

    def __init__(self, make: Callable[[AvroType], Callable[[bytes, int], T]]) -> None:
        self._make = make
        self._made: dict[int, Callable[[bytes, int], T]] = {}

    def of(self, type_: AvroType) -> Callable[[bytes, int], T]:
        """The function of a type."""
        key = id(type_)
        if key not in self._made:

            def in_itself(buf: bytes, at: int) -> T:
                return self._made[key](buf, at)

            self._made[key] = in_itself
            self._made[key] = self._make(type_)
        return self._made[key]


@dataclass
class Budget(CellBudget):
    """What the current payload may still have; `empty`: items without bytes."""

    empty: int = field(default=MAX_EMPTY_ITEMS, init=False)

    def reset(self) -> None:
        """Start the next payload."""
        super().reset()
        self.empty = MAX_EMPTY_ITEMS


def read_blocks(
    buf: bytes, at: int, min_bytes: int, budget: Budget, item: Callable[[bytes, int], int], cells: int = 0
) -> tuple[int, int]:
    """Read the blocks of an array or map: number of items, and position after the last block.

    `min_bytes`, `cells` (in a list): of one item; `item`: reads one item, returns the position after it.
    """
    total = 0
    while True:
        count, at = read_long(buf, at)
        if count == 0:
            return total, at
        end = None
        if count < 0:
            count = -count
            size, at = read_long(buf, at)
            end = at + size
        # Checked before anything is read or allocated.
        if count * min_bytes > len(buf) - at:
            raise DamageError(Reason.TRUNCATED, f"more items announced than fit into the {len(buf) - at} bytes that are left")
        if not min_bytes:
            budget.empty -= count
            if budget.empty < 0:
                raise DamageError(Reason.MALFORMED, f"more than {MAX_EMPTY_ITEMS} items without bytes")
        budget.spend(count * cells)
        for _ in range(count):
            at = item(buf, at)
        if end is not None and at != end:
            raise DamageError(Reason.MALFORMED, "a block that does not end where it says")
        total += count


def min_bytes(type_: AvroType, known: dict[int, int] | None = None) -> int:
    """0 for a type without bytes, else 1; also 1 for a type that must contain itself (it has no values)."""
    if type_.kind in ("null", "fixed"):
        return min(type_.size, 1)
    if type_.kind != "record":
        return 1
    known = {} if known is None else known
    if id(type_) not in known:
        known[id(type_)] = 1
        known[id(type_)] = max((min_bytes(f.type, known) for f in type_.fields), default=0)
    return known[id(type_)]
