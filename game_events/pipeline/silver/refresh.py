"""`bronze_events` -> one `silver_{game}_events` for each game, all games in one Spark job.

Guarantee: every bronze row of an admitted game is in its silver table once, or is kept out by a rule and counted (and, for
rules with the action quarantine, in `quarantine_events` once), through any crash and beside any rival. Each game's table holds
the highest bronze batch it has taken; its commit lands only if that is where its rows were planned from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from game_events.errors import ConflictError, ExtensionError, GameEventsError
from game_events.lakehouse import failpoints as crash_points
from game_events.lakehouse.commits.generations import BronzeIdentity, erasures, generation
from game_events.lakehouse.commits.parallel import GAME_ATTEMPTS, Committed, for_games
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.data.snapshot import files_with, read_files, row_count, spark_schema
from game_events.lakehouse.data.staging import discard, remove_empty_folder
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.pipeline.bronze.restored import refuse_undone_erasures
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.fanout.routing import INVALID, NO_NAME, OVER_LIMIT, Routing, admit
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.quarantine.lost import refuse_lost_quarantine
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, SilverResult
from game_events.pipeline.reporting.tables import TableReport
from game_events.pipeline.silver.admission import counted_routing, is_valid, routing
from game_events.pipeline.silver.commit import settle
from game_events.pipeline.silver.isolation import stage_games
from game_events.pipeline.silver.stage import SilverInput, Staging, Start

T = TypeVar("T")
#: What is noted of a game that has rows to come, while the allow list leaves it out.
LEFT_OUT = "GAME_EVENTS_GAMES left it out when its rows were due"


class _ErasedMeanwhileError(ConflictError):
    """A gamer was erased from bronze since its rows were read: they are read again."""


def refresh_silver(
    pipeline: Pipeline,
    report: RunReport,
    games: frozenset[str] | None = None,
    *,
    full: bool = False,
    just_loaded: bool = False,
) -> None:
    """Bring silver up to bronze.

    Args:
        pipeline: the parts.
        report: gets an entry for each game that changed or failed.
        games: only these; None: every game, and the floor moves.
        full: replace the given games' tables by everything bronze has of them.
        just_loaded: `load_bronze` has looked at bronze and quarantine in this cycle.

    Raises:
        DataError: somebody restored or deleted quarantine, or brought forgotten gamers back: a commit to quarantine would hide
            that from every later run, and silver would take what it must not.
    """
    began = time.monotonic()
    handle = pipeline.bronze.open()
    if handle is None:
        return
    if not just_loaded:
        refuse_lost_quarantine(pipeline, handle, report)
        refuse_undone_erasures(pipeline, handle)
    if not has_decoded_columns(handle):
        return  # no record of a selected message type has come yet
    for attempt in range(GAME_ATTEMPTS):
        source = SilverInput.of(pipeline, pipeline.bronze.open() or handle if attempt else handle)
        try:
            _refresh(pipeline, report, source, games, full=full)
            break
        except _ErasedMeanwhileError:  # what landed before it stays, and is found ahead of the floor
            if attempt == GAME_ATTEMPTS - 1:
                raise
        except ExtensionError as error:
            # Every game's: nothing moves, and the run's account of bronze stays.
            names, root = pipeline.settings.names, pipeline.lakehouse.root
            report.add(LayerResult(tables=[TableReport(Layer.SILVER, names.silver_asset, root, error=str(error))]))
            break
    report.add_seconds(Layer.SILVER, time.monotonic() - began)


def _refresh(pipeline: Pipeline, report: RunReport, source: SilverInput, games: frozenset[str] | None, *, full: bool) -> None:
    state = pipeline.progress.read(source.bronze.key)
    floor = state.floor(Layer.SILVER)
    done: dict[str, int] = {}
    failed: dict[str, str] = {}
    unrouted: Counter[str] = Counter()
    again: set[str] = set()
    replaced: set[str] = set()
    why = note(pipeline, "its silver table was replaced")
    if full or games is not None:
        # Rows that had no game before they were decoded anew may have one now.
        again = set(games or state.games) | (set(new_games(pipeline, above=0)) if games is None else set())
        if full:
            # Before any commit: a crash between the layers' commits must not leave the later ones with the old rows.
            pipeline.progress.update(source.bronze.key, lambda now: now.pending_downstream(again, why))
    elif source.batch > floor:
        again, failed, unrouted = _default_pass(pipeline, source, state, report, done)
    whole = games is None and not full
    known_anew = state.decided_anew
    if whole:
        again |= state.failed_in(Layer.SILVER)
        decisions = Decisions.read(pipeline, source.bronze.key)
        if decisions.made_anew != known_anew:
            pending = _not_carried_out(pipeline, decisions, state.games)
            if pending:
                pipeline.progress.update(source.bronze.key, lambda now: now.pending_downstream(pending, why))
            again |= pending
            known_anew = decisions.made_anew
    owed = _owed(pipeline, state, again)
    for attempt in range(GAME_ATTEMPTS):
        if not again:
            break
        newest = pipeline.bronze.open() if full and attempt else None
        if newest is not None:  # a rival has read on, and decided on rows that this run does not know of
            source = SilverInput.of(pipeline, newest)
        bronze = pipeline.bronze.open()
        if bronze is None or BronzeIdentity.of(bronze) != source.bronze:
            break  # nothing that was read is there any more: the next run reads what is
        if erasures(bronze) != erasures(source.handle):
            raise _ErasedMeanwhileError(f"{bronze.table_uri}: gamers are being erased from it; run again")
        again = _planned_pass(pipeline, source, state, again, report, done, failed, replaced=replaced, full=full)
    failed |= dict.fromkeys(again, "rival runs won every attempt; run again")
    crash_points.reach("silver_committed")
    for game, why in failed.items():
        table = pipeline.lakehouse.silver(game)
        report.add_failed(Layer.SILVER, table, why, game)
    valid_unrouted = any(why not in (INVALID, NO_NAME) and rows for why, rows in unrouted.items())

    def moved(now: Progress) -> Progress:
        # A floor that is gone took with it the failures that it left out: then all is looked at again.
        floor_now = source.batch if whole and now.floor(Layer.SILVER) >= floor else now.floor(Layer.SILVER)
        after = now.done(Layer.SILVER, floor_now, done, owed | failed if whole else _other(now, done, failed))
        after = replace(after, decided_anew=max(known_anew, after.decided_anew))
        if replaced:
            # Once more: a rival that looked before these commits has found nothing to do, and taken the first note back.
            after = after.pending_downstream(replaced, note(pipeline, "its silver table was replaced"))
        return _with_unrouted(after, source.batch) if valid_unrouted else after

    pipeline.progress.update(source.bronze.key, moved)
    report.add(SilverResult(unrouted=unrouted))


def _owed(pipeline: Pipeline, state: Progress, again: set[str]) -> dict[str, str]:
    """Games that this run would plan if its allow list had them -> why they stay noted as failed.

    A later run may have them again. So it is with a new game, which has no table yet: its rows are below the floor.
    """
    noted = again & (state.games.keys() | state.failed_in(Layer.SILVER))
    return {game: state.failed.get((Layer.SILVER, game), LEFT_OUT) for game in noted if _left_out(pipeline, game)}


def _left_out(pipeline: Pipeline, game: str) -> bool:
    return Routing(frozenset(pipeline.settings.games)).refusal(game) is not None


def _other(now: Progress, done: Mapping[str, int], failed: Mapping[str, str]) -> dict[str, str]:
    """Failures after a run over some games only: the others' stand."""
    floor = now.floor(Layer.SILVER)
    before = {game: why for (layer, game), why in now.failed.items() if layer == Layer.SILVER and done.get(game, -1) < floor}
    return before | dict(failed)


def _with_unrouted(state: Progress, batch: int) -> Progress:
    return replace(state, unrouted_batch=max(batch, state.unrouted_batch))


def _not_carried_out(pipeline: Pipeline, decisions: Decisions, games: Iterable[str]) -> set[str]:
    """Games whose rejections were decided anew, and whose tables were not replaced since: a crash came between."""

    def pending(game: str) -> bool:
        decided = decisions.generation(game)
        return decided is not None and decided > generation(pipeline.lakehouse.silver(game).open())

    return {game for game, found in for_games(games, _guarded(pending)).items() if found}


def _default_pass(
    pipeline: Pipeline, source: SilverInput, state: Progress, report: RunReport, done: dict[str, int]
) -> tuple[set[str], dict[str, str], Counter[str]]:
    """All games of the batches above the floor, without opening a table before the rows are staged.

    Returns:
        games to plan one by one (ahead of the floor, restored, failed before), games that failed, unrouted rows by why.
    """
    floor = state.floor(Layer.SILVER)
    known = set(state.games)
    pipeline.on_progress(f"silver: batches {floor + 1} to {source.batch}")
    decisions = Decisions.read(pipeline, source.bronze.key)
    source = source.with_transformations()
    # Games that failed are planned by themselves, and what kills a worker has done so before.
    left_out = frozenset(state.failed_in(Layer.SILVER))
    work = Staging(source, floor, routing(pipeline, known), len(known), None, decisions, left_out)
    result, unrouted = _stage_admitted(work, known)
    crash_points.reach("silver_staged")
    if unrouted[OVER_LIMIT]:
        report.warn(
            f"names that are no {pipeline.settings.words.entities} yet stay in bronze, as there is no room for more: raise "
            "GAME_EVENTS_MAX_GAMES and GAME_EVENTS_MAX_GAMES_EVER, or name those you want in GAME_EVENTS_GAMES"
        )

    def look(game: str) -> Start | None:
        """Where its staged rows begin, if that is the floor."""
        handle = pipeline.lakehouse.silver(game).open()
        taken = source.bronze.taken(handle)
        if handle is None:
            # Rows below the floor exist only if the table is gone, or the name was kept out before.
            from_floor = not floor or (game not in state.games and not state.unrouted_batch)
        elif taken is None:
            from_floor = not floor
        else:
            # Ahead of the floor: a crash or a rival. Behind what is known of it, or of rows kept out: rows are missing below.
            from_floor = max(state.games.get(game, 0), state.unrouted_batch) <= taken <= floor and not restored(handle)
        decided = decisions.batch(game)
        # Quarantine has decided on rows that silver has not taken (a crash, a rival), or on the rows of another bronze.
        undecided = (decided or 0) <= (taken or 0) and (decisions.generation(game) or 0) <= generation(handle)
        undecided = undecided and (decided is not None or game not in decisions.rejected_rows)
        if game in state.failed_in(Layer.SILVER) or not from_floor or not undecided:
            return None
        # Rows of another bronze are replaced: with a floor of 0 these files are everything this bronze has.
        return Start(handle, taken, floor, replace=handle is not None and taken is None)

    starts: dict[str, Start] = {}
    failed, again = dict(result.failed), set()
    for game, found in for_games(sorted(result.games), _guarded(look)).items():
        if isinstance(found, Start):
            starts[game] = found
            continue
        _forget(pipeline, result, game)
        if isinstance(found, str):
            failed[game] = found
        else:
            again.add(game)
    outcome = settle(source, decisions, starts, result, report)
    _record(source, report, outcome, done, known)
    return outcome.again | again, outcome.failed | failed, +unrouted


def _stage_admitted(work: Staging, known: set[str]) -> tuple[FanOutResult, Counter[str]]:
    """Stage the rows of all games and of the new names that are let in; and rows of the others by why."""
    pipeline = work.source.pipeline
    if work.routing.room != 0:
        result = stage_games(work)
        if not result.crowded:
            new = {game: result.rows(game) for game in result.games if game not in known}
            _, refused = admit(pipeline.settings, known, new)
            if refused:
                # A name with a table was let in before, whatever became of the record of it, and if it can be read or not.
                opened = for_games(new, _guarded(lambda game: pipeline.lakehouse.silver(game).open()))
                had = {game for game, found in opened.items() if found is not None}
                _, refused = admit(pipeline.settings, known | had, {g: rows for g, rows in new.items() if g not in had})
            for game in refused:
                _forget(pipeline, result, game)
                remove_empty_folder(pipeline.lakehouse.silver(game))
            unrouted = Counter({why: sum(names.values()) for why, names in result.refused.items()})
            unrouted[OVER_LIMIT] += sum(refused.values())
            return result, unrouted
    only, others = counted_routing(work, known)
    return stage_games(replace(work, routing=only, games=len(only.only or ()))), others


def _planned_pass(  # noqa: PLR0913 - one pass of a loop, its state passed explicitly
    pipeline: Pipeline,
    source: SilverInput,
    state: Progress,
    games: set[str],
    report: RunReport,
    done: dict[str, int],
    failed: dict[str, str],
    *,
    replaced: set[str],
    full: bool,
) -> set[str]:
    """Some games, each from its own progress, still in one Spark job; returns those that rivals won."""
    start: dict[str, Start] = {}
    behind: set[str] = set()
    decisions = Decisions.read(pipeline, source.bronze.key)
    asked = sorted(g for g in games if not _left_out(pipeline, g))
    rejects = source.rules.has("quarantine") or decisions.in_force
    look = partial(_start, source, decisions, full=full, rejects=rejects)
    for game, found in for_games(asked, _guarded(look)).items():
        if isinstance(found, str):
            failed[game] = found
        elif ((full or found.replace) and (found.taken or 0) > source.batch) or (found.anew and found.decided > source.batch):
            behind.add(game)  # a rival has read on: what this run would replace its rows by is less
        elif found.begin >= source.batch and not found.replace:
            done[game] = found.begin
        else:
            start[game] = replace(found, decided=0) if found.anew else found
    if not start:
        return behind
    pipeline.on_progress(f"silver: {len(start)} {pipeline.settings.words.entities} from their own progress")
    source = source.with_transformations()
    lowest = min(s.begin for s in start.values())
    asked_for = Routing(frozenset(pipeline.settings.games), frozenset(start))
    result = stage_games(Staging(source, lowest, asked_for, len(start), start, decisions))
    crash_points.reach("silver_replanned")
    for game, planned in list(start.items()):
        # Bronze was replaced or rebuilt and has no row of it: then its table is the only one that has them.
        expired = planned.handle is not None and planned.taken is None and not source.pipeline.extensions.transformed(game)
        if game not in result.games | set(result.failed) and (expired or not planned.replace):
            del start[game]
            if planned.handle is not None and not expired:
                done[game] = planned.begin  # idle since: nothing to commit
    outcome = settle(source, decisions, start, result, report)
    _record(source, report, outcome, done, set(state.games))
    replaced |= {game for game in outcome.landed if start[game].replace}
    failed |= outcome.failed
    return outcome.again | behind


def _start(source: SilverInput, decisions: Decisions, game: str, *, full: bool, rejects: bool) -> Start:
    """Where a game stands by its own table, and by what quarantine has decided about it."""
    handle = source.pipeline.lakehouse.silver(game).open()
    taken = source.bronze.taken(handle)
    decided = decisions.batch(game)
    # Decided anew, and not replaced yet: a crash came between.
    pending = (decisions.generation(game) or 0) > generation(handle)
    whole = full or pending or taken is None or (handle is not None and restored(handle))
    # Rows that quarantine holds from another bronze are looked at anew, too.
    anew = (full and rejects) or (decided is None and game in decisions.rejected_rows)
    begin = 0 if taken is None or whole or anew else taken
    return Start(handle, taken, begin, replace=handle is not None and begin == 0, decided=decided or 0, anew=anew)


def _guarded(look: Callable[[str], T]) -> Callable[[str], T | str]:
    """What is wrong with one game's table is that game's failure, in words."""

    def guarded(game: str) -> T | str:
        try:
            return look(game)
        except (GameEventsError, DeltaError, OSError) as error:
            return str(error)

    return guarded


def _forget(pipeline: Pipeline, result: FanOutResult, game: str) -> None:
    """Delete what was staged for a game."""
    discard(pipeline.lakehouse.silver(game), result.files.pop(game, []))
    discard(pipeline.quarantine, result.rejected.pop(game, []))
    result.counts.pop(game, None)


def _record(source: SilverInput, report: RunReport, outcome: Committed, done: dict[str, int], known: set[str]) -> None:
    done.update(dict.fromkeys(outcome.landed, source.batch))
    report.mark_new(Layer.SILVER, outcome.landed.keys() - known)


def new_games(pipeline: Pipeline, above: int | None = None) -> list[str]:
    """Valid, allowed names without a table in bronze above a batch (None: silver's floor), while there is room for games."""
    handle = pipeline.bronze.open()
    if handle is None or not row_count(handle) or not has_decoded_columns(handle):
        return []
    source = SilverInput.of(pipeline, handle)
    state = pipeline.progress.read(source.bronze.key)
    uris = files_with(handle, "_batch", state.floor(Layer.SILVER) if above is None else above)
    if not uris:
        return []
    # First the rows: a column can be named only once there is a session, and here may be the first need of one.
    rows = read_files(pipeline.spark, uris, spark_schema(handle.schema()))
    rows = rows.select(F.col(pipeline.settings.entity_column).alias("game")).where(is_valid(F.col("game")))
    room = max(0, pipeline.settings.max_games - len(state.games))
    allowed = Routing(frozenset(pipeline.settings.games))
    counted = rows.groupBy("game").count().orderBy(F.desc("count"), "game").limit(room + len(state.games)).collect()
    names = [r["game"] for r in counted if allowed.refusal(r["game"]) is None and r["game"] not in state.games]
    return names[:room]
