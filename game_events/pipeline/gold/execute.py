"""Execution of gold's plans: one Spark job aggregates the rows of all games and writes each game's files. Commits nothing.

Large files of silver are read by Spark, small ones by its workers: Spark spends some 3 ms of processor time on opening a file,
Arrow less than 1 ms; but rows that a worker has read must be sent to the JVM. Games with news have one small file each, mostly.

Where silver's new rows were aggregated when bronze's workers wrote them (`OnePass`), workers merge these partial rows with the
old rows of each game by Arrow: no row of silver is read, and Spark plans no SQL. The rows are the same as those of `execute`,
which does the work in every other case.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import and_

import pyarrow as pa
from deltalake import DeltaTable, Schema
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StructField, StructType

from game_events.config.names import columns_in, words
from game_events.errors import QUOTED, ExtensionError, GameEventsError, first_line
from game_events.extending import COLUMN_PATTERN, GoldAggregate
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.data.reading import FilePart, FileSelection
from game_events.lakehouse.data.spark_files import read_files, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.open_table import of_columns
from game_events.lakehouse.tables import Layer, silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout import OnePass, write_game_files
from game_events.pipeline.gold import plan
from game_events.pipeline.gold.plan import GamePlan, GoldRun, commented, has_shipped_columns, silver_columns
from game_events.pipeline.quality import out_of_stack, require_valid, violated
from game_events.pipeline.silver.transformations import run_time_failure
from game_events.sources.source import dealt
from game_events.spark.config import null_on_error
from game_events.spark.connect import is_session_lost
from game_events.spark.failures import crash, is_crash, lost_file, named
from game_events.spark.schemas import arrow_schema, merged_columns, nullable, of_types, quoted, require_types, united
from game_events.workers.fanout import FanOut
from game_events.workers.job import task_numbers
from game_events.workers.results import FanOutResult
from game_events.workers.rows import COUNT, FIRST, KEY, LAST, FileRows, GoldMerge, OldRows
from game_events.workers.rules import RuleColumns, RuleOutcome

log = logging.getLogger(__name__)

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
    pipeline = run.pipeline
    aggregate = run.aggregate
    new = sum(plan.new.rows for plan in plans.values())
    old = sum(plan.old.rows for plan in plans.values())
    tasks = min(len(plans), 1 + new // TASK_ROWS + old // TASK_OLD_ROWS)
    # Custom aggregates have no rules.
    rules = RuleColumns.of(pipeline.rules if run.built_in else (), "gold", GAME)
    rows, schema, kept = _aggregated(run, plans, tasks, few=new <= TASK_ROWS, has_rules=bool(rules.rules))
    outcome = RuleOutcome(rules) if rules.rules else None
    require_valid(pipeline.spark, rules.rules, spark_schema(Schema.from_arrow(schema)))
    task = FanOut(pipeline.lakehouse, Layer.GOLD, GAME, schema, aggregate=aggregate.name, outcome=outcome, old=kept)
    # One file for each game, which needs no compaction.
    rows = _by_game(rows, tasks)
    try:
        with null_on_error(pipeline.spark) if rules.rules else nullcontext():
            result = write_game_files(rows.select("*", *violated(rules)) if rules.rules else rows, task)
    except (PySparkException, Py4JJavaError) as error:
        known = _explained(run, plans, rules, error)
        if known is None:
            raise
        raise known from error
    _refuse_other_games(run, plans, task, result)
    return Staged(plans.keys(), result, commented(aggregate, schema), rules)


def _explained(run: GoldRun, plans: Mapping[str, GamePlan], rules: RuleColumns, error: Exception) -> GameEventsError | None:
    """The error to raise for a failed job; None: the same one."""
    pipeline = run.pipeline
    aggregate = run.aggregate
    if is_crash(error):
        batches = f"batches up to {max(plan.batch for plan in plans.values())} of {pipeline.bronze.name}"
        return crash(error, f" over the silver rows of {named(sorted(plans))} for {aggregate.asset}, {batches}")
    lost = lost_file(error, pipeline.lakehouse.root)
    if lost is not None:
        return lost
    overflowed = out_of_stack(rules, error)
    if (has_shipped_columns(aggregate) and not overflowed) or is_session_lost(error):
        return None
    return run_time_failure("; ".join([str(aggregate), *overflowed]), error, pipeline.lakehouse.root)


def _refuse_other_games(run: GoldRun, plans: Mapping[str, GamePlan], task: FanOut, result: FanOutResult) -> None:
    refused = {name or "NULL" for names in result.refused.values() for name in names}
    strange = (set(result.files) - set(plans)) | refused
    if not strange:
        return
    for game, files in result.files.items():
        discard(task.table(game), files)
    raise ExtensionError(f"{run.aggregate} gives rows with other values of `{GAME}` than it was given: {sorted(strange)[:5]}")


def _aggregated(
    run: GoldRun, plans: Mapping[str, GamePlan], tasks: int, *, few: bool, has_rules: bool
) -> tuple[DataFrame, pa.Schema, OldRows | None]:
    """The aggregate's rows that change, with `_game`; its columns; the rows of gold to keep, unless their key has new rows.

    Measures of new rows are merged with gold's of the same keys; an aggregate's function gets all rows of the changed keys.
    `few`: one task reads new rows. `has_rules`: rules are evaluated on the rows, so only those that change may be among them.
    """
    aggregate = run.aggregate
    columns, clashes = _columns(run.pipeline, (table for plan in plans.values() for table in plan.silver_tables))
    try:
        rows = _new_aggregates(run, plans, columns, few=few)
        schema = arrow_schema(rows.drop(GAME), aggregate)
        kept = _old_rows(run, plans, schema, has_rules=has_rules)
        if kept is None:
            return rows, schema, None
        if aggregate.mode == "merge":
            rows = _merged(aggregate, rows, kept.added_to(_by_game(rows, tasks)))
        return rows, schema, kept.without_small()
    except ExtensionError:
        raise
    except Exception as error:
        if is_session_lost(error):
            raise
        raise ExtensionError(_why_raised(aggregate, error, columns, clashes)) from error


def _old_rows(run: GoldRun, plans: Mapping[str, GamePlan], schema: pa.Schema, *, has_rules: bool) -> OldRows | None:
    """The rows of gold that the plans name; None: there are none."""
    aggregate = run.aggregate
    selected = {game: plan.old for game, plan in plans.items() if plan.old.files}
    if not selected:
        return None
    small = [game for game, old in selected.items() if old.rows_known and old.rows <= SMALL_GAME_ROWS]
    as_whole = frozenset(small if aggregate.mode == "merge" and not has_rules else ())
    files = {game: old.paths for game, old in selected.items()}
    return OldRows(run.pipeline.lakehouse, aggregate.name, GAME, aggregate.keys, schema, files, as_whole)


def _why_raised(aggregate: GoldAggregate, error: Exception, columns: StructType, clashes: Mapping[str, list[str]]) -> str:
    """The message about an aggregate that raised, with silver's columns; `clashes`: column -> types that differ."""
    unlike = "".join(f" Column {c} is {' and '.join(types)} in different games." for c, types in sorted(clashes.items()))
    reason = next((line for line in str(error).splitlines() if line.strip()), "").split(" SQLSTATE")[0]
    names = ", ".join(name for name in columns.fieldNames() if not name.startswith("_"))
    return f"{aggregate} raised {type(error).__name__}.{unlike} Silver has: {names}.{QUOTED}{reason}"


def _new_aggregates(run: GoldRun, plans: Mapping[str, GamePlan], columns: StructType, *, few: bool) -> DataFrame:
    aggregate = run.aggregate
    require_types(columns.names, [aggregate] if aggregate.types else [])
    if aggregate.mode != "merge":
        silver = _rows_of_changed_keys(run, plans, columns, few=few)
        silver = silver.where(of_types(sorted(aggregate.types))) if aggregate.types else silver
        rows = aggregate.function(silver) if aggregate.function else None
        if not isinstance(rows, DataFrame):
            raise ExtensionError(f"{aggregate} must give a DataFrame; it gave {type(rows).__name__}")
        _require_columns(aggregate, rows)
        return rows
    needed = columns_of_measures(aggregate, columns.names)
    if aggregate.types and needed is not None:
        needed.add(MESSAGE_TYPE)
    silver = new_rows(run.pipeline, plans, columns, few=few, needed=needed)
    if aggregate.types:
        silver = silver.where(of_types(sorted(aggregate.types)))
    measures = [_named(measure.sql, column) for column, measure in aggregate.measures.items()]
    return silver.groupBy(GAME, *map(quoted, aggregate.keys)).agg(*measures)


def _merged(aggregate: GoldAggregate, new: DataFrame, both: DataFrame) -> DataFrame:
    types = {field.name: field.dataType for field in new.schema.fields}
    merged = []
    for column, measure in aggregate.measures.items():
        kind = types[column]
        sql = measure.merged(column)
        # With the type that it had before: a sum of decimals would get more digits with every merge.
        merged.append(_named(f"CAST({sql} AS {kind.simpleString()})" if isinstance(kind, DecimalType) else sql, column))
    return both.groupBy(GAME, *map(quoted, aggregate.keys)).agg(*merged)


def _named(sql: str, column: str) -> Column:
    """A column of an SQL expression. As one text: each call of a column's method goes to the JVM several times."""
    return F.expr(f"({sql}\n) AS {quoted(column)}")  # a comment may end the expression


def _rows_of_changed_keys(run: GoldRun, plans: Mapping[str, GamePlan], columns: StructType, *, few: bool) -> DataFrame:
    some = {game: plan for game, plan in plans.items() if plan.same_keys is not None}
    every = {game: plan for game, plan in plans.items() if plan.same_keys is None}
    if not some:
        return new_rows(run.pipeline, every, columns, few=few)
    rows = _rows_of_same_keys(run, some, columns, few=few)
    return united([rows, new_rows(run.pipeline, every, columns, few=few)]) if every else rows


def _rows_of_same_keys(run: GoldRun, some: Mapping[str, GamePlan], columns: StructType, *, few: bool) -> DataFrame:
    """All rows of silver with the keys of new rows, of games whose plans name the files of these rows."""
    names = {column: f"_changed_{n}" for n, column in enumerate((GAME, *run.aggregate.keys))}
    changed = new_rows(run.pipeline, some, columns, few=few)
    changed = changed.select(*(F.col(quoted(column)).alias(name) for column, name in names.items())).distinct()
    uris = [uri for plan in some.values() if plan.same_keys is not None for uri in plan.same_keys.files]
    rows = read_files(run.pipeline.spark, uris, columns)
    rows = rows.withColumn(GAME, F.col(quoted(run.pipeline.settings.entity_column)))
    # NULL is a key, too.
    same = reduce(and_, (F.col(quoted(column)).eqNullSafe(F.col(name)) for column, name in names.items()))
    return rows.join(F.broadcast(changed) if few else changed, same, "left_semi")


def _by_game(rows: DataFrame, tasks: int) -> DataFrame:
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


def _require_columns(aggregate: GoldAggregate, rows: DataFrame) -> None:
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


#: The column that names the game while rows of several games are in one plan.
GAME = "_game"

#: Spark's column about a row's file, which no schema has.
HIDDEN = "_metadata"

_NAME = "_limit_game"
_FROM = "_limit_batch"

#: Rows of silver for each task. One task needs no shuffle, which costs some 100 ms.
TASK_ROWS = 250_000

#: Processor time, in seconds: what a worker saves of Spark's on opening a file, what it spends more on a row, and what reading
#: in both ways costs a plan.
OPEN_S = 0.002
ROW_S = 5e-7
BOTH_S = 0.3

#: Rows of a file up to which a worker reads it at less cost than Spark.
SMALL_FILE_ROWS = int(OPEN_S / ROW_S)


def new_rows(
    pipeline: Pipeline, plans: Mapping[str, GamePlan], columns: StructType, *, few: bool, needed: Collection[str] | None = None
) -> DataFrame:
    """The rows with these columns, and `_game`.

    `few`: in one task. `needed`: the columns that the plan uses, if they are known: the others are left out. Workers read all
    columns that they are given, so without these names Spark reads all files.
    """
    spark = pipeline.spark
    entity = pipeline.settings.entity_column
    if needed is None:
        rows = read_files(spark, [uri for plan in plans.values() for uri in plan.new.files], columns)
    else:
        columns = StructType([f for f in columns.fields if f.name in {*needed, entity, "_batch"}])
        files = {name: of_table for plan in plans.values() for name, of_table in plan.new.by_table.items()}
        rows = _by_size_of_file(pipeline, files, columns, few=few)
    if not all(plan.new.exact for plan in plans.values()):
        rows = _of_later_batches(pipeline, rows, plans)
    rows = rows.withColumn(GAME, F.col(quoted(entity)))
    return rows.coalesce(1) if few else rows


def _of_later_batches(pipeline: Pipeline, rows: DataFrame, plans: Mapping[str, GamePlan]) -> DataFrame:
    """The rows above the batch from which each game's plan reads."""
    limits = pa.table({_NAME: list(plans), _FROM: [plan.above for plan in plans.values()]})
    bounds = F.broadcast(pipeline.spark.createDataFrame(limits))
    entity = F.col(quoted(pipeline.settings.entity_column))
    return rows.join(bounds, entity == F.col(_NAME)).where(F.col("_batch") > F.col(_FROM)).drop(_NAME, _FROM)


def _by_size_of_file(pipeline: Pipeline, files: Mapping[str, FileSelection], columns: StructType, *, few: bool) -> DataFrame:
    small: list[FilePart] = []
    large: list[str] = []
    count = 0
    for name, of_table in files.items():
        light, heavy = of_table.split(SMALL_FILE_ROWS, pipeline.lakehouse.sizes.read_whole_bytes)
        small += (FilePart(silver_name(name), path) for path in light.paths)
        large += heavy.files
        count += light.rows
    if not small or (large and len(small) * OPEN_S - count * ROW_S < BOTH_S):
        return read_files(pipeline.spark, list(chain.from_iterable(of_table.files for of_table in files.values())), columns)
    columns = StructType([StructField(f.name, nullable(f.dataType)) for f in columns.fields])
    schema = pa.schema(Schema.from_json(columns.json()))
    tasks = 1 if few else 1 + count // TASK_ROWS
    rows = FileRows(pipeline.lakehouse, schema, dealt(small, tasks), few=True).rows(pipeline.spark, columns)
    return rows.union(read_files(pipeline.spark, large, columns)) if large else rows


def columns_of_measures(aggregate: GoldAggregate, columns: Iterable[str]) -> set[str] | None:
    """The columns that an aggregate's keys and measures may use: those whose names its SQL has; for a `*`, all of them.

    None: the SQL asks what only Spark knows of a file.
    """
    text = " ".join([*aggregate.keys, *(measure.of for measure in aggregate.measures.values())])
    return None if HIDDEN in words(text) else columns_in(text, columns)


#: The partial rows' names of gold's columns beside the key.
MEASURES = {COUNT: plan.COUNT, FIRST: plan.FIRST, LAST: plan.LAST}


def taken_partials(run: GoldRun, plans: Mapping[str, GamePlan], one_pass: OnePass | None) -> dict[str, pa.Table]:
    """Game -> partial rows of exactly the rows of silver that its plan reads; without the games that need Spark's aggregate."""
    if one_pass is None or not run.built_in or not has_shipped_columns(run.aggregate):
        return {}
    fitting: dict[str, pa.Table] = {}
    for game, of_game in plans.items():
        rows = one_pass.take_partial(game, of_game.new)
        if rows is not None and _fits(run, of_game, rows):
            fitting[game] = rows
    if not fitting or RuleColumns.of(run.pipeline.rules, "gold", GAME).rules:
        return {}
    return _of_first_types(fitting)


def _of_first_types(fitting: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The games whose partial rows have the types of the first one's: one job merges them."""
    first = next(iter(fitting.values()))
    return {game: rows for game, rows in fitting.items() if rows.schema == first.schema}


def _fits(run: GoldRun, plan: GamePlan, rows: pa.Table) -> bool:
    """Whether silver's and gold's tables have the types of the partial rows."""
    settings = run.pipeline.settings
    wanted = _schema(run, rows)
    silver = pa.schema(plan.silver.schema())
    pairs = ((settings.key_column, KEY), (settings.time_column, FIRST))
    if any(name not in silver.names or silver.field(name).type != rows.schema.field(own).type for name, own in pairs):
        return False
    if not plan.old.files:
        return True
    gold = pa.schema(plan.gold.schema()) if plan.gold is not None else wanted
    by = run.pipeline.lakehouse.gold(plan.game).by
    return {f.name: f.type for f in gold if f.name != by} == {f.name: f.type for f in wanted}


def _schema(run: GoldRun, rows: pa.Table) -> pa.Schema:
    types = rows.schema
    own = [pa.field(run.pipeline.settings.key_column, types.field(KEY).type)]
    return pa.schema([*own, *(pa.field(name, types.field(part).type) for part, name in MEASURES.items())])


def merge_partials(run: GoldRun, plans: Mapping[str, GamePlan], partials: Mapping[str, pa.Table]) -> Staged | None:
    """Write the files of these games, whose partial rows have the same types; None: the job failed, Spark's has to do it."""
    pipeline = run.pipeline
    schema = _schema(run, next(iter(partials.values())))
    start = 0
    parts = dict[str, tuple[int, int]]()
    for game, rows in partials.items():
        parts[game] = (start, rows.num_rows)
        start += rows.num_rows
    together = pa.concat_tables(partials.values()).rename_columns(schema.names).combine_chunks()
    files = {game: plans[game].old.paths for game in partials if plans[game].old.files}
    old = OldRows(pipeline.lakehouse, run.aggregate.name, GAME, run.aggregate.keys, schema, files)
    tasks = 1 + sum(plans[game].old.rows for game in partials) // TASK_OLD_ROWS
    largest_first = sorted(partials, key=lambda game: -plans[game].old.rows)
    job = GoldMerge(old, together, parts, dealt(largest_first, tasks))
    try:
        result = FanOutResult.sum(job.collect(task_numbers(pipeline.spark, len(job.tasks))))
    except (PySparkException, Py4JJavaError) as error:
        log.warning("gold=read_from_silver error=%r", first_line(error))
        return None
    return Staged(partials.keys(), result, commented(run.aggregate, schema), RuleColumns.of((), "gold", GAME))
