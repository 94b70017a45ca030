"""Commits of an erasure: files of quarantine, bronze and silver are replaced by copies without the data subjects' rows.

Silver's correct its counters of rejected rows, too.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.incarnations import BronzeIdentity, erasures
from game_events.lakehouse.commits.parallel import commit_games, opened
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn, txns
from game_events.lakehouse.event_columns import COORDINATES, RECORD
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.suppressed import Record, add_records
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Table, paths, silver_name
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile, scan_files, without
from game_events.pipeline.erasure.state import ErasureState
from game_events.pipeline.erasure.subjects import RECORDS, DataSubjects, by_game_and_batch
from game_events.pipeline.state.commit_info import ERASED_BY_BATCH


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
    commit(without(state.pipeline.bronze, bronze, hits, state.pipeline.run_id, expected=expected, info=info))
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
        raise ConflictError(f"{len(outcome.failed)} silver tables cannot be written; run `game-events forget` again")


def _silver_plan(state: ErasureState, bronze: DeltaTable, game: str, hits: list[ScannedFile]) -> Commit | None:
    """One game's commit to the newest version; files that were added since the scan are scanned here."""
    table, identity = state.pipeline.lakehouse.silver(game), BronzeIdentity.of(bronze)
    handle = state.pipeline.handles.take(table) if table.part is not None else table.open()
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
    return without(table, handle, hits, state.pipeline.run_id, expected=expected, advance=advance)


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
