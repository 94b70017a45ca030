"""Results of single steps of a run: archive, maintenance, OpenLineage, an erasure, an export, a check. No rows, no secrets.

Merging of results. The metadata of each dataclass field names the function that merges two of its values.

Latency of records: from Kafka's timestamp to the commit that made them visible in a layer.

Workers count records per tenth of a second while they decode them, so that no second Spark job is needed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from operator import add
from statistics import quantiles
from types import NoneType
from typing import Any, NamedTuple, Self, TypeVar

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

#: Latencies that a task of an export reports.
LATENCIES_REPORTED = 200


@dataclass(frozen=True)
class ArchiveResult:
    """Result of `game-events archive`.

    `rows`: records added; `files`, `bytes`: number and size of their files. `without_raw`: rows of bronze without a raw value,
    which cannot be archived. `batch`: last bronze batch in the archive.
    """

    to: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    without_raw: int = 0
    batch: int = 0


@dataclass(frozen=True)
class LineageResult:
    """Number of OpenLineage events that the receiver took (`sent`) and did not take (`lost`), and why the first was lost."""

    sent: int = merged(add, int)
    lost: int = merged(add, int)
    why: str = merged(lambda first, second: first or second, str)


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


@dataclass
class Erasure:
    """Result of `game-events forget`.

    Attributes:
        hashes: prefixes of the keyed hashes of the data subjects.
        dry_run: nothing was changed; `rows` are those that would be removed.
        rows: table -> rows removed; gold and unified: rows of the aggregates.
        unsearchable: rows of quarantine that do not decode, so that their data subject is unknown.
        undecoded: rows of bronze of a message type that is not selected, so that their data subject is unknown.
        lost_ids: data subjects of a resumed erasure with a key that no row has; only undecodable bytes may be left of them.
        finished: every table was searched, and holds no row of them.
        vacuumed: old files were searched too.
        removed_files: table -> removed files of older versions with rows of them.
        kept_files: table -> files with rows of them that no version names, and that a run may be about to commit.
        cleaned_logs: tables with older log entries that named one of them, and were removed.
    """

    hashes: list[str] = field(default_factory=list)
    dry_run: bool = False
    rows: Counter[str] = field(default_factory=Counter)
    unsearchable: int = 0
    undecoded: int = 0
    lost_ids: int = 0
    finished: bool = False
    vacuumed: bool = False
    kept_files: Counter[str] = field(default_factory=Counter)
    removed_files: Counter[str] = field(default_factory=Counter)
    cleaned_logs: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {name: dict(sorted(v.items())) if isinstance(v, Counter) else v for name, v in vars(self).items()}

    def event_rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the event log: of the erasure, then of each table."""
        status = "dry run" if self.dry_run else "finished" if self.finished else "unfinished"
        row, detail = {"kind": "erased", "status": status}, {"hashes": self.hashes}
        files = {"removed_files": self.removed_files.total(), "unsearchable": self.unsearchable}
        yield row | {"rows": self.rows.total(), "detail": detail | {"vacuumed": self.vacuumed} | files}
        for table, rows in sorted(self.rows.items()):
            yield row | {"table": table, "rows": rows, "detail": detail}


@dataclass
class TaskAccount:
    """Result of one Spark task of an export.

    Attributes:
        began, ended: seconds since 1970.
        delivered, failed: rows, by outcome; `delivered_calls`, `failed_calls`: their chunks.
        calls: attempts made.
        answers: status, or kind of failure -> attempts.
        latencies: seconds of some of its answered calls.
        stopped: why it stopped before its chunks were sent, if so.
        kind: class of that error.
    """

    began: float = 0.0
    ended: float = 0.0
    delivered: int = 0
    failed: int = 0
    delivered_calls: int = 0
    failed_calls: int = 0
    calls: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    stopped: str | None = None
    kind: str = "TransientError"


@dataclass
class Export:
    """Result of one run of the export over HTTP.

    Attributes:
        planned_rows, planned_chunks: planned by this run.
        delivered_rows, delivered_chunks: accepted by the receiver.
        dead_rows, dead_chunks: failed, and in `rest_dead_letters`.
        waiting_chunks: left for the next run.
        calls: attempts; `answers`: status, or kind of failure -> attempts.
        held: game -> why nothing of it was planned.
        tasks, at_once: Spark tasks that sent, and the most of them that ran at the same time.
        seconds: of sending alone.
        latency_s: median and 95th percentile of answered calls.
    """

    planned_rows: int = 0
    planned_chunks: int = 0
    delivered_rows: int = 0
    delivered_chunks: int = 0
    dead_rows: int = 0
    dead_chunks: int = 0
    waiting_chunks: int = 0
    calls: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    held: dict[str, str] = field(default_factory=dict)
    tasks: int = 0
    at_once: int = 0
    seconds: float = 0.0
    latency_s: tuple[float, float] | None = None
    _latencies: list[float] = field(default_factory=list, repr=False)

    def add(self, tasks: Sequence[TaskAccount]) -> None:
        """Add the tasks of one micro-batch."""
        for task in tasks:
            self.delivered_rows += task.delivered
            self.delivered_chunks += task.delivered_calls
            self.dead_rows += task.failed
            self.dead_chunks += task.failed_calls
            self.calls += task.calls
            self.answers.update(task.answers)
            self._latencies += task.latencies
        moments = sorted([(t.began, 1) for t in tasks] + [(t.ended, -1) for t in tasks])
        running = 0
        for _, change in moments:
            running += change
            self.at_once = max(self.at_once, running)
        self.tasks = max(self.tasks, len(tasks))
        if len(self._latencies) > 1:
            cuts = quantiles(self._latencies, n=20)
            self.latency_s = (cuts[9], cuts[18])

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        found = {name: value for name, value in vars(self).items() if name not in ("at_once", "latency_s", "_latencies")}
        return found | {
            "answers": dict(sorted(self.answers.items())),
            "tasks_at_once": self.at_once,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.delivered_rows / self.seconds, 1) if self.seconds else None,
            "calls_per_s": round(self.calls / self.seconds, 1) if self.seconds else None,
            "latency_ms": {n: round(s * 1000, 1) for n, s in zip(("p50", "p95"), self.latency_s or (), strict=False)},
        }

    def event_rows(self) -> Iterator[dict[str, Any]]:
        """Row of the event log."""
        if self.planned_chunks or self.calls or self.held:
            states = {"held": self.held, "waiting": self.waiting_chunks, "dead letters": self.dead_chunks, "done": True}
            status = next(state for state, applies in states.items() if applies)
            counts = {"rows": self.delivered_rows, "seconds": round(self.seconds, 3)}
            yield {"kind": "exported", "layer": "rest", "status": status, "detail": self.to_dict()} | counts


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
    minute, hour = 60 * TENTHS, 3600 * TENTHS
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
        p50, p95 = self.percentile(0.5), self.percentile(0.95)
        return {
            "p50_s": None if p50 is None else round(p50, 2),
            "p95_s": None if p95 is None else round(p95, 2),
            "longest_s": round(self.longest_s, 2),
            "rows": self.total,
        }
