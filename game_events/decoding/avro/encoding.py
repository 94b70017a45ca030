"""Strict reader of Avro's binary encoding of single values.

Source: Apache Avro 1.12 specification, "Binary Encoding". Each function takes the payload and a position, and returns the value
and the position after it. A truncated payload raises IndexError (see `frame.as_damage`).

Avro values of recursive types as JSON text, as no column can hold them.

Source: Apache Avro 1.12 specification, "JSON Encoding": a union's value is ``{"branch": value}``, null is ``null``, bytes are
text with one character for each byte. Numbers that JSON lacks are ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, as in Java.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from game_events.decoding.avro.schema import AvroType
from game_events.decoding.frame import DamageError, Reason
from game_events.decoding.projection import CELL_BYTES, CellBudget

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
    value = octet & 0x7F
    shift = 7
    end = at + 1
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


#: Nested records at most.
MAX_LEVELS = 100

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

ReadValue = Callable[[bytes, int], tuple[Value, int]]


def text_reader(type_: AvroType, budget: Budget) -> Callable[[bytes, int], tuple[str, int]]:
    """A function that reads one value of a type as JSON text."""
    readers = _Readers(budget)
    read_value = readers.of(type_)

    def read(buf: bytes, at: int) -> tuple[str, int]:
        readers.level = 0
        value, at = read_value(buf, at)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False), at

    return read


class _Readers:
    """One reader per type, recursive types included."""

    def __init__(self, budget: Budget) -> None:
        self.level = 0
        self._budget = budget
        self.of = ByType[tuple[Value, int]](self._make).of

    def _make(self, type_: AvroType) -> ReadValue:
        nested = {"record": self._record, "union": self._union, "array": self._items, "map": self._items}
        return nested.get(type_.kind, _simple)(type_)

    def _record(self, type_: AvroType) -> ReadValue:
        members = [(f.name, self.of(f.type)) for f in type_.fields]
        cells = sum(_cells(f.type, f.name) for f in type_.fields)

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            self.level += 1
            if self.level > MAX_LEVELS:
                raise DamageError(Reason.TOO_DEEP, f"more than {MAX_LEVELS} records inside one another")
            self._budget.spend(cells)
            row: dict[str, Value] = {}
            for name, member in members:
                row[name], at = member(buf, at)
            self.level -= 1
            return row, at

        return read

    def _union(self, type_: AvroType) -> ReadValue:
        branches = [(b.name, self.of(b), _cells(b, b.name)) for b in type_.items]

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            index, at = read_index(buf, at, len(branches), "union branch")
            name, branch, cells = branches[index]
            self._budget.spend(cells)
            value, at = branch(buf, at)
            return (value if name == "null" else {name: value}), at

        return read

    def _items(self, type_: AvroType) -> ReadValue:
        inner = self.of(type_.items[0])
        is_map = type_.kind == "map"
        least = min_bytes(type_.items[0]) + is_map
        cells = _cells(type_.items[0])

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            keys: list[str] = []
            values: list[Value] = []

            def item(buf: bytes, at: int) -> int:
                if is_map:
                    key, at = read_text(buf, at)
                    keys.append(key)
                value, at = inner(buf, at)
                values.append(value)
                return at

            _, at = read_blocks(buf, at, least, self._budget, item, cells)
            return (dict(zip(keys, values, strict=True)) if is_map else values), at

        return read


def _cells(type_: AvroType, name: str = "") -> int:
    """Cells of a value's text besides the payload's own: its name, an enum's symbol."""
    return 1 + (len(name) + max(map(len, type_.symbols), default=0)) // CELL_BYTES


def _simple(type_: AvroType) -> ReadValue:
    read = SIMPLE[type_.kind](type_)
    as_json = _AS_JSON.get(type_.kind)
    if as_json is None:
        return read

    def read_converted(buf: bytes, at: int) -> tuple[Value, int]:
        value, at = read(buf, at)
        return as_json(value), at

    return read_converted


def _int(value: int) -> Value:
    if not INT_RANGE[0] <= value <= INT_RANGE[1]:
        raise DamageError(Reason.OUT_OF_RANGE, f"a number outside {INT_RANGE[0]}..{INT_RANGE[1]}")
    return value


def _number(value: float) -> Value:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


#: Simple type -> conversion of its values, if there is one.
_AS_JSON: dict[str, Callable[[Any], Value]] = {
    "int": _int,
    **dict.fromkeys(("float", "double"), _number),
    **dict.fromkeys(("bytes", "fixed"), lambda raw: str(raw, "latin-1")),
}
