"""Check that gold of some games equals a recompute from their silver tables, and the unified table's rows equal gold."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from game_events.lakehouse.commits.incarnations import BronzeIdentity, silver_app
from game_events.lakehouse.commits.parallel import opened
from game_events.lakehouse.commits.transactions import txn
from game_events.lakehouse.data.snapshot import files_with, selection
from game_events.lakehouse.data.spark_files import game_of_file, read_files, spark_schema
from game_events.lakehouse.data.staging import partition_of
from game_events.lakehouse.tables import PART_PATH, UNIFIED
from game_events.pipeline.checks.row_counts import last_batches
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import expressions, is_current, player_agg
from game_events.pipeline.gold.plan import silver_columns
from game_events.pipeline.gold.unified import gold_app
from game_events.pipeline.reporting.steps import CheckResult
from game_events.spark.config import reads_delta, small_snapshots
from game_events.spark.schemas import merged_columns, quoted

RECOMPUTED = "gold_equals_recompute"
#: Games of one check; the next one chooses others.
SAMPLE_GAMES = 10
#: Relative difference up to which floating point numbers are equal.
CLOSE = 1e-9


@dataclass(frozen=True)
class _Tables:
    """What is compared.

    `taken`: game -> last bronze batch that its gold contains. `current`: games with all of gold's rows in `unified`.
    """

    silver: Mapping[str, DeltaTable]
    gold: Mapping[str, DeltaTable]
    taken: Mapping[str, int]
    unified: DeltaTable | None
    current: list[str]


def gold_equals_recompute(pipeline: Pipeline, sample_games: int = SAMPLE_GAMES) -> CheckResult:
    """Check that gold of a sample of games equals a recompute from silver, and the unified table equals gold.

    One Spark job. A hash of the run chooses the games; one with pending rows is left out.
    """
    words = pipeline.settings.names
    tables = _tables(pipeline, sample_games)
    if not tables.taken:
        return CheckResult(RECOMPUTED, "gold", True, f"no {words.entity} has a gold table yet", wrong_rows=True)
    independent = reads_delta(pipeline.spark)
    with small_snapshots(pipeline.spark):
        found = _compared(_all_rows(pipeline, tables, independent), pipeline, tables.current).collect()
    players = sum(row["players"] for row in found)
    counts: dict[str, int | float | str] = {
        "games": ", ".join(sorted(tables.taken)),
        "games_compared": len(tables.taken),
        "games_compared_with_unified": len(tables.current),
        "gold_read_by": "delta-spark" if independent else "this project",
        "players": players,
        "players_that_differ_in_gold": sum(row["gold"] for row in found),
        "players_that_differ_in_unified": sum(row["unified"] for row in found),
    }
    wrong = sorted((row["_game"], row["gold"], row["unified"]) for row in found if row["gold"] or row["unified"])
    named = ", ".join(f"{game} ({g} {words.keys} in gold, {u} in unified)" for game, g, u in wrong)
    summary = f"{players:,} {words.keys} of {len(tables.taken)} {words.entities} are what silver gives"
    if wrong:
        summary = f"not what silver gives: {named}. A full refresh of gold (unified: of the unified table) repairs it"
    return CheckResult(RECOMPUTED, "gold", not wrong, summary, counts, wrong_rows=True)


def _tables(pipeline: Pipeline, sample_games: int) -> _Tables:
    """The sample's tables, opened from the last layer to the first, so that none has rows that its source does not have."""
    bronze = pipeline.open_bronze()
    known = pipeline.progress.read(BronzeIdentity.of(bronze).key).games if bronze is not None else {}
    chosen = sorted(known, key=lambda game: hashlib.sha256(f"{pipeline.run_id}:{game}".encode()).digest())[:sample_games]
    # In the layout `partitioned` it is gold itself.
    unified = None if pipeline.lakehouse.is_partitioned else pipeline.lakehouse.table(UNIFIED).open_to_read()
    gold = opened(chosen, pipeline.lakehouse.gold)
    silver = opened(chosen, pipeline.lakehouse.silver)
    aggregate = player_agg(pipeline.settings)
    pairs = {game: (made, silver[game]) for game, made in gold.items() if game in silver}
    # Where the setting has other columns by now, gold is pending too.
    batches = {g: made.transaction_version(silver_app(s)) for g, (made, s) in pairs.items() if is_current(made, aggregate)}
    taken = {game: batch for game, batch in batches.items() if batch is not None}
    if unified is not None and not (is_current(unified, aggregate) and unified.metadata().partition_columns):
        unified = None
    current = [g for g in taken if unified is not None and txn(unified, gold_app(pairs[g][0])) == pairs[g][0].version()]
    return _Tables({g: pairs[g][1] for g in taken}, {g: pairs[g][0] for g in taken}, taken, unified, current)


def _read_by_delta(pipeline: Pipeline, gold: Mapping[str, DeltaTable]) -> DataFrame:
    """Rows of games' gold tables, with `_game`, by Delta Lake's own reader: delta-rs does not list the files."""
    read, parts = pipeline.spark.read.format("delta"), list[DataFrame]()
    for game, handle in gold.items():
        table = pipeline.lakehouse.gold(game)
        rows = read.option("versionAsOf", handle.version()).load(table.uri)
        if table.part is not None:
            rows = rows.where(F.col(quoted(str(table.by))) == game).drop(str(table.by))
        parts.append(rows.withColumn("_game", F.lit(game)))
    return reduce(DataFrame.unionByName, parts)


def _all_rows(pipeline: Pipeline, tables: _Tables, independent: bool) -> DataFrame:
    """(_game, key, gold's columns, _source) of the recompute, of gold and of the unified table.

    `independent`: Delta Lake's own reader reads gold, so that a wrong list of files is found, too.
    """
    settings, spark, lakehouse = pipeline.settings, pipeline.spark, pipeline.lakehouse
    key, made = settings.key_column, expressions(settings)
    columns = ["_game", key, *made]
    wanted = None if settings.gold_columns else (key, settings.time_column, "_batch")
    asked = silver_columns(pipeline)
    events = _files(pipeline, tables.silver, wanted, lakehouse.silver_path(), asked)
    events = events.join(last_batches(spark, tables.taken), "_game").where(F.col("_batch") <= F.col("_taken"))
    recomputed = events.groupBy("_game", key).agg(*(F.expr(sql).alias(column) for column, sql in made.items()))
    if independent:
        held = _read_by_delta(pipeline, tables.gold)
    else:
        held = _files(pipeline, tables.gold, (key, *made), lakehouse.gold_path())
    rows = recomputed.select(*columns, F.lit("silver").alias("_source"))
    rows = rows.unionByName(held.select(*columns, F.lit("gold").alias("_source")))
    if tables.unified is not None and tables.current:
        found, entity = selection(tables.unified), settings.entity_column
        games = [partition_of(path).get(entity) for path in found.paths]
        uris = [uri for uri, game in zip(found.files, games, strict=True) if game in tables.current]
        schema = spark_schema(tables.unified.schema())
        mine = read_files(spark, uris, StructType([f for f in schema.fields if f.name != entity]))
        mine = mine.withColumn("_game", game_of_file(uris, PART_PATH))
        rows = rows.unionByName(mine.select(*columns, F.lit("unified").alias("_source")))
    return rows


def _files(
    pipeline: Pipeline,
    tables: Mapping[str, DeltaTable],
    wanted: tuple[str, ...] | None,
    pattern: str,
    asked: StructType | None = None,
) -> DataFrame:
    """Rows of several games' tables; the game is that of the folder, so that a row in a wrong table is found.

    `wanted` are columns; None: the columns of all tables. `asked` are columns that are NULL where no table has them.
    """
    schemas = [spark_schema(table.schema()) for table in tables.values()]
    fields = {f.name: f for f in merged_columns(schemas)[0].fields}
    for field in (*(schemas[0].fields if wanted is not None else ()), *(asked or StructType()).fields):
        fields.setdefault(field.name, field)
    wanted = wanted or tuple(fields)
    read = StructType([f for f in fields.values() if f.name in wanted])
    uris = [uri for table in tables.values() for uri in files_with(table)]
    rows = read_files(pipeline.spark, uris, read)
    return rows.select(game_of_file(uris, pattern).alias("_game"), *(F.col(quoted(c)) for c in wanted))


def _compared(rows: DataFrame, pipeline: Pipeline, current: list[str]) -> DataFrame:
    """Game -> players, and how many of them differ between silver and gold, gold and unified."""
    columns = list(expressions(pipeline.settings))
    of = {source: F.col("_source") == source for source in ("silver", "gold", "unified")}
    kinds = {f.name: f.dataType for f in rows.schema.fields if f.name in columns}
    counted = rows.groupBy("_game", pipeline.settings.key_column).agg(
        *(F.count_if(which).alias(f"n_{source}") for source, which in of.items()),
        *(F.first(F.when(which, F.struct(*columns)), ignorenulls=True).alias(f"v_{source}") for source, which in of.items()),
    )
    in_unified = F.col("_game").isin(*current) if current else F.lit(False)
    return counted.groupBy("_game").agg(
        F.count(F.lit(1)).alias("players"),
        F.count_if(~_same("silver", "gold", kinds)).alias("gold"),
        F.count_if(in_unified & ~_same("gold", "unified", kinds)).alias("unified"),
    )


def _same(one: str, other: str, kinds: Mapping[str, DataType]) -> Column:
    """Whether both have one row of a key, and its values are equal; never NULL."""
    same = (F.col(f"n_{one}") == 1) & (F.col(f"n_{other}") == 1)
    for name, kind in kinds.items():
        a, b = F.col(f"v_{one}")[name], F.col(f"v_{other}")[name]
        equal = a.eqNullSafe(b)
        if isinstance(kind, DoubleType | FloatType):
            # A sum of floating point numbers depends on the order of rows.
            equal |= F.coalesce(F.abs(a - b) <= CLOSE * F.greatest(F.abs(a), F.abs(b)), F.lit(False))
        same &= equal
    return same
