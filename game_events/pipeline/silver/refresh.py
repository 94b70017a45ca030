"""Refresh of silver: `bronze_events` -> one `silver_{game}_events` for each game, all games in one Spark job.

Guarantee: every bronze row of an admitted game is in its silver table once, or a rule has kept it out and counted it (and, for
rules with the action quarantine, put it into `quarantine_events` once), through any crash and beside concurrent runs. Each
table's `txn` holds the last bronze batch in it; a commit succeeds only if its rows were planned from that batch.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from game_events.errors import ConfigurationError, ConflictError, ExtensionError, LostFileError, first_few
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.incarnations import BronzeIdentity, erasures, incarnation
from game_events.lakehouse.commits.parallel import GAME_ATTEMPTS, for_games, guarded
from game_events.lakehouse.commits.restore_check import refuse_restored
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Admission, CountedRows, LeftOut, Mark, Progress
from game_events.lakehouse.tables import refuse_other_layout
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.fanout.one_pass import OnePass
from game_events.pipeline.fanout.routing import INVALID, NO_NAME
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.quarantine.intact import intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, SilverResult
from game_events.pipeline.reporting.tables import TableReport
from game_events.pipeline.silver.admission import is_allowed, new_games
from game_events.pipeline.silver.due import readmitted_rows
from game_events.pipeline.silver.passes import PassResult, SilverRun, run_pass
from game_events.pipeline.silver.source import SilverInput

#: Noted for a game with pending rows that is not in the allow list.
LEFT_OUT = "GAME_EVENTS_GAMES left it out when its rows were due"
REPLACED = "its silver table was replaced"
LATE = "its silver table got rows of earlier batches"
#: Noted for a game that the allow list, or a limit of games, left out until now.
READMITTED = "the settings left out rows of it until now"
#: Games that a notice names.
SHOWN = 5


class _ErasedMeanwhileError(ConflictError):
    """A data subject was erased from bronze after its rows were read: they are read again."""


def refresh_silver(
    pipeline: Pipeline,
    report: RunReport,
    games: frozenset[str] | None = None,
    *,
    full: bool = False,
    not_replaced: Mapping[str, str] | None = None,
    one_pass: OnePass | None = None,
) -> Mapping[str, str]:
    """Add bronze's new rows to silver; `report` gets an entry for each game that changed or failed.

    `games`: only these; without them, the low watermark moves. `full`: replace their tables by all rows that bronze has of
    them. `not_replaced`: game -> why its full refresh has failed in this run: its table is left as it is, and the next run
    tries again. `one_pass`: what bronze's job of this process has staged for silver; nothing of it is left over afterwards.

    Returns:
        game -> why it failed.

    Raises:
        DataError: bronze or quarantine was restored by hand, or quarantine was deleted: a commit to quarantine would hide that
            from every later run.
        ConfigurationError: the tables were made by another entity column: only a full refresh of all of them may change it.
    """
    began, failed = time.monotonic(), dict[str, str]()
    refuse_other_layout(pipeline.lakehouse)
    for attempt in range(GAME_ATTEMPTS):
        # Also right after bronze's step: Dagster's steps may have waited between them.
        handle, _ = intact_tables(pipeline, report) or (None, None)
        if handle is None or not has_decoded_columns(handle):
            return {}  # there is no record of a selected message type yet
        source = SilverInput.of(pipeline, handle)
        state = pipeline.progress.read(source.bronze.key)
        for game, why in (not_replaced or {}).items():
            state = state.pending(Layer.SILVER, [game], why)
        try:
            failed = _refresh(SilverRun(pipeline, source, state, report, games, full, one_pass), not_replaced or {})
            break
        except _ErasedMeanwhileError:  # committed games stay committed; the next attempt finds them ahead of the watermark
            if attempt == GAME_ATTEMPTS - 1:
                raise
        except ExtensionError as error:
            # It concerns all games: silver does not move, and the run still reports bronze.
            asset, root = pipeline.settings.names.silver_asset, pipeline.lakehouse.root
            report.add(LayerResult(tables=[TableReport(Layer.SILVER, asset, root, error=str(error))]))
            break
    report.add_seconds(Layer.SILVER, time.monotonic() - began)
    return failed


def _refresh(run: SilverRun, not_replaced: Mapping[str, str]) -> dict[str, str]:
    """All passes, the report of failed games, and the new progress; returns failed game -> reason."""
    pipeline, state, redecided = run.pipeline, run.state, run.state.redecided
    _refuse_another_column(run)
    if run.whole:
        run = replace(run, state=_with_readmitted(run))
        state = run.state
        result = run_pass(run) if run.source.batch > state.floor(Layer.SILVER) else PassResult()
        result = replace(result, retry=result.retry | state.failed_in(Layer.SILVER))
        decisions = Decisions.read(pipeline, run.source.bronze.key)
        if decisions.redecisions != redecided:
            # Games that quarantine has decided again, and whose tables a crash has kept from being replaced.
            look, silver = pipeline.handles.look, pipeline.lakehouse.silver
            due = guarded(lambda game: decisions.incarnation(game) > incarnation(look(silver(game))))
            undone = {game for game, found in for_games(filter(decisions.incarnation, state.games), due).items() if found}
            _note_replaced(run, undone)
            result, redecided = replace(result, retry=result.retry | undone), decisions.redecisions
    else:
        result = PassResult(retry=_requested(run))
    # A later run may allow games that the allow list leaves out now: their rows are below the low watermark then.
    noted = result.retry & (state.games.keys() | state.failed_in(Layer.SILVER))
    owed = {g: state.failed.get((Layer.SILVER, g), LEFT_OUT) for g in noted if not is_allowed(pipeline, g)} | dict(not_replaced)
    result = replace(result, retry=result.retry - not_replaced.keys())
    for attempt in range(GAME_ATTEMPTS):
        bronze = pipeline.open_bronze() if result.retry else None
        bronze = refuse_restored(pipeline.bronze, bronze) if bronze is not None else None
        if bronze is not None and run.full and attempt:
            # A concurrent run has decided on rows that this run has not read.
            run = replace(run, source=SilverInput.of(pipeline, bronze))
        if bronze is None or BronzeIdentity.of(bronze) != run.source.bronze:
            break  # bronze has other contents now: the next run reads them
        if erasures(bronze) != erasures(run.source.handle):
            raise _ErasedMeanwhileError(f"{bronze.table_uri}: data subjects are being erased from it; run again")
        result = result.then(run_pass(run, result.retry))
    lost = dict.fromkeys(result.retry, "commit conflict: every attempt lost to concurrent runs; run again")
    result = replace(result, failed=result.failed | lost)
    failpoints.reach("silver_committed")
    for game, why in result.failed.items():
        run.report.add_failed(Layer.SILVER, pipeline.lakehouse.silver(game), why, game)
    pipeline.progress.update(run.source.bronze.key, partial(_progress, run, result, owed, redecided))
    run.report.add(SilverResult(unrouted=result.unrouted, notices=_unrouted_notices(run, result)))
    return result.failed


def _unrouted_notices(run: SilverRun, result: PassResult) -> list[str]:
    """A warning if more rows have no game's name than silver has got."""
    routed = sum(table.rows + table.dropped + table.quarantined for table in run.report.of(Layer.SILVER))
    if result.unrouted[INVALID] <= routed:
        return []
    entity = run.pipeline.settings.entity_column
    return [
        f"MOST ROWS ARE IN NO TABLE OF SILVER: their {entity} (GAME_EVENTS_ENTITY_COLUMN) is empty or no legal name, so they "
        "stay in bronze; `game-events doctor` shows what it holds"
    ]


def _with_readmitted(run: SilverRun) -> Progress:
    """The run's progress, in which games with rows that the settings let in only now are listed for the pass of their own.

    It is noted before any commit: after a crash, or under other settings, the next run finds them listed. If bronze cannot be
    read, that is an error of the run's report, and the next run tries again.
    """
    pipeline, state = run.pipeline, run.state
    if state.left_out.covers(Admission.of(pipeline.settings)):
        return state
    try:
        found, left_out = readmitted_rows(pipeline, run.source.handle, state)
    except (LostFileError, OSError) as error:
        why = f"rows that the settings left out until now cannot be looked for: {error}"
        run.report.add_failed(Layer.SILVER, pipeline.bronze, why)
        return state
    why = note(pipeline, READMITTED)

    def noted(now: Progress) -> Progress:
        # With what a concurrent run has left out since, the next run deals.
        unchanged = now.left_out == state.left_out
        return replace(now.pending(Layer.SILVER, found, why), left_out=left_out if unchanged else now.left_out)

    pipeline.progress.update(run.source.bronze.key, noted)
    if found:
        names = first_few(sorted(found), SHOWN, ", ")
        run.report.warn(f"{found.total():,} rows that the settings left out until now are added, of {names}")
    return noted(state)


def _refuse_another_column(run: SilverRun) -> None:
    """Refuse another entity column: older rows would be missing in its games' tables, and stay in those of the other one.

    A full refresh of all tables notes it before any commit: until its end, tables are of either column.
    """
    made_by, now = _columns_of(run.state), run.pipeline.settings.entity_column
    if made_by <= {now}:
        return
    if not run.full or run.games is not None:
        columns = " and ".join(map(repr, sorted(made_by)))
        raise ConfigurationError(
            f"GAME_EVENTS_ENTITY_COLUMN is {now!r}, and silver's tables were made by {columns}: nothing was added. Make all "
            "of them again with `game-events run --full-refresh silver`" + (", or set it back" if len(made_by) == 1 else "")
        )
    run.pipeline.progress.update(run.source.bronze.key, lambda state: _made_by(state, {*_columns_of(state), now}))


def _columns_of(state: Progress) -> set[str]:
    """The entity columns by which silver's tables were made (none has a slash); none: not known."""
    return set(filter(None, state.marks.get(Layer.SILVER, Mark()).definition.split("/")))


def _made_by(state: Progress, columns: Collection[str]) -> Progress:
    return replace(state, marks=state.marks | {Layer.SILVER: Mark("/".join(sorted(columns)))})


def _requested(run: SilverRun) -> frozenset[str]:
    """The games of a run that does not move the low watermark; of a full refresh, they are noted for the later layers."""
    requested = frozenset(run.games or run.state.games)
    if run.games is None:
        requested |= set(new_games(run.pipeline, above=0))  # a redecode may have given a game to rows without one
    if run.full:
        # Before any commit: after a crash between the layers' commits, the later layers must not keep the old rows.
        _note_replaced(run, requested)
    return requested


def _note_replaced(run: SilverRun, games: Collection[str]) -> None:
    why = note(run.pipeline, REPLACED)
    run.pipeline.progress.update(run.source.bronze.key, lambda now: now.pending_downstream(games, why))


def _progress(run: SilverRun, result: PassResult, owed: dict[str, str], redecided: int, now: Progress) -> Progress:
    """The progress `now`, after the run."""
    floor = now.floor(Layer.SILVER)
    seen: Progress | None = run.state
    if not run.whole:  # failures of the other games stay
        owed = {g: why for (at, g), why in now.failed.items() if at == Layer.SILVER and result.done.get(g, -1) < floor}
        seen = None
    elif floor >= run.state.floor(Layer.SILVER):  # else it was lost, and the failures with it: the next run reads all rows
        floor = run.source.batch
    after = now.done(Layer.SILVER, floor, result.done, owed | result.failed, seen)
    after = replace(after, redecided=max(redecided, after.redecided))
    if run.games is None:
        after = _with_column(run, after, result.failed, moved=floor > now.floor(Layer.SILVER))
    if result.replaced:
        # Again: a concurrent run that read the tables before these commits found nothing to do and removed the first note.
        after = after.pending_downstream(result.replaced, note(run.pipeline, REPLACED))
    # Later layers do not look below their low watermarks, which runs of this moment may move up to silver's.
    reached = max(now.floors.values(), default=0)
    late = [game for game, batch in result.done.items() if now.games.get(game, 0) < batch <= reached]
    after = after.pending_downstream(late, note(run.pipeline, LATE)) if late else after
    if any(rows for why, rows in result.unrouted.items() if why not in (INVALID, NO_NAME)):
        first, by = run.state.floor(Layer.SILVER) + 1, Admission.of(run.pipeline.settings)
        after = replace(after, left_out=after.left_out.and_also(first, run.source.batch, by))
    return after


def _with_column(run: SilverRun, state: Progress, failed: Collection[str], *, moved: bool) -> Progress:
    """The progress with the entity columns by which the tables are made now; `moved`: the low watermark moves.

    `failed`: games that may still have rows by another column, if they have a table.
    """
    known, now = _columns_of(state), run.pipeline.settings.entity_column
    if known <= {now}:
        return _made_by(state, {now}) if moved or known else state
    tables = run.pipeline.lakehouse.silver
    # Batches that a run with another column has added meanwhile are missing, too.
    if not run.full or state.floor(Layer.SILVER) > run.source.batch or any(tables(game).exists() for game in failed):
        return _made_by(state, {*known, now})
    # Names that there was no room for have rows below the low watermark, too.
    return _made_by(replace(state, left_out=LeftOut(1, run.source.batch), counted=CountedRows()), {now})
