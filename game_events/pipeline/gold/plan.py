"""Plans of gold's refresh: from which silver rows to which version each game's aggregate is brought. Needs no Spark.

A refresh is `plan_games` (tables' logs), `execute.execute` (one Spark job, writes files), `commit.commit_plans`. Only plans go
from one step to the next.
"""

from collections.abc import Collection
from dataclasses import dataclass

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from pyspark.sql.types import StructType

from game_events.errors import DataError, GameEventsError
from game_events.extending import PLAYER_AGG, GoldAggregate
from game_events.lakehouse.commits.incarnations import BronzeIdentity, silver_app
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.data.snapshot import FileSelection, selection
from game_events.lakehouse.data.spark_files import spark_schema
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import declared_in, definition_for, has_shipped_columns
from game_events.pipeline.gold.null_values import known_or_meant
from game_events.pipeline.silver.stage import SilverInput


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
        commits: number of gold's commits now (None: there is no table).
        declared, definition: the definition in the gold table now, and after the commit.
        above: silver rows of later bronze batches are new.
        new, old: the files of silver with new rows, and the files of gold with the rows to merge them with.
    """

    game: str
    silver: DeltaTable
    gold: DeltaTable | None
    app: str
    taken: int | None
    batch: int
    full: bool
    commits: int | None
    declared: int | None
    definition: int | None
    above: int
    new: FileSelection
    old: FileSelection


def plan_games(run: GoldRun, games: Collection[str], known: StructType) -> tuple[dict[str, GamePlan], dict[str, str]]:
    """The plans of games that have to change, and failed game -> reason; `known`: `key_and_time`."""
    handles, lakehouse, bronze = run.pipeline.handles, run.pipeline.lakehouse, run.pipeline.bronze.open()
    fields = bronze.schema().fields if bronze is not None else ()
    # Of columns that a game's table lacks, too: its rows are read with them.
    nested = frozenset(f.name for f in fields if not isinstance(f.type, PrimitiveType))

    def plan(game: str) -> GamePlan | Exception | None:
        try:
            # In this order: gold that followed a change of silver between the two reads has made a commit since.
            gold, silver = (handles.take(table) for table in (lakehouse.gold(game, run.aggregate.name), lakehouse.silver(game)))
            return _plan(run, known, nested, game, gold, silver)
        except (GameEventsError, DeltaError, OSError) as error:
            return error

    found = for_games(sorted(games), plan)
    plans = {game: item for game, item in found.items() if isinstance(item, GamePlan)}
    return plans, {game: str(item) for game, item in found.items() if isinstance(item, Exception)}


def _plan(
    run: GoldRun,
    known: StructType,
    nested: frozenset[str],
    game: str,
    gold: DeltaTable | None,
    silver: DeltaTable | None,
) -> GamePlan | None:
    """One game's plan; `nested`: names of bronze's nested columns.

    None if gold has all rows of silver, or silver is missing or has rows of another bronze.
    """
    batch = run.bronze.taken(silver)
    if silver is None or batch is None:
        return None
    aggregate, app = run.aggregate, silver_app(silver)
    taken = txn(gold, app)
    declared, definition = declared_in(gold, aggregate), definition_for(gold, aggregate)
    if gold is not None and definition is not None and declared is None and not run.built_in:
        raise DataError(
            f"{gold.table_uri} is there, but {aggregate} did not make it: move that table away, or rename the aggregate"
        )
    again = run.full or taken is None or declared != definition or (gold is not None and restored(gold))
    if taken == batch and not again:
        return None
    _require_columns(run, {f.name for f in silver.schema().fields} | set(known.names))
    # Arrow does not compare structs: the workers could not find such a key in the old files.
    nested |= {f.name for f in silver.schema().fields if not isinstance(f.type, PrimitiveType)}
    full = again or aggregate.mode == "recompute" or not nested.isdisjoint(aggregate.keys)
    above = 0 if full else int(taken or 0)
    old = FileSelection([], [], 0, True) if gold is None or full else selection(gold)
    new = selection(silver, "_batch", above)
    return GamePlan(game, silver, gold, app, taken, batch, full, txn(gold, Txn.COMMITS), declared, definition, above, new, old)


def _require_columns(run: GoldRun, columns: Collection[str]) -> None:
    """Raise DataError if the built-in aggregate lacks a column; Spark names those that custom aggregates lack."""
    settings = run.pipeline.settings
    missing = ", ".join(repr(c) for c in (settings.key_column, settings.time_column) if c not in columns)
    if missing and has_shipped_columns(run.aggregate):
        raise DataError(f"silver has no column {missing}: set GAME_EVENTS_KEY_COLUMN / GAME_EVENTS_TIME_COLUMN")


def key_and_time(pipeline: Pipeline) -> StructType:
    """Bronze's key and time columns: NULL for a game without rows since they exist, or with values of other types only."""
    bronze = pipeline.bronze.open()
    return known_or_meant(pipeline.settings, spark_schema(bronze.schema()) if bronze is not None else StructType())


def silver_columns(pipeline: Pipeline) -> StructType:
    """All columns that silver tables may have: a game's table lacks those of message types that the game has not sent."""
    bronze = pipeline.bronze.open()
    if bronze is None or not has_decoded_columns(bronze):
        return StructType()
    found, known = spark_schema(Schema.from_arrow(SilverInput.of(pipeline, bronze).schema)), key_and_time(pipeline)
    return StructType([*known.fields, *(f for f in found.fields if f.name not in known.names)])
