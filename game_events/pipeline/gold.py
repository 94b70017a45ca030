"""`silver_{game}_events` -> one `gold_{game}_player_agg` for each game, incremental, all games in one Spark job.

Guarantee: gold equals a full recompute of its silver, always; a reader sees the table before or after a refresh, nothing
else. Each table holds the silver batch it has aggregated; new rows are aggregated, merged with the old aggregate and replace it
in one commit that lands only if that batch is still the one planned from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.errors import GameEventsError
from game_events.lakehouse import crash_points
from game_events.lakehouse.commits import Commit
from game_events.lakehouse.progress import GOLD, SILVER, UNIFIED_LAYER, Progress
from game_events.lakehouse.reading import BATCH_INFO, Selection, read_files, restored, selection, spark_schema
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fan_out import FanOut, FanOutResult, stage
from game_events.pipeline.game_commits import commit_games, for_games
from game_events.pipeline.report import RunReport, TableReport
from game_events.pipeline.silver import ATTEMPTS, bronze_app, generation

COUNT, FIRST, LAST = "session_count", "min_timestamp", "max_timestamp"
#: Up to so many rows, new and old together, one task aggregates all games.
SMALL_ROWS = 250_000
#: No files at all.
NOTHING = Selection([], 0, True)
#: Where Spark says which file a row came from: the folder's name holds the game.
_GAME_IN_PATH = r"/gold_([a-z0-9_]+)_player_agg/[^/]+$"


def silver_app(silver: DeltaTable) -> str:
    """Name of the `txn` that holds the highest bronze batch of the silver rows in a gold table.

    Another table, or other rows in it (another bronze, a full refresh, a repair), is another name: gold begins anew.
    """
    return f"silver:{silver.metadata().id}:{generation(silver)}"


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
    #: Bronze batch above which silver's rows are new, the files that hold them, and those of the old aggregate.
    above: int
    new: Selection
    old: Selection


def refresh_gold(pipeline: Pipeline, report: RunReport, games: frozenset[str] | None = None, *, full: bool = False) -> None:
    """Bring gold up to silver.

    Args:
        pipeline: the parts.
        report: gets an entry for each game that changed or failed.
        games: only these; None: every game that changed since the last time, and the floor moves.
        full: recompute from all of silver.
    """
    began = time.monotonic()
    bronze = pipeline.bronze.open()
    if bronze is None:
        return
    bronze_id = str(bronze.metadata().id)
    state = pipeline.progress.read(bronze_id)
    target = state.floor(SILVER)
    floor = state.floor(GOLD)
    changed = {g for g, batch in state.games.items() if full or batch > floor} | state.failed_in(GOLD)
    todo = changed if games is None else set(games)
    failed: dict[str, str] = {}
    # What silver could not take, gold has not either: the floor does not speak for these games.
    waiting = dict.fromkeys(state.failed_in(SILVER), "waits for its silver table")
    for _ in range(ATTEMPTS):
        if not todo:
            break
        todo = _pass(pipeline, bronze_id, todo, report, failed, full=full)
    failed |= dict.fromkeys(todo, "rival runs won every attempt; run again")
    for game, why in failed.items():
        table = pipeline.lakehouse.gold(game)
        report.tables.append(TableReport(GOLD, table.name, table.uri, game, error=why))
    crash_points.reach("gold_committed")
    if games is None:
        pipeline.progress.update(bronze_id, lambda now: now.done(GOLD, target, failed=waiting | failed))
    elif failed or state.failed_in(GOLD) & set(games):
        mine = {g: why for g, why in (waiting | failed).items() if g in games}
        pipeline.progress.update(bronze_id, lambda now: _some(now, set() if now.floor(GOLD) > floor else set(games), mine))
    report.seconds["gold"] = report.seconds.get("gold", 0.0) + time.monotonic() - began


def _some(now: Progress, games: set[str], failed: Mapping[str, str]) -> Progress:
    """Failures after a run over some games: theirs are new, the others' stand."""
    others = {g: why for (layer, g), why in now.failed.items() if layer == GOLD and g not in games}
    return now.done(GOLD, now.floor(GOLD), failed=others | dict(failed))


def _pass(
    pipeline: Pipeline, bronze_id: str, games: set[str], report: RunReport, failed: dict[str, str], *, full: bool
) -> set[str]:
    """Plan, stage and commit some games; returns those that rivals won."""
    plans: dict[str, _Game] = {}
    for game, plan in for_games(sorted(games), partial(_plan, pipeline, bronze_id, full=full)).items():
        if isinstance(plan, GameEventsError):
            failed[game] = str(plan)
        elif plan is not None:
            plans[game] = plan
    if not plans:
        return set()
    replaced = [game for game, plan in plans.items() if plan.full and plan.gold is not None]
    if replaced:
        # The unified table looks at games above its floor, and at these.
        pipeline.progress.update(bronze_id, lambda now: now.pending(UNIFIED_LAYER, replaced, "its gold table was replaced"))
    pipeline.on_progress(f"gold: {len(plans)} games")
    key, time_column = pipeline.settings.key_column, pipeline.settings.time_column
    known = pa.schema(next(iter(plans.values())).silver.schema())
    missing = [c for c in (key, time_column) if c not in known.names]
    if missing:
        why = f"silver has no column {', '.join(map(repr, missing))}: set GAME_EVENTS_KEY_COLUMN / GAME_EVENTS_TIME_COLUMN"
        failed |= dict.fromkeys(plans, why)
        return set()
    schema = pa.schema(
        [
            pa.field(key, known.field(key).type),
            pa.field(COUNT, pa.int64()),
            pa.field(FIRST, known.field(time_column).type),
            pa.field(LAST, known.field(time_column).type),
        ]
    )
    result = _stage(pipeline, plans, schema)
    crash_points.reach("gold_staged")
    ready = {game: plan for game, plan in plans.items() if game not in result.failed}
    commits = {game: partial(_commit, pipeline, plan, schema, result) for game, plan in ready.items()}
    outcome = commit_games(commits, "gold_game_committed")
    failed |= outcome.failed | result.failed
    for game, landed in sorted(outcome.landed.items()):
        plan = plans[game]
        entry = report.add_landed(GOLD, pipeline.lakehouse.gold(game), landed, schema, plan.batch, game)
        entry.new = plan.gold is None
    return outcome.again


def _plan(pipeline: Pipeline, bronze_id: str, game: str, *, full: bool) -> _Game | GameEventsError | None:
    """From where to where a game has to go; None if it is there; what is wrong with one of its tables."""
    try:
        silver, gold = pipeline.lakehouse.silver(game).open(), pipeline.lakehouse.gold(game).open()
    except GameEventsError as error:
        return error
    batch = silver.transaction_version(bronze_app(bronze_id)) if silver is not None else None
    if silver is None or batch is None:
        return None  # no table, or another bronze's rows: silver is replaced first
    app = silver_app(silver)
    taken = gold.transaction_version(app) if gold is not None else None
    anew = full or taken is None or (gold is not None and restored(gold))
    if taken == batch and not anew:
        return None
    above = 0 if anew else int(taken or 0)
    old = NOTHING if gold is None or anew else selection(gold)
    return _Game(game, silver, gold, app, taken, batch, anew, above, selection(silver, "_batch", above), old)


def _stage(pipeline: Pipeline, plans: Mapping[str, _Game], schema: pa.Schema) -> FanOutResult:
    """New rows aggregated, old aggregates added, written by game: one job for all games."""
    key, time_column, entity = (
        pipeline.settings.key_column,
        pipeline.settings.time_column,
        pipeline.settings.entity_column,
    )
    first = next(iter(plans.values()))
    columns = spark_schema(first.silver.schema())
    read = StructType([f for f in columns.fields if f.name in (key, time_column, entity, "_batch")])
    rows = sum(plan.new.rows for plan in plans.values())
    # A shuffle costs some 100 ms whatever its size: few rows are aggregated in one task without any.
    small = rows + sum(plan.old.rows for plan in plans.values()) <= SMALL_ROWS
    spark = pipeline.spark
    new = read_files(spark, [uri for plan in plans.values() for uri in plan.new.files], read)
    if not all(plan.new.exact for plan in plans.values()):
        limits = pa.table({"_game": list(plans), "_from": [p.above for p in plans.values()]})
        bounds = F.broadcast(spark.createDataFrame(limits))
        new = new.join(bounds, F.col(entity) == F.col("_game")).where(F.col("_batch") > F.col("_from"))
    fresh = (
        _together(new, small)
        .groupBy(F.col(entity).alias("_game"), key)
        .agg(F.count(F.lit(1)).alias(COUNT), F.min(time_column).alias(FIRST), F.max(time_column).alias(LAST))
    )
    merged = _with_old(pipeline, plans, schema, fresh, small)
    task = FanOut(pipeline.lakehouse, "gold", "_game", schema)
    # A game's aggregate goes to one task: one file, and nobody merges it again.
    return stage(merged if small else merged.repartition(_tasks(rows), "_game"), task, 1, 1)


def _together(rows: DataFrame, small: bool) -> DataFrame:
    """Few rows in one partition: what groups them needs no shuffle then."""
    return rows.coalesce(1) if small else rows


def _tasks(rows: int) -> int:
    return max(1, min(8, rows // 250_000))


def _with_old(
    pipeline: Pipeline, plans: Mapping[str, _Game], schema: pa.Schema, fresh: DataFrame, small: bool
) -> DataFrame:
    """The new aggregate merged with what the games' gold tables hold: counts add, minima and maxima compare."""
    key = schema.names[0]
    old_files = [u for p in plans.values() for u in p.old.files]
    if not old_files:
        return fresh
    columns = spark_schema(next(p.gold for p in plans.values() if p.gold is not None).schema())
    old = read_files(pipeline.spark, old_files, columns).select(
        F.regexp_extract("_metadata.file_path", _GAME_IN_PATH, 1).alias("_game"), *schema.names
    )
    return (
        _together(fresh.unionByName(old), small)
        .groupBy("_game", key)
        .agg(F.sum(COUNT).alias(COUNT), F.min(FIRST).alias(FIRST), F.max(LAST).alias(LAST))
    )


def _commit(pipeline: Pipeline, plan: _Game, schema: pa.Schema, result: FanOutResult) -> Commit:
    return Commit(
        pipeline.lakehouse.gold(plan.game),
        schema,
        result.files.get(plan.game, []),
        expected={plan.app: plan.taken},
        advance={plan.app: plan.batch},
        table_id=str(plan.gold.metadata().id) if plan.gold is not None else None,
        replace=plan.gold is not None,
        info={BATCH_INFO: str(plan.batch)},
        description=f"One row per player of the game {plan.game}: sessions, first and last event",
    )
