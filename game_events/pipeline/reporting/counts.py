"""Results of single steps of a run: archive, maintenance, OpenLineage, an erasure, an export, a check. No rows, no secrets.

Merging of results. The metadata of each dataclass field names the function that merges two of its values.

Latency of records: from Kafka's timestamp to the commit that made them visible in a layer.

Workers count records per tenth of a second while they decode them, so that no second Spark job is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from statistics import quantiles
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from game_events.workers.results import TENTHS, latest, merged

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
        p50, p95 = self.percentile(0.5), self.percentile(0.95)
        return {
            "p50_s": None if p50 is None else round(p50, 2),
            "p95_s": None if p95 is None else round(p95, 2),
            "longest_s": round(self.longest_s, 2),
            "rows": self.total,
        }
