"""Refresh of silver: `bronze_events` -> one `silver_{game}_events` for each game, all games in one Spark job.

Guarantee: every bronze row of an admitted game is in its silver table once, or a rule has kept it out and counted it (and, for
rules with the action quarantine, put it into `quarantine_events` once), through any crash and beside concurrent runs. Each
table's `txn` holds the last bronze batch in it; a commit succeeds only if its rows were planned from that batch.

Each pass stages rows in one Spark job and commits them by game. The first one stages the rows of all games above the low
watermark and opens only the tables of games that have such rows. If a table is not at the low watermark, or its commit lost a
conflict, the next pass stages the game's rows from its own batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from deltalake import DeltaTable

from game_events.errors import ConflictError, DataError, ExtensionError, LostFileError, first_few
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import refuse_restored
from game_events.lakehouse.commits.group import GAME_ATTEMPTS, for_games, guarded
from game_events.lakehouse.commits.transactions import (
    ROW_COUNTERS,
    WITHOUT_EXPIRED,
    BronzeIdentity,
    Txn,
    erasures,
    expired_rows,
    incarnation,
    restored,
    txns,
)
from game_events.lakehouse.data.columns import has_decoded_columns
from game_events.lakehouse.data.reading import selection
from game_events.lakehouse.data.staging import remove_empty_folder
from game_events.lakehouse.system_tables import Admission, Progress
from game_events.lakehouse.tables import Layer, refuse_other_layout
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.definitions import refuse_others
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.quality import Decisions
from game_events.pipeline.quarantine import intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, SilverResult, TableReport
from game_events.pipeline.silver.admission import admit, counted_routing, is_allowed, new_games, readmitted_rows
from game_events.pipeline.silver.commit import drop, settle
from game_events.pipeline.silver.duplicates import History, NewKeys, new_keys, new_times
from game_events.pipeline.silver.made_by import EndOfRun, refuse_other_settings, retires_types
from game_events.pipeline.silver.stage import GameStart, SilverInput, Staging, stage_games
from game_events.pipeline.silver.type_tables import TypesOfGames
from game_events.workers.fanout import INVALID, NO_NAME, OVER_LIMIT, Routing
from game_events.workers.results import FanOutResult


@dataclass(frozen=True)
class SilverRun:
    """Input of every pass; `state`: the progress that the run began with. `games`: only these. `full`: replace their tables.

    `one_pass`: what bronze's job of this process has staged for silver; None: nothing.
    """

    pipeline: Pipeline
    source: SilverInput
    state: Progress
    report: RunReport
    games: frozenset[str] | None
    full: bool
    one_pass: OnePass | None = None

    @property
    def whole(self) -> bool:
        """Whether the low watermark moves."""
        return self.games is None and not self.full


@dataclass
class PassResult:
    """Outcome of the passes so far.

    `done`: game -> last bronze batch in its silver table. `failed`: game -> reason. `retry`: games for the next pass.
    `replaced`: games with all rows replaced by a later pass than the first. `unrouted`: reason -> rows that belong to no game.
    `redecided`: quarantine's commits of second decisions that were looked at.
    """

    done: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    retry: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    unrouted: Counter[str] = field(default_factory=Counter)
    redecided: int = 0


def run_pass(run: SilverRun, passed: PassResult, games: Collection[str] | None = None) -> None:
    """Stage rows in one Spark job, commit them by game: all games from the low watermark, or these from their own batches."""
    decisions = Decisions.read(run.pipeline, run.source.bronze.key)
    if games is None:
        starts, staged = _stage_from_watermark(run, decisions, passed)
    else:
        starts, staged = _stage_from_tables(run, decisions, passed, games)
    if not starts:
        return
    outcome = settle(run.source, decisions, starts, staged, run.report)
    run.report.mark_new(Layer.SILVER, outcome.landed.keys() - run.state.games.keys())
    passed.done |= dict.fromkeys(outcome.landed, run.source.batch)
    passed.failed |= outcome.failed
    passed.retry |= outcome.again
    if games is not None:  # tables that the first pass replaces are above the low watermarks of the later layers
        passed.replaced |= {game for game in outcome.landed if starts[game].replace}


def _stage_from_watermark(
    run: SilverRun, decisions: Decisions, passed: PassResult
) -> tuple[dict[str, GameStart], FanOutResult]:
    """Stage all rows above the low watermark, and drop the files of games with tables that are not there."""
    pipeline = run.pipeline
    floor = run.state.floor(Layer.SILVER)
    pipeline.on_progress(f"silver: batches {floor + 1} to {run.source.batch}")
    history, new = _history(run, decisions)
    result, unrouted = _stage_admitted(run, decisions, history, new)
    failpoints.reach("silver_staged")
    passed.unrouted = +unrouted
    passed.failed |= result.failed
    if unrouted[OVER_LIMIT]:
        run.report.warn(
            f"names that are no {pipeline.settings.names.entities} yet stay in bronze, as there is no room for more: raise "
            "GAME_EVENTS_MAX_GAMES and GAME_EVENTS_MAX_GAMES_EVER, or name those you want in GAME_EVENTS_GAMES"
        )
    starts: dict[str, GameStart] = {}
    for game, start in starts_of(run, decisions, sorted(result.games), redecide=False, staged=result).items():
        is_due = isinstance(start, GameStart) and is_at_watermark(run.state, decisions, game, start)
        if isinstance(start, GameStart) and is_due and _is_compared(run, history, game, start):
            starts[game] = replace(start, read_after=floor)
            continue
        drop(pipeline, result, game)
        if isinstance(start, GameStart):
            passed.retry.add(game)
        else:
            passed.failed[game] = start
    return starts, result


def _history(run: SilverRun, decisions: Decisions) -> tuple[History, Sequence[NewKeys] | None]:
    """What silver has of the games with rows above the low watermark, and the keys of these rows, if any can be a duplicate."""
    keys = run.source.keys
    if not keys.entries:
        return History(), None
    floor = run.state.floor(Layer.SILVER)
    games = set(filter(keys.applies_to, run.state.games))
    new = new_keys(keys, run.pipeline.bronze, run.source.base, selection(run.source.handle, floor), floor, games)
    starts = starts_of(run, decisions, sorted(new.games), redecide=False)
    tables = {game: start.continued(game) for game, start in starts.items() if isinstance(start, GameStart)}
    return History.of(keys, new, tables), new.keys


def _is_compared(run: SilverRun, history: History, game: str, start: GameStart) -> bool:
    """Whether the rows that a game's tables have now are those that its new rows were compared with."""
    if not run.source.keys.applies_to(game):
        return True
    return history.is_of(game, start.continued(game), run.source.bronze)


def _stage_from_tables(
    run: SilverRun, decisions: Decisions, passed: PassResult, games: Collection[str]
) -> tuple[dict[str, GameStart], FanOutResult]:
    """Stage each game's rows above the batch of its own table."""
    pipeline = run.pipeline
    allowed = sorted(game for game in games if is_allowed(pipeline, game))
    starts = _starts_with_due_rows(run, decisions, passed, allowed)
    if not starts:
        return starts, FanOutResult()
    pipeline.on_progress(f"silver: {len(starts)} {pipeline.settings.names.entities} from their own progress")
    routed = Routing.of(pipeline.settings, only=starts)
    lowest = min(start.read_after for start in starts.values())
    result = stage_games(Staging(run.source, lowest, routed, len(starts), dict(starts), decisions, history=_own(run, starts)))
    failpoints.reach("silver_replanned")
    for game in starts.keys() - result.games - result.failed.keys():
        start = starts[game]
        expired = _is_only_copy(pipeline, game, start)
        # Where tables of types have all new rows already, the game's own table has to say so.
        if expired or not (start.replace or start.ahead):
            del starts[game]
            if start.handle is not None and not expired:
                passed.done[game] = start.read_after  # bronze has no new rows of the game
    return starts, result


def _own(run: SilverRun, starts: Mapping[str, GameStart]) -> History:
    """What the tables have that rows are added to."""
    keys = run.source.keys
    above = {game: start.read_after for game, start in starts.items() if keys.applies_to(game) and start.continued(game)}
    if not above:
        return History()
    files = selection(run.source.handle, min(above.values()))
    new = new_times(keys, run.pipeline.bronze, run.source.base, files, above)
    return History.of(keys, new, {game: starts[game].continued(game) for game in above})


def _is_only_copy(pipeline: Pipeline, game: str, start: GameStart) -> bool:
    """Whether only the silver table has the rows of a game of which bronze has none: all of them are gone from bronze."""
    return start.handle is not None and start.last_batch_in_table is None and not pipeline.extensions.transformed(game)


def _starts_with_due_rows(
    run: SilverRun, decisions: Decisions, passed: PassResult, games: Collection[str]
) -> dict[str, GameStart]:
    """Where the games start whose tables lack rows, or are replaced; `passed` gets the other games."""
    batch = run.source.batch
    rejects = run.source.rules.has("quarantine") or decisions.in_force
    starts: dict[str, GameStart] = {}
    for game, start in starts_of(run, decisions, games, redecide=run.full and rejects).items():
        if isinstance(start, str):
            passed.failed[game] = start
        elif start.read_after >= batch and not start.replace:
            passed.done[game] = start.read_after
        elif start.is_behind(batch):
            passed.retry.add(game)  # a concurrent run has read later batches: this run would replace its rows by fewer
        else:
            starts[game] = replace(start, rejections_decided_to=0) if start.judge_again else start
    return starts


def _stage_admitted(
    run: SilverRun, decisions: Decisions, history: History, new: Sequence[NewKeys] | None
) -> tuple[FanOutResult, Counter[str]]:
    """Stage the rows of known games and admitted names; and the rows of the other names, by reason."""
    pipeline = run.pipeline
    settings = pipeline.settings
    # Games that failed are staged by the next pass: their rows may crash a worker. They count as admitted.
    left_out = frozenset(run.state.failed_in(Layer.SILVER))
    known = {*run.state.games, *left_out}
    routing = Routing.of_all(settings, known)
    work = Staging(run.source, run.state.floor(Layer.SILVER), routing, len(known), None, decisions, left_out, history, new)
    result = None
    if run.one_pass is not None and not left_out and not run.source.rules.rules and not run.source.keys.entries:
        # What bronze's job has staged of exactly the files that this job would read, as this job would.
        result = run.one_pass.take(work.files, work.task)
    if result is None:
        result = stage_games(work) if routing.room != 0 else FanOutResult(crowded=True)
    if result.crowded:
        only, others = counted_routing(work, known)
        return stage_games(replace(work, routing=only, games=len(only.only or ()))), others
    refused = _refused(pipeline, known, result)
    for game in refused:
        drop(pipeline, result, game)
        for name in result.tables(game):
            remove_empty_folder(pipeline.lakehouse.silver(name))
    unrouted = Counter({why: sum(names.values()) for why, names in result.refused.items()})
    unrouted[OVER_LIMIT] += sum(refused.values())
    return result, unrouted


def _refused(pipeline: Pipeline, known: set[str], result: FanOutResult) -> Mapping[str, int]:
    """New names among the staged games that are not admitted, with their number of rows."""
    new = {game: result.rows(game) for game in result.games if game not in known}
    _, refused = admit(pipeline.settings, known, new)
    if not refused:
        return refused
    # A name with a table was admitted before, even if progress has lost it or the table cannot be read.
    opened = for_games(new, guarded(lambda game: pipeline.tables.peek(pipeline.lakehouse.silver(game))))
    had = {game for game, table in opened.items() if table is not None}
    _, refused = admit(pipeline.settings, {*known, *had}, {game: rows for game, rows in new.items() if game not in had})
    return refused


def starts_of(
    run: SilverRun, decisions: Decisions, games: Iterable[str], *, redecide: bool, staged: FanOutResult | None = None
) -> dict[str, GameStart | str]:
    """Game -> from which batch it is staged, by its own tables and quarantine's decisions; or why its tables cannot be read.

    `staged`: of a pass over all games, of whose message types' tables only those are opened that it has rows of, or that its
    rows were compared with.
    """
    bronze = run.source.bronze
    needed = (bronze.erased_app, Txn.ERASURES, Txn.ROWS_EXPIRED, *ROW_COUNTERS)
    types = TypesOfGames.of(run.pipeline, bronze, retired=retires_types(run.pipeline, run.state, full=run.full))

    def start(game: str) -> GameStart:
        handle = run.pipeline.tables.open(run.pipeline.lakehouse.silver(game))
        # The handle keeps what was read: during a long job the log may lose the entries that the commit needs.
        txns(handle, needed)
        taken = bronze.taken(handle)
        decided = decisions.batch(game)
        whole = run.full or decisions.incarnation(game) > incarnation(handle)
        whole = whole or taken is None or (handle is not None and restored(handle))
        # Rows that quarantine holds from other contents of bronze are decided again, too; and all rows of which quarantine has
        # lost decisions by age.
        again = redecide or (decided is None and game in decisions.rejected_rows)
        again = again or (whole and bool(expired_rows(decisions.handle, game)))
        begin = 0 if taken is None or whole or again else taken
        if handle is not None and begin == 0:
            run.pipeline.lakehouse.silver(game).writable(handle, replaced=True)
            if taken is not None:
                _refuse_fewer_rows(run, game, handle)
        begun = GameStart(
            handle,
            taken,
            begin,
            replace=handle is not None and begin == 0,
            rejections_decided_to=decided or 0,
            judge_again=again,
        )
        if types is None:
            return begun
        return types.started(begun, game, None if run.source.keys.applies_to(game) else staged)

    return for_games(games, guarded(start))


def _refuse_fewer_rows(run: SilverRun, game: str, silver: DeltaTable) -> None:
    """Raise DataError if a game's silver would be replaced by rows of a bronze that lacks some by age which silver has."""
    gone = expired_rows(run.source.handle, game)
    if not gone or run.pipeline.settings.allow_refresh_without_expired:
        return
    of_types = run.pipeline.lakehouse.type_tables().get(game, [])
    types = [run.pipeline.tables.open_to_read(run.pipeline.lakehouse.silver(name)) for name in of_types]
    lost = gone - sum(expired_rows(table) for table in (silver, *types))
    if lost > 0:
        raise DataError(
            f"silver of {game} would be made again from a bronze that lacks {lost:,} rows by age (GAME_EVENTS_RETENTION_DAYS) "
            f"which it has: it stays as it is. {WITHOUT_EXPIRED}"
        )


def is_at_watermark(state: Progress, decisions: Decisions, game: str, start: GameStart) -> bool:
    """Whether a game's rows above the low watermark are exactly those that its table lacks.

    | its silver table | at the low watermark |
    |---|---|
    | none | if the watermark is 0, or no row of the game can be below it: the game is new, and its name was never left out |
    | of other contents of bronze | if the watermark is 0: the staged rows replace the table |
    | restored, or to be replaced | no |
    | ahead of the watermark (a crash, a concurrent run), or a table of its message types is | no: rows would be added twice |
    | behind its known batch, or one in which its name may have been left out | no: rows are missing below the watermark |
    | else | yes |

    And quarantine has decided on no row that the table lacks: those decisions hold, whatever the rules are now.
    """
    floor = state.floor(Layer.SILVER)
    if game in state.failed_in(Layer.SILVER) or _lacks_decided_rows(decisions, game, start) or start.furthest > floor:
        return False
    if start.handle is None:
        return not floor or (game not in state.games and not state.left_out_to(game))
    if start.last_batch_in_table is None:
        return not floor
    return not start.replace and max(state.games.get(game, 0), state.left_out_to(game)) <= start.last_batch_in_table <= floor


def _lacks_decided_rows(decisions: Decisions, game: str, start: GameStart) -> bool:
    """Whether quarantine has decided on rows that the game's table lacks, or decides on all of them again."""
    is_ahead = start.rejections_decided_to > (start.last_batch_in_table or 0)
    return start.judge_again or is_ahead or decisions.incarnation(game) > incarnation(start.handle)


#: Noted for a game with pending rows that is not in the allow list.
LEFT_OUT = "GAME_EVENTS_GAMES left it out when its rows were due"
REPLACED = "its silver table was replaced"
LATE = "its silver table got rows of earlier batches"
#: Noted for a game that the allow list, or a limit of games, left out until now.
READMITTED = "the settings left out rows of it until now"

#: Games that a notice names.
SHOWN = 5


class _ErasedMeanwhileError(ConflictError):
    """A person was erased from bronze after its rows were read: they are read again."""


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
    Returns game -> why it failed.

    Raises:
        DataError: bronze or quarantine was restored by hand, or quarantine was deleted: a commit to quarantine would hide that
            from every later run.
        ConfigurationError: the tables were made by another entity column: only a full refresh of all of them may change it.
    """
    began = time.monotonic()
    failed = dict[str, str]()
    not_replaced = not_replaced or {}
    refuse_other_layout(pipeline.lakehouse)
    for attempt in range(GAME_ATTEMPTS):
        # Also right after bronze's step: Dagster's steps may have waited between them.
        handle, _ = intact_tables(pipeline, report) or (None, None)
        if handle is None or not has_decoded_columns(handle):
            return {}  # there is no record of a selected message type yet
        refuse_others(pipeline, handle)
        source = SilverInput.of(pipeline, handle)
        report.warn(*source.deduplication[1])
        state = pipeline.progress.read(source.bronze.key)
        for game, why in not_replaced.items():
            state = state.pending(Layer.SILVER, [game], why)
        try:
            failed = _refresh(SilverRun(pipeline, source, state, report, games, full, one_pass), not_replaced)
            break
        except _ErasedMeanwhileError:  # committed games stay committed; the next attempt finds them ahead of the watermark
            if attempt == GAME_ATTEMPTS - 1:
                raise
        except ExtensionError as error:
            # It concerns all games: silver does not move, and the run still reports bronze.
            asset = pipeline.settings.names.silver_asset
            root = pipeline.lakehouse.root
            report.add(LayerResult(tables=[TableReport(Layer.SILVER, asset, root, error=str(error))]))
            break
    report.add_seconds(Layer.SILVER, time.monotonic() - began)
    return failed


def _refresh(run: SilverRun, not_replaced: Mapping[str, str]) -> dict[str, str]:
    """All passes, the report of failed games, and the new progress; returns failed game -> reason.

    1. A run over every game reads the rows above the low watermark; another one has the games that it was asked for.
    2. Games that the pass could not take get passes of their own, until none is left or the attempts are used up.
    3. Failed games are reported, and the progress is written.
    """
    pipeline = run.pipeline
    passed = PassResult(redecided=run.state.redecided)
    refuse_other_settings(pipeline, run.state, run.source.bronze.key, may_change=run.full and run.games is None)
    if run.whole:
        run = replace(run, state=_with_readmitted(run))
        _pass_from_watermark(run, passed)
    else:
        _list_asked_games(run, passed)
    noted = passed.retry & (run.state.games.keys() | run.state.failed_in(Layer.SILVER))
    # They stay listed, as their rows are below the low watermark then: a later run may allow them.
    left_out = (game for game in noted if not is_allowed(pipeline, game))
    owed = {game: run.state.failed.get((Layer.SILVER, game), LEFT_OUT) for game in left_out} | dict(not_replaced)
    passed.retry -= not_replaced.keys()
    for attempt in range(GAME_ATTEMPTS):
        games = passed.retry
        current = _with_current_bronze(run, again=attempt > 0) if games else None
        if current is None:
            break
        run = current
        passed.retry = set()
        run_pass(run, passed, games)
    passed.failed |= dict.fromkeys(passed.retry, "commit conflict: every attempt lost to concurrent runs; run again")
    failpoints.reach("silver_committed")
    for game, why in passed.failed.items():
        run.report.add_failed(Layer.SILVER, pipeline.lakehouse.silver(game), why, game)
    pipeline.progress.update(run.source.bronze.key, partial(_progress, run, passed, owed))
    run.report.add(SilverResult(unrouted=passed.unrouted, notices=_unrouted_notices(run, passed.unrouted)))
    return passed.failed


def _with_current_bronze(run: SilverRun, *, again: bool) -> SilverRun | None:
    """The run, for its next pass; None if bronze has other contents now: the next run reads them."""
    pipeline = run.pipeline
    bronze = pipeline.open_bronze()
    if bronze is None:
        return None
    bronze = refuse_restored(pipeline.bronze, bronze)
    if run.full and again:
        # A concurrent run has decided on rows that this run has not read.
        run = replace(run, source=SilverInput.of(pipeline, bronze))
    if BronzeIdentity.of(bronze) != run.source.bronze:
        return None
    if erasures(bronze) != erasures(run.source.handle):
        raise _ErasedMeanwhileError(f"{bronze.table_uri}: people are being erased from it; run again")
    return run


def _list_asked_games(run: SilverRun, passed: PassResult) -> None:
    """List the games that the run was asked for in `passed.retry`."""
    passed.retry.update(run.games or run.state.games)
    if run.games is None:
        passed.retry.update(new_games(run.pipeline, above=0))  # a redecode may have given a game to rows without one
    if run.full:
        # Before any commit: after a crash between the layers' commits, the later layers must not keep the old rows.
        _note_replaced(run, passed.retry)
        if run.pipeline.settings.type_tables is not None:
            # After one between the commits of a game's tables, the next run must finish them.
            why = note(run.pipeline, REPLACED)
            run.pipeline.progress.update(run.source.bronze.key, lambda now: now.pending(Layer.SILVER, passed.retry, why))


def _pass_from_watermark(run: SilverRun, passed: PassResult) -> None:
    """The pass over every game; games that need one of their own are listed in `passed.retry`."""
    pipeline = run.pipeline
    state = run.state
    if run.source.batch > state.floor(Layer.SILVER):
        run_pass(run, passed)
    passed.retry |= state.failed_in(Layer.SILVER)
    decisions = Decisions.read(pipeline, run.source.bronze.key)
    if decisions.redecisions == passed.redecided:
        return
    # Games that quarantine has decided again, and whose tables a crash has kept from being replaced.
    peek = pipeline.tables.peek
    silver = pipeline.lakehouse.silver
    due = guarded(lambda game: decisions.incarnation(game) > incarnation(peek(silver(game))))
    asked = for_games(filter(decisions.incarnation, state.games), due)
    undone = {game for game, is_due in asked.items() if is_due}
    _note_replaced(run, undone)
    passed.retry |= undone
    passed.redecided = decisions.redecisions


def _unrouted_notices(run: SilverRun, unrouted: Counter[str]) -> list[str]:
    """A warning if more rows have no game's name than silver has got."""
    routed = sum(table.rows + table.dropped + table.quarantined + table.duplicates for table in run.report.of(Layer.SILVER))
    if unrouted[INVALID] <= routed:
        return []
    entity = run.pipeline.settings.entity_column
    return [
        f"MOST ROWS ARE IN NO TABLE OF SILVER: their {entity} (GAME_EVENTS_ENTITY_COLUMN) is empty or no legal name "
        f"({unrouted[INVALID]:,} of {unrouted.total() + routed:,} rows), so they stay in bronze; `game-events doctor` shows "
        "what it holds"
    ]


def _with_readmitted(run: SilverRun) -> Progress:
    """The run's progress, in which games with rows that the settings let in only now are listed for the pass of their own.

    It is noted before any commit: after a crash, or under other settings, the next run finds them listed. If bronze cannot be
    read, that is an error of the run's report, and the next run tries again.
    """
    pipeline = run.pipeline
    state = run.state
    if state.left_out.covers(Admission.of(pipeline.settings)):
        return state
    try:
        readmitted, left_out = readmitted_rows(pipeline, run.source.handle, state)
    except (LostFileError, OSError) as error:
        why = f"rows that the settings left out until now cannot be looked for: {error}"
        run.report.add_failed(Layer.SILVER, pipeline.bronze, why)
        return state
    why = note(pipeline, READMITTED)

    def noted(now: Progress) -> Progress:
        # With what a concurrent run has left out since, the next run deals.
        unchanged = now.left_out == state.left_out
        return replace(now.pending(Layer.SILVER, readmitted, why), left_out=left_out if unchanged else now.left_out)

    pipeline.progress.update(run.source.bronze.key, noted)
    if readmitted:
        names = first_few(sorted(readmitted), SHOWN, ", ")
        run.report.warn(f"{readmitted.total():,} rows that the settings left out until now are added, of {names}")
    return noted(state)


def _note_replaced(run: SilverRun, games: Collection[str]) -> None:
    why = note(run.pipeline, REPLACED)
    run.pipeline.progress.update(run.source.bronze.key, lambda now: now.pending_downstream(games, why))


def _progress(run: SilverRun, passed: PassResult, owed: dict[str, str], now: Progress) -> Progress:
    floor = now.floor(Layer.SILVER)
    seen: Progress | None = run.state
    if not run.whole:  # failures of the other games stay
        failed = now.failed.items()
        owed = {game: why for (layer, game), why in failed if layer == Layer.SILVER and passed.done.get(game, -1) < floor}
        seen = None
    elif floor >= run.state.floor(Layer.SILVER):  # else it was lost, and the failures with it: the next run reads all rows
        floor = run.source.batch
    after = now.done(Layer.SILVER, floor, passed.done, owed | passed.failed, seen)
    after = replace(after, redecided=max(passed.redecided, after.redecided))
    if run.games is None:
        end = EndOfRun(run.pipeline, run.source.batch, run.full, frozenset(passed.failed))
        after = end.noted(after, moved=floor > now.floor(Layer.SILVER))
    after = _with_pending_downstream(run, passed, now, after)
    if any(rows for why, rows in passed.unrouted.items() if why not in (INVALID, NO_NAME)):
        # The settings left rows out: other settings may let them in.
        by = Admission.of(run.pipeline.settings)
        first = run.state.floor(Layer.SILVER) + 1
        after = replace(after, left_out=after.left_out.and_also(first, run.source.batch, by))
    return after


def _with_pending_downstream(run: SilverRun, passed: PassResult, now: Progress, after: Progress) -> Progress:
    """The progress `after`, with the games that later layers would not look at by their low watermarks of `now`."""
    if passed.replaced:
        # Again: a concurrent run that read the tables before these commits found nothing to do and removed the first note.
        after = after.pending_downstream(passed.replaced, note(run.pipeline, REPLACED))
    # Later layers do not look below their low watermarks, which runs of this moment may move up to silver's.
    reached = max(now.floors.values(), default=0)
    late = [game for game, batch in passed.done.items() if now.games.get(game, 0) < batch <= reached]
    return after.pending_downstream(late, note(run.pipeline, LATE)) if late else after
