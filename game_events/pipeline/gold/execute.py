"""Execution of gold's plans: one Spark job aggregates the rows of all games and writes each game's files. Commits nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, Schema
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.errors import QUOTED, ExtensionError
from game_events.extending import COLUMN_PATTERN, GoldAggregate
from game_events.lakehouse.data.snapshot import game_of_file, read_files, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.layers import Layer
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.job import FanOut, FanOutResult, stage
from game_events.pipeline.gold.aggregates import commented, has_shipped_columns
from game_events.pipeline.gold.plan import GamePlan, GoldRun
from game_events.pipeline.quality.expressions import RuleColumns
from game_events.pipeline.quality.validation import require_valid
from game_events.pipeline.quality.worker import RuleSplit
from game_events.pipeline.silver.transformations import run_time_failure
from game_events.spark.config import null_on_error
from game_events.spark.connect import is_session_lost
from game_events.spark.crashed_workers import crash, is_crash, named
from game_events.spark.schemas import arrow_schema, merged_columns, quoted

#: The column that names the game while rows of several games are in one plan.
GAME = "_game"
_NAME, _FROM = "_limit_game", "_limit_batch"
#: Rows, new and old together, up to which one task aggregates all games: a shuffle costs some 100 ms for any number of rows.
SMALL_ROWS = 250_000
#: Rows of silver for each task that writes, and tasks at most.
TASK_ROWS, MAX_TASKS = 250_000, 8


@dataclass(frozen=True)
class Staged:
    """Files of all games, their columns, and the rules that were evaluated on their rows."""

    result: FanOutResult
    schema: pa.Schema
    rules: RuleColumns


def execute(run: GoldRun, plans: Mapping[str, GamePlan], known: StructType) -> Staged:
    """Aggregate new rows, merge them with old aggregates, evaluate rules, and write the rows by game.

    Args:
        run: the refresh.
        plans: game -> plan.
        known: columns that are NULL where no silver table of these games has them.

    Raises:
        ExtensionError: the aggregate does not fit silver's columns, its function raised, or it gives rows of other games.
        WorkerCrashError: a worker's process ended.
    """
    pipeline, aggregate = run.pipeline, run.aggregate
    count = sum(plan.new.rows for plan in plans.values())
    small = count + sum(plan.old.rows for plan in plans.values()) <= SMALL_ROWS
    rows, schema = _aggregated(pipeline, aggregate, plans, known, small=small)
    # Custom aggregates have no rules.
    rules = RuleColumns.of(pipeline.rules if run.built_in else (), "gold", GAME)
    split = RuleSplit(rules.rules, tuple(rules.names)) if rules.rules else None
    require_valid(pipeline.spark, rules.rules, spark_schema(Schema.from_arrow(schema)))
    task = FanOut(pipeline.lakehouse, Layer.GOLD, GAME, schema, aggregate=aggregate.name, split=split)
    # Each game's rows go to one task: one file, which needs no compaction.
    rows = rows if small else rows.repartition(max(1, min(MAX_TASKS, count // TASK_ROWS)), GAME)
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
    return Staged(result, commented(aggregate, schema), rules)


def _aggregated(
    pipeline: Pipeline, aggregate: GoldAggregate, plans: Mapping[str, GamePlan], known: StructType, *, small: bool
) -> tuple[DataFrame, pa.Schema]:
    """The aggregate's new rows with `_game`, and its columns; `small`: in one task, so that grouping needs no shuffle."""
    spark, entity = pipeline.spark, pipeline.settings.entity_column
    columns, clashes = _columns(plan.silver for plan in plans.values())
    columns = StructType([*columns.fields, *(f for f in known.fields if f.name not in {*columns.names, *clashes})])
    silver = read_files(spark, [uri for plan in plans.values() for uri in plan.new.files], columns)
    if not all(plan.new.exact for plan in plans.values()):
        limits = pa.table({_NAME: list(plans), _FROM: [plan.above for plan in plans.values()]})
        bounds = F.broadcast(spark.createDataFrame(limits))
        silver = silver.join(bounds, F.col(quoted(entity)) == F.col(_NAME)).where(F.col("_batch") > F.col(_FROM))
        silver = silver.drop(_NAME, _FROM)
    silver = _together(silver.withColumn(GAME, F.col(quoted(entity))), small)
    try:
        if aggregate.mode == "recompute":
            return _recomputed(aggregate, silver)
        return _merged(pipeline, aggregate, plans, silver, small=small)
    except ExtensionError:
        raise
    except Exception as error:
        if is_session_lost(error):
            raise
        unlike = "".join(f" Column {c} is {' and '.join(types)} in different games." for c, types in sorted(clashes.items()))
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        names = ", ".join(n for n in columns.fieldNames() if not n.startswith("_"))
        raise ExtensionError(
            f"{aggregate} raised {type(error).__name__}.{unlike} Silver has: {names}.{QUOTED}{reason.split(' SQLSTATE')[0]}"
        ) from error


def _merged(
    pipeline: Pipeline, aggregate: GoldAggregate, plans: Mapping[str, GamePlan], silver: DataFrame, *, small: bool
) -> tuple[DataFrame, pa.Schema]:
    """New rows aggregated and merged with those of the gold tables."""
    keys = [F.col(quoted(k)) for k in aggregate.keys]
    measures = aggregate.measures.items()
    fresh = silver.groupBy(GAME, *keys).agg(*(F.expr(m.sql).alias(column) for column, m in measures))
    schema = arrow_schema(fresh.drop(GAME), aggregate)
    uris = [uri for plan in plans.values() for uri in plan.old.files]
    if not uris:
        return fresh, schema
    stored, _ = _columns(plan.gold for plan in plans.values() if plan.gold is not None and plan.old.files)
    # A struct may have gained members since.
    wider, _ = merged_columns([stored, fresh.drop(GAME).schema])
    stored = StructType([wider[f.name] if f.name in wider.names else f for f in stored.fields])
    game = game_of_file(uris, pipeline.lakehouse.called.gold_path(aggregate.name)).alias(GAME)
    old = read_files(pipeline.spark, uris, stored).select(game, *(F.col(quoted(c)) for c in schema.names))
    types = {f.name: f.dataType for f in fresh.schema.fields}
    whole = _together(fresh.unionByName(old), small).groupBy(GAME, *keys)
    # A sum of decimals would get more digits with every merge.
    return whole.agg(*(F.expr(m.merged(column)).cast(types[column]).alias(column) for column, m in measures)), schema


def _together(rows: DataFrame, small: bool) -> DataFrame:
    return rows.coalesce(1) if small else rows


def _columns(tables: Iterable[DeltaTable]) -> tuple[StructType, dict[str, list[str]]]:
    """All columns of many tables, most of which have the same."""
    return merged_columns(
        StructType.fromJson(json.loads(text)) for text in dict.fromkeys(table.schema().to_json() for table in tables)
    )


def _recomputed(aggregate: GoldAggregate, silver: DataFrame) -> tuple[DataFrame, pa.Schema]:
    """The result of the user's function on all rows."""
    rows = aggregate.function(silver) if aggregate.function is not None else None
    if not isinstance(rows, DataFrame):
        raise ExtensionError(f"{aggregate} must give a DataFrame; it gave {type(rows).__name__}")
    lost = [c for c in (GAME, *aggregate.keys) if c not in rows.columns]
    if lost:
        raise ExtensionError(
            f"{aggregate} gives no column {', '.join(lost)} (it gives {', '.join(rows.columns)}): group by `{GAME}` too, as "
            "rows of several games come together"
        )
    bad = [c for c in rows.columns if c != GAME and not re.fullmatch(COLUMN_PATTERN[1:-1], c)]
    if bad:
        raise ExtensionError(f"{aggregate} gives columns {', '.join(map(repr, bad))}: name them by {COLUMN_PATTERN}")
    if dict(rows.dtypes)[GAME] != "string":
        raise ExtensionError(f"{aggregate} gives `{GAME}` as {dict(rows.dtypes)[GAME]}: keep it as it is")
    return rows, arrow_schema(rows.drop(GAME), aggregate)
