"""Avro values of recursive types as JSON text, as no column can hold them.

Source: Apache Avro 1.12 specification, "JSON Encoding": a union's value is ``{"branch": value}``, null is ``null``, bytes are
text with one character for each byte. Numbers that JSON lacks are ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, as in Java.
"""

import json
import math
from collections.abc import Callable
from typing import Any

from game_events.decoding.avro.encoding import INT_RANGE, SIMPLE, Budget, ByType, min_bytes, read_blocks, read_index, read_text
from game_events.decoding.avro.types import AvroType
from game_events.decoding.core.expansion import CELL_BYTES
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
        inner, is_map = self.of(type_.items[0]), type_.kind == "map"
        least, cells = min_bytes(type_.items[0]) + is_map, _cells(type_.items[0])

        def read(buf: bytes, at: int) -> tuple[Value, int]:
            found: list[tuple[str, Value]] = []

            def item(buf: bytes, at: int) -> int:
                key, at = read_text(buf, at) if is_map else ("", at)
                value, at = inner(buf, at)
                found.append((key, value))
                return at

            _, at = read_blocks(buf, at, least, self._budget, item, cells)
            return (dict(found) if is_map else [value for _, value in found]), at

        return read


def _cells(type_: AvroType, name: str = "") -> int:
    """Cells of a value's text besides the payload's own: its name, an enum's symbol."""
    return 1 + (len(name) + max(map(len, type_.symbols), default=0)) // CELL_BYTES


def _simple(type_: AvroType) -> ReadValue:
    read, as_json = SIMPLE[type_.kind](type_), _AS_JSON.get(type_.kind)
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
