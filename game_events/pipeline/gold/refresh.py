"""`silver_{game}_events` -> one `gold_{game}_{aggregate}` for each game, all games in one Spark job.

Guarantee: gold equals a full recompute of its silver, always; a reader sees the table before or after a refresh, nothing
else. Each table holds the silver batch it has aggregated; new rows are aggregated and merged with the old aggregate (or, where
that cannot be, all rows are aggregated anew) and replace it in one commit that lands only if that batch is still the one
planned from.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable, Schema
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from game_events.errors import DataError, ExtensionError, GameEventsError
from game_events.extending import PLAYER_AGG, GoldAggregate
from game_events.lakehouse import failpoints as crash_points
from game_events.lakehouse.commits.commit import Commit, changed_types
from game_events.lakehouse.commits.generations import BronzeIdentity, silver_app
from game_events.lakehouse.commits.parallel import GAME_ATTEMPTS, commit_games, for_games
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import BATCH_INFO, FileSelection, selection, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Mark, Progress
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.fanout.job import FanOut, FanOutResult, stage
from game_events.pipeline.gold.aggregates import (
    commented,
    declared_in,
    definition_app,
    definition_for,
    due,
    has_shipped_columns,
    player_agg,
    scope,
)
from game_events.pipeline.gold.null_values import all_null, known_or_meant, looked_at, null_notices
from game_events.pipeline.gold.plan import GAME, GameRows, aggregated
from game_events.pipeline.quality.expressions import RuleColumns
from game_events.pipeline.quality.validation import require_valid
from game_events.pipeline.quality.worker import RuleSplit, failed_rules
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import GoldResult
from game_events.pipeline.silver.transformations import run_time_failure
from game_events.spark.config import null_on_error
from game_events.spark.connect import is_session_lost
from game_events.spark.crashed_workers import crash, is_crash, named, run_with_bisection

#: Up to so many rows, new and old together, one task aggregates all games.
SMALL_ROWS = 250_000
#: No files at all.
NOTHING = FileSelection([], 0, True)


@dataclass(frozen=True)
class _Game:
    """One game's way from a silver version to the next gold version."""

    game: str
    silver: DeltaTable
    gold: DeltaTable | None
    app: str
    taken: int | None
    batch: int
    full: bool
    #: The `txn` that says whose table it is, what it says now, and what it will say.
    mine: str
    declared: int | None
    definition: int | None
    #: Bronze batch above which silver's rows are new, the files that hold them, and those of the old aggregate.
    above: int
    new: FileSelection
    old: FileSelection


def refresh_gold(
    pipeline: Pipeline,
    report: RunReport,
    games: frozenset[str] | None = None,
    *,
    full: bool = False,
    aggregate: GoldAggregate | None = None,
) -> None:
    """Bring gold up to silver.

    Args:
        pipeline: the parts.
        report: gets an entry for each game that changed or failed.
        games: only these; None: every game that changed since the last time, and the floor moves.
        full: recompute from all of silver.
        aggregate: which one; None: the shipped `player_agg`.
    """
    began = time.monotonic()
    bronze = pipeline.bronze.open()
    if bronze is None:
        return
    identity = BronzeIdentity.of(bronze)
    aggregate = aggregate or player_agg(pipeline.settings)
    layer = aggregate.layer
    state = pipeline.progress.read(identity.key)
    if state.marks.get(layer, Mark()).definition != scope(aggregate):
        # Before any commit: after a crash, whoever runs with the declaration of before must not trust its floor.
        state = pipeline.progress.update(identity.key, lambda now: now.marked(layer, Mark(scope(aggregate))).done(layer, 0))
    target = state.floor(Layer.SILVER)
    floor = state.floor(layer)
    changed = {g for g, batch in state.games.items() if full or batch > floor} | state.failed_in(layer)
    todo = {g for g in (changed if games is None else games) if aggregate.applies_to(g)}
    failed: dict[str, str] = {}
    # What silver could not take, gold has not either: the floor does not speak for these games.
    waiting = dict.fromkeys(state.failed_in(Layer.SILVER), "waits for its silver table")
    planned = partial(_pass, pipeline, aggregate, identity, report=report, failed=failed, full=full)
    for _ in range(GAME_ATTEMPTS):
        if not todo:
            break
        again, crashed = run_with_bisection(todo, planned, aggregate.asset, pipeline.on_progress)
        todo = set().union(*again)
        failed.update(crashed)
    failed.update(dict.fromkeys(todo, "rival runs won every attempt; run again"))
    for game, why in failed.items():
        table = pipeline.lakehouse.gold(game, aggregate.name)
        report.add_failed(layer, table, why, game)
    crash_points.reach("gold_committed", aggregate.name)
    if games is None:
        committed = any(t.layer == layer and t.error is None for t in report.tables)
        whole = partial(_all, aggregate=aggregate, target=target, failed=waiting | failed, committed=committed, seen=state)
        pipeline.progress.update(identity.key, whole)
    elif failed or state.failed_in(layer) & set(games):
        mine = {g: why for g, why in (waiting | failed).items() if g in games}
        pipeline.progress.update(
            identity.key, lambda now: _some(now, state, layer, set() if now.floor(layer) > floor else set(games), mine)
        )
    report.add_seconds(layer, time.monotonic() - began)


def refresh_own_gold(
    pipeline: Pipeline,
    report: RunReport,
    chosen: Mapping[str, frozenset[str] | None] | None = None,
    *,
    ignore_intervals: bool = False,
) -> None:
    """Bring the aggregates of one's own up to silver, each by itself: those whose interval has passed, or all of them.

    The report names those that are behind silver and have to wait.

    Args:
        pipeline: the parts.
        report: gets an entry for each game that changed or failed.
        chosen: layer -> its games (None: every game), for the aggregates that are wanted; None: all of them.
        ignore_intervals: those whose interval has not passed, too.
    """
    bronze = pipeline.bronze.open() if pipeline.extensions.aggregates else None
    if bronze is None:
        return
    state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
    postponed = []
    for aggregate in pipeline.extensions.aggregates:
        if chosen is not None and aggregate.layer not in chosen:
            continue
        if ignore_intervals or due(aggregate, state):
            refresh_gold(pipeline, report, (chosen or {}).get(aggregate.layer), aggregate=aggregate)
        elif state.floor(aggregate.layer) < state.floor(Layer.SILVER) or state.failed_in(aggregate.layer):
            postponed.append(aggregate.asset)
            pipeline.on_progress(f"{aggregate.asset}: its interval of {aggregate.interval_s:g} s has not passed yet")
    report.add(GoldResult(postponed=postponed))


def _all(
    now: Progress, *, aggregate: GoldAggregate, target: int, failed: Mapping[str, str], committed: bool, seen: Progress
) -> Progress:
    """Progress after a run over every game."""
    layer, mark = aggregate.layer, now.marks.get(aggregate.layer, Mark())
    own = {game: why for game, why in failed.items() if aggregate.applies_to(game)}
    if now.floor(layer) < seen.floor(layer):
        target = 0  # it is gone, and with it what it did not speak for
    if mark.definition == scope(aggregate) == "":
        return now.done(layer, target, failed=own, seen=seen)
    if mark.definition != scope(aggregate):
        # A rival with another declaration was at work meanwhile: nobody knows which of the two a table has.
        target = 0
    at = time.time() if committed else mark.committed_at
    return now.marked(layer, Mark(scope(aggregate), at)).done(layer, target, failed=own, seen=seen)


def _some(now: Progress, seen: Progress, layer: str, games: set[str], failed: Mapping[str, str]) -> Progress:
    """Failures after a run over some games: theirs are new, the others' stand, and what was noted since the run looked."""
    since = {k for k, why in now.failed.items() if seen.failed.get(k) != why}
    others = {g: why for (at, g), why in now.failed.items() if at == layer and (g not in games or (at, g) in since)}
    return now.done(layer, now.floor(layer), failed=others | dict(failed))


def _pass(
    pipeline: Pipeline,
    aggregate: GoldAggregate,
    identity: BronzeIdentity,
    games: Collection[str],
    *,
    report: RunReport,
    failed: dict[str, str],
    full: bool,
) -> set[str]:
    """Plan, stage and commit some games; returns those that rivals won."""
    plans: dict[str, _Game] = {}
    asked = _asked(pipeline)
    for game, plan in for_games(sorted(games), partial(_plan, pipeline, aggregate, identity, asked, full=full)).items():
        if isinstance(plan, GameEventsError):
            failed[game] = str(plan)
        elif plan is not None:
            plans[game] = plan
    if not plans:
        return set()
    replaced = [game for game, plan in plans.items() if plan.full and plan.gold is not None]
    if replaced and aggregate.name == PLAYER_AGG:
        # The unified table looks at games above its floor, and at these.
        why = note(pipeline, "its gold table was replaced")
        pipeline.progress.update(identity.key, lambda now: now.pending(Layer.UNIFIED, replaced, why))
    pipeline.on_progress(f"{aggregate.asset}: {len(plans)} {pipeline.settings.words.entities}")
    try:
        result, schema, rules = _stage(pipeline, aggregate, plans, asked)
    except ExtensionError as error:
        failed |= dict.fromkeys(plans, str(error))
        return set()
    crash_points.reach("gold_staged", aggregate.name)
    for game, counts in result.counts.items():
        broken = failed_rules(rules.rules, counts)
        if broken is not None:
            discard(pipeline.lakehouse.gold(game, aggregate.name), result.files.pop(game, []))
            result.failed[game] = broken
            report.add_rules(aggregate.layer, game, rules.rules, counts)
    ready = {game: plan for game, plan in plans.items() if game not in result.failed}
    commits = {g: partial(_commit, pipeline, aggregate, p, schema, result, full=full) for g, p in ready.items()}
    outcome = commit_games(
        commits, "gold_game_committed", pipeline.settings, "" if aggregate.name == PLAYER_AGG else f"{aggregate.name}:"
    )
    if replaced and aggregate.name == PLAYER_AGG and outcome.landed.keys() & set(replaced):
        # Once more: a rival that looked before these commits has found nothing to do, and taken the first note back.
        why = note(pipeline, "its gold table was replaced")
        landed_anew = outcome.landed.keys() & set(replaced)
        pipeline.progress.update(identity.key, lambda now: now.pending(Layer.UNIFIED, landed_anew, why))
    failed |= outcome.failed | result.failed
    for game, landed in sorted(outcome.landed.items()):
        plan = plans[game]
        table = pipeline.lakehouse.gold(game, aggregate.name)
        judged, new = result.counts.get(game), plan.gold is None
        report.add_landed(aggregate.layer, table, landed, schema, plan.batch, game, new=new, counts=judged)
        if aggregate.name == PLAYER_AGG:
            unknown = all_null(result.files.get(game, []), looked_at(pipeline.settings))
            report.warn(*null_notices(pipeline.settings, game, unknown, {f.name for f in plan.silver.schema().fields}))
        if judged is not None:
            report.add_rules(aggregate.layer, game, rules.rules, judged)
    return outcome.again


def _asked(pipeline: Pipeline) -> StructType:
    """The key and time columns: NULL for a game that is idle since before they came, or while all records have other kinds."""
    bronze = pipeline.bronze.open()
    return known_or_meant(pipeline.settings, spark_schema(bronze.schema()) if bronze is not None else StructType())


def _missing_columns(pipeline: Pipeline, aggregate: GoldAggregate, silver: DeltaTable, asked: StructType) -> DataError | None:
    """Why a game's shipped aggregate cannot be made; a user's own aggregate or columns name what is missing by themselves."""
    if not has_shipped_columns(aggregate):
        return None
    names = (pipeline.settings.key_column, pipeline.settings.time_column)
    known = {f.name for f in silver.schema().fields} | set(asked.names)
    missing = ", ".join(repr(c) for c in names if c not in known)
    if not missing:
        return None
    return DataError(f"silver has no column {missing}: set GAME_EVENTS_KEY_COLUMN / GAME_EVENTS_TIME_COLUMN")


def _plan(
    pipeline: Pipeline, aggregate: GoldAggregate, identity: BronzeIdentity, asked: StructType, game: str, *, full: bool
) -> _Game | GameEventsError | None:
    """From where to where a game has to go; None if it is there; what is wrong with one of its tables."""
    try:
        # In this order: gold that followed a change of silver's rows between the two looks has made a commit since.
        gold, silver = pipeline.lakehouse.gold(game, aggregate.name).open(), pipeline.lakehouse.silver(game).open()
        batch = identity.taken(silver)
    except GameEventsError as error:
        return error
    if silver is None or batch is None:
        return None  # no table, or another bronze's rows: silver is replaced first
    app = silver_app(silver)
    taken = gold.transaction_version(app) if gold is not None else None
    mine, declared = definition_app(aggregate.name), declared_in(gold, aggregate)
    definition = definition_for(gold, aggregate)
    if gold is not None and definition is not None and declared is None and aggregate.name != PLAYER_AGG:
        table = pipeline.lakehouse.gold(game, aggregate.name)
        return DataError(
            f"{table.uri} is there, but {aggregate} did not make it: move that table away, or rename the aggregate"
        )
    anew = full or taken is None or declared != definition or (gold is not None and restored(gold))
    if taken == batch and not anew:
        return None
    if (missing := _missing_columns(pipeline, aggregate, silver, asked)) is not None:
        return missing
    whole = anew or aggregate.mode == "recompute"
    above = 0 if whole else int(taken or 0)
    old = NOTHING if gold is None or whole else selection(gold)
    new = selection(silver, "_batch", above)
    return _Game(game, silver, gold, app, taken, batch, whole, mine, declared, definition, above, new, old)


def _stage(
    pipeline: Pipeline, aggregate: GoldAggregate, plans: Mapping[str, _Game], asked: StructType
) -> tuple[FanOutResult, pa.Schema, RuleColumns]:
    """New rows aggregated, old aggregates added, rules evaluated, written by game: one job for all games."""
    parts = {g: GameRows(p.silver, p.new, p.above, p.gold, p.old) for g, p in plans.items()}
    count = sum(plan.new.rows for plan in plans.values())
    # A shuffle costs some 100 ms whatever its size: few rows are aggregated in one task without any.
    small = count + sum(plan.old.rows for plan in plans.values()) <= SMALL_ROWS
    rows, schema = aggregated(
        pipeline.spark, aggregate, parts, pipeline.settings.entity_column, pipeline.lakehouse.called, small=small, asked=asked
    )
    # Aggregates of one's own have no rules: what they are is up to whoever declares them.
    rules = RuleColumns.of(pipeline.rules if aggregate.name == PLAYER_AGG else (), "gold", GAME)
    split = RuleSplit(rules.rules, tuple(rules.names)) if rules.rules else None
    require_valid(pipeline.spark, rules.rules, spark_schema(Schema.from_arrow(schema)))
    task = FanOut(pipeline.lakehouse, Layer.GOLD, GAME, schema, aggregate=aggregate.name, split=split)
    # A game's aggregate goes to one task: one file, and nobody merges it again.
    rows = rows if small else rows.repartition(_tasks(count), GAME)
    try:
        with null_on_error(pipeline.spark) if rules.rules else nullcontext():
            result = stage(rows.select("*", *rules.violated()) if rules.rules else rows, task, 1, 1)
    except (PySparkException, Py4JJavaError) as error:
        if is_crash(error):
            batches = f"batches up to {max(plan.batch for plan in plans.values())} of {pipeline.bronze.name}"
            raise crash(error, f" over the silver rows of {named(sorted(plans))} for {aggregate.asset}, {batches}") from error
        if has_shipped_columns(aggregate) or is_session_lost(error):
            raise
        raise run_time_failure(aggregate, error) from error
    strange = (set(result.files) - set(plans)) | {n or "NULL" for names in result.refused.values() for n in names}
    if strange:
        for game, files in result.files.items():
            discard(task.table(game), files)
        raise ExtensionError(f"{aggregate} gives rows with other values of `{GAME}` than it was given: {sorted(strange)[:5]}")
    return result, commented(aggregate, schema), rules


def _tasks(rows: int) -> int:
    return max(1, min(8, rows // 250_000))


def _commit(
    pipeline: Pipeline, aggregate: GoldAggregate, plan: _Game, schema: pa.Schema, result: FanOutResult, *, full: bool
) -> Commit:
    table, files = pipeline.lakehouse.gold(plan.game, aggregate.name), result.files.get(plan.game, [])
    # Whoever changes the setting wants other columns; a declaration in code may give other types without anybody's knowing.
    redefined = aggregate.name == PLAYER_AGG and plan.declared != plan.definition
    if plan.gold is not None and (aggregate.definition or plan.definition is not None) and not full and not redefined:
        other = changed_types(plan.gold, schema)
        if other:
            discard(table, files)
            raise DataError(
                f"{table.name}: {aggregate} gives other types than the table has: {'; '.join(other)}. Whoever reads the table "
                f"may not expect that: rename the columns, or refresh {aggregate.asset} fully"
            )
    # A run that planned from rows of silver that were replaced meanwhile must not come last.
    commits = plan.gold.transaction_version(Txn.COMMITS) if plan.gold is not None else None
    expected: dict[str, int | None] = {plan.app: plan.taken, Txn.COMMITS: commits}
    advance = {plan.app: plan.batch, Txn.COMMITS: (commits or 0) + 1}
    if plan.definition is not None:
        # Of two runs with different declarations one must not merge into what the other has made.
        expected[plan.mine] = plan.declared
        advance[plan.mine] = plan.definition
    word = pipeline.settings.words.entity.capitalize()
    return Commit(
        table,
        schema,
        files,
        expected=expected,
        advance=advance,
        table_id=str(plan.gold.metadata().id) if plan.gold is not None else None,
        replace=plan.gold is not None,
        # All rows are new, so columns that are declared no more go.
        reshape=plan.full,
        info={BATCH_INFO: str(plan.batch), "run_id": pipeline.run_id}
        | ({"definition": aggregate.definition} if aggregate.definition else {}),
        description=f"{word} {plan.game}: {aggregate.description}"[:1_000],
    )
