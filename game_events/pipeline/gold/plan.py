"""Plans of gold's refresh: from which silver rows to which version each game's aggregate is brought. Needs no Spark.

A refresh is `plan_games` (tables' logs), `execute.execute` (one Spark job, writes files), and a commit for each game
(`commit_of`). Only plans go from one step to the next.

Each aggregate, the built-in one and custom ones, has its own progress and interval. Games without any key, or without any time,
in their gold rows are reported, never silently NULL.
"""

import hashlib
import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from deltalake.schema import PrimitiveType
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from game_events.config.names import expression, measures
from game_events.config.settings import Settings
from game_events.decoding.columns import Kept, is_of_any_kind, kept_columns, kind_of
from game_events.errors import ConfigurationError, DataError, first_line, folded
from game_events.extending import BUILT_IN, PLAYER_AGG, GoldAggregate, count, max_of, min_of
from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.evolution import changed_types
from game_events.lakehouse.commits.group import for_games, guarded, opened
from game_events.lakehouse.commits.transactions import (
    WITHOUT_EXPIRED,
    BronzeIdentity,
    Txn,
    erasures,
    expired_rows,
    restored,
    silver_app,
    txn,
)
from game_events.lakehouse.data.columns import AGGREGATE, COMMENT, has_decoded_columns
from game_events.lakehouse.data.reading import BATCH_INFO, FileSelection, SelectedFiles, selection
from game_events.lakehouse.data.spark_files import spark_schema
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.open_table import of_columns
from game_events.lakehouse.system_tables import Mark, Progress
from game_events.lakehouse.tables import Table, add_actions, names_of, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import CheckResult
from game_events.pipeline.silver.stage import SilverInput
from game_events.pipeline.silver.type_tables import open_types
from game_events.spark.schemas import quoted

log = logging.getLogger(__name__)
_TYPES: dict[str, DataType] = {"string": StringType(), "timestamp": TimestampType()}


@dataclass(frozen=True)
class GoldRun:
    """One refresh of one aggregate; `full`: all rows of silver are aggregated again."""

    pipeline: Pipeline
    aggregate: GoldAggregate
    bronze: BronzeIdentity
    full: bool

    @property
    def built_in(self) -> bool:
        """Whether it is `player_agg`."""
        return self.aggregate.name == PLAYER_AGG


@dataclass(frozen=True)
class GamePlan:
    """The next version of one game's aggregate, from a version of silver and one of gold (None: there is none).

    Attributes:
        app: name of gold's `txn` with the last bronze batch of its silver rows.
        taken, batch: that batch now (None: gold has rows of other contents of silver), and after the commit.
        full: all rows of silver are aggregated; else new rows, which are merged with those of `old`.
        commits: number of gold's commits now (None: there is no table), which the commit compares.
        above: silver rows of later bronze batches are new.
        new, old: the files of silver with new rows, and the files of gold with the rows to merge them with, or to keep.
        same_keys: the files of silver with all rows of the new rows' keys; None: the new rows are enough.
        types: the tables of the game's message types, by what they are called: parts of its silver.
        expired: rows that silver lacks by age.
    """

    game: str
    silver: DeltaTable
    gold: DeltaTable | None
    app: str
    taken: int | None
    batch: int
    full: bool
    commits: int | None
    above: int
    new: SelectedFiles
    old: FileSelection
    same_keys: SelectedFiles | None = None
    types: Mapping[str, DeltaTable] = field(default_factory=dict)
    expired: int = 0

    @property
    def silver_tables(self) -> list[DeltaTable]:
        """All tables of the game's silver."""
        return [self.silver, *self.types.values()]


def plan_games(run: GoldRun, games: Collection[str]) -> tuple[dict[str, GamePlan], dict[str, str]]:
    """The plans of games that have to change, and failed game -> reason."""
    bronze = run.pipeline.open_bronze()
    known = key_and_time(run.pipeline).names
    # Arrow does not compare structs: the workers could not find such a key in the old files. Of bronze's columns, too: the rows
    # of a game's table that lacks a column are read with it.
    nested = _nested(bronze)
    listed = run.pipeline.lakehouse.type_tables()
    planned = for_games(sorted(games), guarded(lambda game: _plan(run, known, nested, game, listed.get(game, []))))
    plans = {game: item for game, item in planned.items() if isinstance(item, GamePlan)}
    return plans, {game: item for game, item in planned.items() if isinstance(item, str)}


def _plan(run: GoldRun, known: Collection[str], nested: frozenset[str], game: str, listed: Collection[str]) -> GamePlan | None:
    """One game's plan; `known`: names of `key_and_time`; `nested`: names of bronze's nested columns.

    `listed`: the tables of the game's message types. None if gold has all rows of silver, or silver is missing, has rows of
    another bronze, or is between the commits of its tables: the run that finishes them, or the next one, follows.
    """
    aggregate = run.aggregate
    tables = run.pipeline.tables
    lakehouse = run.pipeline.lakehouse
    # In this order: gold that followed a change of silver between the two reads has made a commit since.
    gold = tables.open(lakehouse.gold(game, aggregate.name))
    silver = tables.open(lakehouse.silver(game))
    batch = run.bronze.taken(silver)
    if silver is None or batch is None:
        return None
    app = silver_app(silver)
    taken = txn(gold, app)
    if taken == batch and not _is_made_again(run, gold, taken):
        return None
    types = open_types(run.pipeline, run.bronze, silver, listed)
    if types is None:
        log.info("silver=%s tables_of_its_types=between_commits", silver.table_uri)
        return None
    _require_key_and_time(run, silver, known)
    expired = sum(expired_rows(table) for table in (silver, *types.values()))
    had = taken if taken is not None or not expired else _taken_before_erasures(gold, silver)
    again = _is_made_again(run, gold, had)
    if again and expired:
        _refuse_fewer_rows(run, game, gold, expired)
    full = again or _needs_all_rows(aggregate, nested.union(*map(_nested, (silver, *types.values()))))
    above = 0 if full else int(had or 0)
    of_game: dict[str, DeltaTable] = {**types, game: silver}
    return GamePlan(
        game,
        silver,
        gold,
        app,
        taken,
        batch,
        full,
        commits=txn(gold, Txn.COMMITS),  # read now: during a long job the log may lose what the commit needs
        above=above,
        new=SelectedFiles({name: selection(table, above) for name, table in of_game.items()}),
        old=_to_merge_with(gold, full=full),
        same_keys=SelectedFiles({name: selection(table) for name, table in of_game.items()})
        if aggregate.mode == "by_key" and not full
        else None,
        types=types,
        expired=expired,
    )


def _taken_before_erasures(gold: DeltaTable | None, silver: DeltaTable) -> int | None:
    """The last bronze batch in gold before people were erased from silver; None: gold has other rows.

    Where silver lacks rows by age, gold is not made again: the erasure removes the people's rows from gold itself.
    """
    before = (txn(gold, silver_app(silver, erased)) for erased in range(erasures(silver) - 1, -1, -1))
    return next((batch for batch in before if batch is not None), None)


def _refuse_fewer_rows(run: GoldRun, game: str, gold: DeltaTable | None, expired: int) -> None:
    """Raise DataError if an aggregate would lose what it has of rows that silver lacks by age.

    One that is always made of all rows of silver (`recompute`) is of those that silver has.
    """
    lost = expired - expired_rows(gold)
    if gold is None or lost <= 0 or run.aggregate.mode == "recompute" or run.pipeline.settings.allow_refresh_without_expired:
        return
    raise DataError(
        f"{run.aggregate.asset} of {game} would be made again from a silver table that lacks {lost:,} rows by age "
        f"(GAME_EVENTS_RETENTION_DAYS), which it has aggregated: it stays as it is. {WITHOUT_EXPIRED}"
    )


def _require_key_and_time(run: GoldRun, silver: DeltaTable, known: Collection[str]) -> None:
    settings = run.pipeline.settings
    there = names_of(silver) | set(known)
    missing = [repr(column) for column in (settings.key_column, settings.time_column) if column not in there]
    if missing and has_shipped_columns(run.aggregate):  # Spark names those that custom aggregates lack
        raise DataError(f"silver has no column {', '.join(missing)}: set GAME_EVENTS_KEY_COLUMN / GAME_EVENTS_TIME_COLUMN")


def _needs_all_rows(aggregate: GoldAggregate, nested: Collection[str]) -> bool:
    """Whether new rows cannot be merged with old ones; `nested`: columns that Arrow does not compare."""
    return aggregate.mode == "recompute" or not set(aggregate.keys).isdisjoint(nested)


def _to_merge_with(gold: DeltaTable | None, *, full: bool) -> FileSelection:
    """The files of gold with the rows that new ones are merged with; none if all rows are aggregated again."""
    return FileSelection("", ()) if gold is None or full else selection(gold)


def _is_made_again(run: GoldRun, gold: DeltaTable | None, taken: int | None) -> bool:
    """Whether all rows of a game's table are made again; DataError if the aggregate has not made the table."""
    aggregate = run.aggregate
    declared = declared_in(gold, aggregate)
    definition = definition_for(gold, aggregate)
    if gold is not None and definition is not None and declared is None and not run.built_in:
        raise DataError(
            f"{gold.table_uri} is there, but {aggregate} did not make it: move that table away, or rename the aggregate"
        )
    return run.full or taken is None or declared != definition or (gold is not None and restored(gold))


def _nested(table: DeltaTable | None) -> frozenset[str]:
    return of_columns(table, _nested_names) if table is not None else frozenset()


def _nested_names(table: DeltaTable) -> frozenset[str]:
    return frozenset(f.name for f in table.schema().fields if not isinstance(f.type, PrimitiveType))


def _asks_for_other_columns(run: GoldRun, declared: int | None, definition: int | None) -> bool:
    """Whether a full refresh or a change of the setting does; a declaration in code may change types unnoticed."""
    return run.full or definition is None or (run.built_in and declared != definition)


def _refuse_other_types(
    aggregate: GoldAggregate, table: Table, gold: DeltaTable | None, schema: pa.Schema, files: list[StagedFile]
) -> None:
    other = changed_types(gold, schema) if gold is not None else []
    if other:
        discard(table, files)
        raise DataError(
            f"{table.name}: {aggregate} gives other types than the table has: {'; '.join(other)}. Whoever reads the table "
            f"may not expect that: rename the columns, or refresh {aggregate.asset} fully"
        )


def _whose(run: GoldRun, plan: GamePlan, table: Table) -> str:
    """Whose rows a table of gold has, for its description."""
    words = run.pipeline.settings.names
    return f"{words.entity.capitalize()} {plan.game}" if table.part is None else f"All {words.entities}"


def commit_of(run: GoldRun, plan: GamePlan, schema: pa.Schema, files: list[StagedFile]) -> Commit:
    """The commit of a plan and its staged files: they replace the aggregate that the plan was made from.

    DataError: the aggregate gives other types than the table has; the files are deleted.
    """
    aggregate = run.aggregate
    gold = plan.gold
    table = run.pipeline.lakehouse.gold(plan.game, aggregate.name)
    declared = declared_in(gold, aggregate)
    definition = definition_for(gold, aggregate)
    if not _asks_for_other_columns(run, declared, definition):
        _refuse_other_types(aggregate, table, gold, schema, files)
    # Two runs may have planned from the same batch of a silver table with rows replaced in between: one of them commits.
    expected: dict[str, int | None] = {plan.app: plan.taken, Txn.COMMITS: plan.commits}
    advance = {plan.app: plan.batch, Txn.COMMITS: (plan.commits or 0) + 1}
    if definition is not None:
        # A run with another declaration must not be merged with.
        app = Txn.AGGREGATE.of(aggregate.name)
        expected[app] = declared
        advance[app] = definition
    if plan.full and (plan.expired or expired_rows(gold)):
        advance[Txn.ROWS_EXPIRED] = plan.expired
    info = {BATCH_INFO: str(plan.batch), "run_id": run.pipeline.run_id}
    if aggregate.definition:
        info["definition"] = aggregate.definition
    return Commit(
        table,
        schema,
        files,
        expect_transactions=expected,
        set_transactions=advance,
        table_id=table_id(gold),
        from_table=gold,
        # A restore leaves every `txn` as it is; a full refresh is right after any.
        from_version=None if plan.full or gold is None else gold.version(),
        replace=plan.full and gold is not None,
        reshape=plan.full,  # all rows are new: columns may go
        # Without a new row of this game its files stay.
        rewritten=frozenset(plan.old.paths if files else ()),
        info=info,
        description=f"{_whose(run, plan, table)}: {aggregate.description}"[:1_000],
    )


def key_and_time(pipeline: Pipeline) -> StructType:
    """Bronze's key and time columns: NULL for a game without rows since they exist, or with values of other types only."""
    bronze = pipeline.open_bronze()
    columns = spark_schema(bronze.schema()) if bronze is not None else StructType()
    fields = []
    for kept in key_and_time_kept(pipeline.settings).values():
        if kept.column in columns.names:
            fields.append(columns[kept.column])
        elif kept.kind in _TYPES and any(is_of_any_kind(name, kept.column) for name in columns.names):
            fields.append(StructField(kept.column, _TYPES[kept.kind]))  # other types only in bronze
    return StructType(fields)


def silver_columns(pipeline: Pipeline) -> StructType:
    """All columns that silver tables may have: a game's table lacks those of message types that the game has not sent."""
    bronze = pipeline.open_bronze()
    if bronze is None or not has_decoded_columns(bronze):
        return StructType()
    base = spark_schema(Schema.from_arrow(SilverInput.of(pipeline, bronze).schema))
    known = key_and_time(pipeline)
    return StructType([*known.fields, *(f for f in base.fields if f.name not in known.names)])


#: The definition of a table that was reset to the default columns; others are hashes.
DEFAULT_DEFINITION = 0

COUNT = "session_count"
FIRST = "min_timestamp"
LAST = "max_timestamp"


def player_agg(settings: Settings) -> GoldAggregate:
    """`gold_{game}_player_agg`: sessions, first and last event of each key, or the columns of `GOLD_COLUMNS`."""
    keys = (settings.key_column,)
    if not settings.gold_columns:
        when = quoted(settings.time_column)
        # Values of another key or time column are not merged with those of a table. Tables of the default columns have no
        # definition, for compatibility.
        usual = all(getattr(settings, name) == Settings.model_fields[name].default for name in ("key_column", "time_column"))
        return GoldAggregate(
            PLAYER_AGG,
            "merge",
            keys=keys,
            measures={COUNT: count(), FIRST: min_of(when), LAST: max_of(when)},
            description=f"One row per {settings.names.key}: sessions, first and last event",
            definition="" if usual else _hash([*keys, settings.time_column]),
            asset_name=settings.names.asset(settings.names.gold_asset),
        )
    columns = expressions(settings)
    merging = measures(settings.gold_columns)
    parts = ["merge" if merging else "recompute", keys, list(columns.items())]
    return GoldAggregate(
        PLAYER_AGG,
        "merge" if merging else "by_key",
        keys=keys,
        measures=merging or {},
        function=None if merging else lambda silver: _aggregated(silver, ("_game", *keys), columns),
        description=f"One row per {settings.names.key}: {', '.join(settings.gold_columns)}",
        definition=_hash(parts),
        where="GAME_EVENTS_GOLD_COLUMNS",
        asset_name=settings.names.asset(settings.names.gold_asset),
    )


def _hash(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def has_shipped_columns(aggregate: GoldAggregate) -> bool:
    """Whether it is the built-in aggregate with its default columns, from any key and time column."""
    return aggregate.name == PLAYER_AGG and aggregate.measures.keys() == {COUNT, FIRST, LAST} and aggregate.where == BUILT_IN


def commented(aggregate: GoldAggregate, schema: pa.Schema) -> pa.Schema:
    """The schema with descriptions of the default columns."""
    if not has_shipped_columns(aggregate):
        return schema
    return pa.schema([f.with_metadata({COMMENT: AGGREGATE[f.name]}) if f.name in AGGREGATE else f for f in schema])


def expressions(settings: Settings) -> dict[str, str]:
    """The built-in aggregate's columns beside the key: name -> SQL aggregate over silver's rows."""
    if not settings.gold_columns:
        return {column: measure.sql for column, measure in player_agg(settings).measures.items()}
    return {column: expression(sql, settings.time_column) for column, sql in settings.gold_columns.items()}


def player_agg_columns(spark: SparkSession, settings: Settings, silver: StructType) -> StructType:
    """The built-in aggregate's columns, by analysis; ConfigurationError: an expression does not fit silver's columns."""
    empty = spark.createDataFrame([], silver)
    try:
        return _aggregated(empty, (settings.key_column,), expressions(settings)).schema
    except AnalysisException as error:
        reason = first_line(error).partition(" SQLSTATE")[0]
        names = ", ".join(name for name in silver.names if not name.startswith("_"))
        raise ConfigurationError(f"GAME_EVENTS_GOLD_COLUMNS: {reason} Silver has: {names}") from error


def _aggregated(silver: DataFrame, keys: tuple[str, ...], columns: Mapping[str, str]) -> DataFrame:
    return silver.groupBy(*(F.col(quoted(k)) for k in keys)).agg(*(F.expr(sql).alias(c) for c, sql in columns.items()))


def due(aggregate: GoldAggregate, state: Progress) -> bool:
    """Whether an aggregate's interval has passed since its last commit; a changed declaration is due at once."""
    mark = state.marks.get(aggregate.layer, Mark())
    every = aggregate.interval_s
    if mark.definition != scope(aggregate) or every is None or mark.committed_at is None:
        return True
    return not mark.committed_at <= time.time() < mark.committed_at + every


def scope(aggregate: GoldAggregate) -> str:
    """The scope of an aggregate's low watermark: its definition and games; empty for the built-in one by default."""
    if not aggregate.definition:
        return ""
    return f"{aggregate.definition[:16]}:{','.join(sorted(aggregate.games))}"


def declared_in(table: DeltaTable | None, aggregate: GoldAggregate) -> int | None:
    """The definition in a table; None: the built-in default."""
    return txn(table, Txn.AGGREGATE.of(aggregate.name))


def definition_for(table: DeltaTable | None, aggregate: GoldAggregate) -> int | None:
    """The definition that a commit writes; None: none, as always for the built-in default.

    A table that had other columns for a time gets `DEFAULT_DEFINITION`: a `txn` cannot be removed.
    """
    if aggregate.definition:
        return int(aggregate.definition[:15], 16)
    return None if declared_in(table, aggregate) is None else DEFAULT_DEFINITION


def is_current(table: DeltaTable, aggregate: GoldAggregate) -> bool:
    """Whether a table has the aggregate's definition."""
    return declared_in(table, aggregate) == definition_for(table, aggregate)


KNOWN = "keys_and_times_known"

#: Games that the check names.
SHOWN = 20


def looked_at(settings: Settings) -> dict[str, str]:
    """Column of gold that is NULL where a key or time of silver is -> the setting with silver's column."""
    settings_of = {settings.key_column: "GAME_EVENTS_KEY_COLUMN"}
    return settings_of | ({FIRST: "GAME_EVENTS_TIME_COLUMN"} if has_shipped_columns(player_agg(settings)) else {})


def null_notices(
    settings: Settings, columns: Mapping[str, str], game: str, files: Collection[StagedFile], silver: DeltaTable
) -> list[str]:
    """Notices for a game without any key, or time, in its new gold files; `columns`: see `looked_at`; `silver`: its table."""
    stats = [json.loads(file.stats) for file in files if file.rows]
    sentences = []
    for column, setting in columns.items():
        if not stats or any(of_file["nullCount"].get(column) != of_file["numRecords"] for of_file in stats):
            continue
        wanted = settings.key_column if column == settings.key_column else settings.time_column
        elsewhere = _of_other_kinds(silver, wanted)
        sentences.append(
            f"gold of {game}: {column} is NULL in every row, as no row of its silver table has a value in {wanted}.{elsewhere} "
            f"If its producers call it something else: {setting}"
        )
    return sentences


def _of_other_kinds(silver: DeltaTable, wanted: str) -> str:
    """A sentence about the columns of silver that are a column's values of other kinds; empty if there is none."""
    names = (field.name for field in silver.schema().fields)
    others = sorted(name for name in names if name != wanted and is_of_any_kind(name, wanted))
    return f" There are columns of other kinds: {', '.join(others)} (docs/decoding.md)." if others else ""


def of_another_kind(settings: Settings, columns: Mapping[str, pa.DataType]) -> list[str]:
    """Notices for key and time columns of another type in bronze, because records came before the settings kept the name."""
    return [
        f"bronze's column {kept.column} is {kind_of(columns[kept.column])}, as its first records had it; "
        f"{kept.kind} is in {other}: set {setting} to {other}, or begin a new lakehouse"
        for setting, kept in key_and_time_kept(settings).items()
        if kept.column in columns
        and kind_of(columns[kept.column]) != kept.kind
        and (other := f"{kept.field}__{kept.kind}") in columns
    ]


def keys_and_times_known(pipeline: Pipeline) -> CheckResult:
    """Check for games without a key, or without a time, in all gold rows; reads the tables' logs alone."""
    bronze = pipeline.open_bronze()
    known = pipeline.progress.read(BronzeIdentity.of(bronze).key).games if bronze is not None else {}
    wrong = of_another_kind(pipeline.settings, {f.name: f.type for f in pa.schema(bronze.schema())}) if bronze else []
    columns = list(looked_at(pipeline.settings))
    unknown = {
        game: missing
        for game, handle in opened(sorted(known), pipeline.lakehouse.gold).items()
        if (missing := _all_null(handle, columns))
    }
    wrong += [f"{game}: {', '.join(missing)} NULL in every row" for game, missing in list(unknown.items())[:SHOWN]]
    wrong += [f"and {len(unknown) - SHOWN} more"] if len(unknown) > SHOWN else []
    summary = "; ".join(wrong) or f"{len(known)} {pipeline.settings.names.entities} have keys and times"
    return CheckResult(KNOWN, "gold", not wrong, summary, {"games": len(known), "games_without": len(unknown)})


def _all_null(handle: DeltaTable, columns: Collection[str]) -> list[str]:
    actions = add_actions(handle)
    rows = pc.sum(actions.column("num_records")).as_py() or 0
    nulls = {c: f"null_count.{c}" for c in columns if f"null_count.{c}" in actions.column_names}
    return [c for c, name in nulls.items() if rows and pc.sum(actions.column(name)).as_py() == rows]


def key_and_time_kept(settings: Settings) -> dict[str, Kept]:
    """Setting -> the reserved column that it names."""
    kept = kept_columns(settings)
    names = {"GAME_EVENTS_KEY_COLUMN": settings.key_column, "GAME_EVENTS_TIME_COLUMN": settings.time_column}
    return {setting: kept[folded(name)] for setting, name in names.items()}
