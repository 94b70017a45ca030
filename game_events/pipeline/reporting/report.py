"""The result of a run under way, to which each step adds its part."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from game_events.config.type_names import type_of
from game_events.decoding.columns import type_name
from game_events.decoding.frame import Reason
from game_events.decoding.unframed.inferred import topic_of
from game_events.lakehouse.commits.commit import Landed
from game_events.lakehouse.tables import DOWNSTREAM, Table, called_in_silver
from game_events.pipeline.reporting.result import (
    BronzeResult,
    CheckResult,
    Histogram,
    LayerResult,
    RuleReport,
    RunResult,
    TableMaintenance,
    TableReport,
)
from game_events.rules import Rule
from game_events.sources.source import Offsets, Partition
from game_events.workers.results import Arrivals, RuleCounts, merge_all, merged_fields


class RunReport(RunResult):
    """Result of a run under way. Every step adds its part, so that the report is right after an error too.

    The parts of a field are merged when the field is read: adding the parts of n tables one by one costs O(n log n).
    """

    def add(self, part: LayerResult) -> None:
        """Add the result of a step: the only way to change a report."""
        values = vars(self)
        parts = values.setdefault("_parts", {})
        for name in merged_fields(part):
            if name in values:
                parts[name] = [values[name]]
                del values[name]
            parts[name].append(getattr(part, name))

    if not TYPE_CHECKING:  # else every name would count as an attribute

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            """A field's value, of which parts were added since the last read."""
            parts = vars(self).get("_parts", {})
            if name not in parts:
                msg = f"{type(self).__name__} has no attribute {name}"
                raise AttributeError(msg)
            values = vars(self)
            values[name] = merge_all(merged_fields(self)[name], parts[name])
            del parts[name]
            return values[name]

    def warn(self, *notices: str) -> None:
        """Add warnings for the user."""
        self.add(LayerResult(notices=notices))

    def add_checks(self, *checks: CheckResult) -> None:
        """Add results of checks."""
        self.add(LayerResult(checks=checks))

    def add_seconds(self, layer: str, seconds: float) -> None:
        """Add the duration of a step."""
        self.add(LayerResult(seconds={layer: seconds}))

    def add_failed_sources(self, failures: Mapping[str, str]) -> None:
        """Add what sources are left out at the end of a step, and why: the others were read."""
        notices = [f"source {name} was left out, the next run catches up: {why}" for name, why in failures.items()]
        self.add(BronzeResult(left_out=dict(failures), notices=notices))

    def add_failed(self, layer: str, table: Table, why: str, game: str | None = None) -> None:
        """Add a table that could not be changed."""
        self.add(LayerResult(tables=[TableReport(layer, table.name, table.uri, game, error=why)]))

    def add_landed(  # noqa: PLR0913
        self,
        layer: str,
        table: Table,
        landed: Landed,
        schema: pa.Schema,
        batch: int | None = None,
        game: str | None = None,
        *,
        new: bool = False,
        known_columns: Collection[str] | None = None,
        counts: RuleCounts | None = None,
    ) -> None:
        """Add a commit; `known_columns`: columns before it, if new ones are to be reported; `counts`: of the layer's rules."""
        entry = TableReport(
            layer,
            table.name,
            table.uri,
            game,
            rows=landed.rows,
            table_rows=landed.table_rows,
            table_bytes=landed.table_bytes,
            version=landed.version,
            batch=batch,
            columns=list(zip(schema.names, map(type_name, schema.types), strict=True)),
            comments=dict(landed.comments),
            new=new,
            new_columns=[] if known_columns is None else [name for name in schema.names if name not in known_columns],
            message_type=type_of(called_in_silver(table.key) or ""),
        )
        if counts is not None:
            entry = replace(
                entry,
                dropped=counts.dropped,
                quarantined=counts.quarantined,
                duplicates=counts.duplicates,
                violations=counts.violated,
            )
        self.add(LayerResult(tables=[entry]))

    def add_rules(self, layer: str, game: str, rules: Iterable[Rule], counts: RuleCounts) -> None:
        """Add the evaluation of a layer's rules on a game's rows, once these are committed or have failed for good."""
        chosen = {(str(layer), game, rule.name): rule for rule in rules if rule.applies_to(game)}
        evaluated = {k: RuleReport(*k, r.action, r.sql, counts.rows, counts.violated[r.name]) for k, r in chosen.items()}
        self.add(LayerResult(rules=evaluated))

    def mark_new(self, layer: str, games: Set[str]) -> None:
        """Report the tables of these games as created by this run."""
        made = [t for t in self.of(layer) if t.error is None and t.game in games]
        unchanged = [replace(t, rows=0, dropped=0, quarantined=0, duplicates=0, violations=None) for t in made]
        self.add(LayerResult(tables=[replace(t, new=True) for t in unchanged]))

    def add_read(self, start: Offsets, end: Offsets, unit_of: Callable[[Partition], int] = lambda _: 1) -> None:
        """Add the offsets of a micro-batch; `unit_of`: offsets per record of a partition."""
        self.add(BronzeResult(offsets={p: (start[p] // unit_of(p), to // unit_of(p)) for p, to in end.items()}))

    def add_files(self, counts: Counter[str]) -> None:
        """Add what a source of files has counted since the last call, with warnings of files that are not read."""
        warnings = {
            "changed": "files were written again after they were taken in: not read again",
            "links": "symbolic links in the folder of files are not followed: put the files there",
            "skipped": "names in the folder of files are skipped, with all below them (too deep, too long, "
            "no UTF-8, or not to be read by this user): the log says which and why",
        }
        notices = [f"{counts[what]:,} {text}" for what, text in warnings.items() if counts[what]]
        self.add(BronzeResult(files=Counter({"waiting": 0, **counts}), notices=notices))
        counts.clear()

    def add_batch(self, batch: int, types: Iterable[tuple[int | str, object]], other_types: Mapping[str, int]) -> None:
        """Add a batch of bronze, with the schema ids and message types of its records; `other_types` are not selected."""
        schema_ids = {schema_id for schema_id, _ in types if topic_of(schema_id) is None}
        self.add(BronzeResult(batches=[batch], schema_ids=schema_ids, other_types=other_types))

    def add_rejected(self, reasons: Mapping[str, int]) -> None:
        """Add records that were committed to quarantine."""
        notices = {
            Reason.TOO_LARGE: "records, or files, that are larger than the settings allow are in quarantine, in part: "
            "`game-events quarantine list --reason TOO_LARGE` says which setting",
            Reason.REGISTRY_CHANGED: "records are in quarantine as the registry gives their schema ids another meaning than "
            "before: `game-events quarantine list --reason REGISTRY_CHANGED` says what differs",
        }
        self.add(LayerResult(rejected=reasons, notices=[text for reason, text in notices.items() if reasons.get(reason)]))

    def add_maintenance(self, results: Iterable[TableMaintenance]) -> None:
        """Add the maintenance of tables."""
        for entry in results:
            self.add(RunResult(maintenance={entry.table: entry}))

    def arrived(self, arrivals: Arrivals) -> None:
        """Add records that are visible in bronze now."""
        before = self.waiting or {}
        waiting = {str(layer): before.get(layer, Counter()) + arrivals for layer in DOWNSTREAM}
        self.add(LayerResult(latency={"bronze": Histogram.of(arrivals, time.time())}, waiting=waiting))

    def visible(self, layer: str) -> None:
        """Report that a layer has all rows of bronze, except those of failed games."""
        waiting = dict(self.waiting or {})
        arrivals = waiting.pop(layer, None)
        if arrivals:
            self.add(LayerResult(waiting=waiting, latency={layer: Histogram.of(arrivals, time.time())}))
