"""Commits of an erasure: files of quarantine, bronze and silver are replaced by copies without the data subjects' rows."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.parallel import opened
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.event_columns import RECORD
from game_events.lakehouse.system_tables.suppressed import add_records
from game_events.lakehouse.tables import BRONZE, QUARANTINE, paths, silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile, scan_files, without
from game_events.pipeline.erasure.silver import commit_silver
from game_events.pipeline.erasure.state import ErasureState
from game_events.pipeline.erasure.subjects import RECORDS, DataSubjects, by_game_and_batch
from game_events.pipeline.state.commit_info import ERASED_BY_BATCH


def erase_from_quarantine(pipeline: Pipeline, records: Sequence[tuple[str, int, int, int]]) -> int:
    """Erase records of quarantine that were attributed to erased data subjects later.

    `records`: (topic id, partition, offset, batch) of each. Returns the number of erased rows.

    Raises:
        ConflictError: every attempt was lost to concurrent writers; nothing was done.
    """
    if not records:
        return 0
    columns = dict(zip(RECORD, zip(*records, strict=True), strict=True))
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(records), f.type) for f in RECORDS]
    settings, table = pipeline.settings, pa.Table.from_arrays(arrays, schema=RECORDS)
    subjects = DataSubjects(settings.key_column, settings.entity_column, frozenset(), table)
    return _erase_from_quarantine(pipeline, EraseTask({QUARANTINE: pipeline.quarantine}, subjects, rewrite=True))


@retry_on_conflict()
def _erase_from_quarantine(pipeline: Pipeline, task: EraseTask) -> int:
    handle = pipeline.quarantine.open()
    files = [(QUARANTINE, path) for path in paths(handle)] if handle is not None else []
    hits = [found for found in scan_files(pipeline, task, files) if found.rows]
    if handle is not None and hits:
        commit(without(pipeline.quarantine, handle, hits, pipeline.run_id))
    return sum(found.rows for found in hits)


def erase_events(state: ErasureState) -> bool:
    """Scan bronze, quarantine and silver once and commit what is found; returns whether there was anything to do."""
    pipeline = state.pipeline
    bronze = pipeline.bronze.open()
    if bronze is None:
        return False
    pipeline.on_progress("erasure: bronze")
    hits = state.scan({BRONZE: bronze})
    state.add_records(hits.get(BRONZE, []))
    games = pipeline.lakehouse.games()
    tables = {silver_name(game): handle for game, handle in opened(games, pipeline.lakehouse.silver).items()}
    if (quarantine := pipeline.quarantine.open()) is not None:
        tables[QUARANTINE] = quarantine
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
        commit_silver(state, bronze, todo, hits)
        failpoints.reach("forget_silver_committed")
    return True


def _commit_quarantine(state: ErasureState, hits: list[ScannedFile], tables: Mapping[str, DeltaTable]) -> None:
    if hits:
        # First: after the commit a full refresh could not attribute these records to the data subjects.
        add_records(state.pipeline.lakehouse, state.hashes, state.undecodable(hits))
        commit(without(state.pipeline.quarantine, tables[QUARANTINE], hits, state.pipeline.run_id))
        state.erased(QUARANTINE, hits)
        state.held = pa.concat_tables([state.held, *(f.records for f in hits)])
    failpoints.reach("forget_quarantine_committed")


def _commit_bronze(state: ErasureState, hits: list[ScannedFile], bronze: DeltaTable) -> DeltaTable:
    """Commit to bronze; returns its new version."""
    if not hits:
        return bronze
    if undecoded := state.undecoded(hits):
        # First, as for quarantine.
        add_records(state.pipeline.lakehouse, state.hashes, undecoded)
    batches = Counter[int]()
    for (_, batch), rows in by_game_and_batch(pa.concat_tables([f.records for f in hits])).items():
        batches[batch] += rows
    expected: dict[str, int | None] = {Txn.INCARNATION: bronze.transaction_version(Txn.INCARNATION)}
    info = {ERASED_BY_BATCH: json.dumps(batches)}
    commit(without(state.pipeline.bronze, bronze, hits, state.pipeline.run_id, expected=expected, info=info))
    state.erased(BRONZE, hits)
    after = state.pipeline.bronze.open()
    if after is None:
        raise ConflictError(f"{state.pipeline.bronze.name} was removed during an erasure")
    return after
