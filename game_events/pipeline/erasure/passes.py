"""Rows of gamers go from quarantine, bronze and silver: found and committed, again while rivals come between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit, paths
from game_events.lakehouse.commits.generations import BronzeIdentity, erasures
from game_events.lakehouse.commits.parallel import commit_games, for_games
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.suppressed import add_records
from game_events.lakehouse.tables import BRONZE, QUARANTINE, silver_name
from game_events.pipeline.context import note
from game_events.pipeline.erasure.commits import without
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile
from game_events.pipeline.erasure.state import Work
from game_events.pipeline.erasure.subjects import by_game_and_batch
from game_events.pipeline.state.commit_info import ERASED_BY_BATCH


def erase_events(work: Work) -> bool:
    """Look at bronze, quarantine and silver, and commit; whether there was anything to do."""
    pipeline = work.pipeline
    bronze = pipeline.bronze.open()
    if bronze is None:
        return False
    pipeline.on_progress("erasure: bronze")
    hits = work.look({BRONZE: bronze})
    work.add_records(hits.get(BRONZE, []))
    games = pipeline.lakehouse.games()
    opened = {silver_name(g): h for g, h in for_games(games, lambda g: pipeline.lakehouse.silver(g).open()).items()}
    tables = {name: h for name, h in {**opened, QUARANTINE: pipeline.quarantine.open()}.items() if h is not None}
    pipeline.on_progress(f"erasure: quarantine and {len(games)} {pipeline.settings.words.entities}")
    hits |= work.look(tables)
    if work.account.dry_run:
        for name, found in hits.items():
            work.erased(name, found)
        return False
    # In silver also where no row of theirs is yet: a run may just be bringing one.
    known = {game for game, _ in by_game_and_batch(work.wanted.records)}
    todo = {g for g in games if silver_name(g) in hits or (g in known and silver_name(g) in tables and g not in work.settled)}
    if not hits and not todo:
        return False
    failpoints.reach("forget_staged")
    try:
        _commit_quarantine(work, hits.pop(QUARANTINE, []), tables)
        bronze = _commit_bronze(work, hits.pop(BRONZE, []), bronze)
    except ConflictError:  # a rival rewrote one of these files: look again; what was committed stays
        work.drop(hits)
        return True
    failpoints.reach("forget_bronze_committed")
    if todo:
        _commit_silver(work, bronze, todo, hits)
        failpoints.reach("forget_silver_committed")
    return True


def _commit_quarantine(work: Work, hits: list[ScannedFile], tables: Mapping[str, DeltaTable]) -> None:
    if hits:
        # Before they go: nothing else would tell whose they are if a full refresh met them again.
        add_records(work.pipeline.lakehouse, work.hashes, work.undecodable(hits))
        commit(without(work.pipeline.quarantine, tables[QUARANTINE], hits, work.pipeline.run_id))
        work.erased(QUARANTINE, hits)
        work.held = pa.concat_tables([work.held, *(f.records for f in hits)])
    failpoints.reach("forget_quarantine_committed")


def _commit_bronze(work: Work, hits: list[ScannedFile], bronze: DeltaTable) -> DeltaTable:
    if not hits:
        return bronze
    theirs = work.undecoded(hits)
    if theirs:
        # Before they go, as for quarantine.
        add_records(work.pipeline.lakehouse, work.hashes, theirs)
    batches = Counter[int]()
    for (_, batch), rows in by_game_and_batch(pa.concat_tables([f.records for f in hits])).items():
        batches[batch] += rows
    expected: dict[str, int | None] = {Txn.INCARNATION: bronze.transaction_version(Txn.INCARNATION)}
    info = {ERASED_BY_BATCH: json.dumps(batches)}
    commit(without(work.pipeline.bronze, bronze, hits, work.pipeline.run_id, expected=expected, info=info))
    work.erased(BRONZE, hits)
    after = work.pipeline.bronze.open()
    if after is None:
        raise ConflictError(f"{work.pipeline.bronze.name} was removed during an erasure")
    return after


def _commit_silver(work: Work, bronze: DeltaTable, games: set[str], hits: dict[str, list[ScannedFile]]) -> None:
    pipeline, identity = work.pipeline, BronzeIdentity.of(bronze)
    # Before any commit: after a crash the next run brings gold and the unified table behind silver.
    why = note(pipeline, "a gamer was erased from its silver table")
    pipeline.progress.update(identity.key, lambda now: now.pending_downstream(games, why))
    plans = {g: partial(_silver_plan, work, bronze, g, hits.setdefault(silver_name(g), [])) for g in sorted(games)}
    outcome = commit_games(plans, "forget_game_committed", pipeline.settings)
    for game in outcome.landed:
        work.erased(silver_name(game), hits[silver_name(game)])
        handle = pipeline.lakehouse.silver(game).open()
        work.settled[game] = identity.taken(handle) or 0
    work.touched |= set(outcome.landed)
    for game, error in outcome.failed.items():
        table = pipeline.lakehouse.silver(game)
        work.report.add_failed(Layer.SILVER, table, error, game)
    if outcome.failed:
        raise ConflictError(f"{len(outcome.failed)} silver tables cannot be written; run `game-events forget` again")


def _silver_plan(work: Work, bronze: DeltaTable, game: str, hits: list[ScannedFile]) -> Commit | None:
    """One game's commit, on the version that it is made on: files that came since it was looked at are looked at here."""
    table, identity = work.pipeline.lakehouse.silver(game), BronzeIdentity.of(bronze)
    handle = table.open()
    if handle is None:
        return None
    known = work.clean[table.key] | {found.path for found in hits}
    task = EraseTask({table.key: table}, work.wanted, rewrite=True)
    for path in paths(handle):
        if path not in known:
            found = task.look(table.key, path)
            if found.rows:
                hits.append(found)
            else:
                work.clean[table.key].add(path)
    advance = {identity.erased_app: erasures(bronze)}
    if (taken := handle.transaction_version(identity.app)) is not None:
        # As it is: of two commits that name it, Delta lets one land, however close they come.
        advance[identity.app] = taken
    advance |= _counters(work, handle, identity.taken(handle) or 0, game, sum(found.rows for found in hits))
    compared = (identity.app, Txn.INCARNATION, Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED)
    expected = {app: handle.transaction_version(app) for app in compared}
    if work.done_before is not None and identity.erased(handle) >= work.done_before > 0 and not hits:
        advance = {app: value for app, value in advance.items() if app not in (Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED)}
    return without(table, handle, hits, work.pipeline.run_id, expected=expected, advance=advance)


def _counters(work: Work, handle: DeltaTable, taken: int, game: str, gone: int) -> dict[str, int]:
    """What silver says of rows that rules kept out, without theirs: bronze's rows = the table's + these, as before."""
    # Of a bronze that was replaced since nothing was ever in these counters.
    since = max(work.settled.get(game, 0), work.wanted.oldest_batch - 1)

    def of_game(records: pa.Table) -> int:
        counts = by_game_and_batch(records).items()
        return sum(n for (name, batch), n in counts if name == game and batch is not None and since < batch <= taken)

    held = of_game(work.held_now())
    dropped = of_game(work.wanted.records) - gone - held
    if work.pipeline.extensions.transformed(game):
        dropped = 0  # its rows may have become any number of rows
    found: dict[str, int] = {}
    for app, rows in ((Txn.ROWS_DROPPED, dropped), (Txn.ROWS_QUARANTINED, held)):
        value = handle.transaction_version(app)
        if value is not None and rows > 0:
            found[app] = max(0, value - rows)
    return found
