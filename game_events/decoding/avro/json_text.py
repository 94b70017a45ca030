"""Avro values of recursive types as JSON text, as no column can hold them.

Source: Apache Avro 1.12 specification, "JSON Encoding": a union's value is ``{"branch": value}``, null is ``null``, bytes are
text with one character for each byte. Numbers that JSON lacks are ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, as in Java.
"""

import json
import math
import struct
from collections.abc import Callable

from game_events.decoding.avro.encoding import (
    INT_RANGE,
    Budget,
    ByType,
    enum_reader,
    read_blocks,
    read_boolean,
    read_bytes,
    read_index,
    read_long,
    read_text,
    take,
)
from game_events.decoding.avro.types import AvroType
from game_events.decoding.core.reasons import DamageError, Reason

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
        nested = {"record": self._record, "union": self._union, "array": self._array, "map": self._map}
        return (nested.get(type_.kind) or _SIMPLE[type_.kind])(type_)

    def _record(self, type_: AvroType) -> ReadValue:
        members = [(f.name, self.of(f.type)) for f in type_.fields]

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            self.level += 1
            if self.level > MAX_LEVELS:
                raise DamageError(Reason.TOO_DEEP, f"more than {MAX_LEVELS} records inside one another")
            row: dict[str, Value] = {}
            for name, member in members:
                row[name], at = member(buf, at)
            self.level -= 1
            return row, at

        return read

    def _union(self, type_: AvroType) -> ReadValue:
        branches = [(b.name, self.of(b)) for b in type_.items]

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            index, at = read_index(buf, at, len(branches), "union branch")
            name, branch = branches[index]
            value, at = branch(buf, at)
            return (value if name == "null" else {name: value}), at

        return read

    def _array(self, type_: AvroType) -> ReadValue:
        inner, least = self.of(type_.items[0]), min_bytes(type_.items[0])

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            values: list[Value] = []

            def item(buf: bytes, at: int) -> int:
                value, at = inner(buf, at)
                values.append(value)
                return at

            _, at = read_blocks(buf, at, least, self._budget, item)
            return values, at

        return read

    def _map(self, type_: AvroType) -> ReadValue:
        inner, least = self.of(type_.items[0]), 1 + min_bytes(type_.items[0])

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            values: dict[str, Value] = {}

            def item(buf: bytes, at: int) -> int:
                key, at = read_text(buf, at)
                values[key], at = inner(buf, at)
                return at

            _, at = read_blocks(buf, at, least, self._budget, item)
            return values, at

        return read


def _binary(buf: bytes, at: int) -> tuple[Value, int]:
    raw, at = read_bytes(buf, at)
    return raw.decode("latin-1"), at


def _fixed(type_: AvroType) -> ReadValue:
    def read(buf: bytes, at: int) -> tuple[Value, int]:
        raw, at = take(buf, at, type_.size)
        return raw.decode("latin-1"), at

    return read


def _int(buf: bytes, at: int) -> tuple[Value, int]:
    value, at = read_long(buf, at)
    if not INT_RANGE[0] <= value <= INT_RANGE[1]:
        raise DamageError(Reason.OUT_OF_RANGE, f"a number outside {INT_RANGE[0]}..{INT_RANGE[1]}")
    return value, at


def _number(value: float) -> Value:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


#: Simple type -> its reader.
_SIMPLE: dict[str, Callable[[AvroType], ReadValue]] = {
    "null": lambda _: lambda _, at: (None, at),
    "boolean": lambda _: read_boolean,
    "int": lambda _: _int,
    "long": lambda _: read_long,
    "float": lambda _: lambda buf, at: (_number(struct.unpack_from("<f", buf, at)[0]), at + 4),
    "double": lambda _: lambda buf, at: (_number(struct.unpack_from("<d", buf, at)[0]), at + 8),
    "bytes": lambda _: _binary,
    "string": lambda _: read_text,
    "fixed": _fixed,
    "enum": enum_reader,
}


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
