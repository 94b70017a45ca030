"""Refresh of gold: `silver_{game}_events` -> one `gold_{game}_{aggregate}` for each game, all games in one Spark job.

Guarantee: gold equals a full recompute of its silver, always; a reader sees the table before or after a refresh, nothing else.
Each table's `txn` holds the last silver batch in it. New rows are aggregated and merged with the old aggregate (or, where that
is not possible, all rows are aggregated), and replace it in one commit, which succeeds only if the table still has the batch
that was planned from.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from game_events.errors import ExtensionError, UserCodeError
from game_events.extending import GoldAggregate
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.group import GAME_ATTEMPTS, Committed, commit_games
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.system_tables import Mark, Progress
from game_events.lakehouse.tables import Layer
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.gold.execute import Staged, execute, merge_partials, taken_partials
from game_events.pipeline.gold.plan import (
    GamePlan,
    GoldRun,
    commit_of,
    due,
    looked_at,
    null_notices,
    plan_games,
    player_agg,
    scope,
)
from game_events.pipeline.quality import failed_rules
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import GoldResult
from game_events.spark.failures import run_with_bisection


def refresh_gold(
    pipeline: Pipeline,
    report: RunReport,
    games: frozenset[str] | None = None,
    *,
    full: bool = False,
    aggregate: GoldAggregate | None = None,
    not_replaced: Mapping[str, str] | None = None,
    one_pass: OnePass | None = None,
) -> Mapping[str, str]:
    """Add silver's new rows to an aggregate (None: `player_agg`); `report` gets an entry for each game that changed or failed.

    `games`: only these; None: every game that changed since the last refresh, and the low watermark moves. `full`: recompute
    from all of silver. `not_replaced`: game -> why its full refresh has failed in this run: its table is left as it is, and the
    next run tries again. `one_pass`: partial rows that this process holds. Returns game -> why it failed.
    """
    began = time.monotonic()
    not_replaced = not_replaced or {}
    bronze = pipeline.open_bronze()
    if bronze is None:
        return {}
    run = GoldRun(pipeline, aggregate or player_agg(pipeline.settings), BronzeIdentity.of(bronze), full)
    layer = run.aggregate.layer
    key = run.bronze.key
    state = pipeline.progress.read(key)
    if state.marks.get(layer, Mark()).definition != scope(run.aggregate):
        # Before any commit: after a crash, a run with the declaration of before must not trust its low watermark.
        state = pipeline.progress.update(key, lambda now: now.marked(layer, Mark(scope(run.aggregate))).done(layer, 0))
    failed = _refresh(run, report, state, games, not_replaced.keys(), one_pass)
    for game, why in failed.items():
        table = pipeline.lakehouse.gold(game, run.aggregate.name)
        report.add_failed(layer, table, why, game)
    failpoints.reach("gold_committed", run.aggregate.name)
    # Gold lacks what silver lacks: the low watermark does not cover these games.
    pending = dict.fromkeys(state.failed_in(Layer.SILVER), "waits for its silver table") | failed | dict(not_replaced)
    if games is None:
        committed = any(table.error is None for table in report.of(layer))
        pipeline.progress.update(key, partial(_progress_of_all, run.aggregate, state, pending, committed))
    elif failed or state.failed_in(layer) & games:
        pipeline.progress.update(key, partial(_progress_of_some, layer, state, pending, games))
    report.add_seconds(layer, time.monotonic() - began)
    return failed


def refresh_own_gold(
    pipeline: Pipeline,
    report: RunReport,
    chosen: Mapping[str, frozenset[str] | None] | None = None,
    *,
    ignore_intervals: bool = False,
    not_replaced: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Refresh the custom aggregates that are due, each by itself; the report names those that have pending rows and wait.

    `chosen`: layer -> games (None: every game) of the aggregates to refresh; None: all of them. `ignore_intervals`: refresh
    aggregates before their interval has passed, too. `not_replaced`: layer -> games, as for `refresh_gold`.
    """
    bronze = pipeline.open_bronze() if pipeline.extensions.aggregates else None
    if bronze is None:
        return
    state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
    postponed = []
    for aggregate in _aggregates_of(pipeline, chosen):
        layer = aggregate.layer
        if ignore_intervals or due(aggregate, state):
            games = (chosen or {}).get(layer)
            failed = (not_replaced or {}).get(layer)
            refresh_gold(pipeline, report, games, aggregate=aggregate, not_replaced=failed)
        elif state.floor(layer) < state.floor(Layer.SILVER) or state.failed_in(layer):
            postponed.append(aggregate.asset)
            pipeline.on_progress(f"{aggregate.asset}: its interval of {aggregate.interval_s:g} s has not passed yet")
    report.add(GoldResult(postponed=postponed))


def _aggregates_of(pipeline: Pipeline, layers: Collection[str] | None) -> list[GoldAggregate]:
    """The custom aggregates of these layers; None: all of them."""
    return [aggregate for aggregate in pipeline.extensions.aggregates if layers is None or aggregate.layer in layers]


def _progress_of_all(
    aggregate: GoldAggregate, seen: Progress, failed: Mapping[str, str], committed: bool, now: Progress
) -> Progress:
    """The progress `now`, after a run over every game that began with the progress `seen`."""
    layer = aggregate.layer
    mark = now.marks.get(layer, Mark())
    target = seen.floor(Layer.SILVER)
    own = {game: why for game, why in failed.items() if aggregate.applies_to(game)}
    if now.floor(layer) < seen.floor(layer):
        target = 0  # the low watermark was lost, and with it the failures that it did not cover
    if mark.definition == scope(aggregate) == "":
        return now.done(layer, target, failed=own, seen=seen)
    if mark.definition != scope(aggregate):
        target = 0  # a concurrent run has another declaration: each table may have either
    committed_at = time.time() if committed else mark.committed_at
    return now.marked(layer, Mark(scope(aggregate), committed_at)).done(layer, target, failed=own, seen=seen)


def _progress_of_some(layer: str, seen: Progress, failed: Mapping[str, str], games: Collection[str], now: Progress) -> Progress:
    """The progress `now`, after a run over some games: the other games' failures stay, and all that were noted since `seen`."""
    cleared = set() if now.floor(layer) > seen.floor(layer) else set(games)
    since = {k for k, why in now.failed.items() if seen.failed.get(k) != why}
    others = {g: why for (place, g), why in now.failed.items() if place == layer and (g not in cleared or (place, g) in since)}
    return now.done(layer, now.floor(layer), failed=others | {g: why for g, why in failed.items() if g in games})


def _refresh(
    run: GoldRun,
    report: RunReport,
    state: Progress,
    games: Collection[str] | None,
    without: Collection[str],
    one_pass: OnePass | None,
) -> dict[str, str]:
    """Passes over the games until none lost a commit conflict, or attempts run out; returns failed game -> reason."""
    aggregate = run.aggregate
    # Games that failed have a job of their own: their rows may be why.
    apart = state.failed_in(aggregate.layer)
    asked = _changed_games(run, state) if games is None else games
    retry = {game for game in asked if aggregate.applies_to(game) and game not in without}
    failed: dict[str, str] = {}
    for _ in range(GAME_ATTEMPTS):
        parts = [part for part in (retry - apart, retry & apart) if part]
        retry = set()
        for part in parts:
            results, crashed = run_with_bisection(
                part, partial(_pass, run, report, one_pass), aggregate.asset, run.pipeline.on_progress
            )
            for result in results:
                retry |= result.again
                failed |= result.failed
            failed |= crashed
    return failed | dict.fromkeys(retry, "commit conflict: every attempt lost to concurrent runs; run again")


def _changed_games(run: GoldRun, state: Progress) -> set[str]:
    """Games above the low watermark, and those that failed; all games of a full refresh."""
    floor = state.floor(run.aggregate.layer)
    changed = {game for game, batch in state.games.items() if run.full or batch > floor}
    return changed | state.failed_in(run.aggregate.layer)


def _pass(run: GoldRun, report: RunReport, one_pass: OnePass | None, games: Collection[str]) -> Committed:
    pipeline = run.pipeline
    settings = pipeline.settings
    plans, failed = plan_games(run, games)
    if not plans:
        return Committed(failed=failed)
    replaced = {game for game, plan in plans.items() if plan.full and plan.gold is not None}
    _note_replaced(run, replaced)
    pipeline.on_progress(f"{run.aggregate.asset}: {len(plans)} {settings.names.entities}")
    try:
        parts = _staged(run, plans, one_pass)
    except ExtensionError as error:
        if isinstance(error, UserCodeError) and len(plans) > 1:
            raise  # perhaps over the rows of one game
        return Committed(failed=failed | dict.fromkeys(plans, str(error)))
    failpoints.reach("gold_staged", run.aggregate.name)
    outcome = _committed(run, report, plans, parts)
    # Again: a concurrent run that read the tables before these commits found nothing to do and removed the first note.
    _note_replaced(run, replaced & outcome.landed.keys())
    outcome.failed |= failed
    return outcome


def _staged(run: GoldRun, plans: Mapping[str, GamePlan], one_pass: OnePass | None) -> list[Staged]:
    partials = taken_partials(run, plans, one_pass)
    others = {game: plan for game, plan in plans.items() if game not in partials}
    parts = [execute(run, others)] if others else []
    if partials and one_pass is not None:
        some = {game: plans[game] for game in partials}
        merged = merge_partials(run, some, partials)
        one_pass.merged += len(some) if merged is not None else 0
        parts.append(execute(run, some) if merged is None else merged)
    return parts


def _committed(run: GoldRun, report: RunReport, plans: Mapping[str, GamePlan], parts: Iterable[Staged]) -> Committed:
    pipeline = run.pipeline
    lakehouse = pipeline.lakehouse
    settings = pipeline.settings
    prefix = "" if run.built_in else f"{run.aggregate.name}:"
    columns = looked_at(settings)
    failed = dict[str, str]()
    staged_of = dict[str, Staged]()
    for staged in parts:
        _fail_by_rules(run, report, staged)
        failed |= staged.result.failed
        staged_of |= dict.fromkeys(staged.games - staged.result.failed.keys(), staged)
    commits = {
        game: partial(commit_of, run, plans[game], staged.schema, staged.result.files.get(game, []))
        for game, staged in staged_of.items()
    }
    committed = commit_games(commits, "gold_game_committed", settings, prefix)
    for game, landed in sorted(committed.landed.items()):
        plan = plans[game]
        staged = staged_of[game]
        table = lakehouse.gold(game, run.aggregate.name)
        new = plan.gold is None
        counts = staged.result.counts.get(game)
        report.add_landed(run.aggregate.layer, table, landed, staged.schema, plan.batch, game, new=new, counts=counts)
        if run.built_in:
            report.warn(*null_notices(settings, columns, game, staged.result.files.get(game, []), plan.silver))
        if counts is not None:
            report.add_rules(run.aggregate.layer, game, staged.rules.rules, counts)
        pipeline.tables.publish(table, landed.handle)
        for name, silver in {game: plan.silver, **plan.types}.items():
            pipeline.tables.publish(lakehouse.silver(name), silver)
    committed.failed |= failed
    return committed


def _note_replaced(run: GoldRun, games: set[str]) -> None:
    """Note games for the unified table, which reads others only above its low watermark."""
    if games and run.built_in:
        why = note(run.pipeline, "its gold table was replaced")
        run.pipeline.progress.update(run.bronze.key, lambda now: now.pending(Layer.UNIFIED, games, why))


def _fail_by_rules(run: GoldRun, report: RunReport, staged: Staged) -> None:
    result = staged.result
    rules = staged.rules.rules
    for game, counts in result.counts.items():
        broken = failed_rules(rules, counts)
        if broken is not None:
            discard(run.pipeline.lakehouse.gold(game, run.aggregate.name), result.files.pop(game, []))
            result.failed[game] = broken
            report.add_rules(run.aggregate.layer, game, rules, counts)
