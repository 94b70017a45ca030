"""Commits of an erasure to silver, with its counters of rejected rows."""

from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.incarnations import BronzeIdentity, erasures
from game_events.lakehouse.commits.parallel import commit_games
from game_events.lakehouse.commits.transactions import Txn, txns
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import paths, silver_name
from game_events.pipeline.context import note
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile, without
from game_events.pipeline.erasure.state import ErasureState
from game_events.pipeline.erasure.subjects import by_game_and_batch


def commit_silver(state: ErasureState, bronze: DeltaTable, games: set[str], hits: dict[str, list[ScannedFile]]) -> None:
    """Commit to the silver tables of some games.

    Raises:
        ConflictError: a table cannot be written; run the erasure again.
    """
    pipeline, identity = state.pipeline, BronzeIdentity.of(bronze)
    # Before any commit: after a crash the next run refreshes gold and the unified table from silver.
    why = note(pipeline, "a gamer was erased from its silver table")
    pipeline.progress.update(identity.key, lambda now: now.pending_downstream(games, why))
    plans = {g: partial(_silver_plan, state, bronze, g, hits.setdefault(silver_name(g), [])) for g in sorted(games)}
    outcome = commit_games(plans, "forget_game_committed", pipeline.settings)
    for game in outcome.landed:
        state.erased(silver_name(game), hits[silver_name(game)])
        state.settled[game] = identity.taken(pipeline.lakehouse.silver(game).open()) or 0
    state.touched |= outcome.landed.keys()
    for game, error in outcome.failed.items():
        table = pipeline.lakehouse.silver(game)
        state.report.add_failed(Layer.SILVER, table, error, game)
    if outcome.failed:
        raise ConflictError(f"{len(outcome.failed)} silver tables cannot be written; run `game-events forget` again")


def _silver_plan(state: ErasureState, bronze: DeltaTable, game: str, hits: list[ScannedFile]) -> Commit | None:
    """One game's commit to the newest version; files that were added since the scan are scanned here."""
    table, identity = state.pipeline.lakehouse.silver(game), BronzeIdentity.of(bronze)
    handle = table.open()
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
