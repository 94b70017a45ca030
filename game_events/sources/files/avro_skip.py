"""Ends of Avro values, found without decoding them: container files store values without separators."""

from collections.abc import Callable

from game_events.decoding.avro.encoding import Budget, ByType, read_blocks, read_bytes, read_index, read_long, take
from game_events.decoding.avro.json_text import min_bytes
from game_events.decoding.avro.types import AvroType

#: (bytes, start of a value) -> its end; raises `core.reasons.DAMAGE` for malformed bytes.
Skip = Callable[[bytes, int], int]
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LEAVES: dict[str, Skip] = {
    **dict.fromkeys(("int", "long", "enum"), lambda buf, at: read_long(buf, at)[1]),
    **dict.fromkeys(("bytes", "string"), lambda buf, at: read_bytes(buf, at)[1]),
}


class Skippers:
    """Skip functions by type, recursive types included."""

    def __init__(self) -> None:
        self.of = ByType[int](self._make).of

    def _make(self, type_: AvroType) -> Skip:
        match type_.kind:
            case "record":
                return _all_of([self.of(f.type) for f in type_.fields])
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
