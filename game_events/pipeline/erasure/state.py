"""One erasure's state: whose rows, which files were looked at, and what was found in those that are gone already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import paths
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.system_tables.suppressed import Record
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.old_files import replaced_files
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile, look_at
from game_events.pipeline.erasure.subjects import RECORDS, Wanted
from game_events.pipeline.reporting.erasure_result import Erasure
from game_events.pipeline.reporting.report import RunReport


@dataclass
class Work:
    """One erasure's state: what was looked at, what was found."""

    pipeline: Pipeline
    report: RunReport
    account: Erasure
    wanted: Wanted
    #: Of the gamers, as the list has them.
    hashes: frozenset[str] = frozenset()
    #: Bronze's count when an attempt that was interrupted ended: silver tables that have it were done by that.
    done_before: int | None = None
    #: table -> files without rows of theirs.
    clean: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: Rows of theirs that quarantine held instead of silver.
    held: pa.Table = field(default_factory=RECORDS.empty_table)
    #: game -> bronze batch up to which its counters are right.
    settled: dict[str, int] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    #: (table, file) -> rows of which nobody can say whose they are.
    unsearchable: dict[tuple[str, str], int] = field(default_factory=dict)

    def look(self, tables: Mapping[str, DeltaTable]) -> dict[str, list[ScannedFile]]:
        """Look at the files that were not looked at yet; table -> files with rows of theirs."""
        files = [(name, path) for name, handle in tables.items() for path in paths(handle) if path not in self.clean[name]]
        task = EraseTask(
            {name: self.pipeline.lakehouse.table(name) for name in tables}, self.wanted, rewrite=not self.account.dry_run
        )
        hits: dict[str, list[ScannedFile]] = {}
        for found in look_at(self.pipeline, task, files):
            if found.table in (BRONZE, QUARANTINE):
                self.unsearchable[found.table, found.path] = found.unsearchable
            if found.anything:
                hits.setdefault(found.table, []).append(found)
            else:
                self.clean[found.table].add(found.path)
        return hits

    def add_records(self, found: Iterable[ScannedFile]) -> None:
        """Rows of bronze that lead to rows of other tables, which are looked at once more if these are news."""
        wanted = self.wanted.with_records(f.records for f in found)
        if wanted.records.num_rows != self.wanted.records.num_rows:
            self.wanted = wanted
            for name in [n for n in self.clean if n != BRONZE]:
                del self.clean[name]

    def undecodable(self, hits: Iterable[ScannedFile]) -> set[Record]:
        """Those of quarantine's rows that have no row of bronze: only their key or bytes tell whose they are."""
        return _coordinates(f.records for f in hits) - _coordinates([self.wanted.records])

    def undecoded(self, hits: Iterable[ScannedFile]) -> set[Record]:
        """Those of bronze's rows whose message type is not decoded: the same is true of them."""
        return _coordinates(f.traced for f in hits)

    def unsearchable_of(self, table: str) -> int:
        """Rows of a table of which nobody can say whose they are."""
        return sum(rows for (name, _), rows in self.unsearchable.items() if name == table)

    def held_now(self) -> pa.Table:
        """Rows of theirs that quarantine held instead of silver, with those that came since it was looked at.

        A run's decision is in quarantine before the silver table has its batch: asked after that table was opened, this
        knows every row that the table counts.
        """
        handle = self.pipeline.quarantine.open()
        task = EraseTask({QUARANTINE: self.pipeline.quarantine}, self.wanted, rewrite=False)
        news = [path for path in paths(handle) if path not in self.clean[QUARANTINE]] if handle is not None else []
        return pa.concat_tables([self.held, *(task.look(QUARANTINE, path).records for path in news)])

    def erased(self, table: str, hits: Iterable[ScannedFile]) -> None:
        """Note what landed, or would."""
        for found in hits:
            self.account.rows[self.pipeline.lakehouse.table(table).name] += found.rows
            self.clean[table] |= {file.path for file in found.files}

    def drop(self, hits: Mapping[str, list[ScannedFile]]) -> None:
        """Delete files that nobody has committed, nor will."""
        for name, found in hits.items():
            discard(self.pipeline.lakehouse.table(name), [file for f in found for file in f.files])


def _coordinates(found: Iterable[pa.Table]) -> set[Record]:
    columns = ["_kafka_topic_id", "_kafka_partition", "_kafka_offset"]
    known = pa.concat_tables([RECORDS.empty_table(), *found]).select(columns).drop_null()
    return set(zip(*(known.column(name).to_pylist() for name in columns), strict=True))


def find_what_is_gone(work: Work, bronze: DeltaTable) -> None:
    """Which rows went in an attempt that was interrupted: from the files that it replaced."""
    lakehouse = work.pipeline.lakehouse
    task = partial(EraseTask, {n: lakehouse.table(n) for n in (BRONZE, QUARANTINE)}, rewrite=False, old=True)
    # Of today's files too: they lead to what went from quarantine, if that is how far it came.
    files = [(BRONZE, path) for path in (*replaced_files(work.pipeline.bronze, bronze), *paths(bronze))]
    work.add_records(found for found in look_at(work.pipeline, task(wanted=work.wanted), files) if found.rows)
    quarantine = work.pipeline.quarantine.open()
    files = [(QUARANTINE, path) for path in replaced_files(work.pipeline.quarantine, quarantine)] if quarantine else []
    found = [f.records for f in look_at(work.pipeline, task(wanted=work.wanted), files) if f.rows]
    work.held = pa.concat_tables([work.held, *found])
