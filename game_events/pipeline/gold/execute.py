"""Execution of gold's plans: one Spark job aggregates the rows of all games and writes each game's files. Commits nothing."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Set
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow as pa
from deltalake import DeltaTable, Schema
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StructType

from game_events.errors import QUOTED, ExtensionError
from game_events.extending import COLUMN_PATTERN, GoldAggregate
from game_events.lakehouse.data.snapshot import FileSelection
from game_events.lakehouse.data.spark_files import read_files, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.handle import of_columns
from game_events.lakehouse.layers import Layer
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.job import FanOut, FanOutResult, stage
from game_events.pipeline.fanout.old_rows import OldRows
from game_events.pipeline.gold.aggregates import commented, has_shipped_columns
from game_events.pipeline.gold.new_rows import GAME, TASK_ROWS, columns_of_measures, new_rows
from game_events.pipeline.gold.plan import GamePlan, GoldRun, silver_columns
from game_events.pipeline.quality.judging import RuleColumns, RuleSplit
from game_events.pipeline.quality.validation import require_valid
from game_events.pipeline.silver.transformations import run_time_failure
from game_events.spark.config import null_on_error
from game_events.spark.connect import is_session_lost
from game_events.spark.crashed_workers import crash, is_crash, named
from game_events.spark.schemas import arrow_schema, merged_columns, quoted, united
from game_events.spark.storage_errors import lost_file

#: Old rows of gold for each task.
TASK_OLD_ROWS = 2_000_000
#: Old rows up to which a game is small: all of them go through Spark, which saves reading its file a second time.
SMALL_GAME_ROWS = 500


@dataclass(frozen=True)
class Staged:
    """Files of some games, their columns, and the rules that were evaluated on their rows."""

    games: Set[str]
    result: FanOutResult
    schema: pa.Schema
    rules: RuleColumns


def execute(run: GoldRun, plans: Mapping[str, GamePlan]) -> Staged:
    """Aggregate new rows, merge them with old aggregates, evaluate rules, and write the rows by game.

    Columns that other games' silver tables have are NULL.

    Raises:
        ExtensionError: the aggregate does not fit silver's columns, its function raised, or it gives rows of other games.
        TransientError, ConfigurationError: the object store failed, not this code.
        WorkerCrashError: a worker's process ended.
        LostFileError: a file of one of the games is gone or damaged.
    """
    pipeline, aggregate = run.pipeline, run.aggregate
    new, old = sum(plan.new.rows for plan in plans.values()), sum(plan.old.rows for plan in plans.values())
    tasks = min(len(plans), 1 + new // TASK_ROWS + old // TASK_OLD_ROWS)
    # Custom aggregates have no rules.
    rules = RuleColumns.of(pipeline.rules if run.built_in else (), "gold", GAME)
    rows, schema, kept = _aggregated(run, plans, tasks, few=new <= TASK_ROWS, has_rules=bool(rules.rules))
    split = RuleSplit(rules) if rules.rules else None
    require_valid(pipeline.spark, rules.rules, spark_schema(Schema.from_arrow(schema)))
    task = FanOut(pipeline.lakehouse, Layer.GOLD, GAME, schema, aggregate=aggregate.name, split=split, old=kept)
    # One file for each game, which needs no compaction.
    rows = _by_game(rows, tasks)
    try:
        with null_on_error(pipeline.spark) if rules.rules else nullcontext():
            result = stage(rows.select("*", *rules.violated()) if rules.rules else rows, task)
    except (PySparkException, Py4JJavaError) as error:
        if is_crash(error):
            batches = f"batches up to {max(plan.batch for plan in plans.values())} of {pipeline.bronze.name}"
            raise crash(error, f" over the silver rows of {named(sorted(plans))} for {aggregate.asset}, {batches}") from error
        lost = lost_file(error, pipeline.lakehouse.root)
        if lost is not None:
            raise lost from error
        overflowed = rules.out_of_stack(error)
        if (has_shipped_columns(aggregate) and not overflowed) or is_session_lost(error):
            raise
        raise run_time_failure("; ".join([str(aggregate), *overflowed]), error, pipeline.lakehouse.root) from error
    strange = (set(result.files) - set(plans)) | {n or "NULL" for names in result.refused.values() for n in names}
    if strange:
        for game, files in result.files.items():
            discard(task.table(game), files)
        raise ExtensionError(f"{aggregate} gives rows with other values of `{GAME}` than it was given: {sorted(strange)[:5]}")
    return Staged(plans.keys(), result, commented(aggregate, schema), rules)


def _aggregated(
    run: GoldRun, plans: Mapping[str, GamePlan], tasks: int, *, few: bool, has_rules: bool
) -> tuple[DataFrame, pa.Schema, OldRows | None]:
    """The aggregate's rows that change, with `_game`; its columns; the rows of gold to keep, unless their key has new rows.

    Measures of new rows are merged with gold's of the same keys; an aggregate's function gets all rows of the changed keys.
    `few`: one task reads new rows. `has_rules`: rules are evaluated on the rows, so only those that change may be among them.
    """
    pipeline, aggregate = run.pipeline, run.aggregate
    columns, clashes = _columns(pipeline, (plan.silver for plan in plans.values()))
    keys, measures = [GAME, *map(quoted, aggregate.keys)], aggregate.measures.items()
    merge = aggregate.mode == "merge"
    try:
        if merge:
            needed = columns_of_measures(aggregate, columns.names)
            silver = new_rows(pipeline, plans, columns, few=few, needed=needed)
            rows = silver.groupBy(*keys).agg(*(_named(m.sql, column) for column, m in measures))
        else:
            rows = _recomputed(aggregate, _rows_of_changed_keys(run, plans, columns, few=few))
        schema = arrow_schema(rows.drop(GAME), aggregate)
        files = {game: plan.old.paths for game, plan in plans.items() if plan.old.files}
        if not files:
            return rows, schema, None
        small = frozenset(game for game in files if merge and not has_rules and _is_small(plans[game].old))
        old = OldRows(pipeline.lakehouse, aggregate.name, GAME, aggregate.keys, schema, files, small)
        if merge:
            types = {f.name: f.dataType for f in rows.schema.fields}
            both = _by_game(rows, tasks).mapInArrow(old.with_old, rows.schema).groupBy(*keys)
            rows = both.agg(*(_named(_of_type(m.merged(column), types[column]), column) for column, m in measures))
        return rows, schema, old.without_small()
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


def _is_small(old: FileSelection) -> bool:
    return old.rows_known and old.rows <= SMALL_GAME_ROWS


def _named(sql: str, column: str) -> Column:
    """A column of an SQL expression. As one text: each call of a column's method goes to the JVM several times."""
    return F.expr(f"({sql}\n) AS {quoted(column)}")  # a comment may end the expression


def _of_type(merged: str, kind: DataType) -> str:
    """A merged measure with the type that it had before: a sum of decimals would get more digits with every merge."""
    return f"CAST({merged} AS {kind.simpleString()})" if isinstance(kind, DecimalType) else merged


def _rows_of_changed_keys(run: GoldRun, plans: Mapping[str, GamePlan], columns: StructType, *, few: bool) -> DataFrame:
    """Silver's new rows and, where the plans name them, all other rows of the same keys; with `_game`."""
    some = {game: plan for game, plan in plans.items() if plan.same_keys is not None}
    every = {game: plan for game, plan in plans.items() if plan.same_keys is None}
    if not some:
        return new_rows(run.pipeline, every, columns, few=few)
    names = {column: f"_changed_{n}" for n, column in enumerate((GAME, *run.aggregate.keys))}
    changed = new_rows(run.pipeline, some, columns, few=few)
    changed = changed.select(*(F.col(quoted(column)).alias(name) for column, name in names.items())).distinct()
    uris = [uri for plan in some.values() if plan.same_keys is not None for uri in plan.same_keys.files]
    rows = read_files(run.pipeline.spark, uris, columns)
    rows = rows.withColumn(GAME, F.col(quoted(run.pipeline.settings.entity_column)))
    # NULL is a key, too.
    same = reduce(and_, (F.col(quoted(column)).eqNullSafe(F.col(name)) for column, name in names.items()))
    rows = rows.join(F.broadcast(changed) if few else changed, same, "left_semi")
    return united([rows, new_rows(run.pipeline, every, columns, few=few)]) if every else rows


def _by_game(rows: DataFrame, tasks: int) -> DataFrame:
    """The rows with all those of a game in one of so many tasks."""
    return rows.repartition(tasks, GAME) if tasks > 1 else rows.coalesce(1)


def _columns(pipeline: Pipeline, tables: Iterable[DeltaTable]) -> tuple[StructType, dict[str, list[str]]]:
    """All columns of silver: of these tables, most of which have the same, then of other games; column -> types that differ."""
    schemas = dict.fromkeys(of_columns(table, _columns_as_json) for table in tables)
    columns, clashes = merged_columns(StructType.fromJson(json.loads(schema)) for schema in schemas)
    others = [f for f in silver_columns(pipeline).fields if f.name not in {*columns.names, *clashes}]
    return StructType([*columns.fields, *others]), clashes


def _columns_as_json(table: DeltaTable) -> str:
    # delta-rs gives the keys of a column's metadata in any order. Most tables have the same columns: one text in memory.
    return sys.intern(json.dumps(json.loads(table.schema().to_json()), sort_keys=True))


def _recomputed(aggregate: GoldAggregate, silver: DataFrame) -> DataFrame:
    """The result of the aggregate's function."""
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
    return rows
