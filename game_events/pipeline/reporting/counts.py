"""Results of single steps of a run: maintenance, a check, what a plug-in did. No rows, no secrets.

Merging of results. The metadata of each dataclass field names the function that merges two of its values.

Latency of records: from Kafka's timestamp to the commit that made them visible in a layer.

Workers count records per tenth of a second while they decode them, so that no second Spark job is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from operator import add
from types import NoneType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from game_events.workers.results import TENTHS, latest, merged

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


#: Bounds of the buckets in seconds: each 10% above the last, from 50 ms to about a day.
_BOUNDS = np.geomspace(0.05, 90_000, 152)


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
