"""Merging of results. The metadata of each dataclass field names the function that merges two of its values."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Self, TypeVar

Merge = Callable[[Any, Any], Any]
R = TypeVar("R")


def extend(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Concatenation."""
    return [*first, *second]


def latest(first: Any, second: Any) -> Any:  # noqa: ANN401, ARG001
    """The second value."""
    return second


def newest(first: Any, second: Any) -> Any:  # noqa: ANN401
    """The second value; None keeps the first one."""
    return first if second is None else second


def distinct(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Both sequences without duplicates, in the order of the first occurrence."""
    return list(dict.fromkeys([*first, *second]))


def add_counts(first: Mapping[Any, int], second: Mapping[Any, int]) -> Mapping[Any, int]:
    """Sum of each key's counts."""
    return Counter(first) + Counter(second) if second else first


def by_key(merge_values: Merge) -> Merge:
    """Merge of two mappings: values under one key are merged."""

    def merge_mappings(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> Mapping[Any, Any]:
        news = {key: merge_values(first[key], value) if key in first else value for key, value in second.items()}
        return {**first, **news} if news else first

    return merge_mappings


def merge(first: R, second: object) -> R:
    """`first` with the values of `second`, which may have fewer fields, merged in."""
    return replace(first, **merged_values(first, second))  # type: ignore[type-var]


def merge_all(merge_values: Callable[[R, R], R], values: Sequence[R]) -> R:
    """The values merged in their order, neighbours first: a value that grows is copied log n times, not n times."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [*(merge_values(first, second) for first, second in pairs), *values[len(values) & ~1 :]]
    return values[0]


def merged_fields(result: object) -> Mapping[str, Merge]:
    """Field -> function that merges two of its values."""
    return _merged_fields(type(result))  # type: ignore[arg-type]  # a class can be hashed


@cache
def _merged_fields(kind: type[Any]) -> Mapping[str, Merge]:
    return {f.name: f.metadata["merge"] for f in fields(kind) if "merge" in f.metadata}


def merged_values(first: object, second: object) -> dict[str, Any]:
    """Field -> merged value, for the fields of `second`."""
    return {name: add(getattr(first, name), getattr(second, name)) for name, add in merged_fields(second).items()}


class Summed:
    """A mutable dataclass of `merged` fields, to which others are added."""

    def add(self, other: Self) -> None:
        """Merge the values of another one into this one."""
        for name, value in merged_values(self, other).items():
            setattr(self, name, value)

    @classmethod
    def sum(cls, results: Iterable[Self]) -> Self:
        """All of them together."""
        return merge_all(merge, [cls(), *results])


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The value for `--json`; None: the key is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return value.to_dict() if hasattr(value, "to_dict") else asdict(value)
    return dict(value) if isinstance(value, Mapping) else value


class Event(NamedTuple):
    """Rows of `event_log` for a count: one if it is not 0, or one for each name; with the key of a table, if there is one."""

    kind: str
    layer: str
    table: str | None = None


def merged(
    merge_values: Merge,
    factory: Callable[[], Any],
    *,
    json: Callable[[Any], Any] | None = plain,
    name: str | None = None,
    event: Event | None = None,
    asset: tuple[str, str, Callable[[Any], Any]] | None = None,
    printed: str | None = None,
) -> Any:  # noqa: ANN401 - a field of the type that the class declares
    """A field of a result, with its merge function and the factory of its default.

    `json`: value -> value in `--json` (a result of None leaves the key out), under the key `name` or the field's name; `event`:
    rows of the event log; `asset`: layer, key, and value -> value in the metadata of that layer's materialization in Dagster;
    `printed`: meaning of the value, for a line at the end of `game-events run`. Empty values are not shown in the last three.
    """
    shown = {"json": json, "name": name, "event": event, "asset": asset, "printed": printed}
    return field(default_factory=factory, metadata={"merge": merge_values, **shown})
