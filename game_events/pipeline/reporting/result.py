"""Results of a run: one structure that Dagster, the command line, `--json` and the event log show. No rows, no secrets.

The metadata of each field names how two values are merged and where the value is shown (`workers.results.merged`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from operator import add, or_
from types import NoneType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from game_events.decoding.columns import type_name
from game_events.decoding.frame import ordered
from game_events.errors import GameEventsError
from game_events.lakehouse.data.columns import comments_of
from game_events.lakehouse.tables import BRONZE, QUARANTINE, REPORTED, Layer, Table, add_actions, is_gold
from game_events.sources.source import Gap, Offsets, Partition
from game_events.workers.results import (
    TENTHS,
    Arrivals,
    Event,
    add_counts,
    add_types,
    by_key,
    distinct,
    extend,
    latest,
    merge,
    merged,
    newest,
)

log = logging.getLogger(__name__)
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
        laid_out: files whose rows were put into files as the layout says; `spread`: those left, with rows of several days.
        replaced: deleted files that no version needs any more.
        orphans: deleted files that no version uses, left by crashes; `orphan_bytes`: their bytes.
        waiting: replaced files that older versions need, which can be read for a time.
        files: data files of the table afterwards.
        expired: rows removed by age; `expired_bytes`: about their bytes; `expired_games`: game -> those of silver;
            `expired_later`: older rows that stay, as a layer has not taken them yet, or for the next time.
        raw_values: values of `_raw_value` that became NULL by age.
        skipped: why work was left for the next time: a concurrent writer, or a restore that has to be checked first.
        error: why the maintenance failed.
    """

    table: str
    joined: int = merged(add, int)
    into: int = merged(add, int)
    joined_bytes: int = merged(add, int)
    renewed: int = merged(add, int)
    outdated: int = merged(latest, int)
    laid_out: int = merged(add, int)
    spread: int = merged(latest, int)
    replaced: int = merged(add, int)
    orphans: int = merged(add, int)
    orphan_bytes: int = merged(add, int)
    waiting: int = merged(latest, int)
    files: int = merged(latest, int)
    expired: int = merged(add, int)
    expired_bytes: int = merged(add, int)
    expired_games: Mapping[str, int] = merged(add_counts, dict)
    expired_later: int = merged(latest, int)
    raw_values: int = merged(add, int)
    skipped: str | None = merged(latest, NoneType)
    error: str | None = merged(latest, NoneType)

    @property
    def anything(self) -> bool:
        """Whether files changed, or work was skipped or failed."""
        work = self.joined or self.renewed or self.laid_out or self.replaced or self.orphans or self.expired or self.raw_values
        return bool(work or self.skipped or self.error)


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


@dataclass(frozen=True)
class TableReport:
    """What happened to one table.

    Attributes:
        layer: bronze, quarantine, silver, gold, unified, or `gold:{name}` for a custom aggregate.
        table: name; `location` is its URI.
        game: for tables of one game.
        rows: rows committed by this run (gold is replaced: all of its rows; unified: those of the files that were copied).
        table_rows: rows of the table after it; `table_bytes`: bytes of its files.
        version: Delta version after the commit.
        batch: highest bronze batch in it.
        columns: (name, type) of each column; `comments`: descriptions of columns that have one.
        new: the table was created by this run.
        new_columns: columns that this run added.
        error: why nothing was committed, if so.
        dropped, quarantined: rows that rules rejected in this run. duplicates: rows that were sent twice.
        violations: rule -> rows that violate it, of the rules that were violated; None: no rule was evaluated.
        message_type: of silver: the one that has this table, as it is called there; None: the table is the game's own.
    """

    layer: str
    table: str
    location: str
    game: str | None = None
    rows: int = merged(add, int)
    table_rows: int = merged(latest, int)
    table_bytes: int = merged(latest, int)
    version: int | None = merged(latest, NoneType)
    batch: int | None = merged(latest, NoneType)
    columns: Sequence[tuple[str, str]] = merged(latest, list)
    comments: Mapping[str, str] = merged(latest, dict)
    new: bool = merged(lambda first, second: first or second, bool)
    new_columns: Sequence[str] = merged(distinct, list)
    error: str | None = merged(latest, NoneType)
    dropped: int = merged(add, int)
    quarantined: int = merged(add, int)
    duplicates: int = merged(add, int)
    violations: Counter[str] | None = merged(
        lambda first, second: first if second is None else (first or Counter()) + second, NoneType
    )
    message_type: str | None = None

    @property
    def partition(self) -> str | None:
        """The partition of Dagster's asset: game, or game and message type."""
        return self.game if self.message_type is None else f"{self.game}/{self.message_type}"

    def __post_init__(self) -> None:
        # A plain text: Dagster's serializer does not know this project's enums.
        object.__setattr__(self, "layer", str(self.layer))


def present(layer: str, table: Table, game: str | None = None) -> TableReport | None:
    """The result of a table of which no row was changed; None: there is none, or its log does not say what it holds."""
    try:
        handle = table.open_to_read()
    except (GameEventsError, DeltaError, OSError) as error:
        log.warning("table=%s not_described=true cause=%s", table.name, type(error).__name__)
        return None
    files = add_actions(handle) if handle is not None else None
    if handle is None or files is None or files.column("num_records").null_count:
        return None
    schema = pa.schema(handle.schema())
    rows, size = (int(pc.sum(files.column(name)).as_py() or 0) for name in ("num_records", "size_bytes"))
    return TableReport(
        layer,
        table.name,
        table.uri,
        game,
        table_rows=rows,
        table_bytes=size,
        version=handle.version(),
        columns=[(column.name, type_name(column.type)) for column in schema],
        comments=comments_of(schema),
    )


def merge_tables(first: Sequence[TableReport], second: Sequence[TableReport]) -> Sequence[TableReport]:
    """One entry for the commits of each table, after them its failures.

    A commit removes the earlier failures of its table, as it is a later attempt: of the step, or of the next cycle. A step that
    follows a failed full refresh in the same run makes no such commit (`TriggeredRun`).
    """
    if not second:
        return first
    # Of a table of all games a commit may be of one game alone.
    committed = {(t.layer, t.table, t.game) for t in second if t.error is None}
    entries: dict[tuple[str, str | None, bool], TableReport] = {}
    for table in first:
        of_it = {(table.layer, table.table, table.game), (table.layer, table.table, None)}
        if table.error is None or committed.isdisjoint(of_it):
            entries[table.table, table.game, table.error is None] = table
    for table in second:
        key = (table.table, table.game, table.error is None)
        before = entries.get(key)
        if before is None or table.error is not None:
            entries[key] = table
        else:
            entries[key] = _merged_commits(before, table)
    return list(entries.values())


def _merged_commits(before: TableReport, table: TableReport) -> TableReport:
    # Gold of a game is replaced, and copied to the unified table: rows of two refreshes are no sum.
    replaced = table.layer == Layer.UNIFIED or is_gold(table.layer)
    return merge(replace(before, rows=0) if replaced else before, table)


@dataclass(frozen=True)
class RuleReport:
    """Evaluation of one rule on one game's rows in this run.

    `layer`, `game`, `rule`, `action`, `sql`: the rule and its table. `rows`: rows evaluated. `violated`: rows for which the
    rule is not TRUE.
    """

    layer: str
    game: str
    rule: str
    action: str
    sql: str
    rows: int = merged(add, int)
    violated: int = merged(add, int)


def rules_dict(rules: Mapping[tuple[str, str, str], RuleReport]) -> list[dict[str, object]]:
    """Each rule over all games, with the games that violate it."""
    by_rule: dict[tuple[str, str], list[RuleReport]] = {}
    for entry in rules.values():
        by_rule.setdefault((entry.layer, entry.rule), []).append(entry)
    return [
        {
            "layer": layer,
            "rule": rule,
            "action": entries[0].action,
            "rows": sum(e.rows for e in entries),
            "violated": sum(e.violated for e in entries),
            "violated_by_game": {e.game: e.violated for e in entries if e.violated},
        }
        for (layer, rule), entries in sorted(by_rule.items())
    ]


#: Notices that a result keeps, the newest: a continuous run may have any number.
NOTICES_KEPT = 100
#: Batches that a result names: the first, and the newest.
BATCHES_KEPT = 1_000


def _merge_batches(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    both = [*first, *second]
    return both if len(both) <= BATCHES_KEPT else [both[0], *both[1 - BATCHES_KEPT :]]


def _merge_files(first: Counter[str], second: Counter[str]) -> Counter[str]:
    """Sums, except of the files that wait: these are as of the last poll."""
    if not second:
        return first
    return Counter({k: first[k] + second[k] for k in first | second if k != "waiting"} | {"waiting": second["waiting"]})


@dataclass(frozen=True)
class LayerResult:
    """What every layer reports.

    Attributes:
        tables: one entry for each table that changed, and for each that failed.
        rejected: quarantine reason, or rule -> rows.
        rules: (layer, game, rule) -> evaluation; each row counts once, however often it was staged.
        seconds: layer -> seconds.
        checks: results of the checks of this run.
        latency: layer -> time from Kafka's timestamp of a record to its commit there.
        waiting: layer -> bronze records that are not visible there yet, by the time they were produced. None: not known.
        notices: warnings for the user.
    """

    tables: Sequence[TableReport] = merged(merge_tables, list, json=None)
    rejected: Mapping[str, int] = merged(add_counts, Counter, event=Event("rejected", Layer.QUARANTINE), printed="")
    rules: Mapping[tuple[str, str, str], RuleReport] = merged(by_key(merge), dict, json=rules_dict)
    seconds: Mapping[str, float] = merged(
        by_key(add), dict, json=lambda seconds: {str(layer): round(took, 3) for layer, took in seconds.items()}
    )
    checks: Sequence[CheckResult] = merged(
        lambda first, second: list({check.name: check for check in (*first, *second)}.values()),
        list,
        json=lambda checks: {check.name: check.passed for check in checks},
    )
    latency: Mapping[str, Histogram] = merged(
        by_key(add), dict, json=lambda latency: {str(layer): times.to_dict() for layer, times in latency.items()}
    )
    waiting: Mapping[str, Arrivals] | None = merged(newest, NoneType, json=None)
    notices: Sequence[str] = merged(lambda first, second: distinct(first, second)[-NOTICES_KEPT:], list)


@dataclass(frozen=True)
class BronzeResult(LayerResult):
    """What bronze reports.

    Attributes:
        offsets: partition -> [from, to) read.
        lag: partition -> records left to read.
        batches: bronze batches committed.
        schema_ids: ids that occurred.
        new_schemas: id archived for the first time -> (subject, version), where known.
        other_types: message type that is not selected -> rows, which are in bronze undecoded.
        replayed: rows that moved from quarantine to bronze.
        gaps: offsets that were deleted before they were read, and that the run passed over (setting `on_data_loss`).
        expired: rows that a full refresh of bronze has lost, as Kafka does not have their records any more.
        suppressed: records of erased people, which are in no table.
        nulled: column -> values that its type does not take (setting `on_bad_value`), or that an expression could not compute,
            and that are NULL instead.
        rescued: topic without a schema -> rows with values that do not fit their columns, and are in `_rescued` (`decoding`).
        definitions: column -> how its values are computed (settings `entity`, `key`, `time`, `entity_names`, `entity_aliases`).
        left_out: source in `SOURCES` that failed -> why; the others were read. None: there is one source, or it was not read.
        rows_by_type: full name of a message type -> rows that came to bronze.
        files: of files as the source: how many were read, have changed since, wait until they are finished.
    """

    offsets: Mapping[Partition, tuple[int, int]] = merged(
        by_key(lambda first, second: (first[0], second[1])),
        dict,
        json=lambda offsets: {str(p): list(read) for p, read in sorted(offsets.items())},
    )
    lag: Offsets = merged(lambda first, second: second or first, dict, json=lambda lag: sum(lag.values()))
    batches: Sequence[int] = merged(_merge_batches, list)
    schema_ids: Set[int | str] = merged(or_, set, json=lambda ids: sorted(ids, key=ordered))
    new_schemas: Mapping[int | str, tuple[str, int] | None] = merged(or_, dict, json=None)
    other_types: Mapping[str, int] = merged(
        add_counts, Counter, event=Event("other_types", Layer.BRONZE), asset=(Layer.BRONZE, "other_types", dict), printed=""
    )
    replayed: int = merged(
        add, int, event=Event("replayed", Layer.BRONZE, BRONZE), printed="rows of quarantine are in bronze now"
    )
    gaps: Sequence[Gap] = merged(
        extend,
        list,
        json=lambda gaps: [{**asdict(gap), "offsets": gap.offsets} for gap in gaps],
        asset=(Layer.BRONZE, "offsets_lost", lambda gaps: "; ".join(map(str, gaps))),
    )
    expired: int = merged(
        add, int, event=Event("expired", Layer.BRONZE, BRONZE), asset=(Layer.BRONZE, "expired_rows_lost", int)
    )
    suppressed: int = merged(
        add,
        int,
        event=Event("suppressed", Layer.BRONZE, BRONZE),
        asset=(Layer.BRONZE, "suppressed_records", int),
        printed="records of erased people are in no table",
    )
    nulled: Mapping[str, int] = merged(
        add_counts,
        Counter,
        event=Event("nulled", Layer.BRONZE),
        asset=(Layer.BRONZE, "values_made_null", dict),
        printed="",
    )
    rescued: Mapping[str, int] = merged(
        add_counts,
        Counter,
        json=lambda rescued: dict(rescued) or None,
        event=Event("rescued", Layer.BRONZE),
        asset=(Layer.BRONZE, "rows_with_rescued_values", dict),
        printed="",
    )
    definitions: Mapping[str, str] = merged(
        or_, dict, json=lambda made: dict(made) or None, asset=(Layer.BRONZE, "definitions", dict)
    )
    left_out: Mapping[str, str] | None = merged(newest, NoneType, json=None)
    rows_by_type: Mapping[str, int] = merged(
        add_types,
        Counter,
        event=Event("rows_by_type", Layer.BRONZE),
        asset=(Layer.BRONZE, "rows_by_type", dict),
    )
    files: Counter[str] = merged(_merge_files, Counter, json=lambda files: dict(+files) or None)


@dataclass(frozen=True)
class SilverResult(LayerResult):
    """What silver reports.

    Attributes:
        readmitted: rows of quarantine that pass the rules now, and are in silver.
        unrouted: reason (invalid, not_allowed, over_limit, no_name) -> rows that belong to no game's table.
        duplicates: game -> rows that were sent twice, and are left out of its table.
    """

    readmitted: int = merged(
        add,
        int,
        event=Event("replayed", Layer.SILVER, QUARANTINE),
        printed="rows of quarantine satisfy the rules and are in silver now",
    )
    unrouted: Mapping[str, int] = merged(add_counts, Counter, event=Event("unrouted", Layer.SILVER), printed="")
    duplicates: Mapping[str, int] = merged(add_counts, Counter, event=Event("duplicates", Layer.SILVER), printed="")


@dataclass(frozen=True)
class GoldResult(LayerResult):
    """What gold reports.

    Attributes:
        postponed: custom aggregates that are behind silver until their interval has passed. None: gold was not refreshed.
    """

    postponed: Sequence[str] | None = merged(newest, NoneType, json=lambda names: list(names or ()))


Part = TypeVar("Part", bound=PluginResult)


@dataclass(frozen=True)
class RunResult(BronzeResult, SilverResult, GoldResult):
    """Result of a run, or of a part of it.

    Attributes:
        maintenance: table -> result of its maintenance.
        registered: tables that were registered in the catalog.
        parts: key -> what a plug-in did; in `--json` each is a key of its own.
    """

    maintenance: Mapping[str, TableMaintenance] = merged(
        by_key(merge),
        dict,
        json=lambda tables: {name: asdict(entry) for name, entry in sorted(tables.items())},
    )
    registered: Sequence[str] = merged(extend, list)
    parts: Mapping[str, PluginResult] = merged(by_key(lambda first, later: first.merged_with(later)), dict, json=None)

    def merge(self, part: LayerResult) -> Self:
        """This result and a later one as one: counts are sums; versions, lag and checks are the later ones."""
        return merge(self, part)

    def part(self, kind: type[Part]) -> Part | None:
        """What a plug-in did; None: nothing of that kind."""
        part = self.parts.get(kind.key)
        return part if isinstance(part, kind) else None

    def of(self, layer: str) -> list[TableReport]:
        """Entries of a layer."""
        return [t for t in self.tables if t.layer == layer]

    def rows(self, layer: str) -> int:
        """Rows committed to a layer."""
        return sum(t.rows for t in self.of(layer) if t.error is None)

    @property
    def errors(self) -> list[TableReport]:
        """Tables that failed."""
        return [t for t in self.tables if t.error is not None]

    @property
    def success(self) -> bool:
        """Nothing failed, and no source was left out."""
        return not self.errors and not self.left_out

    @property
    def is_empty(self) -> bool:
        """Nothing was read or changed, nothing is left to read, and there is nothing to say."""
        of_any_run = {"seconds", "latency", "waiting", "lag"}
        return not any(getattr(self, f.name) for f in fields(self) if f.name not in of_any_run) and not sum(self.lag.values())

    @property
    def topics(self) -> list[str]:
        """Topics that were read."""
        return sorted({partition.place for partition in self.offsets})

    def to_dict(self) -> dict[str, object]:
        """For `--json`: plain types only."""
        layers = [*REPORTED, *sorted({t.layer for t in self.tables} - set(REPORTED))]
        committed = [t for t in self.tables if t.error is None]
        shown = {
            "success": self.success,
            "rows": {str(layer): self.rows(layer) for layer in layers},
            "games": self._rows_by_game(committed),
            "dropped": sum(t.dropped for t in self.tables),
            "quarantined_by_rules": sum(t.quarantined for t in self.tables),
            "errors": [{"table": t.table, "game": t.game, "error": t.error} for t in self.errors],
            "tables": {t.table: t.location for t in committed},
        }
        return (
            shown | self._json_of_fields() | self._json_of_sources() | {key: part.to_dict() for key, part in self.parts.items()}
        )

    def _rows_by_game(self, committed: Iterable[TableReport]) -> dict[str, dict[str, int]]:
        """Game -> layer -> committed rows; nothing for a game whose tables failed."""
        games: dict[str, dict[str, int]] = {game: {} for game in sorted({t.game for t in self.tables if t.game})}
        for table in committed:
            if table.game:
                of_game = games[table.game]
                of_game[table.layer] = table.rows + (of_game.get(table.layer, 0) if table.layer == Layer.SILVER else 0)
        return games

    def _json_of_sources(self) -> dict[str, object]:
        """What was read of each source, what is left, and why one was left out; nothing if there is one without a name."""
        by_source = self.by_source
        return {"sources": by_source} if by_source else {}

    @property
    def by_source(self) -> dict[str, dict[str, int | str]]:
        """Source in `SOURCES` -> records (offsets) read, left to read, lost before they were read; why it was left out."""
        if self.left_out is None:
            return {}
        found: dict[str, dict[str, int | str]] = {}
        counts: list[tuple[str, str, int]] = [
            *((partition.source, "read", end - start) for partition, (start, end) in self.offsets.items()),
            *((partition.source, "lag", lag) for partition, lag in self.lag.items()),
            *((gap.topic.partition("/")[0], "lost", gap.offsets or 0) for gap in self.gaps),
        ]
        read = {partition.source for partition in (*self.offsets, *self.lag)}
        named = (read | set(self.left_out)) - {""}
        for name, what, count in counts:
            if name in named:
                of_source = found.setdefault(name, {})
                of_source[what] = int(of_source.get(what, 0)) + count
        for name, why in self.left_out.items():
            found.setdefault(name, {})["left_out"] = why
        return dict(sorted(found.items()))

    def _json_of_fields(self) -> dict[str, object]:
        """Field -> its value, of the fields that say how they are shown."""
        shown: dict[str, object] = {}
        for f in fields(self):
            value = f.metadata["json"](getattr(self, f.name)) if f.metadata["json"] else None
            if value is not None:
                shown[f.name] = value
        return shown


#: Kinds of the counters' rows of `event_log`.
COUNTER_KINDS = tuple(dict.fromkeys(f.metadata["event"].kind for f in fields(RunResult) if f.metadata["event"]))
