"""Results of single steps of a run: maintenance, a check, what a plug-in did. No rows, no secrets.

Merging of results. The metadata of each dataclass field names the function that merges two of its values.

Latency of records: from Kafka's timestamp to the commit that made them visible in a layer.

Workers count records per tenth of a second while they decode them, so that no second Spark job is needed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from operator import add
from types import NoneType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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


#: What a check covers.
WHOLE, NEW = "whole tables", "what is new"


class PluginResult:
    """What a plug-in did in a run: a dataclass, which is `key` in `--json`."""

    key: ClassVar[str]

    def merged_with(self, later: Self) -> Self:
        """This result and a later one of the same run as one."""
        return later

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # each is a dataclass

    def event_rows(self) -> Iterable[dict[str, Any]]:
        """Rows of the event log."""
        return ()


@dataclass
class TableMaintenance:
    """Result of the maintenance of one table.

    Attributes:
        joined: small files that were compacted; `into`: files that replace them; `joined_bytes`: bytes of these.
        renewed: files by whose statistics readers missed rows, replaced by files with the same rows; `outdated`: those left.
        replaced: deleted files that no current version uses, older than the retention.
        orphans: deleted files that no version uses, left by crashes; `orphan_bytes`: their bytes.
        waiting: replaced files within the retention, which readers may still use.
        files: data files of the table afterwards.
        skipped: why work was left for the next time: a concurrent writer, or a restore that has to be checked first.
        error: why the maintenance failed.
    """

    table: str
    joined: int = merged(add, int)
    into: int = merged(add, int)
    joined_bytes: int = merged(add, int)
    renewed: int = merged(add, int)
    outdated: int = merged(latest, int)
    replaced: int = merged(add, int)
    orphans: int = merged(add, int)
    orphan_bytes: int = merged(add, int)
    waiting: int = merged(latest, int)
    files: int = merged(latest, int)
    skipped: str | None = merged(latest, NoneType)
    error: str | None = merged(latest, NoneType)

    @property
    def anything(self) -> bool:
        """Whether files changed, or work was skipped or failed."""
        return bool(self.joined or self.renewed or self.replaced or self.orphans or self.skipped or self.error)


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: the check's name; `layer`: layer of its asset.
        passed: nothing is wrong.
        summary: one sentence: the finding, and where.
        counts: numbers and short texts for display; no values of events.
        wrong_rows: a failure means that rows are wrong, missing or duplicated (severity ERROR); otherwise WARN.
        version: Delta version of the layer's table that was checked.
        games: failed games, if each is checked by itself.
        covers: what was looked at: `WHOLE`, or `NEW`, which passes over faults of earlier commits.
    """

    name: str
    layer: str
    passed: bool
    summary: str
    counts: Mapping[str, int | float | str] = field(default_factory=dict)
    wrong_rows: bool = False
    version: int | None = None
    games: tuple[str, ...] = ()
    covers: str = WHOLE


#: Tenth of a second since 1970 (UTC) in which records were produced -> how many.
Arrivals = Counter[int]

TENTHS = 10

#: Ages from which records are counted per minute and per hour, so that a backlog does not make the count large.
FINE_S, COARSE_S = 600, 86_400

#: Bounds of the buckets in seconds: each 10% above the last, from 50 ms to about a day.
_BOUNDS = np.geomspace(0.05, 90_000, 152)


def count_arrivals(timestamps: pa.Array, now_s: float | None = None) -> Arrivals:
    """Number of records per time of production. `timestamps`: `_kafka_timestamp`; `now_s`: seconds since 1970."""
    tenths = timestamps.cast(pa.int64(), safe=False).drop_null().to_numpy() // (1_000_000 // TENTHS)
    age = int((time.time() if now_s is None else now_s) * TENTHS) - tenths
    minute = 60 * TENTHS
    hour = 3600 * TENTHS
    rounded = np.where(age > FINE_S * TENTHS, tenths // minute * minute, tenths)
    rounded = np.where(age > COARSE_S * TENTHS, tenths // hour * hour, rounded)
    values, counts = np.unique(rounded, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


@dataclass
class Histogram:
    """Durations in buckets that grow by 10%: small, mergeable, exact to about 5%.

    `counts`: weight of each bucket; the last one is unbounded. `longest_s`: the greatest duration.
    """

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(_BOUNDS) + 1, np.int64))
    longest_s: float = 0.0

    def add(self, seconds: float, weight: int = 1) -> None:
        """Add a duration; a negative one (clocks differ) counts as zero."""
        self.counts[int(np.searchsorted(_BOUNDS, seconds))] += weight
        self.longest_s = max(self.longest_s, seconds)

    @classmethod
    def of(cls, arrivals: Mapping[int, int], visible_s: float) -> Histogram:
        """Durations of records that became visible at a time (seconds since 1970)."""
        made = cls()
        for tenth, rows in arrivals.items():
            # A record was produced somewhere within its tenth: on average in the middle.
            made.add(visible_s - (tenth + 0.5) / TENTHS, rows)
        return made

    def __add__(self, other: Histogram) -> Histogram:
        """The durations of both."""
        return Histogram(self.counts + other.counts, max(self.longest_s, other.longest_s))

    @property
    def total(self) -> int:
        """Weight of all durations."""
        return int(self.counts.sum())

    def percentile(self, share: float) -> float | None:
        """Quantile in seconds (`share`: 0 to 1); None without durations."""
        if not self.total:
            return None
        at = int(np.searchsorted(self.counts.cumsum(), share * self.total))
        upper = float(_BOUNDS[at]) if at < len(_BOUNDS) else self.longest_s
        return min(upper, max(self.longest_s, 0.0))

    def buckets(self) -> list[tuple[float, int]]:
        """(Upper bound in seconds, weight) of the non-empty buckets."""
        bounds = [*_BOUNDS.tolist(), float("inf")]
        return [(min(bounds[i], self.longest_s), int(n)) for i, n in enumerate(self.counts) if n]

    def to_dict(self) -> dict[str, float | int | None]:
        """For `--json`."""
        p50 = self.percentile(0.5)
        p95 = self.percentile(0.95)
        return {
            "p50_s": None if p50 is None else round(p50, 2),
            "p95_s": None if p95 is None else round(p95, 2),
            "longest_s": round(self.longest_s, 2),
            "rows": self.total,
        }
