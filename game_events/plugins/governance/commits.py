"""Commits of an erasure: files of a table are replaced by copies without the rows of the people to erase.

Silver's commits correct its counters of rejected rows, too. `remove_old_files` erases from older versions of the tables: it
deletes unreferenced files with such rows, and log entries with their ids; a reader of an older version that needs one of the
files fails and has to read again. Guarantee: killed or cut off from power at any point, the same `game-events erase --vacuum`
finishes it: bronze's old files, by which those of other tables are found, are deleted last, and no file before the commit
that replaces it is on the disk. Concurrent runs and maintenance may write and delete files.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem, FileType

from game_events.config.type_names import game_of, type_of
from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit, retry_on_conflict
from game_events.lakehouse.commits.group import commit_games, opened
from game_events.lakehouse.commits.transactions import (
    ROW_COUNTERS,
    BronzeIdentity,
    Txn,
    counter,
    erasures,
    expired_rows,
    txn,
    txns,
)
from game_events.lakehouse.commits.versions import OldVersions, delete_files
from game_events.lakehouse.data.columns import COORDINATES, RECORD
from game_events.lakehouse.data.staging import discard, file_system
from game_events.lakehouse.storage import write_out
from game_events.lakehouse.tables import (
    BRONZE,
    QUARANTINE,
    Layer,
    Table,
    game_of_silver,
    has_persons,
    is_person,
    is_silver,
    paths,
    silver_name,
    table_id,
)
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.maintenance import is_ours
from game_events.pipeline.offsets import ERASED_BY_BATCH, ERASED_ROWS
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import PluginResult
from game_events.plugins.governance.erased_people import add_records
from game_events.plugins.governance.workers import RECORDS, EraseTask, PeopleToErase, Record, ScannedFile
from game_events.workers.job import Result, WorkerJob

#: Files up to which the driver scans them itself: a Spark job costs more.
FILES_IN_DRIVER = 4

#: Tasks of the job.
TASKS = 64

#: Age of an uncommitted file, in seconds, from which on no run is about to commit it.
STAGED_S = 3_600

#: Digits of the version in a log file's name.
_DIGITS = 20


@dataclass
class Erasure(PluginResult):
    """Result of `game-events erase`.

    Attributes:
        hashes: prefixes of the keyed hashes of the people's ids.
        dry_run: nothing was changed; `rows` are those that would be removed.
        rows: table -> rows removed; gold and unified: rows of the aggregates.
        unsearchable: rows of quarantine that do not decode, so that it is unknown whose they are.
        undecoded: rows of bronze of a message type that is not selected, so that it is unknown whose they are.
        lost_ids: people of a resumed erasure with a key that no row has; only undecodable bytes may be left of them.
        finished: every table was searched, and holds no row of them.
        vacuumed: old files were searched too.
        removed_files: table -> removed files of older versions with rows of them.
        kept_files: table -> files with rows of them that no version names, and that a run may be about to commit.
        cleaned_logs: tables with older log entries that named one of them, and were removed.
    """

    key: ClassVar[str] = "erasure"

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
        files = {"removed_files": self.removed_files.total(), "unsearchable": self.unsearchable}
        detail = {"hashes": self.hashes, "vacuumed": self.vacuumed, **files}
        yield {"kind": "erased", "status": status, "rows": self.rows.total(), "detail": detail}
        for table, rows in sorted(self.rows.items()):
            yield {"kind": "erased", "status": status, "table": table, "rows": rows, "detail": {"hashes": self.hashes}}


@dataclass
class ErasureState:
    """State of one erasure: its people, the scanned files, and rows that an interrupted attempt has erased.

    Attributes:
        hashes: keyed hashes of the people's ids.
        done_before: bronze's number of erasures after an interrupted attempt: silver tables with this number are finished.
        clean: table -> scanned files without matches.
        from_quarantine: erased rows of quarantine.
        settled: game -> bronze batch up to which silver's counters are corrected.
        touched: games with a commit to silver.
        unsearchable: (table, file) -> rows that cannot be attributed to a person.
    """

    pipeline: Pipeline
    report: RunReport
    result: Erasure
    people: PeopleToErase
    hashes: frozenset[str] = frozenset()
    done_before: int | None = None
    clean: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    from_quarantine: pa.Table = field(default_factory=RECORDS.empty_table)
    settled: dict[str, int] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    unsearchable: dict[tuple[str, str], int] = field(default_factory=dict)

    def scan(self, tables: Mapping[str, DeltaTable], scanned: Collection[str] = ()) -> dict[str, list[ScannedFile]]:
        """Scan the files that are not known to be clean, nor among the `scanned` ones; returns table -> files with matches."""
        files = [
            (name, path)
            for name, handle in tables.items()
            for path in paths(handle)
            if path not in self.clean[name] and path not in scanned
        ]
        hits: dict[str, list[ScannedFile]] = {}
        for file in scan_files(self.pipeline, self.people, files, rewrite=not self.result.dry_run):
            if file.table in (BRONZE, QUARANTINE):
                self.unsearchable[file.table, file.path] = file.unsearchable
            if file.matches:
                hits.setdefault(file.table, []).append(file)
            else:
                self.clean[file.table].add(file.path)
        return hits

    def add_records(self, hits: Iterable[ScannedFile]) -> None:
        """Add bronze records to be erased; if any of them is new, the other tables are scanned again."""
        people = self.people.with_records(file.records for file in hits)
        if people.records.num_rows != self.people.records.num_rows:
            self.people = people
            for name in [name for name in self.clean if name != BRONZE]:
                del self.clean[name]

    def unsearchable_of(self, table: str) -> int:
        """Sum of `unsearchable`."""
        return sum(rows for (name, _), rows in self.unsearchable.items() if name == table)

    def all_of_quarantine(self) -> pa.Table:
        """Erased rows of quarantine, and the people's rows that were added since its scan, with the batches of bronze.

        A row that stays rejected keeps its batch, while a full refresh of bronze gives the record a later one. Rows that bronze
        did not have are in no counter, and not in the result.

        A run commits rejections to quarantine before silver: opened after a silver table, quarantine has every row that the
        table's counters count.
        """
        handle = self.pipeline.open_quarantine()
        current = paths(handle) if handle is not None else []
        new = [(QUARANTINE, path) for path in current if path not in self.clean[QUARANTINE]]
        rows = pa.concat_tables([self.from_quarantine, *(file.records for file in scan_files(self.pipeline, self.people, new))])
        coordinates = list(COORDINATES)
        games = rows.select([*coordinates, "game"]).filter(pc.is_valid(rows.column("game")))
        of_bronze = self.people.records.drop_columns(["game"])
        return of_bronze.join(games, coordinates, join_type="inner").select(RECORDS.names)

    def commit(self, name: str, handle: DeltaTable, hits: Sequence[ScannedFile], **more: Any) -> Landed:  # noqa: ANN401
        """Commit to a table, planned from a version (`without`), and count the rows."""
        landed = commit(without(self.pipeline.lakehouse.table(name), handle, hits, self.pipeline.run_id, **more))
        self.erased(name, hits)
        return landed

    def erased(self, table: str, hits: Iterable[ScannedFile]) -> None:
        """Count rows that are committed (or, in a dry run, would be)."""
        for file in hits:
            self.result.rows[self.pipeline.lakehouse.table(table).name] += file.rows
            self.clean[table] |= {staged.path for staged in file.files}

    def discard(self, hits: Mapping[str, list[ScannedFile]]) -> None:
        """Delete staged files that will not be committed."""
        for name, files in hits.items():
            discard(self.pipeline.lakehouse.table(name), [staged for file in files for staged in file.files])


def scan_files(
    pipeline: Pipeline, people: PeopleToErase, files: Sequence[tuple[str, str]], *, rewrite: bool = False, old: bool = False
) -> list[ScannedFile]:
    """Scan files, given as (table, path); `rewrite`, `old`: as in `EraseTask`."""
    tables = {name: pipeline.lakehouse.table(name) for name, _ in files}
    task = EraseTask(tables, people, rewrite, old)
    return [file for result in run_task(pipeline, task, files) for file in result.files]


def run_task(pipeline: Pipeline, task: WorkerJob[Result], files: Sequence[tuple[str, str]]) -> list[Result]:
    """Results of a job over files, given as (table, path): by Spark, or without it if the files are few."""
    rows = pa.table({"table": [name for name, _ in files], "path": [path for _, path in files]})
    if len(files) <= FILES_IN_DRIVER:
        return [task.stage(rows.to_batches())]
    return task.collect(pipeline.spark.createDataFrame(rows).repartition(min(len(files), TASKS)))


def without(
    table: Table,
    handle: DeltaTable,
    hits: Sequence[ScannedFile],
    run_id: str,
    *,
    expect_transactions: Mapping[str, int | None] = {},
    set_transactions: Mapping[str, int] = {},
    info: Mapping[str, str] = {},
) -> Commit:
    """The commit that replaces files with rows to erase by their copies, and increments the table's `erasures`.

    `expect_transactions`, `set_transactions`, `info`: beside those of each erasure.
    """
    return Commit(
        table,
        pa.schema([]),  # no file has a column that the table lacks
        [staged for file in hits for staged in file.files],
        expect_transactions={Txn.ERASURES: txn(handle, Txn.ERASURES), **expect_transactions},
        set_transactions={Txn.ERASURES: counter(handle, Txn.ERASURES) + 1, **set_transactions},
        table_id=table_id(handle),
        rewritten=frozenset(file.path for file in hits),
        info={"erasure": "rows of erased people", ERASED_ROWS: str(_rows(hits)), "run_id": run_id, **info},
    )


def _rows(hits: Iterable[ScannedFile]) -> int:
    return sum(file.rows for file in hits)


def find_erased_rows(state: ErasureState, bronze: DeltaTable) -> None:
    """Find the rows that an interrupted attempt has erased, in the files that it replaced."""
    pipeline = state.pipeline
    # Current files too: their rows lead to those that are erased from quarantine only.
    files = [(BRONZE, path) for path in (*replaced_files(pipeline.bronze, bronze), *paths(bronze))]
    state.add_records(file for file in scan_files(pipeline, state.people, files, old=True) if file.rows)
    quarantine = pipeline.open_quarantine()
    if quarantine is not None:
        files = [(QUARANTINE, path) for path in replaced_files(pipeline.quarantine, quarantine)]
        hits = scan_files(pipeline, state.people, files, old=True)
        state.from_quarantine = pa.concat_tables([state.from_quarantine, *(file.records for file in hits)])


@retry_on_conflict()
def erase_from_quarantine(pipeline: Pipeline, records: Sequence[tuple[str, int, int, int]]) -> int:
    """Erase records of quarantine that were attributed to erased people later.

    `records`: (topic id, partition, offset, batch) of each. Returns the number of erased rows. ConflictError: every attempt
    was lost to concurrent writers; nothing was done.
    """
    handle = pipeline.open_quarantine() if records else None
    if handle is None:
        return 0
    settings = pipeline.settings
    rows = pa.Table.from_pylist([dict(zip(RECORD, record, strict=True)) for record in records], RECORDS)
    people = PeopleToErase(settings.key_column, settings.entity_column, frozenset(), rows)
    state = ErasureState(pipeline, RunReport(), Erasure(), people)
    hits = state.scan({QUARANTINE: handle}).get(QUARANTINE, [])
    if hits:
        state.commit(QUARANTINE, handle, hits)
    return _rows(hits)


def erase_events(state: ErasureState) -> bool:
    """Scan bronze, quarantine and silver once and commit what is found; returns whether there was anything to do.

    Raises:
        DataError: one of the tables was altered so that its rows cannot be replaced (`Table.writable`): nothing was committed.
    """
    bronze = state.pipeline.open_bronze()
    if bronze is None:
        return False
    tables, hits = _scan_events(state, bronze)
    if state.result.dry_run:
        for name, files in hits.items():
            state.erased(name, files)
        return False
    games = _games_to_commit(state, tables, hits)
    if not hits and not games:
        return False
    failpoints.reach("erase_staged")
    try:
        _commit_quarantine(state, hits.pop(QUARANTINE, []), tables)
        bronze = _commit_bronze(state, hits.pop(BRONZE, []), bronze)
    except ConflictError:  # a concurrent writer rewrote a file: scan again; what is committed stays
        state.discard(hits)
        return True
    failpoints.reach("erase_bronze_committed")
    if games:
        _commit_silver(state, bronze, games, hits)
        failpoints.reach("erase_silver_committed")
    return True


def _scan_events(state: ErasureState, bronze: DeltaTable) -> tuple[dict[str, DeltaTable], dict[str, list[ScannedFile]]]:
    """Scan bronze, then quarantine and silver; returns the latter tables, and table -> files with matches."""
    pipeline = state.pipeline
    pipeline.bronze.writable(bronze, replaced=True)
    pipeline.on_progress("erasure: bronze")
    hits = state.scan({BRONZE: bronze})
    state.add_records(hits.get(BRONZE, []))
    games = pipeline.lakehouse.games()
    names = [*games, *chain.from_iterable(pipeline.lakehouse.type_tables().values())]
    tables = {silver_name(name): handle for name, handle in opened(names, pipeline.lakehouse.silver, _to_rewrite).items()}
    if (quarantine := pipeline.open_quarantine()) is not None:
        tables[QUARANTINE] = pipeline.quarantine.writable(quarantine, replaced=True)
    pipeline.on_progress(f"erasure: quarantine and {len(games)} {pipeline.settings.names.entities}")
    return tables, hits | state.scan(tables)


def _games_to_commit(state: ErasureState, tables: Mapping[str, DeltaTable], hits: Mapping[str, list[ScannedFile]]) -> set[str]:
    """Games with matches in silver; those of erased records without one, too: a run may be about to commit one."""
    of_records = {game for game, _ in by_game_and_batch(state.people.records)} - state.settled.keys()
    lakehouse = state.pipeline.lakehouse
    # A crash may have left a game with tables of message types alone.
    names = {game: silver_name(game) for game in (*lakehouse.games(), *lakehouse.type_tables())}
    with_hits = {game_of_silver(name) for name in hits}
    return {game for game, name in names.items() if game in with_hits or (game in of_records and name in tables)}


def _to_rewrite(table: Table) -> DeltaTable | None:
    handle = table.open()
    return None if handle is None else table.writable(handle, replaced=True)


def by_game_and_batch(records: pa.Table) -> Counter[tuple[str, int]]:
    """(game, batch) -> number of distinct records."""
    each = records.group_by(RECORDS.names).aggregate([])
    return Counter(zip(each.column("game").to_pylist(), each.column("_batch").to_pylist(), strict=True))


def _commit_quarantine(state: ErasureState, hits: list[ScannedFile], tables: Mapping[str, DeltaTable]) -> None:
    if hits:
        # First: after the commit a full refresh could not attribute these records to the people.
        undecodable = _coordinates(file.records for file in hits) - _coordinates([state.people.records])
        add_records(state.pipeline.lakehouse, state.hashes, undecodable)
        state.commit(QUARANTINE, tables[QUARANTINE], hits)
        state.from_quarantine = pa.concat_tables([state.from_quarantine, *(file.records for file in hits)])
    failpoints.reach("erase_quarantine_committed")


def _commit_bronze(state: ErasureState, hits: list[ScannedFile], bronze: DeltaTable) -> DeltaTable:
    """Commit to bronze; returns its new version."""
    if not hits:
        return bronze
    # First, as for quarantine.
    add_records(state.pipeline.lakehouse, state.hashes, _coordinates(file.by_bytes for file in hits))
    batches = Counter[int]()
    for (_, batch), rows in by_game_and_batch(pa.concat_tables([file.records for file in hits])).items():
        batches[batch] += rows
    info = {ERASED_BY_BATCH: json.dumps(batches)}
    landed = state.commit(BRONZE, bronze, hits, expect_transactions=txns(bronze, [Txn.INCARNATION]), info=info)
    if landed.handle is None:
        raise ConflictError(f"{state.pipeline.bronze.name} was removed during an erasure")
    return landed.handle


def _coordinates(records: Iterable[pa.Table]) -> set[Record]:
    known = pa.concat_tables([RECORDS.empty_table(), *records]).select(list(COORDINATES)).drop_null()
    return set(zip(*(column.to_pylist() for column in known.columns), strict=True))


def _commit_silver(state: ErasureState, bronze: DeltaTable, games: set[str], hits: dict[str, list[ScannedFile]]) -> None:
    """Commit to the silver tables of some games; ConflictError if one cannot be written: run the erasure again."""
    pipeline = state.pipeline
    identity = BronzeIdentity.of(bronze)
    # Before any commit: after a crash the next run refreshes gold and the unified table from silver.
    why = note(pipeline, "a person was erased from its silver table")
    pipeline.progress.update(identity.key, lambda now: now.pending_downstream(games, why))
    plan = partial(_silver_plan, state, bronze)
    types = {name: game for game, names in pipeline.lakehouse.type_tables().items() if game in games for name in names}
    if types:
        # Before the games' own tables, by which gold sees that people were erased.
        _committed(state, {name: partial(plan, name, hits.setdefault(silver_name(name), [])) for name in types}, hits)
    own = {game: partial(plan, game, hits.setdefault(silver_name(game), [])) for game in sorted(games)}
    for game, handle in _committed(state, own, hits).items():
        state.settled[game] = identity.taken(handle) or 0
        state.touched.add(game)


def _committed(
    state: ErasureState, plans: Mapping[str, Callable[[], Commit | None]], hits: Mapping[str, list[ScannedFile]]
) -> Mapping[str, DeltaTable | None]:
    """Commit to tables of silver; what they are called -> their new versions."""
    pipeline = state.pipeline
    outcome = commit_games(plans, "erase_game_committed", pipeline.settings)
    for name in outcome.landed:
        state.erased(silver_name(name), hits[silver_name(name)])
    for name, error in outcome.failed.items():
        state.report.add_failed(Layer.SILVER, pipeline.lakehouse.silver(name), error, game_of(name))
    if outcome.failed:
        raise ConflictError(f"{len(outcome.failed)} silver tables cannot be written; run `game-events erase` again")
    return {name: landed.handle for name, landed in outcome.landed.items()}


def _silver_plan(state: ErasureState, bronze: DeltaTable, name: str, hits: list[ScannedFile]) -> Commit | None:
    """The commit to the newest version of one table; files that were added since the scan are scanned here."""
    table = state.pipeline.lakehouse.silver(name)
    identity = BronzeIdentity.of(bronze)
    handle = state.pipeline.tables.open(table) if table.part is not None else table.open()
    if handle is None:
        return None
    hits += state.scan({table.key: handle}, {file.path for file in hits}).get(table.key, [])
    advance = {identity.erased_app: erasures(bronze)}
    taken = handle.transaction_version(identity.app)
    if taken is not None:
        # Unchanged: Delta rejects one of two concurrent commits that name the same transaction.
        advance[identity.app] = taken
    is_counted = state.done_before is not None and identity.erased(handle) >= state.done_before > 0 and not hits
    if type_of(name) is not None:
        advance |= _counters_of_type(state, identity, handle, name, hits)
    elif not is_counted:
        advance |= _counters(state, bronze, handle, name, _rows(hits))
    expected = txns(handle, (identity.app, Txn.INCARNATION, Txn.ROWS_EXPIRED, *ROW_COUNTERS))
    return without(table, handle, hits, state.pipeline.run_id, expect_transactions=expected, set_transactions=advance)


def _counters(state: ErasureState, bronze: DeltaTable, handle: DeltaTable, game: str, erased: int) -> dict[str, int]:
    """Silver's counters after the erasure, so that bronze = silver + dropped + quarantined + duplicates still holds.

    Which of the others' rows rules had dropped, and which were duplicates, is not known any more where a table has both: then
    duplicates are subtracted first, and only the sum is right. Where message types have tables, all are subtracted as dropped.
    Rows that are gone by age from one of the layers alone are corrected in what silver lacks by age.
    """
    taken = BronzeIdentity.of(bronze).taken(handle) or 0
    # The counters never had rows of a bronze that was replaced since.
    since = max(state.settled.get(game, 0), state.people.oldest_batch - 1)

    def of_game(records: pa.Table) -> int:
        counts = by_game_and_batch(records).items()
        return sum(n for (name, batch), n in counts if name == game and batch is not None and since < batch <= taken)

    quarantined = of_game(state.all_of_quarantine())
    # A transformation may have changed the number of rows.
    transformed = state.pipeline.extensions.transformed(game)
    others = 0 if transformed else of_game(state.people.records) - erased - quarantined
    per_type = state.pipeline.lakehouse.per_type
    duplicates = 0 if per_type else min(others, counter(handle, Txn.ROWS_DUPLICATE))
    counters: dict[str, int] = {}
    for app, rows in zip(ROW_COUNTERS, (others - duplicates, quarantined, duplicates), strict=True):
        value = handle.transaction_version(app)
        if per_type:
            # Only the sum of a game's tables counts: those of its message types have added what they lack of this.
            counters |= {app: (value or 0) - rows} if rows else {}
        elif value is not None and rows > 0:
            counters[app] = max(0, value - rows)
    if not per_type and (expired_rows(handle) or expired_rows(bronze, game)):
        kept_out = others - sum(counter(handle, app) - counters[app] for app in DECIDED_HERE if app in counters)
        counters |= {Txn.ROWS_EXPIRED: counter(handle, Txn.ROWS_EXPIRED) - kept_out} if kept_out else {}
    return counters


#: Counters of rows that the records of erased people are taken off, beside those in quarantine.
DECIDED_HERE = (Txn.ROWS_DROPPED, Txn.ROWS_DUPLICATE)


def _counters_of_type(
    state: ErasureState, identity: BronzeIdentity, handle: DeltaTable, name: str, hits: list[ScannedFile]
) -> dict[str, int]:
    """The counter of dropped rows of a message type's table, with the erased ones: in the commit that removes them.

    The game's own table takes off all rows of the people but those in quarantine and its own ones, so the sum is right after
    each of the commits that a crash comes between.
    """
    game = game_of(name)
    own = state.pipeline.tables.open_to_read(state.pipeline.lakehouse.silver(game))
    if state.pipeline.extensions.transformed(game) or own is None or not hits:
        return {}
    upto = identity.taken(own) or 0
    counts = by_game_and_batch(pa.concat_tables([file.records for file in hits])).items()
    erased = sum(rows for (_, batch), rows in counts if batch is not None and batch <= upto)
    return {Txn.ROWS_DROPPED: counter(handle, Txn.ROWS_DROPPED) + erased} if erased else {}


def remove_old_files(pipeline: Pipeline, result: Erasure, people: PeopleToErase) -> None:
    """Delete every table's unreferenced files with rows of people, and log entries with their ids.

    Older versions that lose files go, too, but for those of the last hours, whose readers may not need these files.
    """
    lakehouse = pipeline.lakehouse
    handles = {name: handle for name in lakehouse.names() if (handle := lakehouse.table(name).open_to_read()) is not None}
    pipeline.on_progress(f"erasure: older files of {len(handles)} tables")
    # Bronze first: its rows lead to those of quarantine, and of silver with another id.
    of_bronze = _search(pipeline, people, {name: handle for name, handle in handles.items() if name == BRONZE})
    people = people.with_records(file.records for file in of_bronze)
    with_rows = {name: handle for name, handle in handles.items() if _may_have_people(name, handle, people)}
    _remove(pipeline, result, handles, _search(pipeline, people, with_rows))
    _remove(pipeline, result, handles, of_bronze)
    for name, handle in handles.items():
        if _clean_log(lakehouse.table(name), handle, people):
            result.cleaned_logs.append(lakehouse.table(name).name)
    result.vacuumed = True


def _may_have_people(name: str, handle: DeltaTable, people: PeopleToErase) -> bool:
    """Whether a table other than bronze may have rows of people."""
    return name != BRONZE and (name == QUARANTINE or is_silver(name) or has_persons(handle, people.key))


def old_files(table: Table, handle: DeltaTable) -> list[str]:
    """Paths of the Parquet files that are not in this version of the table."""
    system, prefix = file_system(table)
    listed = system.get_file_info(FileSelector(prefix.rstrip("/") or "", recursive=True))
    files = {f.path.removeprefix(prefix) for f in listed if f.type == FileType.File and f.path.endswith(".parquet")}
    return sorted(path for path in files - set(paths(handle)) if not path.startswith("_delta_log/"))


def replaced_files(table: Table, handle: DeltaTable) -> list[str]:
    """Those of `old_files` that older versions have, as far back as the log reaches (`REPLACED_FILES_H`).

    The others are not committed yet, or were left by a killed run.
    """
    named = OldVersions(table).named(handle, handle.version())
    return [path for path in old_files(table, handle) if path in named]


def _search(pipeline: Pipeline, people: PeopleToErase, handles: Mapping[str, DeltaTable]) -> list[ScannedFile]:
    """Old files with matches, and unreadable ones."""
    table = pipeline.lakehouse.table
    files = [(name, path) for name, handle in handles.items() for path in old_files(table(name), handle)]
    return [file for file in scan_files(pipeline, people, files, old=True) if file.matches or file.unreadable]


def _remove(pipeline: Pipeline, result: Erasure, handles: Mapping[str, DeltaTable], hits: Sequence[ScannedFile]) -> None:
    """Delete files, except those that a run may be about to commit."""
    for name in sorted({file.table for file in hits}):
        table = pipeline.lakehouse.table(name)
        system, prefix = file_system(table)
        replaced = set(replaced_files(table, handles[name]))
        removed = []
        for path in [file.path for file in hits if file.table == name]:
            info = system.get_file_info(prefix + path)
            if info.type == FileType.NotFound:
                continue  # maintenance has deleted it
            age = time.time() - info.mtime.timestamp() if info.mtime is not None else 0.0
            if path in replaced or age >= STAGED_S:
                removed.append(path)
            else:
                result.kept_files[table.name] += 1
        # The erasure's own commits, of a moment ago, have removed them.
        result.removed_files[table.name] += delete_files(table, removed, 0.0)
        if is_ours(pipeline, name) and (newest := table.open_to_read()) is not None:
            OldVersions(table).thin_out(newest)


def _clean_log(table: Table, handle: DeltaTable, people: PeopleToErase) -> bool:
    """Delete the log entries before this version if one has an id in a file's statistics; returns whether one has.

    Files that this project writes have no such statistics; those of other writers may.
    """
    system, prefix = file_system(table)
    listed = system.get_file_info(FileSelector(f"{prefix}_delta_log"))
    names = {f.base_name: f.path for f in listed if f.type == FileType.File and f.base_name[:_DIGITS].isdigit()}
    if not any(_names_one(system, path, people) for path in names.values()):
        return False
    handle.create_checkpoint()
    write_out(table.uri)
    for name, path in sorted(names.items()):
        if int(name[:_DIGITS]) < handle.version():
            with suppress(FileNotFoundError):  # a run that wrote a checkpoint has deleted it
                system.delete_file(path)
    return True


def _names_one(system: FileSystem, path: str, people: PeopleToErase) -> bool:
    """Whether a log file has an id in a file's statistics; it has none if maintenance has deleted it."""
    with suppress(FileNotFoundError):
        for add in _added(system, path):
            for stats in (json.loads(add.get("stats") or "{}"), add.get("stats_parsed") or {}):
                bounds = [*(stats.get("minValues") or {}).items(), *(stats.get("maxValues") or {}).items()]
                if any(is_person(column, people.key) and str(value) in people.ids for column, value in bounds):
                    return True
    return False


def _added(system: FileSystem, path: str) -> list[Mapping[str, Any]]:
    """The `add` actions of a log file or checkpoint."""
    adds: list[Mapping[str, Any] | None] = []
    if path.endswith(".json"):
        with system.open_input_file(path) as source:
            adds = [json.loads(line).get("add") for line in source.read().splitlines() if line.strip()]
    elif path.endswith(".parquet"):
        with system.open_input_file(path) as source:
            file = pq.ParquetFile(source)
            if "add" in file.schema_arrow.names:
                adds = file.read(["add"]).column("add").to_pylist()
    return [add for add in adds if add]
