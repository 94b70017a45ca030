"""Commits of an erasure: files of quarantine, bronze and silver are replaced by copies without the data subjects' rows.

Silver's correct its counters of rejected rows, too.

State of one erasure: its data subjects, the scanned files, and rows that an interrupted attempt has erased.

Erases data subjects from older versions of the tables: unreferenced files with their rows, and log entries with their ids.

Only files with such rows are deleted. A reader of an older version that needs one of them fails and has to read again.

Guarantee: killed or cut off from power at any point, the same `game-events erase --vacuum` finishes it: bronze's old files, by
which those of other tables are found, are deleted last, and no file before the commit that replaces it is on the disk.
Concurrent runs and maintenance may write and delete files.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem, FileType

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit, retry_on_conflict
from game_events.lakehouse.commits.group import commit_games, opened
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, erasures, txns
from game_events.lakehouse.data.columns import COORDINATES, RECORD
from game_events.lakehouse.data.staging import discard, file_system
from game_events.lakehouse.maintenance import delete_files
from game_events.lakehouse.storage import write_out
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Layer, Table, has_persons, is_person, is_silver, paths, silver_name
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.offsets import ERASED_BY_BATCH
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.governance.record_filter import Record, add_records
from game_events.plugins.governance.result import Erasure
from game_events.plugins.governance.scan import (
    RECORDS,
    DataSubjects,
    EraseTask,
    ScannedFile,
    by_game_and_batch,
    scan_files,
    without,
)


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


@retry_on_conflict()
def erase_from_quarantine(pipeline: Pipeline, records: Sequence[tuple[str, int, int, int]]) -> int:
    """Erase records of quarantine that were attributed to erased data subjects later.

    `records`: (topic id, partition, offset, batch) of each. Returns the number of erased rows. ConflictError: every attempt
    was lost to concurrent writers; nothing was done.
    """
    handle = pipeline.open_quarantine() if records else None
    if handle is None:
        return 0
    settings, rows = pipeline.settings, [dict(zip(RECORD, record, strict=True)) for record in records]
    table = pa.Table.from_pylist(rows, RECORDS)
    subjects = DataSubjects(settings.key_column, settings.entity_column, frozenset(), table)
    files = [(QUARANTINE, path) for path in paths(handle)]
    hits = [found for found in scan_files(pipeline, subjects, files, rewrite=True) if found.rows]
    if hits:
        commit(without(pipeline.quarantine, handle, hits, pipeline.run_id))
    return sum(found.rows for found in hits)


def erase_events(state: ErasureState) -> bool:
    """Scan bronze, quarantine and silver once and commit what is found; returns whether there was anything to do.

    Raises:
        DataError: one of the tables was altered so that its rows cannot be replaced (`Table.writable`): nothing was committed.
    """
    pipeline = state.pipeline
    bronze = pipeline.open_bronze()
    if bronze is None:
        return False
    pipeline.bronze.writable(bronze, replaced=True)
    pipeline.on_progress("erasure: bronze")
    hits = state.scan({BRONZE: bronze})
    state.add_records(hits.get(BRONZE, []))
    games = pipeline.lakehouse.games()
    tables = {silver_name(game): handle for game, handle in opened(games, pipeline.lakehouse.silver, _to_rewrite).items()}
    if (quarantine := pipeline.open_quarantine()) is not None:
        tables[QUARANTINE] = pipeline.quarantine.writable(quarantine, replaced=True)
    pipeline.on_progress(f"erasure: quarantine and {len(games)} {pipeline.settings.names.entities}")
    hits |= state.scan(tables)
    if state.result.dry_run:
        for name, found in hits.items():
            state.erased(name, found)
        return False
    # Silver of these games also without a match: a concurrent run may be about to commit one.
    known = {game for game, _ in by_game_and_batch(state.subjects.records)} - state.settled.keys()
    todo = {g for g in games if silver_name(g) in hits or (g in known and silver_name(g) in tables)}
    if not hits and not todo:
        return False
    failpoints.reach("forget_staged")
    try:
        _commit_quarantine(state, hits.pop(QUARANTINE, []), tables)
        bronze = _commit_bronze(state, hits.pop(BRONZE, []), bronze)
    except ConflictError:  # a concurrent writer rewrote a file: scan again; what is committed stays
        state.discard(hits)
        return True
    failpoints.reach("forget_bronze_committed")
    if todo:
        _commit_silver(state, bronze, todo, hits)
        failpoints.reach("forget_silver_committed")
    return True


def _to_rewrite(table: Table) -> DeltaTable | None:
    handle = table.open()
    return None if handle is None else table.writable(handle, replaced=True)


def _commit_quarantine(state: ErasureState, hits: list[ScannedFile], tables: Mapping[str, DeltaTable]) -> None:
    if hits:
        # First: after the commit a full refresh could not attribute these records to the data subjects.
        undecodable = _coordinates(f.records for f in hits) - _coordinates([state.subjects.records])
        add_records(state.pipeline.lakehouse, state.hashes, undecodable)
        commit(without(state.pipeline.quarantine, tables[QUARANTINE], hits, state.pipeline.run_id))
        state.erased(QUARANTINE, hits)
        state.held = pa.concat_tables([state.held, *(f.records for f in hits)])
    failpoints.reach("forget_quarantine_committed")


def _commit_bronze(state: ErasureState, hits: list[ScannedFile], bronze: DeltaTable) -> DeltaTable:
    """Commit to bronze; returns its new version."""
    if not hits:
        return bronze
    # First, as for quarantine.
    add_records(state.pipeline.lakehouse, state.hashes, _coordinates(f.by_bytes for f in hits))
    batches = Counter[int]()
    for (_, batch), rows in by_game_and_batch(pa.concat_tables([f.records for f in hits])).items():
        batches[batch] += rows
    expected, info = txns(bronze, [Txn.INCARNATION]), {ERASED_BY_BATCH: json.dumps(batches)}
    commit(without(state.pipeline.bronze, bronze, hits, state.pipeline.run_id, expect_transactions=expected, info=info))
    state.erased(BRONZE, hits)
    after = state.pipeline.open_bronze()
    if after is None:
        raise ConflictError(f"{state.pipeline.bronze.name} was removed during an erasure")
    return after


def _coordinates(found: Iterable[pa.Table]) -> set[Record]:
    known = pa.concat_tables([RECORDS.empty_table(), *found]).select(list(COORDINATES)).drop_null()
    return set(zip(*(column.to_pylist() for column in known.columns), strict=True))


def _commit_silver(state: ErasureState, bronze: DeltaTable, games: set[str], hits: dict[str, list[ScannedFile]]) -> None:
    """Commit to the silver tables of some games; ConflictError if one cannot be written: run the erasure again."""
    pipeline, identity = state.pipeline, BronzeIdentity.of(bronze)
    # Before any commit: after a crash the next run refreshes gold and the unified table from silver.
    why = note(pipeline, "a gamer was erased from its silver table")
    pipeline.progress.update(identity.key, lambda now: now.pending_downstream(games, why))
    plans = {g: partial(_silver_plan, state, bronze, g, hits.setdefault(silver_name(g), [])) for g in sorted(games)}
    outcome = commit_games(plans, "forget_game_committed", pipeline.settings)
    for game in outcome.landed:
        state.erased(silver_name(game), hits[silver_name(game)])
        state.settled[game] = identity.taken(outcome.landed[game].handle) or 0
    state.touched |= outcome.landed.keys()
    for game, error in outcome.failed.items():
        table = pipeline.lakehouse.silver(game)
        state.report.add_failed(Layer.SILVER, table, error, game)
    if outcome.failed:
        raise ConflictError(f"{len(outcome.failed)} silver tables cannot be written; run `game-events erase` again")


def _silver_plan(state: ErasureState, bronze: DeltaTable, game: str, hits: list[ScannedFile]) -> Commit | None:
    """One game's commit to the newest version; files that were added since the scan are scanned here."""
    table, identity = state.pipeline.lakehouse.silver(game), BronzeIdentity.of(bronze)
    handle = state.pipeline.tables.open(table) if table.part is not None else table.open()
    if handle is None:
        return None
    known = state.clean[table.key] | {found.path for found in hits}
    task = EraseTask({table.key: table}, state.subjects, rewrite=True)
    for found in (task.scan(table.key, path) for path in paths(handle) if path not in known):
        if found.rows:
            hits.append(found)
        else:
            state.clean[table.key].add(found.path)
    advance = {identity.erased_app: erasures(bronze)}
    if (taken := handle.transaction_version(identity.app)) is not None:
        # Unchanged: Delta rejects one of two concurrent commits that name the same transaction.
        advance[identity.app] = taken
    counters = (Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED)
    if state.done_before is None or not identity.erased(handle) >= state.done_before > 0 or hits:
        advance |= _counters(state, handle, identity.taken(handle) or 0, game, sum(found.rows for found in hits))
    expected = txns(handle, (identity.app, Txn.INCARNATION, *counters))
    return without(table, handle, hits, state.pipeline.run_id, expect_transactions=expected, set_transactions=advance)


def _counters(state: ErasureState, handle: DeltaTable, taken: int, game: str, erased: int) -> dict[str, int]:
    """Silver's counters of rejected rows after the erasure, so that bronze = silver + dropped + quarantined still holds."""
    # The counters never had rows of a bronze that was replaced since.
    since = max(state.settled.get(game, 0), state.subjects.oldest_batch - 1)

    def of_game(records: pa.Table) -> int:
        counts = by_game_and_batch(records).items()
        return sum(n for (name, batch), n in counts if name == game and batch is not None and since < batch <= taken)

    held = of_game(state.held_now())
    # A transformation may have changed the number of rows.
    transformed = state.pipeline.extensions.transformed(game)
    dropped = 0 if transformed else of_game(state.subjects.records) - erased - held
    found: dict[str, int] = {}
    for app, rows in ((Txn.ROWS_DROPPED, dropped), (Txn.ROWS_QUARANTINED, held)):
        value = handle.transaction_version(app)
        if value is not None and rows > 0:
            found[app] = max(0, value - rows)
    return found


#: Age of an uncommitted file, in seconds, from which on no run is about to commit it.
STAGED_S = 3_600

#: Digits of the version in a log file's name.
_DIGITS = 20


def remove_old_files(pipeline: Pipeline, result: Erasure, subjects: DataSubjects) -> None:
    """Delete every table's unreferenced files with rows of data subjects, and log entries with their ids."""
    lakehouse = pipeline.lakehouse
    handles = {name: handle for name in lakehouse.names() if (handle := lakehouse.table(name).open_to_read()) is not None}
    pipeline.on_progress(f"erasure: older files of {len(handles)} tables")
    # Bronze first: its rows lead to those of quarantine, and of silver with another id.
    bronze = {BRONZE: handles[BRONZE]} if BRONZE in handles else {}
    in_bronze = _search(pipeline, subjects, bronze)
    subjects = subjects.with_records(found.records for found in in_bronze)
    others = {
        name: handle
        for name, handle in handles.items()
        if name != BRONZE and (name == QUARANTINE or is_silver(name) or has_persons(handle, subjects.key))
    }
    _remove(pipeline, result, others, _search(pipeline, subjects, others))
    _remove(pipeline, result, bronze, in_bronze)
    for name, handle in handles.items():
        if _clean_log(lakehouse.table(name), handle, subjects):
            result.cleaned_logs.append(lakehouse.table(name).name)
    result.vacuumed = True


def old_files(table: Table, handle: DeltaTable) -> list[str]:
    """Paths of the Parquet files that are not in this version of the table."""
    system, prefix = file_system(table)
    here = set(paths(handle))
    listed = system.get_file_info(FileSelector(prefix.rstrip("/") or "", recursive=True))
    found = (f.path.removeprefix(prefix) for f in listed if f.type == FileType.File and f.path.endswith(".parquet"))
    return sorted(path for path in found if not path.startswith("_delta_log/") and path not in here)


def replaced_files(table: Table, handle: DeltaTable) -> list[str]:
    """Those of `old_files` that a commit has removed from the table, as far back as the log reaches (`RETENTION_H`).

    The others are not committed yet, or were left by a killed run.
    """
    removed = set(handle.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))
    return [path for path in old_files(table, handle) if path in removed]


def _search(pipeline: Pipeline, subjects: DataSubjects, handles: Mapping[str, DeltaTable]) -> list[ScannedFile]:
    """Old files with matches, and unreadable ones."""
    table = pipeline.lakehouse.table
    files = [(name, path) for name, handle in handles.items() for path in old_files(table(name), handle)]
    return [found for found in scan_files(pipeline, subjects, files, old=True) if found.matches or found.unreadable]


def _remove(pipeline: Pipeline, result: Erasure, handles: Mapping[str, DeltaTable], hits: Sequence[ScannedFile]) -> None:
    """Delete files, except those that a run may be about to commit."""
    for name in sorted({found.table for found in hits}):
        table = pipeline.lakehouse.table(name)
        system, prefix = file_system(table)
        replaced = set(replaced_files(table, handles[name]))
        removed = []
        for found in (f for f in hits if f.table == name):
            info = system.get_file_info(prefix + found.path)
            if info.type == FileType.NotFound:
                continue  # maintenance has deleted it
            age = time.time() - info.mtime.timestamp() if info.mtime is not None else 0.0
            if found.path in replaced or age >= STAGED_S:
                removed.append(found.path)
            else:
                result.kept_files[table.name] += 1
        # The erasure's own commits, of a moment ago, have removed them.
        result.removed_files[table.name] += delete_files(table, removed, 0.0)


def _clean_log(table: Table, handle: DeltaTable, subjects: DataSubjects) -> bool:
    """Delete the log entries before this version if one has an id in a file's statistics; returns whether one has.

    Files that this project writes have no such statistics; those of other writers may.
    """
    system, prefix = file_system(table)
    log = f"{prefix}_delta_log"
    listed = [f for f in system.get_file_info(FileSelector(log)) if f.type == FileType.File]
    names = {f.base_name: f.path for f in listed if f.base_name[:_DIGITS].isdigit()}
    bounds = (bound for path in names.values() for bound in _bounds(system, path))
    if not any(str(value) in subjects.ids for column, value in bounds if is_person(column, subjects.key)):
        return False
    handle.create_checkpoint()
    write_out(table.uri)
    for name, path in sorted(names.items()):
        if int(name[:_DIGITS]) < handle.version():
            with suppress(FileNotFoundError):  # a run that wrote a checkpoint has deleted it
                system.delete_file(path)
    return True


def _bounds(system: FileSystem, path: str) -> Iterator[tuple[str, Any]]:
    """(column, minimum or maximum) of the files that a log file adds; empty if maintenance has deleted it."""
    with suppress(FileNotFoundError):
        for add in _added(system, path):
            for stats in (json.loads(add.get("stats") or "{}"), add.get("stats_parsed") or {}):
                yield from (stats.get("minValues") or {}).items()
                yield from (stats.get("maxValues") or {}).items()


def _added(system: FileSystem, path: str) -> list[Mapping[str, Any]]:
    """The `add` actions of a log file or checkpoint."""
    if not path.endswith((".json", ".parquet")):
        return []
    with system.open_input_file(path) as source:
        if path.endswith(".json"):
            found = [json.loads(line).get("add") for line in source.read().splitlines() if line.strip()]
        else:
            file = pq.ParquetFile(source)
            found = file.read(["add"]).column("add").to_pylist() if "add" in file.schema_arrow.names else []
    return [add for add in found if add]
