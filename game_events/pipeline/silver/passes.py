"""Passes of silver's refresh: each stages rows in one Spark job and commits them by game.

The first pass stages the rows of all games above the low watermark and opens only the tables of games that have such rows. If a
table is not at the low watermark, or its commit lost a conflict, the next pass stages the game's rows from its own batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.incarnations import incarnation
from game_events.lakehouse.commits.parallel import for_games, guarded
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.commits.transactions import Txn, txns
from game_events.lakehouse.data.staging import remove_empty_folder
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.fanout.one_pass import OnePass
from game_events.pipeline.fanout.routing import OVER_LIMIT, Routing
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.admission import admit, counted_routing, is_allowed
from game_events.pipeline.silver.commit import drop, settle
from game_events.pipeline.silver.source import SilverInput
from game_events.pipeline.silver.stage import Staging, Start, stage_games


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


@dataclass(frozen=True)
class PassResult:
    """Outcome of one or more passes.

    `done`: game -> last bronze batch in its silver table. `failed`: game -> reason. `retry`: games for the next pass.
    `replaced`: games with all rows replaced by a later pass than the first. `unrouted`: reason -> rows that belong to no game.
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


def run_pass(run: SilverRun, games: Collection[str] | None = None) -> PassResult:
    """Stage rows in one Spark job, commit them by game: all games from the low watermark, or these from their own batches."""
    decisions = Decisions.read(run.pipeline, run.source.bronze.key)
    if games is None:
        starts, staged, found = _stage_from_watermark(run, decisions)
    else:
        starts, staged, found = _stage_from_tables(run, decisions, games)
    if not starts:
        return found
    outcome = settle(run.source, decisions, starts, staged, run.report)
    run.report.mark_new(Layer.SILVER, outcome.landed.keys() - run.state.games.keys())
    # Tables that the first pass replaces are above the low watermarks of the later layers.
    replaced = frozenset(game for game in outcome.landed if starts[game].replace and games is not None)
    done = dict.fromkeys(outcome.landed, run.source.batch)
    return found.then(PassResult(done, outcome.failed, found.retry | outcome.again, replaced))


def _stage_from_watermark(run: SilverRun, decisions: Decisions) -> tuple[dict[str, Start], FanOutResult, PassResult]:
    """Stage all rows above the low watermark, and drop the files of games with tables that are not there."""
    pipeline, floor = run.pipeline, run.state.floor(Layer.SILVER)
    pipeline.on_progress(f"silver: batches {floor + 1} to {run.source.batch}")
    result, unrouted = _stage_admitted(run, decisions)
    failpoints.reach("silver_staged")
    if unrouted[OVER_LIMIT]:
        run.report.warn(
            f"names that are no {pipeline.settings.names.entities} yet stay in bronze, as there is no room for more: raise "
            "GAME_EVENTS_MAX_GAMES and GAME_EVENTS_MAX_GAMES_EVER, or name those you want in GAME_EVENTS_GAMES"
        )
    starts: dict[str, Start] = {}
    failed, retry = dict(result.failed), set()
    for game, start in starts_of(run, decisions, sorted(result.games), redecide=False).items():
        if isinstance(start, Start) and is_at_watermark(run.state, decisions, game, start):
            starts[game] = replace(start, begin=floor)
            continue
        drop(pipeline, result, game)
        if isinstance(start, Start):
            retry.add(game)
        else:
            failed[game] = start
    return starts, result, PassResult(failed=failed, retry=frozenset(retry), unrouted=+unrouted)


def _stage_from_tables(
    run: SilverRun, decisions: Decisions, games: Collection[str]
) -> tuple[dict[str, Start], FanOutResult, PassResult]:
    """Stage each game's rows above the batch of its own table."""
    pipeline, source = run.pipeline, run.source
    rejects = source.rules.has("quarantine") or decisions.in_force
    allowed = sorted(game for game in games if is_allowed(pipeline, game))
    starts: dict[str, Start] = {}
    done: dict[str, int] = {}
    failed: dict[str, str] = {}
    retry: set[str] = set()
    for game, start in starts_of(run, decisions, allowed, redecide=run.full and rejects).items():
        if isinstance(start, str):
            failed[game] = start
        elif (start.replace and (start.taken or 0) > source.batch) or (start.redecide and start.decided > source.batch):
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


def _stage_admitted(run: SilverRun, decisions: Decisions) -> tuple[FanOutResult, Counter[str]]:
    """Stage the rows of known games and admitted names; and the rows of the other names, by reason."""
    pipeline, settings = run.pipeline, run.pipeline.settings
    # Games that failed are staged by the next pass: their rows may crash a worker. They count as admitted.
    left_out = frozenset(run.state.failed_in(Layer.SILVER))
    known = {*run.state.games, *left_out}
    routing = Routing.of_all(settings, known)
    work = Staging(run.source, run.state.floor(Layer.SILVER), routing, len(known), None, decisions, left_out)
    result = _held(run, work)
    if result is None:
        result = stage_games(work) if routing.room != 0 else FanOutResult(crowded=True)
    if result.crowded:
        only, others = counted_routing(work, known)
        return stage_games(replace(work, routing=only, games=len(only.only or ()))), others
    new = {game: result.rows(game) for game in result.games if game not in known}
    _, refused = admit(settings, known, new)
    if refused:
        # A name with a table was admitted before, even if progress has lost it or the table cannot be read.
        opened = for_games(new, guarded(lambda game: pipeline.handles.look(pipeline.lakehouse.silver(game))))
        had = {game for game, found in opened.items() if found is not None}
        _, refused = admit(settings, known | had, {g: rows for g, rows in new.items() if g not in had})
    for game in refused:
        drop(pipeline, result, game)
        remove_empty_folder(pipeline.lakehouse.silver(game))
    unrouted = Counter({why: sum(names.values()) for why, names in result.refused.items()})
    unrouted[OVER_LIMIT] += sum(refused.values())
    return result, unrouted


def _held(run: SilverRun, work: Staging) -> FanOutResult | None:
    """What bronze's job has staged of exactly the files that this job would read, as this job would; None: the job is due."""
    if run.one_pass is None or work.left_out or run.source.rules.rules:
        return None
    return run.one_pass.take(work.files, work.task)


def starts_of(run: SilverRun, decisions: Decisions, games: Iterable[str], *, redecide: bool) -> dict[str, Start | str]:
    """Game -> from which batch it is staged, by its own table and quarantine's decisions; or why its table cannot be read."""
    bronze = run.source.bronze
    needed = (bronze.erased_app, Txn.ERASURES, Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED)

    def start(game: str) -> Start:
        handle = run.pipeline.handles.take(run.pipeline.lakehouse.silver(game))
        # The handle keeps what was read: during a long job the log may lose the entries that the commit needs.
        txns(handle, needed)
        taken, decided = bronze.taken(handle), decisions.batch(game)
        whole = run.full or decisions.incarnation(game) > incarnation(handle)
        whole = whole or taken is None or (handle is not None and restored(handle))
        # Rows that quarantine holds from other contents of bronze are decided again, too.
        again = redecide or (decided is None and game in decisions.rejected_rows)
        begin = 0 if taken is None or whole or again else taken
        if handle is not None and begin == 0:
            run.pipeline.lakehouse.silver(game).writable(handle, replaced=True)
        return Start(handle, taken, begin, replace=handle is not None and begin == 0, decided=decided or 0, redecide=again)

    return for_games(games, guarded(start))


def is_at_watermark(state: Progress, decisions: Decisions, game: str, start: Start) -> bool:
    """Whether a game's rows above the low watermark are exactly those that its table lacks.

    | its silver table | at the low watermark |
    |---|---|
    | none | if the watermark is 0, or no row of the game can be below it: the game is new, and its name was never left out |
    | of other contents of bronze | if the watermark is 0: the staged rows replace the table |
    | restored, or to be replaced | no |
    | ahead of the watermark (a crash, a concurrent run) | no: rows would be added twice |
    | behind its known batch, or one in which its name may have been left out | no: rows are missing below the watermark |
    | else | yes |

    And quarantine has decided on no row that the table lacks: those decisions hold, whatever the rules are now.
    """
    floor = state.floor(Layer.SILVER)
    if game in state.failed_in(Layer.SILVER) or start.redecide or start.decided > (start.taken or 0):
        return False
    if decisions.incarnation(game) > incarnation(start.handle):
        return False
    if start.handle is None:
        return not floor or (game not in state.games and not state.left_out_to(game))
    if start.taken is None:
        return not floor
    return not start.replace and max(state.games.get(game, 0), state.left_out_to(game)) <= start.taken <= floor
