"""Erasure of people: their rows are deleted from every table, and their later records are kept out.

Guarantee: the first commit lists them; no later commit to bronze has their records. Each table's rows are deleted by one
commit: quarantine's before bronze's (by which they are found), silver's after it; gold is refreshed from silver. The same
command, run again, finishes an erasure after a crash; `resume` finishes it without the ids, which it finds by their keyed
hashes: of an id that is in no table, older files included, only undecodable records may remain. Offsets, batch numbers and low
watermarks do not change.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from deltalake import DeltaTable

from game_events.config.names import PROGRESS
from game_events.errors import ConfigurationError, ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import retry_on_conflict
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, erasures, oldest_batch, txns
from game_events.lakehouse.data.columns import has_decoded_columns
from game_events.lakehouse.storage import write_out
from game_events.lakehouse.tables import (
    BRONZE,
    ERASED_PEOPLE,
    EVENT_LOG,
    QUARANTINE,
    SCHEMAS,
    UNIFIED,
    Layer,
    has_persons,
    is_silver,
    paths,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold, refresh_own_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.quarantine import complete_quarantine, intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult
from game_events.plugins.governance.commits import (
    Erasure,
    ErasureState,
    erase_events,
    find_erased_rows,
    replaced_files,
    run_task,
)
from game_events.plugins.governance.erased_people import (
    HASH_CHARS,
    add_people,
    finish_people,
    hashes_of,
    read_erased_people,
)
from game_events.plugins.governance.settings import required_key
from game_events.plugins.governance.workers import ErasedPeople, PeopleToErase, RecoverTask

#: Scans of the tables, for files that concurrent writers added or rewrote.
PASSES = 30

#: Tables that are erased from otherwise, and system tables, which have no rows of people.
_NOT_OTHERS = {BRONZE, QUARANTINE, SCHEMAS, PROGRESS, EVENT_LOG, ERASED_PEOPLE}


def erase(
    pipeline: Pipeline,
    report: RunReport,
    ids: frozenset[str],
    *,
    dry_run: bool = False,
    hashes: frozenset[str] = frozenset(),
) -> PeopleToErase:
    """Erase people.

    `report` gets the result (`erasure`) and the refreshed gold tables. `hashes`: keyed hashes of all of them, if not every id
    is known. Returns people and records for `remove_old_files`.

    Raises:
        ConfigurationError: there is no key, or another one than that of the list of erased people.
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
    state = ErasureState(pipeline, report, result, PeopleToErase(settings.key_column, settings.entity_column, ids), hashes)
    if dry_run:
        read_erased_people(pipeline.lakehouse).require_key(key)
    else:
        _keep_out(state, key)
    _erase_layers(state)
    _repeat(state, _erase_others)
    result.unsearchable = state.unsearchable_of(QUARANTINE)
    result.undecoded = state.unsearchable_of(BRONZE)
    if not dry_run and (result.rows or state.done_before is not None):
        _mark_unified(state)
    if not dry_run and report.success:
        # A power cut would take back commits that are only in memory yet: what is called finished is on the disk.
        write_out(pipeline.lakehouse.root)
        finish_people(pipeline.lakehouse, hashes)
        result.finished = True
    report.add_seconds("erasure", time.monotonic() - began)
    return state.people


def resume(pipeline: Pipeline, report: RunReport, *, dry_run: bool = False) -> PeopleToErase:
    """Finish the unfinished erasure of the list of erased people.

    `report` gets the result (`erasure`), with the number of ids that are in no row (`lost_ids`). Returns people and records for
    `remove_old_files`.

    Raises:
        DataError: no erasure is unfinished; and as `erase`.
    """
    key = required_key(pipeline.settings)
    listed = read_erased_people(pipeline.lakehouse)
    listed.require_key(key)
    if not listed.unfinished:
        raise DataError(f"no erasure is unfinished in {ERASED_PEOPLE}: there is nothing to resume")
    hashes = listed.unfinished
    ids = _ids_of(pipeline, ErasedPeople(pipeline.settings.key_column, key, frozenset(map(bytes.fromhex, hashes))))
    people = erase(pipeline, report, ids, dry_run=dry_run, hashes=hashes)
    result = report.part(Erasure)
    if result is not None:
        result.lost_ids = len(hashes - hashes_of(key, ids))
    return people


def _ids_of(pipeline: Pipeline, people: ErasedPeople) -> frozenset[str]:
    """Ids with these hashes, from every table's rows and from its replaced files."""
    pipeline.on_progress("erasure: ids from their hashes")
    tables = {name: pipeline.lakehouse.table(name) for name in pipeline.lakehouse.names()}
    files: list[tuple[str, str]] = []
    for name, table in tables.items():
        handle = table.open_to_read()
        if handle is not None and (name in (BRONZE, QUARANTINE) or has_persons(handle, people.column)):
            files += [(name, path) for path in (*paths(handle), *replaced_files(table, handle))]
    return frozenset().union(*(result.ids for result in run_task(pipeline, RecoverTask(tables, people), files)))


def _keep_out(state: ErasureState, key: bytes) -> None:
    """Add the people to the list of erased people, and fence off runs that were planned before."""
    pipeline = state.pipeline
    report = state.report
    # First: a commit to quarantine would hide a restore of it from the next run.
    intact_tables(pipeline, report)
    complete_quarantine(pipeline, report)
    before = add_people(pipeline.lakehouse, key, state.hashes, pipeline.run_id)
    failpoints.reach("erase_listed")
    bronze = pipeline.open_bronze()
    if bronze is not None and before.unfinished:  # of the same people
        state.done_before = erasures(bronze)
    _fence(state)
    # A commit to bronze before the fence may lack its commit to quarantine, with rows from before the list.
    complete_quarantine(pipeline, report)


@retry_on_conflict()
def _fence(state: ErasureState) -> None:
    """Commit to bronze, so that every run that read the old list fails to commit, and plans again."""
    bronze = state.pipeline.open_bronze()
    if bronze is not None:
        # The unchanged batch too: Delta rejects one of two concurrent commits that name the same transaction.
        batch = counter(bronze, Txn.BATCH)
        state.commit(BRONZE, bronze, [], expect_transactions=txns(bronze, [Txn.BATCH]), set_transactions={Txn.BATCH: batch})


def _repeat(state: ErasureState, erase: Callable[[ErasureState], bool]) -> None:
    """Repeat a pass until it finds nothing to do."""
    for _ in range(PASSES):
        if not erase(state):
            return
    raise ConflictError(f"rows were found in {PASSES} scans, due to concurrent runs: run `game-events erase` again")


def _erase_layers(state: ErasureState) -> None:
    """Erase from bronze, quarantine and silver, and refresh gold."""
    bronze = state.pipeline.open_bronze()
    if bronze is None:
        return
    key = state.people.key
    if counter(bronze, Txn.BATCH) and has_decoded_columns(bronze) and not has_persons(bronze, key):
        # With this setting no row would be found.
        raise ConfigurationError(f"bronze has no column {key!r}: set GAME_EVENTS_KEY_COLUMN to the column of a person's id")
    state.people = replace(state.people, oldest_batch=oldest_batch(bronze))
    if state.done_before is not None:
        find_erased_rows(state, bronze)
    _repeat(state, erase_events)
    if not state.result.dry_run:
        _refresh_gold(state)


def _refresh_gold(state: ErasureState) -> None:
    """Refresh gold of the changed games, the unified table and user-defined aggregates."""
    pipeline = state.pipeline
    report = state.report
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


@retry_on_conflict()
def _mark_unified(state: ErasureState) -> None:
    """Count the erasure in the unified table: no version from before it is kept. Of gold, the ids of its silver say it."""
    lakehouse = state.pipeline.lakehouse
    handle = None if lakehouse.is_partitioned else lakehouse.table(UNIFIED).open()
    if handle is None:
        return
    commits = counter(handle, Txn.COMMITS)
    expected = txns(handle, [Txn.COMMITS])
    state.commit(UNIFIED, handle, [], expect_transactions=expected, set_transactions={Txn.COMMITS: commits + 1})


def _erase_others(state: ErasureState) -> bool:
    """Erase from every other table with the key column: gold, and tables that are not declared any more.

    Raises:
        DataError: a table with such rows was altered so that they cannot be removed (`Table.writable`); the others are done.
    """
    tables = _other_tables(state.pipeline)
    hits = state.scan(tables)
    refused: list[DataError] = []
    for name, files in hits.items():
        try:
            if state.result.dry_run:
                state.erased(name, files)
                continue
            expected = txns(tables[name], [Txn.COMMITS])
            advance = {app: commits + 1 for app, commits in expected.items() if commits is not None}
            state.commit(name, tables[name], files, expect_transactions=expected, set_transactions=advance)
        except ConflictError:
            continue  # with a refresh of the table, which is scanned again
        except DataError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return bool(hits) and not state.result.dry_run


def _other_tables(pipeline: Pipeline) -> dict[str, DeltaTable]:
    tables: dict[str, DeltaTable] = {}
    for name in pipeline.lakehouse.names():
        if name in _NOT_OTHERS or is_silver(name):
            continue
        # Also tables of others, which have nothing to do with it unless they have such rows.
        handle = pipeline.lakehouse.table(name).open_to_read()
        if handle is not None and has_persons(handle, pipeline.settings.key_column):
            tables[name] = handle
    return tables
