"""Refresh of silver: `bronze_events` -> one `silver_{game}_events` for each game, all games in one Spark job.

Guarantee: every bronze row of an admitted game is in its silver table once, or a rule has kept it out and counted it (and, for
rules with the action quarantine, put it into `quarantine_events` once), through any crash and beside concurrent runs. Each
table's `txn` holds the last bronze batch in it; a commit succeeds only if its rows were planned from that batch.

The first pass stages the rows of all games above the low watermark and opens only the tables of games that have such rows. If a
table is not at the low watermark, or its commit lost a conflict, the next pass stages the game's rows from its own batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from deltalake.exceptions import DeltaError

from game_events.errors import ConflictError, ExtensionError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.generations import BronzeIdentity, erasures, generation
from game_events.lakehouse.commits.parallel import GAME_ATTEMPTS, for_games
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.data.staging import remove_empty_folder
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.fanout.routing import INVALID, NO_NAME, OVER_LIMIT, Routing, admit
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.quarantine.intact import intact_tables
from game_events.pipeline.reporting.report import RunReport, TableReport
from game_events.pipeline.silver.admission import counted_routing, is_allowed, new_games, routing
from game_events.pipeline.silver.commit import drop, settle
from game_events.pipeline.silver.isolation import stage_games
from game_events.pipeline.silver.stage import SilverInput, Staging, Start

T = TypeVar("T")
#: Noted for a game with pending rows that is not in the allow list.
LEFT_OUT = "GAME_EVENTS_GAMES left it out when its rows were due"
REPLACED = "its silver table was replaced"


class _ErasedMeanwhileError(ConflictError):
    """A data subject was erased from bronze after its rows were read: they are read again."""


@dataclass(frozen=True)
class _Run:
    """Input of every pass; `state` is the progress that the run began with."""

    pipeline: Pipeline
    source: SilverInput
    state: Progress
    report: RunReport
    games: frozenset[str] | None
    full: bool

    @property
    def whole(self) -> bool:
        return self.games is None and not self.full


@dataclass(frozen=True)
class PassResult:
    """Outcome of one or more passes.

    Attributes:
        done: game -> last bronze batch in its silver table.
        failed: game -> reason.
        retry: games for the next pass.
        replaced: games with all rows replaced by a pass that was planned from their tables.
        unrouted: reason -> rows that belong to no game.
    """

    done: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    retry: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    unrouted: Counter[str] = field(default_factory=Counter)

    def then(self, later: PassResult) -> PassResult:
        """Both results together; only the later pass has games to retry."""
        done, failed, replaced = self.done | later.done, self.failed | later.failed, self.replaced | later.replaced
        return PassResult(done, failed, later.retry, replaced, self.unrouted + later.unrouted)


def refresh_silver(
    pipeline: Pipeline,
    report: RunReport,
    games: frozenset[str] | None = None,
    *,
    full: bool = False,
    just_loaded: bool = False,
) -> None:
    """Add bronze's new rows to silver.

    Args:
        pipeline: the parts.
        report: gets an entry for each game that changed or failed.
        games: only these; None: every game, and the low watermark moves.
        full: replace the tables of the games by all rows that bronze has of them.
        just_loaded: `load_bronze` has checked bronze and quarantine in this cycle.

    Raises:
        DataError: bronze or quarantine was restored by hand, or quarantine was deleted: a commit to quarantine would hide that
            from every later run.
    """
    began = time.monotonic()
    handle = pipeline.bronze.open() if just_loaded else (intact_tables(pipeline, report) or (None, None))[0]
    if handle is None:
        return
    if not has_decoded_columns(handle):
        return  # there is no record of a selected message type yet
    for attempt in range(GAME_ATTEMPTS):
        source = SilverInput.of(pipeline, pipeline.bronze.open() or handle if attempt else handle)
        try:
            _refresh(_Run(pipeline, source, pipeline.progress.read(source.bronze.key), report, games, full))
            break
        except _ErasedMeanwhileError:  # committed games stay committed; the next attempt finds them ahead of the watermark
            if attempt == GAME_ATTEMPTS - 1:
                raise
        except ExtensionError as error:
            # It concerns all games: silver does not move, and the run still reports bronze.
            report.tables.append(
                TableReport(Layer.SILVER, pipeline.settings.names.silver_asset, pipeline.lakehouse.root, error=str(error))
            )
            break
    report.seconds[Layer.SILVER] = report.seconds.get(Layer.SILVER, 0.0) + time.monotonic() - began


def _refresh(run: _Run) -> None:
    """All passes, the report of failed games, and the new progress."""
    pipeline, state, redecided = run.pipeline, run.state, run.state.redecided
    if run.whole:
        result = _pass(run) if run.source.batch > state.floor(Layer.SILVER) else PassResult()
        undone, redecided = _undone_replacements(run)
        result = replace(result, retry=result.retry | state.failed_in(Layer.SILVER) | undone)
    else:
        result = PassResult(retry=_requested(run))
    # A later run may allow games that the allow list leaves out now: their rows are below the low watermark then.
    noted = result.retry & (state.games.keys() | state.failed_in(Layer.SILVER))
    owed = {g: state.failed.get((Layer.SILVER, g), LEFT_OUT) for g in noted if not is_allowed(pipeline, g)}
    run, result = _retry(run, result)
    failpoints.reach("silver_committed")
    for game, why in result.failed.items():
        table = pipeline.lakehouse.silver(game)
        run.report.tables.append(TableReport(Layer.SILVER, table.name, table.uri, game, error=why))
    pipeline.progress.update(run.source.bronze.key, partial(_progress, run, result, owed, redecided))
    run.report.unrouted += result.unrouted


def _requested(run: _Run) -> frozenset[str]:
    """The games of a run that does not move the low watermark; of a full refresh, they are noted for the later layers."""
    requested = frozenset(run.games or run.state.games)
    if run.games is None:
        requested |= set(new_games(run.pipeline, above=0))  # a redecode may have given a game to rows without one
    if run.full:
        # Before any commit: after a crash between the layers' commits, the later layers must not keep the old rows.
        _note_replaced(run, requested)
    return requested


def _undone_replacements(run: _Run) -> tuple[frozenset[str], int]:
    """Games decided again by quarantine that a crash has kept from being replaced, and how often it decided again at all."""
    decisions = Decisions.read(run.pipeline, run.source.bronze.key)
    undone: frozenset[str] = frozenset()
    if decisions.redecisions != run.state.redecided:
        redecided = filter(decisions.incarnation, run.state.games)
        silver = run.pipeline.lakehouse.silver
        due = _guarded(lambda game: decisions.incarnation(game) > generation(silver(game).open()))
        undone = frozenset(game for game, found in for_games(redecided, due).items() if found)
        _note_replaced(run, undone)
    return undone, decisions.redecisions


def _note_replaced(run: _Run, games: Collection[str]) -> None:
    why = note(run.pipeline, REPLACED)
    run.pipeline.progress.update(run.source.bronze.key, lambda now: now.pending_downstream(games, why))


def _retry(run: _Run, result: PassResult) -> tuple[_Run, PassResult]:
    """Passes over the games to retry until there is none, or attempts run out; and the run with the bronze of the last pass."""
    for attempt in range(GAME_ATTEMPTS):
        bronze = run.pipeline.bronze.open() if result.retry else None
        if bronze is not None and run.full and attempt:
            # A concurrent run has decided on rows that this run has not read.
            run = replace(run, source=SilverInput.of(run.pipeline, bronze))
        if bronze is None or BronzeIdentity.of(bronze) != run.source.bronze:
            break  # bronze has other contents now: the next run reads them
        if erasures(bronze) != erasures(run.source.handle):
            raise _ErasedMeanwhileError(f"{bronze.table_uri}: data subjects are being erased from it; run again")
        result = result.then(_pass(run, result.retry))
    lost = dict.fromkeys(result.retry, "commit conflict: every attempt lost to concurrent runs; run again")
    return run, replace(result, failed=result.failed | lost)


def _progress(run: _Run, result: PassResult, owed: dict[str, str], redecided: int, now: Progress) -> Progress:
    """The progress `now`, after the run."""
    floor = now.floor(Layer.SILVER)
    if not run.whole:  # failures of the other games stay
        owed = {g: why for (at, g), why in now.failed.items() if at == Layer.SILVER and result.done.get(g, -1) < floor}
    elif floor >= run.state.floor(Layer.SILVER):  # else it was lost, and the failures with it: the next run reads all rows
        floor = run.source.batch
    after = now.done(Layer.SILVER, floor, result.done, owed | result.failed)
    after = replace(after, redecided=max(redecided, after.redecided))
    if result.replaced:
        # Again: a concurrent run that read the tables before these commits found nothing to do and removed the first note.
        after = after.pending_downstream(result.replaced, note(run.pipeline, REPLACED))
    if any(rows for why, rows in result.unrouted.items() if why not in (INVALID, NO_NAME)):
        after = replace(after, unrouted_batch=max(run.source.batch, after.unrouted_batch))
    return after


def _pass(run: _Run, games: Collection[str] | None = None) -> PassResult:
    """Stage rows of many games in one Spark job, and commit them game by game.

    Args:
        run: the input.
        games: these, each from its own batch; None: all games, from the low watermark.
    """
    decisions = Decisions.read(run.pipeline, run.source.bronze.key)
    if games is None:
        starts, staged, found = _stage_from_watermark(run, decisions)
    else:
        starts, staged, found = _stage_from_tables(run, decisions, games)
    if not starts:
        return found
    outcome = settle(run.source, decisions, starts, staged, run.report)
    entries = {entry.game: entry for entry in run.report.of(Layer.SILVER)}
    for game in outcome.landed:
        entries[game].new = game not in run.state.games
    # Tables that the first pass replaces are above the low watermarks of the later layers.
    replaced = frozenset(game for game in outcome.landed if starts[game].replace and games is not None)
    done = dict.fromkeys(outcome.landed, run.source.batch)
    return found.then(PassResult(done, outcome.failed, found.retry | outcome.again, replaced))


def _stage_from_watermark(run: _Run, decisions: Decisions) -> tuple[dict[str, Start], FanOutResult, PassResult]:
    """Stage all rows above the low watermark, and drop the files of games with tables that are not there."""
    pipeline, source, known = run.pipeline, run.source, set(run.state.games)
    floor = run.state.floor(Layer.SILVER)
    pipeline.on_progress(f"silver: batches {floor + 1} to {source.batch}")
    # Games that failed are staged by the next pass: their rows may crash a worker.
    left_out = frozenset(run.state.failed_in(Layer.SILVER))
    work = Staging(source, floor, routing(pipeline, known), len(known), None, decisions, left_out)
    result, unrouted = _stage_admitted(work, known)
    failpoints.reach("silver_staged")
    if unrouted[OVER_LIMIT]:
        run.report.notices.append(
            f"names that are no {pipeline.settings.names.entities} yet stay in bronze, as there is no room for more: raise "
            "GAME_EVENTS_MAX_GAMES and GAME_EVENTS_MAX_GAMES_EVER, or name those you want in GAME_EVENTS_GAMES"
        )
    starts: dict[str, Start] = {}
    failed, retry = dict(result.failed), set()
    for game, start in _starts(run, decisions, sorted(result.games), redecide=False).items():
        if isinstance(start, Start) and _is_at_watermark(run.state, decisions, game, start):
            starts[game] = replace(start, begin=floor)
            continue
        drop(pipeline, result, game)
        if isinstance(start, Start):
            retry.add(game)
        else:
            failed[game] = start
    return starts, result, PassResult(failed=failed, retry=frozenset(retry), unrouted=+unrouted)


def _stage_from_tables(
    run: _Run, decisions: Decisions, games: Collection[str]
) -> tuple[dict[str, Start], FanOutResult, PassResult]:
    """Stage each game's rows above the batch of its own table."""
    pipeline, source = run.pipeline, run.source
    rejects = source.rules.has("quarantine") or decisions.in_force
    allowed = sorted(game for game in games if is_allowed(pipeline, game))
    starts: dict[str, Start] = {}
    done: dict[str, int] = {}
    failed: dict[str, str] = {}
    retry: set[str] = set()
    for game, start in _starts(run, decisions, allowed, redecide=run.full and rejects).items():
        if isinstance(start, str):
            failed[game] = start
        elif ((run.full or start.replace) and (start.taken or 0) > source.batch) or (
            start.redecide and start.decided > source.batch
        ):
            retry.add(game)  # a concurrent run has read later batches: this run would replace its rows by fewer
        elif start.begin >= source.batch and not start.replace:
            done[game] = start.begin
        else:
            starts[game] = replace(start, decided=0) if start.redecide else start
    result = FanOutResult()
    if starts:
        pipeline.on_progress(f"silver: {len(starts)} {pipeline.settings.names.entities} from their own progress")
        routed = Routing(frozenset(pipeline.settings.games), frozenset(starts))
        lowest = min(start.begin for start in starts.values())
        result = stage_games(Staging(source, lowest, routed, len(starts), dict(starts), decisions))
        failpoints.reach("silver_replanned")
    for game in starts.keys() - result.games - result.failed.keys():
        start = starts[game]
        # All its rows are gone from bronze: the silver table is the only one that has them.
        expired = start.handle is not None and start.taken is None and not pipeline.extensions.transformed(game)
        if expired or not start.replace:
            del starts[game]
            if start.handle is not None and not expired:
                done[game] = start.begin  # bronze has no new rows of the game
    return starts, result, PassResult(done, failed, frozenset(retry))


def _starts(run: _Run, decisions: Decisions, games: Iterable[str], *, redecide: bool) -> dict[str, Start | str]:
    """Game -> from which batch it is staged, by its own table and quarantine's decisions; or why its table cannot be read."""

    def start(game: str) -> Start:
        handle = run.pipeline.lakehouse.silver(game).open()
        taken, decided = run.source.bronze.taken(handle), decisions.batch(game)
        whole = run.full or decisions.incarnation(game) > generation(handle) or (handle is not None and restored(handle))
        # Rows that quarantine holds from other contents of bronze are decided again, too.
        again = redecide or (decided is None and game in decisions.rejected_rows)
        begin = 0 if taken is None or whole or again else taken
        return Start(handle, taken, begin, replace=handle is not None and begin == 0, decided=decided or 0, redecide=again)

    return for_games(games, _guarded(start))


def _is_at_watermark(state: Progress, decisions: Decisions, game: str, start: Start) -> bool:
    """Whether a game's rows above the low watermark are exactly those that its table lacks.

    | its silver table | at the low watermark |
    |---|---|
    | none | if the watermark is 0, or no row of the game can be below it: the game is new, and no name was ever refused |
    | of other contents of bronze | if the watermark is 0: the staged rows replace the table |
    | restored, or to be replaced | no |
    | ahead of the watermark (a crash, a concurrent run) | no: rows would be added twice |
    | behind its known batch, or a refused name's | no: rows are missing below the watermark |
    | else | yes |

    And quarantine has decided on no row that the table lacks: those decisions hold, whatever the rules are now.
    """
    floor = state.floor(Layer.SILVER)
    if game in state.failed_in(Layer.SILVER) or start.redecide or start.decided > (start.taken or 0):
        return False
    if decisions.incarnation(game) > generation(start.handle):
        return False
    if start.handle is None:
        return not floor or (game not in state.games and not state.unrouted_batch)
    if start.taken is None:
        return not floor
    return not start.replace and max(state.games.get(game, 0), state.unrouted_batch) <= start.taken <= floor


def _stage_admitted(work: Staging, known: set[str]) -> tuple[FanOutResult, Counter[str]]:
    """Stage the rows of known games and admitted names; and the rows of the other names, by reason."""
    pipeline = work.source.pipeline
    if work.routing.room != 0:
        result = stage_games(work)
        if not result.crowded:
            new = {game: result.rows(game) for game in result.games if game not in known}
            _, refused = admit(pipeline.settings, known, new)
            if refused:
                # A name with a table was admitted before, even if progress has lost it or the table cannot be read.
                opened = for_games(new, _guarded(lambda game: pipeline.lakehouse.silver(game).open()))
                had = {game for game, found in opened.items() if found is not None}
                _, refused = admit(pipeline.settings, known | had, {g: rows for g, rows in new.items() if g not in had})
            for game in refused:
                drop(pipeline, result, game)
                remove_empty_folder(pipeline.lakehouse.silver(game))
            unrouted = Counter({why: sum(names.values()) for why, names in result.refused.items()})
            unrouted[OVER_LIMIT] += sum(refused.values())
            return result, unrouted
    only, others = counted_routing(work, known)
    return stage_games(replace(work, routing=only, games=len(only.only or ()))), others


def _guarded(read: Callable[[str], T]) -> Callable[[str], T | str]:
    """The function with errors of one game's table as a text: they fail this game, not the run."""

    def guarded(game: str) -> T | str:
        try:
            return read(game)
        except (GameEventsError, DeltaError, OSError) as error:
            return str(error)

    return guarded
