"""Erasure of data subjects: their rows are deleted from every table, and their future records are suppressed.

Guarantee: the first commit suppresses them; no later commit to bronze has their records. Each table's rows are deleted by one
commit: quarantine's before bronze's (by which they are found), silver's after it; gold is refreshed from silver. The same
command, run again, finishes an erasure after a crash. Offsets, batch numbers and low watermarks do not change.

Finishes an interrupted erasure without its ids: finds the ids with the keyed hashes that are in the suppression list.

Guarantee: an id that is found is erased as by `game-events erase`. Of an id that is in no table, older files included, only
undecodable records may remain.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from game_events.config.names import PROGRESS
from game_events.errors import ConfigurationError, ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import commit, retry_on_conflict
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, erasures, oldest_batch, txns
from game_events.lakehouse.data.columns import HEADERS, has_decoded_columns
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.data.worker_job import WorkerJob
from game_events.lakehouse.storage import write_out
from game_events.lakehouse.tables import (
    BRONZE,
    ERASED_PEOPLE,
    EVENT_LOG,
    QUARANTINE,
    SCHEMAS,
    Layer,
    Table,
    has_persons,
    is_person,
    is_silver,
    paths,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold, refresh_own_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.quarantine import finish_reset, intact_tables, note_replay
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult
from game_events.plugins.governance.commits import ErasureState, erase_events, find_erased_rows, replaced_files
from game_events.plugins.governance.erased_people import hashes_of, required_key
from game_events.plugins.governance.record_filter import (
    HASH_CHARS,
    Suppression,
    Suppressor,
    add_suppressed,
    as_texts,
    finish_suppressed,
    read_suppressed,
)
from game_events.plugins.governance.result import Erasure
from game_events.plugins.governance.scan import DataSubjects, named, run_task, without

#: Scans of the tables, for files that concurrent writers added or rewrote.
PASSES = 30

#: Tables that are erased from otherwise, and system tables, which have no rows of data subjects.
_NOT_OTHERS = {BRONZE, QUARANTINE, SCHEMAS, PROGRESS, EVENT_LOG, ERASED_PEOPLE}


def erase(
    pipeline: Pipeline,
    report: RunReport,
    ids: frozenset[str],
    *,
    dry_run: bool = False,
    hashes: frozenset[str] = frozenset(),
) -> DataSubjects:
    """Erase data subjects.

    `report` gets the result (`erasure`) and the refreshed gold tables. `hashes`: keyed hashes of all data subjects, if not
    every id is known. Returns data subjects and records for `remove_old_files`.

    Raises:
        ConfigurationError: there is no key, or another one than that of the suppression list.
        ConflictError: every attempt was lost to concurrent writers; run again.
        DataError: bronze or quarantine was restored, quarantine was deleted, or an erasure of others is unfinished:
            nothing was done.
    """
    began = time.monotonic()
    settings = pipeline.settings
    key = required_key(settings)
    hashes = hashes or hashes_of(key, ids)
    result = Erasure(sorted(h[:HASH_CHARS] for h in hashes), dry_run)
    report.add(RunResult(parts={result.key: result}))
    state = ErasureState(pipeline, report, result, DataSubjects(settings.key_column, settings.entity_column, ids), hashes)
    if dry_run:
        read_suppressed(pipeline.lakehouse).require_key(key)
    else:
        _suppress(state, key)
    _erase_layers(state)
    _repeat(state, _erase_others)
    result.unsearchable, result.undecoded = state.unsearchable_of(QUARANTINE), state.unsearchable_of(BRONZE)
    if not dry_run and report.success:
        # A power cut would take back commits that are only in memory yet: what is called finished is on the disk.
        write_out(pipeline.lakehouse.root)
        finish_suppressed(pipeline.lakehouse, hashes)
        result.finished = True
    report.add_seconds("erasure", time.monotonic() - began)
    return state.subjects


def _erase_layers(state: ErasureState) -> None:
    """Erase from bronze, quarantine and silver, and refresh gold."""
    bronze = state.pipeline.open_bronze()
    if bronze is None:
        return
    state.subjects = replace(state.subjects, oldest_batch=oldest_batch(bronze))
    _require_id_column(state.pipeline, bronze)
    if state.done_before is not None:
        find_erased_rows(state, bronze)
    _repeat(state, erase_events)
    if not state.result.dry_run:
        _refresh_gold(state)


def _suppress(state: ErasureState, key: bytes) -> None:
    """Add the data subjects to the suppression list, and fence off runs that were planned before."""
    pipeline, report = state.pipeline, state.report
    # First: a commit to quarantine would hide a restore of it from the next run.
    intact_tables(pipeline, report)
    finish_reset(pipeline, report)
    note_replay(pipeline)
    before = add_suppressed(pipeline.lakehouse, key, state.hashes, pipeline.run_id)
    failpoints.reach("forget_listed")
    bronze = pipeline.open_bronze()
    if bronze is not None and before.unfinished:  # of the same data subjects
        state.done_before = erasures(bronze)
    _fence(pipeline)
    # A commit to bronze before the fence may lack its commit to quarantine, with rows from before the list.
    finish_reset(pipeline, report)
    note_replay(pipeline)


def _repeat(state: ErasureState, erase: Callable[[ErasureState], bool]) -> None:
    """Repeat a pass until it finds nothing to do."""
    for _ in range(PASSES):
        if not erase(state):
            return
    raise ConflictError(f"rows were found in {PASSES} scans, due to concurrent runs: run `game-events erase` again")


def _require_id_column(pipeline: Pipeline, bronze: DeltaTable) -> None:
    """Refuse a wrong setting, with which no row would be found."""
    if counter(bronze, Txn.BATCH) and has_decoded_columns(bronze) and not has_persons(bronze, pipeline.settings.key_column):
        raise ConfigurationError(
            f"bronze has no column {pipeline.settings.key_column!r}: set GAME_EVENTS_KEY_COLUMN to the data subject's column"
        )


@retry_on_conflict()
def _fence(pipeline: Pipeline) -> None:
    """Commit to bronze, so that every run that read the old list fails to commit, and plans again."""
    bronze = pipeline.open_bronze()
    if bronze is None:
        return
    # The unchanged batch too: Delta rejects one of two concurrent commits that name the same transaction.
    expected = txns(bronze, [Txn.BATCH])
    advance = {app: int(batch or 0) for app, batch in expected.items()}
    commit(without(pipeline.bronze, bronze, [], pipeline.run_id, expect_transactions=expected, set_transactions=advance))


def _refresh_gold(state: ErasureState) -> None:
    """Refresh gold of the changed games, the unified table and user-defined aggregates."""
    pipeline, report = state.pipeline, state.report
    bronze = pipeline.open_bronze()
    if bronze is None:
        return
    games = frozenset(state.touched | pipeline.progress.read(BronzeIdentity.of(bronze).key).failed_in(Layer.GOLD))
    if not games:
        return
    refresh_gold(pipeline, report, games)
    refresh_unified(pipeline, report)
    chosen = {aggregate.layer: games for aggregate in pipeline.extensions.aggregates}
    refresh_own_gold(pipeline, report, chosen, ignore_intervals=True)


def _erase_others(state: ErasureState) -> bool:
    """Erase from every other table with the key column: gold, and tables that are not declared any more.

    Raises:
        DataError: a table with such rows was altered so that they cannot be removed (`Table.writable`); the others are done.
    """
    pipeline = state.pipeline
    names = [name for name in pipeline.lakehouse.names() if name not in _NOT_OTHERS and not is_silver(name)]
    # Also tables of others, which have nothing to do with it unless they have such rows.
    opened = {name: pipeline.lakehouse.table(name).open_to_read() for name in names}
    tables = {name: h for name, h in opened.items() if h is not None and has_persons(h, pipeline.settings.key_column)}
    hits, refused = state.scan(tables), list[DataError]()
    for name, found in hits.items():
        expected = txns(tables[name], [Txn.COMMITS])
        advance = {app: commits + 1 for app, commits in expected.items() if commits is not None}
        try:
            if not state.result.dry_run:
                table = pipeline.lakehouse.table(name)
                commit(
                    without(table, tables[name], found, pipeline.run_id, expect_transactions=expected, set_transactions=advance)
                )
            state.erased(name, found)
        except ConflictError:
            continue  # with a refresh of the table, which is scanned again
        except DataError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return bool(hits) and not state.result.dry_run


def resume(pipeline: Pipeline, report: RunReport, *, dry_run: bool = False) -> DataSubjects:
    """Finish the unfinished erasure of the suppression list.

    `report` gets the result (`erasure`), with the number of ids that are in no row (`lost_ids`). Returns data subjects and
    records for `remove_old_files`.

    Raises:
        DataError: no erasure is unfinished; and as `forget`.
    """
    key = required_key(pipeline.settings)
    listed = read_suppressed(pipeline.lakehouse)
    listed.require_key(key)
    if not listed.unfinished:
        raise DataError(f"no erasure is unfinished in {ERASED_PEOPLE}: there is nothing to resume")
    hashes = listed.unfinished
    ids = _ids_of(pipeline, Suppression(pipeline.settings.key_column, key, frozenset(map(bytes.fromhex, hashes))))
    subjects = erase(pipeline, report, ids, dry_run=dry_run, hashes=hashes)
    done = report.part(Erasure)
    if done is not None:
        done.lost_ids = len(hashes - hashes_of(key, ids))
    return subjects


def _ids_of(pipeline: Pipeline, suppression: Suppression) -> frozenset[str]:
    """Ids with these hashes, from every table's rows and from its replaced files."""
    pipeline.on_progress("erasure: ids from their hashes")
    tables = {name: pipeline.lakehouse.table(name) for name in pipeline.lakehouse.names()}
    files: list[tuple[str, str]] = []
    for name, table in tables.items():
        handle = table.open_to_read()
        if handle is not None and (name in (BRONZE, QUARANTINE) or has_persons(handle, suppression.column)):
            files += [(name, path) for path in (*paths(handle), *replaced_files(table, handle))]
    return frozenset().union(*(found.ids for found in run_task(pipeline, RecoverTask(tables, suppression), files)))


@dataclass(frozen=True)
class FoundIds:
    """Result of one task."""

    ids: set[str]


@dataclass(frozen=True)
class RecoverTask(WorkerJob[FoundIds]):
    """Finds ids in files, given as rows (table, path); picklable. The key is part of the job, so that no plan or log shows it.

    `suppression`: the column with ids, the key, and the hashes to find.
    """

    result: ClassVar[type] = FoundIds
    tables: dict[str, Table]
    suppression: Suppression

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FoundIds:
        """Search the files."""
        return FoundIds({text for table, path in named(batches) for text in self.find(table, path)})

    def find(self, name: str, path: str) -> set[str]:
        """Ids in one file; empty if maintenance has deleted it."""
        found: set[str] = set()
        system, prefix = file_system(self.tables[name])
        with suppress(FileNotFoundError), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            column = self.suppression.column
            by_key = name in (BRONZE, QUARANTINE)  # for records that are not decoded
            names = [n for n in file.schema_arrow.names if is_person(n, column) or (by_key and n in ("_kafka_key", HEADERS))]
            suppressor = Suppressor(self.suppression)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, names)
                for one in names:
                    find = _texts if is_person(one, column) else _written_texts
                    found |= find(rows.column(one), suppressor)
        return found


def _texts(values: pa.ChunkedArray, suppressor: Suppressor) -> set[str]:
    texts = as_texts(values)
    if texts is None:
        return set()
    return _as_ids(pc.unique(texts.filter(pa.array(suppressor.values(texts)))).to_pylist())


def _written_texts(values: pa.ChunkedArray, suppressor: Suppressor) -> set[str]:
    """Ids in Kafka keys, or in headers."""
    if is_header := pa.types.is_list(values.type):
        values = pc.struct_field(pc.list_flatten(values), "value")
    written = pc.unique(values).to_pylist()
    return _as_ids(text for raw in written for text in suppressor.erased_texts(raw, is_header=is_header))


def _as_ids(ids: Iterable[str | bytes]) -> set[str]:
    # Bytes that are not UTF-8 cannot be an id on a command line.
    return {t if isinstance(t, str) else t.decode("utf-8", "replace") for t in ids}
