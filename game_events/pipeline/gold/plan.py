"""The plan of gold's one Spark job: rows of silver -> rows of an aggregate, for all games that changed at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.config.naming import Names
from game_events.errors import QUOTED, ExtensionError
from game_events.extending import COLUMN_PATTERN, GoldAggregate
from game_events.lakehouse.data.snapshot import FileSelection, game_of_file, read_files
from game_events.spark.connect import is_session_lost
from game_events.spark.schemas import arrow_schema, merged_columns, quoted

#: The column that names the game while rows of several games are in one plan.
GAME = "_game"
_NAME, _FROM = "_limit_game", "_limit_batch"


@dataclass(frozen=True)
class GameRows:
    """What goes into one game's aggregate.

    Attributes:
        silver: the silver table at the version that is read.
        new: its files with new rows.
        above: bronze batch above which rows are new.
        gold: the game's gold table.
        old: its files, whose rows are merged with the new ones; none: the aggregate begins anew.
    """

    silver: DeltaTable
    new: FileSelection
    above: int
    gold: DeltaTable | None
    old: FileSelection


def aggregated(
    spark: SparkSession,
    aggregate: GoldAggregate,
    games: Mapping[str, GameRows],
    entity: str,
    called: Names,
    *,
    small: bool,
    asked: StructType,
) -> tuple[DataFrame, pa.Schema]:
    """The aggregate's new rows of some games.

    Args:
        spark: the session.
        aggregate: what to make.
        games: what of.
        entity: silver's column that names the game.
        called: names of the tables.
        small: so few rows that one task takes them all: what groups them needs no shuffle then.
        asked: columns that are NULL where no game's silver has them.

    Returns:
        a plan with `_game` and the aggregate's columns, and those columns.

    Raises:
        ExtensionError: the aggregate does not fit silver's columns, or its function raised: names function, file and line.
    """
    columns, clashes = _columns(rows.silver for rows in games.values())
    columns = StructType([*columns.fields, *(f for f in asked.fields if f.name not in {*columns.names, *clashes})])
    silver = read_files(spark, [uri for rows in games.values() for uri in rows.new.files], columns)
    if not all(rows.new.exact for rows in games.values()):
        limits = pa.table({_NAME: list(games), _FROM: [rows.above for rows in games.values()]})
        bounds = F.broadcast(spark.createDataFrame(limits))
        silver = silver.join(bounds, F.col(quoted(entity)) == F.col(_NAME)).where(F.col("_batch") > F.col(_FROM))
        silver = silver.drop(_NAME, _FROM)
    silver = _together(silver.withColumn(GAME, F.col(quoted(entity))), small)
    try:
        if aggregate.mode == "recompute":
            return _recomputed(aggregate, silver)
        return _merged(spark, aggregate, games, silver, called, small=small)
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
    spark: SparkSession,
    aggregate: GoldAggregate,
    games: Mapping[str, GameRows],
    silver: DataFrame,
    called: Names,
    *,
    small: bool,
) -> tuple[DataFrame, pa.Schema]:
    """New rows aggregated, and merged with what the games' tables hold."""
    keys = [F.col(quoted(k)) for k in aggregate.keys]
    measures = aggregate.measures.items()
    fresh = silver.groupBy(GAME, *keys).agg(*(F.expr(m.sql).alias(column) for column, m in measures))
    schema = arrow_schema(fresh.drop(GAME), aggregate)
    uris = [uri for rows in games.values() for uri in rows.old.files]
    if not uris:
        return fresh, schema
    stored, _ = _columns(rows.gold for rows in games.values() if rows.gold is not None and rows.old.files)
    # A struct may have gained members since.
    wider, _ = merged_columns([stored, fresh.drop(GAME).schema])
    old = read_files(spark, uris, StructType([wider[f.name] if f.name in wider.names else f for f in stored.fields])).select(
        game_of_file(uris, called.gold_path(aggregate.name)).alias(GAME),
        *(F.col(quoted(c)) for c in schema.names),
    )
    types = {f.name: f.dataType for f in fresh.schema.fields}
    whole = _together(fresh.unionByName(old), small).groupBy(GAME, *keys)
    # A sum of decimals would get more digits with every merge.
    return whole.agg(*(F.expr(m.merged(column)).cast(types[column]).alias(column) for column, m in measures)), schema


def _together(rows: DataFrame, small: bool) -> DataFrame:
    return rows.coalesce(1) if small else rows


def _columns(tables: Iterable[DeltaTable]) -> tuple[StructType, dict[str, list[str]]]:
    """Columns of many tables, most of which have the same."""
    return merged_columns(
        StructType.fromJson(json.loads(text)) for text in dict.fromkeys(table.schema().to_json() for table in tables)
    )


def _recomputed(aggregate: GoldAggregate, silver: DataFrame) -> tuple[DataFrame, pa.Schema]:
    """What the user's function makes of all rows."""
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
