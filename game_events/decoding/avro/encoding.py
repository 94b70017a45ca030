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
#: Reads a value of a payload at a position; returns it, and the position after it.
Read = Callable[[bytes, int], tuple[Any, int]]


def read_long(buf: bytes, pos: int) -> tuple[int, int]:
    """A zig-zag varint of at most 64 bits."""
    octet = buf[pos]
    if octet < 0x80:
        return (octet >> 1) ^ -(octet & 1), pos + 1
    value = octet & 0x7F
    shift = 7
    end = pos + 1
    while True:
        octet = buf[end]
        value |= (octet & 0x7F) << shift
        end += 1
        if octet < 0x80:
            break
        shift += 7
        if end - pos > _LAST_BYTE:
            raise DamageError(Reason.MALFORMED, "a number of more than 64 bits")
    if value >> 64:
        raise DamageError(Reason.MALFORMED, "a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), end


def read_bytes(buf: bytes, pos: int) -> tuple[bytes, int]:
    """A length and as many bytes."""
    size, pos = read_long(buf, pos)
    if size < 0:
        raise DamageError(Reason.MALFORMED, "a length below zero")
    return take(buf, pos, size)


def take(buf: bytes, pos: int, size: int) -> tuple[bytes, int]:
    """So many bytes."""
    end = pos + size
    if end > len(buf):
        raise DamageError(Reason.TRUNCATED, f"more bytes announced than the {len(buf) - pos} that are left")
    return buf[pos:end], end


def read_index(buf: bytes, pos: int, count: int, what: str) -> tuple[int, int]:
    """The index of a union's branch or an enum's symbol."""
    index, pos = read_long(buf, pos)
    if not 0 <= index < count:
        raise DamageError(Reason.MALFORMED, f"{what} outside 0..{count - 1}")
    return index, pos


def read_text(buf: bytes, pos: int) -> tuple[str, int]:
    """A string, the most frequent type: a short one is read without further calls."""
    size = buf[pos]
    if size < 0x80 and not size & 1:
        end = pos + 1 + (size >> 1)
        if end <= len(buf):
            return str(buf[pos + 1 : end], "utf-8"), end
    raw, pos = read_bytes(buf, pos)
    return str(raw, "utf-8"), pos


def enum_reader(type_: AvroType) -> Callable[[bytes, int], tuple[str, int]]:
    """A reader of an enum's symbols."""
    symbols = type_.symbols

    def read(buf: bytes, pos: int) -> tuple[str, int]:
        index, pos = read_index(buf, pos, len(symbols), "enum symbol")
        return symbols[index], pos

    return read


def read_boolean(buf: bytes, pos: int) -> tuple[bool, int]:
    """One byte, 0 or 1."""
    octet = buf[pos]
    if octet > 1:
        raise DamageError(Reason.MALFORMED, "a boolean that is neither 0 nor 1")
    return octet == 1, pos + 1


#: Simple type -> reader of its values.
SIMPLE: Mapping[str, Callable[[AvroType], Callable[[bytes, int], tuple[Any, int]]]] = {
    "null": lambda _: lambda _, pos: (None, pos),
    "boolean": lambda _: read_boolean,
    "int": lambda _: read_long,
    "long": lambda _: read_long,
    "float": lambda _: lambda buf, pos: (struct.unpack_from("<f", buf, pos)[0], pos + 4),
    "double": lambda _: lambda buf, pos: (struct.unpack_from("<d", buf, pos)[0], pos + 8),
    "bytes": lambda _: read_bytes,
    "string": lambda _: read_text,
    "enum": enum_reader,
    "fixed": lambda type_: lambda buf, pos: take(buf, pos, type_.size),
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

            def in_itself(buf: bytes, pos: int) -> T:
                return self._made[key](buf, pos)

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


def begin_block(buf: bytes, pos: int, least: int, budget: Budget, cells: int = 0) -> tuple[int, int | None, int]:
    """Begin a block of an array or map: number of items (0: there are no more), its end if announced, place of the first item.

    `least`, `cells` (in a list): of one item.
    """
    count, pos = read_long(buf, pos)
    end = None
    if count < 0:
        count = -count
        size, pos = read_long(buf, pos)
        end = pos + size
    # Checked before anything is read or allocated.
    if count * least > len(buf) - pos:
        raise DamageError(Reason.TRUNCATED, f"more items announced than fit into the {len(buf) - pos} bytes that are left")
    if not least:
        budget.empty -= count
        if budget.empty < 0:
            raise DamageError(Reason.MALFORMED, f"more than {MAX_EMPTY_ITEMS} items without bytes")
    budget.spend(count * cells)
    return count, end, pos


def end_block(pos: int, end: int | None) -> None:
    """Check that a block ends where it has announced."""
    if end is not None and pos != end:
        raise DamageError(Reason.MALFORMED, "a block that does not end where it says")


def array_reader(item: Read, least: int, budget: Budget, cells: int) -> Read:
    """A reader of lists; `least`, `cells`: of one item."""

    def read(buf: bytes, pos: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, end, pos = begin_block(buf, pos, least, budget, cells)
            if not count:
                return values, pos
            for _ in range(count):
                value, pos = item(buf, pos)
                values.append(value)
            end_block(pos, end)

    return read


def map_reader(value: Read, least: int, budget: Budget, cells: int) -> Read:
    """A reader of maps; the last value of a repeated key counts, as in other readers. `least`: bytes of a value."""

    def entry(buf: bytes, pos: int) -> tuple[tuple[str, Any], int]:
        key, pos = read_text(buf, pos)
        item, pos = value(buf, pos)
        return (key, item), pos

    entries = array_reader(entry, least + 1, budget, cells)

    def read(buf: bytes, pos: int) -> tuple[dict[str, Any], int]:
        items, pos = entries(buf, pos)
        return dict(items), pos

    return read


def skip_blocks(buf: bytes, pos: int, least: int, budget: Budget, item: Callable[[bytes, int], int]) -> int:
    """The position after an array or map; `item`: that after one of its items."""
    while True:
        count, end, pos = begin_block(buf, pos, least, budget)
        if not count:
            return pos
        for _ in range(count):
            pos = item(buf, pos)
        end_block(pos, end)


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

    def read(buf: bytes, pos: int) -> tuple[str, int]:
        readers.level = 0
        value, pos = read_value(buf, pos)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False), pos

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

        def read(buf: bytes, pos: int) -> tuple[Value, int]:
            self.level += 1
            if self.level > MAX_LEVELS:
                raise DamageError(Reason.TOO_DEEP, f"more than {MAX_LEVELS} records inside one another")
            self._budget.spend(cells)
            row: dict[str, Value] = {}
            for name, member in members:
                row[name], pos = member(buf, pos)
            self.level -= 1
            return row, pos

        return read

    def _union(self, type_: AvroType) -> ReadValue:
        branches = [(b.name, self.of(b), _cells(b, b.name)) for b in type_.items]

        def read(buf: bytes, pos: int) -> tuple[Value, int]:
            index, pos = read_index(buf, pos, len(branches), "union branch")
            name, branch, cells = branches[index]
            self._budget.spend(cells)
            value, pos = branch(buf, pos)
            return (value if name == "null" else {name: value}), pos

        return read

    def _items(self, type_: AvroType) -> ReadValue:
        (item,) = type_.items
        make = map_reader if type_.kind == "map" else array_reader
        return make(self.of(item), min_bytes(item), self._budget, _cells(item))


def _cells(type_: AvroType, name: str = "") -> int:
    """Cells of a value's text besides the payload's own: its name, an enum's symbol."""
    return 1 + (len(name) + max(map(len, type_.symbols), default=0)) // CELL_BYTES


def _simple(type_: AvroType) -> ReadValue:
    read = SIMPLE[type_.kind](type_)
    as_json = _AS_JSON.get(type_.kind)
    if as_json is None:
        return read

    def read_converted(buf: bytes, pos: int) -> tuple[Value, int]:
        value, pos = read(buf, pos)
        return as_json(value), pos

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
