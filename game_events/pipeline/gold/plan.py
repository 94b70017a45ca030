"""Plans of gold's refresh: from which silver rows to which version each game's aggregate is brought. Needs no Spark.

A refresh is `plan_games` (tables' logs), `execute.execute` (one Spark job, writes files), and a commit for each game
(`commit_of`). Only plans go from one step to the next.
"""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from game_events.decoding.core.kept_columns import is_of_any_kind
from game_events.errors import DataError
from game_events.extending import PLAYER_AGG, GoldAggregate
from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.evolution import changed_types
from game_events.lakehouse.commits.incarnations import BronzeIdentity, silver_app
from game_events.lakehouse.commits.parallel import for_games, guarded
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.data.snapshot import BATCH_INFO, FileSelection, selection
from game_events.lakehouse.data.spark_files import spark_schema
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.lakehouse.handle import of_columns
from game_events.lakehouse.tables import names_of, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import declared_in, definition_for, has_shipped_columns
from game_events.pipeline.gold.null_values import key_and_time_kept
from game_events.pipeline.silver.source import SilverInput

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
    new: FileSelection
    old: FileSelection
    same_keys: FileSelection | None = None


def plan_games(run: GoldRun, games: Collection[str]) -> tuple[dict[str, GamePlan], dict[str, str]]:
    """The plans of games that have to change, and failed game -> reason."""
    bronze, known = run.pipeline.open_bronze(), key_and_time(run.pipeline).names
    # Arrow does not compare structs: the workers could not find such a key in the old files. Of bronze's columns, too: the rows
    # of a game's table that lacks a column are read with it.
    nested = _nested(bronze)
    found = for_games(sorted(games), guarded(lambda game: _plan(run, known, nested, game)))
    plans = {game: item for game, item in found.items() if isinstance(item, GamePlan)}
    return plans, {game: item for game, item in found.items() if isinstance(item, str)}


def _plan(run: GoldRun, known: Collection[str], nested: frozenset[str], game: str) -> GamePlan | None:
    """One game's plan; `known`: names of `key_and_time`; `nested`: names of bronze's nested columns.

    None if gold has all rows of silver, or silver is missing or has rows of another bronze.
    """
    aggregate, handles, lakehouse, settings = run.aggregate, run.pipeline.handles, run.pipeline.lakehouse, run.pipeline.settings
    # In this order: gold that followed a change of silver between the two reads has made a commit since.
    gold, silver = (handles.take(table) for table in (lakehouse.gold(game, aggregate.name), lakehouse.silver(game)))
    batch = run.bronze.taken(silver)
    if silver is None or batch is None:
        return None
    app = silver_app(silver)
    taken = txn(gold, app)
    declared, definition = declared_in(gold, aggregate), definition_for(gold, aggregate)
    if gold is not None and definition is not None and declared is None and not run.built_in:
        raise DataError(
            f"{gold.table_uri} is there, but {aggregate} did not make it: move that table away, or rename the aggregate"
        )
    again = run.full or taken is None or declared != definition or (gold is not None and restored(gold))
    if taken == batch and not again:
        return None
    there = names_of(silver) | set(known)
    missing = ", ".join(repr(c) for c in (settings.key_column, settings.time_column) if c not in there)
    if missing and has_shipped_columns(aggregate):  # Spark names those that custom aggregates lack
        raise DataError(f"silver has no column {missing}: set GAME_EVENTS_KEY_COLUMN / GAME_EVENTS_TIME_COLUMN")
    full = again or aggregate.mode == "recompute" or not (nested | _nested(silver)).isdisjoint(aggregate.keys)
    above = 0 if full else int(taken or 0)
    old = FileSelection("", ()) if gold is None or full else selection(gold)
    new = selection(silver, above)
    same_keys = selection(silver) if aggregate.mode == "by_key" and not full else None
    # Read now: during a long job the log may lose what the commit needs.
    commits = txn(gold, Txn.COMMITS)
    return GamePlan(game, silver, gold, app, taken, batch, full, commits, above, new, old, same_keys)


def _nested(table: DeltaTable | None) -> frozenset[str]:
    """Names of a table's nested columns."""
    return of_columns(table, _nested_names) if table is not None else frozenset()


def _nested_names(table: DeltaTable) -> frozenset[str]:
    return frozenset(f.name for f in table.schema().fields if not isinstance(f.type, PrimitiveType))


def commit_of(run: GoldRun, plan: GamePlan, schema: pa.Schema, files: list[StagedFile]) -> Commit:
    """The commit of a plan and its staged files: they replace the aggregate that the plan was made from.

    Raises:
        DataError: the aggregate gives other types than the table has; the files are deleted.
    """
    aggregate, gold, table = run.aggregate, plan.gold, run.pipeline.lakehouse.gold(plan.game, run.aggregate.name)
    declared, definition = declared_in(gold, aggregate), definition_for(gold, aggregate)
    # A change of the setting asks for other columns, as a full refresh does; a declaration in code may change types unnoticed.
    asked = run.full or (run.built_in and declared != definition)
    other = changed_types(gold, schema) if gold is not None and definition is not None and not asked else []
    if other:
        discard(table, files)
        raise DataError(
            f"{table.name}: {aggregate} gives other types than the table has: {'; '.join(other)}. Whoever reads the table "
            f"may not expect that: rename the columns, or refresh {aggregate.asset} fully"
        )
    # Two runs may have planned from the same batch of a silver table with rows replaced in between: one of them commits.
    expected: dict[str, int | None] = {plan.app: plan.taken, Txn.COMMITS: plan.commits}
    advance = {plan.app: plan.batch, Txn.COMMITS: (plan.commits or 0) + 1}
    if definition is not None:
        # A run with another declaration must not be merged with.
        app = Txn.AGGREGATE.of(aggregate.name)
        expected[app], advance[app] = declared, definition
    words = run.pipeline.settings.names
    of = f"{words.entity.capitalize()} {plan.game}" if table.part is None else f"All {words.entities}"
    return Commit(
        table,
        schema,
        files,
        expected=expected,
        advance=advance,
        table_id=table_id(gold),
        follows=gold,
        # A restore leaves every `txn` as it is; a full refresh is right after any.
        seen=None if plan.full or gold is None else gold.version(),
        replace=plan.full and gold is not None,
        reshape=plan.full,  # all rows are new: columns may go
        # Without a new row of this game its files stay.
        rewritten=frozenset(plan.old.paths if files else ()),
        info={BATCH_INFO: str(plan.batch), "run_id": run.pipeline.run_id}
        | ({"definition": aggregate.definition} if aggregate.definition else {}),
        description=f"{of}: {aggregate.description}"[:1_000],
    )


def key_and_time(pipeline: Pipeline) -> StructType:
    """Bronze's key and time columns: NULL for a game without rows since they exist, or with values of other types only."""
    bronze = pipeline.open_bronze()
    columns = spark_schema(bronze.schema()) if bronze is not None else StructType()
    found = []
    for kept in key_and_time_kept(pipeline.settings).values():
        if kept.column in columns.names:
            found.append(columns[kept.column])
        elif kept.kind in _TYPES and any(is_of_any_kind(name, kept.column) for name in columns.names):
            found.append(StructField(kept.column, _TYPES[kept.kind]))  # other types only in bronze
    return StructType(found)


def silver_columns(pipeline: Pipeline) -> StructType:
    """All columns that silver tables may have: a game's table lacks those of message types that the game has not sent."""
    bronze = pipeline.open_bronze()
    if bronze is None or not has_decoded_columns(bronze):
        return StructType()
    found, known = spark_schema(Schema.from_arrow(SilverInput.of(pipeline, bronze).schema)), key_and_time(pipeline)
    return StructType([*known.fields, *(f for f in found.fields if f.name not in known.names)])
