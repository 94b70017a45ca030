"""State of one erasure: its data subjects, the scanned files, and rows that an interrupted attempt has erased."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.event_columns import COORDINATES
from game_events.lakehouse.tables import BRONZE, QUARANTINE, paths
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.old_files import replaced_files
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile, scan_files
from game_events.pipeline.erasure.subjects import RECORDS, DataSubjects
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.steps import Erasure


@dataclass
class ErasureState:
    """State of one erasure."""

    pipeline: Pipeline
    report: RunReport
    result: Erasure
    subjects: DataSubjects
    #: Keyed hashes of the data subjects' ids.
    hashes: frozenset[str] = frozenset()
    #: Bronze's number of erasures after an interrupted attempt: silver tables with this number are finished.
    done_before: int | None = None
    #: table -> scanned files without matches.
    clean: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: Erased rows of quarantine.
    held: pa.Table = field(default_factory=RECORDS.empty_table)
    #: game -> bronze batch up to which silver's counters are corrected.
    settled: dict[str, int] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    #: (table, file) -> rows that cannot be attributed to a data subject.
    unsearchable: dict[tuple[str, str], int] = field(default_factory=dict)

    def scan(self, tables: Mapping[str, DeltaTable]) -> dict[str, list[ScannedFile]]:
        """Scan the files that are not known to be clean; returns table -> files with matches."""
        files = [(name, path) for name, handle in tables.items() for path in paths(handle) if path not in self.clean[name]]
        hits: dict[str, list[ScannedFile]] = {}
        for found in scan_files(self.pipeline, self.subjects, files, rewrite=not self.result.dry_run):
            if found.table in (BRONZE, QUARANTINE):
                self.unsearchable[found.table, found.path] = found.unsearchable
            if found.matches:
                hits.setdefault(found.table, []).append(found)
            else:
                self.clean[found.table].add(found.path)
        return hits

    def add_records(self, found: Iterable[ScannedFile]) -> None:
        """Add bronze records to be erased; if any of them is new, the other tables are scanned again."""
        subjects = self.subjects.with_records(f.records for f in found)
        if subjects.records.num_rows != self.subjects.records.num_rows:
            self.subjects = subjects
            for name in [n for n in self.clean if n != BRONZE]:
                del self.clean[name]

    def unsearchable_of(self, table: str) -> int:
        """Rows of a table that cannot be attributed to a data subject."""
        return sum(rows for (name, _), rows in self.unsearchable.items() if name == table)

    def held_now(self) -> pa.Table:
        """Erased rows of quarantine, and the data subjects' rows that were added since its scan, with the batches of bronze.

        A row that stays rejected keeps its batch, while a full refresh of bronze gives the record a later one. Rows that bronze
        did not have are in no counter, and not in the result.

        A run commits rejections to quarantine before silver: opened after a silver table, quarantine has every row that the
        table's counters count.
        """
        handle = self.pipeline.open_quarantine()
        task = EraseTask({QUARANTINE: self.pipeline.quarantine}, self.subjects, rewrite=False)
        new = [path for path in paths(handle) if path not in self.clean[QUARANTINE]] if handle is not None else []
        held = pa.concat_tables([self.held, *(task.scan(QUARANTINE, path).records for path in new)])
        places, of_bronze = list(COORDINATES), self.subjects.records.drop_columns(["game"])
        games = held.select([*places, "game"]).filter(pc.is_valid(held.column("game")))
        return of_bronze.join(games, places, join_type="inner").select(RECORDS.names)

    def erased(self, table: str, hits: Iterable[ScannedFile]) -> None:
        """Count rows that are committed (or, in a dry run, would be)."""
        for found in hits:
            self.result.rows[self.pipeline.lakehouse.table(table).name] += found.rows
            self.clean[table] |= {file.path for file in found.files}

    def discard(self, hits: Mapping[str, list[ScannedFile]]) -> None:
        """Delete staged files that will not be committed."""
        for name, found in hits.items():
            discard(self.pipeline.lakehouse.table(name), [file for f in found for file in f.files])


def find_erased_rows(state: ErasureState, bronze: DeltaTable) -> None:
    """Find the rows that an interrupted attempt has erased, in the files that it replaced."""
    pipeline = state.pipeline

    def scan(name: str, files: Iterable[str]) -> list[ScannedFile]:
        found = scan_files(pipeline, state.subjects, [(name, path) for path in files], old=True)
        return [file for file in found if file.rows]

    # Current files too: their rows lead to those that are erased from quarantine only.
    state.add_records(scan(BRONZE, (*replaced_files(pipeline.bronze, bronze), *paths(bronze))))
    quarantine = pipeline.open_quarantine()
    found = scan(QUARANTINE, replaced_files(pipeline.quarantine, quarantine)) if quarantine is not None else []
    state.held = pa.concat_tables([state.held, *(f.records for f in found)])
