"""What a run did, in one structure that Dagster, the command line and `--json` render; none of them computes its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from game_events.decoding.core.column_map import type_name
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.wire_format import ordered
from game_events.lakehouse.commits.commit import Landed
from game_events.lakehouse.layers import DOWNSTREAM, REPORTED
from game_events.lakehouse.tables import Table
from game_events.pipeline.reporting.archive_result import Archived
from game_events.pipeline.reporting.check_result import CheckResult
from game_events.pipeline.reporting.erasure_result import Erasure
from game_events.pipeline.reporting.export_result import Export
from game_events.pipeline.reporting.latency import Arrivals, Histogram
from game_events.pipeline.reporting.lineage_result import LineageAccount
from game_events.pipeline.reporting.maintenance_result import TableUpkeep
from game_events.rules import Rule
from game_events.sources.core.source import Gap, Offsets, Split


@dataclass
class TableReport:
    """What happened to one table.

    Attributes:
        layer: bronze, quarantine, silver, gold, unified, or `gold:{name}` for an aggregate of one's own.
        table: name; `location` is its URI.
        game: for tables of one game.
        rows: rows committed by this run (gold and unified are replaced: all of their rows).
        table_rows: rows of the table after it; `table_bytes`: bytes of its files.
        version: Delta version after the commit.
        batch: highest bronze batch in it.
        columns: (name, type) of each column; `comments`: those of columns that have one.
        new: the table was made by this run.
        error: why nothing was committed, if so.
        dropped, quarantined: rows that rules kept out of it in this run.
        violations: rule -> rows that violate it, of the rules that were violated; None: no rule looked at its rows.
    """

    layer: str
    table: str
    location: str
    game: str | None = None
    rows: int = 0
    table_rows: int = 0
    table_bytes: int = 0
    version: int | None = None
    batch: int | None = None
    columns: list[tuple[str, str]] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)
    new: bool = False
    new_columns: list[str] = field(default_factory=list)
    error: str | None = None
    dropped: int = 0
    quarantined: int = 0
    violations: Counter[str] | None = None

    def __post_init__(self) -> None:
        """Keep the layer as a plain text: Dagster's events hold no enum that it does not know."""
        self.layer = str(self.layer)


@dataclass
class RuleReport:
    """What one rule said of one game's rows in this run.

    Attributes:
        layer, game, rule, action, sql: which rule, on which table.
        rows: rows it looked at.
        violated: those for which it is not TRUE.
    """

    layer: str
    game: str
    rule: str
    action: str
    sql: str
    rows: int = 0
    violated: int = 0


@dataclass
class RunReport:
    """One run over all layers.

    Attributes:
        tables: one entry for each table that changed or failed.
        offsets: lane (a partition of a topic) -> [from, to) read by this run.
        lag: lane -> records left behind when it ended.
        batches: bronze batches committed.
        schema_ids: ids that occurred.
        new_schemas: id that was archived for the first time -> (subject, version) of it, where that is known.
        rejected: quarantine reason -> rows.
        other_types: message type that is not selected -> rows of it, which came to bronze undecoded.
        replayed: rows that came from quarantine to bronze.
        readmitted: rows of quarantine that rules let into silver after all.
        rules: (layer, game, rule) -> what it said; each row once, however often it was staged.
        unrouted: rows whose game is no table, by why: invalid, not_allowed, over_limit, no_name.
        seconds: layer -> seconds.
        checks: results of the checks that the run made.
        latency: layer -> how long records took from Kafka's timestamp to their commit there.
        postponed: assets of one's own that are behind silver, and whose interval has not passed yet.
        waiting: layer -> records of bronze that are not visible there yet, by the time they were produced.
        gaps: offsets that were gone before they were read, and that the run passed over (setting `on_data_loss`).
        expired: rows that a full refresh of bronze has lost, as Kafka does not have their records any more.
        upkeep: table -> what maintenance did to its files.
        suppressed: records that are in no table, as their gamers were forgotten.
        erasure: what `game-events forget` did.
        export: what the export over HTTP did.
        registered: tables that were registered in the catalog.
        lineage: what became of the OpenLineage events; None: nobody wants any.
        files: of files as the source: how many were taken in, have changed since, wait until they are finished.
        archive: what `game-events archive` did.
        notices: what a person should know besides: a protected table that was left out, a bronze that was replaced.
    """

    tables: list[TableReport] = field(default_factory=list)
    offsets: dict[Split, tuple[int, int]] = field(default_factory=dict)
    lag: Offsets = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    schema_ids: set[int | str] = field(default_factory=set)
    new_schemas: dict[int | str, tuple[str, int] | None] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    other_types: Counter[str] = field(default_factory=Counter)
    replayed: int = 0
    readmitted: int = 0
    rules: dict[tuple[str, str, str], RuleReport] = field(default_factory=dict)
    unrouted: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    checks: list[CheckResult] = field(default_factory=list)
    latency: dict[str, Histogram] = field(default_factory=dict)
    waiting: dict[str, Arrivals] = field(default_factory=dict)
    postponed: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    expired: int = 0
    upkeep: dict[str, TableUpkeep] = field(default_factory=dict)
    suppressed: int = 0
    erasure: Erasure | None = None
    export: Export | None = None
    files: Counter[str] = field(default_factory=Counter)
    archive: Archived | None = None
    notices: list[str] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    lineage: LineageAccount | None = None
    _landed: dict[str, TableReport] = field(default_factory=dict, repr=False)

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
        """Nothing failed."""
        return not self.errors

    def add_landed(
        self, layer: str, table: Table, landed: Landed, schema: pa.Schema, batch: int | None = None, game: str | None = None
    ) -> TableReport:
        """Note a commit; several commits to one table in one run are one entry."""
        entry = self._landed.get(table.name)
        if entry is None:
            entry = self._landed[table.name] = TableReport(layer, table.name, table.uri, game)
            self.tables.append(entry)
        entry.rows += landed.rows
        entry.table_rows, entry.table_bytes, entry.version = landed.table_rows, landed.table_bytes, landed.version
        entry.batch = batch
        entry.columns = [(f.name, type_name(f.type)) for f in schema]
        entry.comments = dict(landed.comments)
        return entry

    def add_rules(
        self, layer: str, game: str, rules: Iterable[Rule], counts: RuleCounts, entry: TableReport | None = None
    ) -> None:
        """Note what the rules of a layer said of a game's rows, once these are committed (`entry`) or have failed for good."""
        if entry is not None:
            entry.dropped += counts.dropped
            entry.quarantined += counts.quarantined
            entry.violations = (entry.violations or Counter()) + counts.violated
        for rule in rules:
            if rule.applies_to(game):
                key = (layer, game, rule.name)
                found = self.rules.setdefault(key, RuleReport(str(layer), game, rule.name, rule.action, rule.sql))
                found.rows += counts.rows
                found.violated += counts.violated[rule.name]

    def _rules(self) -> list[dict[str, object]]:
        """Each rule over all games, with the games that violate it."""
        found: dict[tuple[str, str], list[RuleReport]] = {}
        for entry in self.rules.values():
            found.setdefault((entry.layer, entry.rule), []).append(entry)
        return [
            {
                "layer": layer,
                "rule": rule,
                "action": entries[0].action,
                "rows": sum(e.rows for e in entries),
                "violated": sum(e.violated for e in entries),
                "violated_by_game": {e.game: e.violated for e in entries if e.violated},
            }
            for (layer, rule), entries in sorted(found.items())
        ]

    def add_read(self, start: Offsets, end: Offsets, unit: int = 1) -> None:
        """Note a slice that was committed; `unit`: positions of one thing to read."""
        for lane, to in end.items():
            begin = self.offsets.get(lane, (start[lane] // unit, to))[0]
            self.offsets[lane] = (begin, to // unit)

    @property
    def topics(self) -> list[str]:
        """Topics of which something was read."""
        return sorted({lane.topic for lane in self.offsets})

    def add_files(self, counts: Counter[str]) -> None:
        """Note what a source of files has seen since it was asked last, and tell what nobody would notice else."""
        if counts["changed"]:
            self.notices.append(f"{counts['changed']:,} files were written again after they were taken in: not read again")
        if counts["links"]:
            self.notices.append(
                f"{counts['links']:,} symbolic links in the folder of files are not followed: put the files there"
            )
        if counts["skipped"]:
            self.notices.append(
                f"{counts['skipped']:,} names in the folder of files are skipped, with all below them (too deep, too long, "
                "no UTF-8, or not to be read by this user): the log says which and why"
            )
        before = Counter({k: n for k, n in self.files.items() if k != "waiting"})
        self.files = before + counts
        counts.clear()

    def add_rejected(self, reasons: Counter[str]) -> None:
        """Note records that came to quarantine."""
        self.rejected += reasons
        if reasons[Reason.TOO_LARGE]:
            self.notices.append(
                "records, or files, that are larger than the settings allow are in quarantine, in part: `game-events "
                "quarantine list --reason TOO_LARGE` says which setting"
            )

    def arrived(self, arrivals: Arrivals) -> None:
        """Note records that are visible in bronze now."""
        self.latency.setdefault("bronze", Histogram()).add_arrivals(arrivals, time.time())
        for layer in DOWNSTREAM:
            self.waiting.setdefault(layer, Counter()).update(arrivals)

    def visible(self, layer: str) -> None:
        """Note that a layer has everything bronze has (games that failed apart)."""
        arrivals = self.waiting.pop(layer, None)
        if arrivals:
            self.latency.setdefault(layer, Histogram()).add_arrivals(arrivals, time.time())

    def add_upkeep(self, done: Iterable[TableUpkeep]) -> None:
        """Note what maintenance did."""
        for entry in done:
            self.upkeep.setdefault(entry.table, TableUpkeep(entry.table)).add(entry)

    def to_dict(self) -> dict[str, object]:
        """For `--json`: plain types only."""
        games = sorted({t.game for t in self.tables if t.game})
        layers = [*REPORTED, *sorted({t.layer for t in self.tables} - set(REPORTED))]
        return {
            "success": self.success,
            "rows": {str(layer): self.rows(layer) for layer in layers},
            "games": {g: {t.layer: t.rows for t in self.tables if t.game == g and t.error is None} for g in games},
            "offsets": {str(p): list(r) for p, r in sorted(self.offsets.items())},
            "lag": sum(self.lag.values()),
            "batches": self.batches,
            "schema_ids": sorted(self.schema_ids, key=ordered),
            "rejected": dict(self.rejected),
            "other_types": dict(self.other_types),
            "replayed": self.replayed,
            "readmitted": self.readmitted,
            "dropped": sum(t.dropped for t in self.tables),
            "quarantined_by_rules": sum(t.quarantined for t in self.tables),
            "rules": self._rules(),
            "unrouted": dict(self.unrouted),
            "postponed": self.postponed,
            "gaps": [{**asdict(gap), "offsets": gap.offsets} for gap in self.gaps],
            "expired": self.expired,
            "upkeep": {name: entry.to_dict() for name, entry in sorted(self.upkeep.items())},
            "suppressed": self.suppressed,
            "notices": self.notices,
            **({"files": dict(self.files)} if self.files else {}),
            "errors": [{"table": t.table, "game": t.game, "error": t.error} for t in self.errors],
            "seconds": {str(k): round(v, 3) for k, v in self.seconds.items()},
            "checks": {c.name: c.passed for c in self.checks},
            "latency": {str(layer): times.to_dict() for layer, times in self.latency.items()},
            "tables": {t.table: t.location for t in self.tables if t.error is None},
            "registered": self.registered,
            **({"lineage": asdict(self.lineage)} if self.lineage is not None else {}),
            **({"archive": self.archive.to_dict()} if self.archive is not None else {}),
            **({"erasure": self.erasure.to_dict()} if self.erasure is not None else {}),
            **({"export": self.export.to_dict()} if self.export is not None else {}),
        }


@dataclass
class RuleCounts:
    """What the rules of a layer said of one game's rows.

    Attributes:
        rows: rows looked at.
        violated: rule -> rows that violate it.
        reasons: rule -> rows that go to quarantine for it.
        dropped, held, readmitted: rows left out; in quarantine already; kept although quarantine held them.
        examples: rule with the action fail -> coordinates of a row that violates it.
    """

    rows: int = 0
    violated: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    held: int = 0
    readmitted: int = 0
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def quarantined(self) -> int:
        """Rows that are in quarantine instead of in the table."""
        return self.held + sum(self.reasons.values())

    def add(self, other: RuleCounts) -> None:
        """Another worker's counts of the same game."""
        self.rows += other.rows
        self.violated += other.violated
        self.reasons += other.reasons
        self.dropped += other.dropped
        self.held += other.held
        self.readmitted += other.readmitted
        self.examples = other.examples | self.examples
