"""Avro values of recursive types as JSON text, as no column can hold them.

Source: Apache Avro 1.12 specification, "JSON Encoding": a union's value is ``{"branch": value}``, null is ``null``, bytes are
text with one character for each byte. Numbers that JSON lacks are ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, as in Java.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable

from game_events.decoding.avro.encoding import (
    INT_RANGE,
    Budget,
    read_blocks,
    read_boolean,
    read_bytes,
    read_index,
    read_long,
    take,
)
from game_events.decoding.avro.schema import AvroType
from game_events.decoding.core.errors import DamageError
from game_events.decoding.core.reasons import Reason

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
        self._made: dict[int, ReadValue] = {}

    def of(self, type_: AvroType) -> ReadValue:
        if id(type_) not in self._made:

            def later(buf: bytes, at: int) -> tuple[Value, int]:
                return self._made[id(type_)](buf, at)

            self._made[id(type_)] = later
            self._made[id(type_)] = self._make(type_)
        return self._made[id(type_)]

    def _make(self, type_: AvroType) -> ReadValue:
        match type_.kind:
            case "record":
                return self._record(type_)
            case "union":
                return self._union(type_)
            case "array":
                return self._array(type_)
            case "map":
                return self._map(type_)
            case _:
                return _simple(type_)

    def _record(self, type_: AvroType) -> ReadValue:
        members = [(name, self.of(inner)) for name, _, inner in type_.fields]

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
                key, at = read_bytes(buf, at)
                values[key.decode()], at = inner(buf, at)
                return at

            _, at = read_blocks(buf, at, least, self._budget, item)
            return values, at

        return read


def _simple(type_: AvroType) -> ReadValue:
    def read_string(buf: bytes, at: int) -> tuple[Value, int]:
        raw, at = read_bytes(buf, at)
        return raw.decode(), at

    def read_binary(buf: bytes, at: int) -> tuple[Value, int]:
        raw, at = read_bytes(buf, at)
        return raw.decode("latin-1"), at

    def read_fixed(buf: bytes, at: int) -> tuple[Value, int]:
        raw, at = take(buf, at, type_.size)
        return raw.decode("latin-1"), at

    def read_enum(buf: bytes, at: int) -> tuple[Value, int]:
        index, at = read_index(buf, at, len(type_.symbols), "enum symbol")
        return type_.symbols[index], at

    def read_int(buf: bytes, at: int) -> tuple[Value, int]:
        value, at = read_long(buf, at)
        if not INT_RANGE[0] <= value <= INT_RANGE[1]:
            raise DamageError(Reason.OUT_OF_RANGE, f"a number outside {INT_RANGE[0]}..{INT_RANGE[1]}")
        return value, at

    def read_float(buf: bytes, at: int) -> tuple[Value, int]:
        return _number(struct.unpack_from("<f", buf, at)[0]), at + 4

    def read_double(buf: bytes, at: int) -> tuple[Value, int]:
        return _number(struct.unpack_from("<d", buf, at)[0]), at + 8

    simple: dict[str, ReadValue] = {
        "null": lambda _, at: (None, at),
        "boolean": read_boolean,
        "int": read_int,
        "long": read_long,
        "float": read_float,
        "double": read_double,
        "bytes": read_binary,
        "string": read_string,
        "fixed": read_fixed,
        "enum": read_enum,
    }
    return simple[type_.kind]


def _number(value: float) -> Value:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def min_bytes(type_: AvroType, known: dict[int, int] | None = None) -> int:
    """0 for a type without bytes, else 1; also 1 for a type that must contain itself (it has no values)."""
    if type_.kind in ("null", "fixed"):
        return min(type_.size, 1)
    if type_.kind != "record":
        return 1
    known = {} if known is None else known
    if id(type_) not in known:
        known[id(type_)] = 1
        known[id(type_)] = max((min_bytes(inner, known) for _, _, inner in type_.fields), default=0)
    return known[id(type_)]
