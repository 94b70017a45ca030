"""Gold of some games computed anew from their silver tables, and compared; so are the unified table's rows of these games."""

from __future__ import annotations

import hashlib

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.extending import PLAYER_AGG
from game_events.lakehouse.reading import files_with, path_column, read_files, spark_schema
from game_events.lakehouse.tables import UNIFIED
from game_events.pipeline.aggregates import COUNT, FIRST, LAST
from game_events.pipeline.check_result import CheckResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.game_commits import for_games
from game_events.pipeline.generations import BronzeIdentity
from game_events.pipeline.gold import silver_app
from game_events.pipeline.gold_rows import game_in_path
from game_events.pipeline.unified import gold_app

RECOMPUTED = "gold_equals_recompute"
#: Games of one look; another look takes others.
SAMPLE_GAMES = 10
_SILVER_GAME_IN_PATH = r"/silver_([a-z0-9_]+)_events/[^/]+$"
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
    taken = {}
    for game in chosen:
        made, source = gold[game], silver[game]
        batch = made.transaction_version(silver_app(source)) if made is not None and source is not None else None
        if batch is not None:
            taken[game] = batch
    if not taken:
        return CheckResult(RECOMPUTED, "gold", True, "no game has a gold table yet", wrong_rows=True)
    current = [g for g in taken if unified is not None and _holds(unified, gold[g])]
    rows = _all_rows(pipeline, taken, silver, gold, unified, current)
    wrong: dict[str, tuple[int, int]] = {}
    players = 0
    for line in _compared(rows, pipeline.settings.key_column, current).collect():
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
        named = ", ".join(f"{game} ({g} players in gold, {u} in unified)" for game, (g, u) in sorted(wrong.items()))
        summary = f"not what silver gives: {named}. A full refresh of gold (unified: of the unified table) repairs it"
    else:
        summary = f"{players:,} players of {len(taken)} games are what silver gives"
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
    """(_game, key, session count, first, last, _source) of the recompute, of gold and of the unified table."""
    settings, spark = pipeline.settings, pipeline.spark
    key, time_column = settings.key_column, settings.time_column
    columns = ["_game", key, COUNT, FIRST, LAST]
    events = _files(pipeline, silver, taken, (key, time_column, "_batch"), _SILVER_GAME_IN_PATH)
    limits = spark.createDataFrame(pa.table({"_game": list(taken), "_taken": pa.array(taken.values(), pa.int64())}))
    events = events.join(F.broadcast(limits), "_game").where(F.col("_batch") <= F.col("_taken"))
    anew = events.groupBy("_game", key).agg(
        F.count(F.lit(1)).alias(COUNT), F.min(time_column).alias(FIRST), F.max(time_column).alias(LAST)
    )
    held = _files(pipeline, gold, taken, (key, COUNT, FIRST, LAST), game_in_path(PLAYER_AGG))
    rows = anew.select(*columns, F.lit("silver").alias("_source")).unionByName(
        held.select(*columns, F.lit("gold").alias("_source"))
    )
    if unified is not None and current:
        every = read_files(spark, files_with(unified), spark_schema(unified.schema()))
        mine = every.where(F.col(settings.entity_column).isin(*current)).withColumnRenamed(settings.entity_column, "_game")
        rows = rows.unionByName(mine.select(*columns, F.lit("unified").alias("_source")))
    return rows


def _files(
    pipeline: Pipeline, tables: dict[str, DeltaTable | None], games: dict[str, int], wanted: tuple[str, ...], pattern: str
) -> DataFrame:
    """Rows of several games' tables, the game taken from the folder, so that a row in a wrong table is found."""
    opened = [table for game in games if (table := tables[game]) is not None]
    schema = spark_schema(opened[0].schema())
    read = StructType([f for f in schema.fields if f.name in wanted])
    uris = [uri for table in opened for uri in files_with(table)]
    rows = read_files(pipeline.spark, uris, read)
    return rows.select(F.regexp_extract(path_column(uris), pattern, 1).alias("_game"), *wanted)


def _compared(rows: DataFrame, key: str, current: list[str]) -> DataFrame:
    """Game -> players, and how many of them differ between silver and gold, gold and unified."""
    of = {source: F.col("_source") == source for source in _SOURCES}
    values = F.struct(COUNT, FIRST, LAST)
    counted = rows.groupBy("_game", key).agg(
        *(F.sum(which.cast("int")).alias(f"n_{source}") for source, which in of.items()),
        *(F.max(F.when(which, values)).alias(f"v_{source}") for source, which in of.items()),
    )
    return counted.groupBy("_game").agg(
        F.count(F.lit(1)).alias("players"),
        _differ("silver", "gold").alias("gold"),
        F.sum(F.when(F.col("_game").isin(*current) & ~_same("gold", "unified"), 1).otherwise(0) if current else F.lit(0)).alias(
            "unified"
        ),
    )


def _same(one: str, other: str) -> Column:
    once = (F.col(f"n_{one}") == 1) & (F.col(f"n_{other}") == 1)
    return once & F.col(f"v_{one}").eqNullSafe(F.col(f"v_{other}"))


def _differ(one: str, other: str) -> Column:
    return F.sum(F.when(_same(one, other), 0).otherwise(1))
