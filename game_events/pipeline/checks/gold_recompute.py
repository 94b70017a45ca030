"""Gold of some games computed anew from their silver tables, and compared; so are the unified table's rows of these games."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from game_events.lakehouse.commits.generations import BronzeIdentity, silver_app
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.data.snapshot import files_with, game_of_file, read_files, spark_schema
from game_events.lakehouse.tables import UNIFIED
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import expressions, is_current, player_agg
from game_events.pipeline.gold.null_values import known_or_meant
from game_events.pipeline.gold.unified import gold_app
from game_events.pipeline.reporting.check_result import CheckResult
from game_events.spark.schemas import merged_columns, quoted

RECOMPUTED = "gold_equals_recompute"
#: Games of one look; another look takes others.
SAMPLE_GAMES = 10
#: Floating point numbers whose difference is this share of them are the same.
CLOSE = 1e-9
_SOURCES = ("silver", "gold", "unified")


def gold_equals_recompute(pipeline: Pipeline, sample_games: int = SAMPLE_GAMES) -> CheckResult:
    """A sample of games, chosen by a hash of the run: gold = silver aggregated anew, unified = gold. One Spark job.

    A game whose gold has not seen its silver yet (or unified its gold) is left out: that is pending, not wrong.
    """
    bronze = pipeline.bronze.open()
    known = pipeline.progress.read(BronzeIdentity.of(bronze).key).games if bronze is not None else {}
    chosen = sorted(known, key=lambda game: hashlib.sha256(f"{pipeline.run_id}:{game}".encode()).digest())[:sample_games]
    # In this order: what is newer than what it was made from would look like rows too many.
    unified = pipeline.lakehouse.table(UNIFIED).open()
    gold = for_games(chosen, lambda game: pipeline.lakehouse.gold(game).open())
    silver = for_games(chosen, lambda game: pipeline.lakehouse.silver(game).open())
    aggregate, words = player_agg(pipeline.settings), pipeline.settings.names
    if unified is not None and not is_current(unified, aggregate):
        unified = None
    taken = {}
    for game in chosen:
        made, source = gold[game], silver[game]
        if made is not None and not is_current(made, aggregate):
            continue  # the setting has other columns by now: that is pending, too
        batch = made.transaction_version(silver_app(source)) if made is not None and source is not None else None
        if batch is not None:
            taken[game] = batch
    if not taken:
        return CheckResult(RECOMPUTED, "gold", True, f"no {words.entity} has a gold table yet", wrong_rows=True)
    current = [g for g in taken if unified is not None and _holds(unified, gold[g])]
    rows = _all_rows(pipeline, taken, silver, gold, unified, current)
    wrong: dict[str, tuple[int, int]] = {}
    players = 0
    for line in _compared(rows, pipeline.settings.key_column, list(expressions(pipeline.settings)), current).collect():
        players += line["players"]
        if line["gold"] or line["unified"]:
            wrong[line["_game"]] = (line["gold"], line["unified"])
    counts: dict[str, int | float | str] = {
        "games": ", ".join(sorted(taken)),
        "games_compared": len(taken),
        "games_compared_with_unified": len(current),
        "players": players,
        "players_that_differ_in_gold": sum(g for g, _ in wrong.values()),
        "players_that_differ_in_unified": sum(u for _, u in wrong.values()),
    }
    if wrong:
        named = ", ".join(f"{game} ({g} {words.keys} in gold, {u} in unified)" for game, (g, u) in sorted(wrong.items()))
        summary = f"not what silver gives: {named}. A full refresh of gold (unified: of the unified table) repairs it"
    else:
        summary = f"{players:,} {words.keys} of {len(taken)} {words.entities} are what silver gives"
    return CheckResult(RECOMPUTED, "gold", not wrong, summary, counts, wrong_rows=True)


def _holds(unified: DeltaTable, gold: DeltaTable | None) -> bool:
    return gold is not None and unified.transaction_version(gold_app(str(gold.metadata().id))) == gold.version()


def _all_rows(
    pipeline: Pipeline,
    taken: dict[str, int],
    silver: dict[str, DeltaTable | None],
    gold: dict[str, DeltaTable | None],
    unified: DeltaTable | None,
    current: list[str],
) -> DataFrame:
    """(_game, key, gold's columns, _source) of the recompute, of gold and of the unified table."""
    settings, spark = pipeline.settings, pipeline.spark
    key, made = settings.key_column, expressions(settings)
    columns = ["_game", key, *made]
    wanted = None if settings.gold_columns else (key, settings.time_column, "_batch")
    bronze = pipeline.bronze.open()
    asked = known_or_meant(settings, spark_schema(bronze.schema()) if bronze is not None else StructType())
    events = _files(pipeline, silver, taken, wanted, pipeline.lakehouse.called.silver_path(), asked)
    limits = spark.createDataFrame(pa.table({"_game": list(taken), "_taken": pa.array(taken.values(), pa.int64())}))
    events = events.join(F.broadcast(limits), "_game").where(F.col("_batch") <= F.col("_taken"))
    anew = events.groupBy("_game", key).agg(*(F.expr(sql).alias(column) for column, sql in made.items()))
    held = _files(pipeline, gold, taken, (key, *made), pipeline.lakehouse.called.gold_path())
    rows = anew.select(*columns, F.lit("silver").alias("_source")).unionByName(
        held.select(*columns, F.lit("gold").alias("_source"))
    )
    if unified is not None and current:
        every = read_files(spark, files_with(unified), spark_schema(unified.schema()))
        mine = every.where(F.col(settings.entity_column).isin(*current)).withColumnRenamed(settings.entity_column, "_game")
        rows = rows.unionByName(mine.select(*columns, F.lit("unified").alias("_source")))
    return rows


def _files(
    pipeline: Pipeline,
    tables: dict[str, DeltaTable | None],
    games: dict[str, int],
    wanted: tuple[str, ...] | None,
    pattern: str,
    asked: StructType | None = None,
) -> DataFrame:
    """Rows of several games' tables, the game taken from the folder, so that a row in a wrong table is found.

    `wanted` are columns; None: all that any of the tables has. `asked` are NULL where none has them, as gold takes them to be.
    """
    opened = [table for game in games if (table := tables[game]) is not None]
    schemas = [spark_schema(table.schema()) for table in opened]
    fields = {f.name: f for f in merged_columns(schemas)[0].fields}
    for field in (*(schemas[0].fields if wanted is not None else ()), *(asked or StructType()).fields):
        fields.setdefault(field.name, field)
    wanted = wanted or tuple(fields)
    read = StructType([f for f in fields.values() if f.name in wanted])
    uris = [uri for table in opened for uri in files_with(table)]
    rows = read_files(pipeline.spark, uris, read)
    return rows.select(game_of_file(uris, pattern).alias("_game"), *(F.col(quoted(c)) for c in wanted))


def _compared(rows: DataFrame, key: str, columns: list[str], current: list[str]) -> DataFrame:
    """Game -> players, and how many of them differ between silver and gold, gold and unified."""
    of = {source: F.col("_source") == source for source in _SOURCES}
    kinds = {f.name: f.dataType for f in rows.schema.fields if f.name in columns}
    # There is one row of each, or the counts tell.
    counted = rows.groupBy("_game", key).agg(
        *(F.sum(which.cast("int")).alias(f"n_{source}") for source, which in of.items()),
        *(F.first(F.when(which, F.struct(*columns)), ignorenulls=True).alias(f"v_{source}") for source, which in of.items()),
    )
    silver_gold, gold_unified = _same("silver", "gold", kinds), _same("gold", "unified", kinds)
    return counted.groupBy("_game").agg(
        F.count(F.lit(1)).alias("players"),
        F.sum(F.when(silver_gold, 0).otherwise(1)).alias("gold"),
        F.sum(F.when(F.col("_game").isin(*current) & ~gold_unified, 1).otherwise(0) if current else F.lit(0)).alias("unified"),
    )


def _same(one: str, other: str, kinds: Mapping[str, DataType]) -> Column:
    same = (F.coalesce(f"n_{one}", F.lit(0)) == 1) & (F.coalesce(f"n_{other}", F.lit(0)) == 1)
    for name, kind in kinds.items():
        mine, theirs = F.col(f"v_{one}")[name], F.col(f"v_{other}")[name]
        equal = mine.eqNullSafe(theirs)
        if isinstance(kind, DoubleType | FloatType):
            # A sum of floating point numbers depends on the order in which they come.
            equal |= F.coalesce(F.abs(mine - theirs) <= CLOSE * F.greatest(F.abs(mine), F.abs(theirs)), F.lit(False))
        same &= equal
    return same
