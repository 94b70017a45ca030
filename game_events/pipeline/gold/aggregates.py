"""Gold aggregates: the built-in one and custom ones, each with its own progress and interval."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.config.gold_columns import expression, measures
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, first_line
from game_events.extending import BUILT_IN, PLAYER_AGG, GoldAggregate, count, max_of, min_of
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.descriptions import AGGREGATE, COMMENT
from game_events.lakehouse.system_tables.progress import Mark, Progress
from game_events.spark.schemas import quoted

#: The definition of a table that was reset to the default columns; others are hashes.
DEFAULT_DEFINITION = 0
COUNT, FIRST, LAST = "session_count", "min_timestamp", "max_timestamp"


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
    """The built-in aggregate's columns for columns of silver, by analysis.

    Raises:
        ConfigurationError: an expression does not fit silver's columns.
    """
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
    mark, every = state.marks.get(aggregate.layer, Mark()), aggregate.interval_s
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
