"""Where an Avro value ends, without reading what it says: values stand one behind the other in a file, with nothing between."""

from __future__ import annotations

from collections.abc import Callable

from game_events.decoding.avro.encoding import Budget, read_blocks, read_bytes, read_index, read_long, take
from game_events.decoding.avro.json_text import min_bytes
from game_events.decoding.avro.schema import AvroType

#: Given the bytes and where a value begins, the place behind it; what cannot be is raised as `damage.DAMAGE`.
Skip = Callable[[bytes, int], int]
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LEAVES: dict[str, Skip] = {
    **dict.fromkeys(("int", "long", "enum"), lambda buf, at: read_long(buf, at)[1]),
    **dict.fromkeys(("bytes", "string"), lambda buf, at: read_bytes(buf, at)[1]),
}


def skipper(type_: AvroType) -> Skip:
    """The function for a type."""
    return _Skippers().of(type_)


class _Skippers:
    """Functions by type: types that contain themselves have one, too."""

    def __init__(self) -> None:
        self._made: dict[int, Skip] = {}

    def of(self, type_: AvroType) -> Skip:
        made = self._made.get(id(type_))
        if made is None:

            def later(buf: bytes, at: int) -> int:
                return self._made[id(type_)](buf, at)

            # Found, before it is made, by what is inside of it.
            self._made[id(type_)] = later
            made = self._made[id(type_)] = self._make(type_)
        return made

    def _make(self, type_: AvroType) -> Skip:
        match type_.kind:
            case "record":
                return _all_of([self.of(inner) for _, _, inner in type_.fields])
            case "union":
                return _one_of([self.of(inner) for inner in type_.items])
            case "array":
                item, least = self.of(type_.items[0]), min_bytes(type_.items[0])
                return lambda buf, at: read_blocks(buf, at, least, Budget(), item)[1]
            case "map":
                value = self.of(type_.items[0])
                return lambda buf, at: read_blocks(buf, at, 1, Budget(), lambda b, a: value(b, read_bytes(b, a)[1]))[1]
            case kind if kind in _LEAVES:
                return _LEAVES[kind]
            case kind:
                size = type_.size if kind == "fixed" else _FIXED[kind]
                return lambda buf, at: take(buf, at, size)[1]


def _all_of(members: list[Skip]) -> Skip:
    def record(buf: bytes, at: int) -> int:
        for member in members:
            at = member(buf, at)
        return at

    return record


def _one_of(branches: list[Skip]) -> Skip:
    def union(buf: bytes, at: int) -> int:
        index, at = read_index(buf, at, len(branches), "branch")
        return branches[index](buf, at)

    return union
