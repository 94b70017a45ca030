"""`gold_{game}_player_agg` of all games -> `gold_unified_player_agg`, one table for dashboards.

Guarantee: its rows of a game are that game's gold at one version; a refresh that changes several games is one commit. Only
games that changed are opened; the others' rows are carried over from the table itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.errors import ConflictError, GameEventsError
from game_events.extending import GoldAggregate
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.generations import BronzeIdentity
from game_events.lakehouse.commits.parallel import GAME_ATTEMPTS, for_games
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import BATCH_INFO, files_with, game_of_file, read_files, spark_schema
from game_events.lakehouse.data.staging import StagedFile
from game_events.lakehouse.data.table_writer import FileStage
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.lakehouse.tables import UNIFIED, game_of_gold
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.gold.aggregates import definition_app, definition_for, is_current, player_agg
from game_events.pipeline.reporting.report import RunReport
from game_events.spark.crashed_workers import crashes_explained
from game_events.spark.schemas import merged_columns


def gold_app(gold_id: str) -> str:
    """Name of the `txn` that holds the version of a gold table whose rows are in the unified table."""
    return Txn.GOLD.of(gold_id)


#: Up to so many games are named in a filter; more are joined, which is a Spark job of its own.
NAMED_GAMES = 200


def refresh_unified(pipeline: Pipeline, report: RunReport, *, full: bool = False) -> None:
    """Bring the unified table up to the games' gold tables; `full` rewrites it from all of them."""
    began = time.monotonic()
    bronze = pipeline.bronze.open()
    if bronze is None:
        return
    bronze_key = BronzeIdentity.of(bronze).key
    state = pipeline.progress.read(bronze_key)
    target = state.floor(Layer.GOLD)
    table = pipeline.lakehouse.table(UNIFIED)
    try:
        unread = _refresh(pipeline, state, report, full=full)
    except ConflictError:
        report.add_failed(Layer.UNIFIED, table, "rival runs won; run again")
        return
    failpoints.reach("unified_committed")
    behind = state.failed_in(Layer.GOLD)
    if not behind:
        # A floor that is gone took its failures with it: then everything is looked at again.
        kept = state.floor(Layer.UNIFIED)
        pipeline.progress.update(
            bronze_key,
            lambda now: now.done(Layer.UNIFIED, target if now.floor(Layer.UNIFIED) >= kept else 0, failed=unread, seen=state),
        )
    elif unread:
        why_noted = note(pipeline, "its gold cannot be read")
        pipeline.progress.update(bronze_key, lambda now: now.pending(Layer.UNIFIED, unread, why_noted))
    # A game that failed in gold is in the report already.
    for game, why in unread.items():
        if game not in behind:
            report.add_failed(Layer.UNIFIED, table, f"its gold cannot be read: {why}", game)
    report.add_seconds(Layer.UNIFIED, time.monotonic() - began)


@retry_on_conflict(GAME_ATTEMPTS)
def _refresh(pipeline: Pipeline, state: Progress, report: RunReport, *, full: bool) -> dict[str, str]:
    """Make the commit, if anything changed.

    Returns:
        the games whose gold could not be read, and why. Their old rows stay, except where the whole table is written again:
        there they are missing until their gold can be read.
    """
    table = pipeline.lakehouse.table(UNIFIED)
    handle = table.open()
    aggregate = player_agg(pipeline.settings)
    # A new table, or one whose rows went back, or that had other columns, has no rows to carry over.
    reshaped = handle is not None and not is_current(handle, aggregate)
    full = full or handle is None or reshaped or restored(handle)
    changed, unread = _changed(pipeline, state, aggregate, None if full else handle)
    if not changed:
        return unread
    words = pipeline.settings.words
    pipeline.on_progress(f"{table.name}: {len(changed)} {words.entities}")
    entity = pipeline.settings.entity_column
    kept = handle if handle is not None and not full and files_with(handle) else None
    schema = _columns(changed.values(), kept, entity)
    files = _stage(pipeline, changed, kept, schema)
    failpoints.reach("unified_staged")
    # Rows of unchanged games are carried over: no rival's commit may come between, whatever games it changed.
    commits = handle.transaction_version(Txn.COMMITS) if handle is not None else None
    definition = definition_for(handle, aggregate)
    made = {} if definition is None else {definition_app(aggregate.name): definition}
    plan = Commit(
        table,
        schema,
        files,
        expected={Txn.COMMITS: commits},
        advance={gold_app(str(g.metadata().id)): g.version() for g in changed.values()}
        | {Txn.COMMITS: (commits or 0) + 1}
        | made,
        table_id=str(handle.metadata().id) if handle is not None else None,
        replace=handle is not None,
        reshape=reshaped,
        info={BATCH_INFO: str(state.floor(Layer.GOLD)), "run_id": pipeline.run_id},
        description=f"One row per {words.entity} and {words.key}: all {words.entities}' aggregates in one table",
    )
    landed = commit(plan)
    report.add_landed(Layer.UNIFIED, table, landed, schema, state.floor(Layer.GOLD), new=handle is None)
    return unread


def _columns(golds: Collection[DeltaTable], unified: DeltaTable | None, entity: str) -> pa.Schema:
    """The entity's and gold's columns; structs have the members of all games, and of the rows that are carried over."""
    first = pa.schema(next(iter(golds)).schema())
    texts = dict.fromkeys(table.schema().to_json() for table in (*golds, *([unified] if unified is not None else [])))
    whole, _ = merged_columns(StructType.fromJson(json.loads(text)) for text in texts)
    types = pa.schema(Schema.from_json(whole.json()))
    found = [f.with_type(types.field(f.name).type) if f.name in types.names else f for f in first]
    return pa.schema([pa.field(entity, pa.string()), *found])


def _stage(pipeline: Pipeline, changed: dict[str, DeltaTable], kept: DeltaTable | None, schema: pa.Schema) -> list[StagedFile]:
    """Rows of the games that changed, and those of the others from a version of the unified table."""
    table, spark, entity = pipeline.lakehouse.table(UNIFIED), pipeline.spark, pipeline.settings.entity_column
    columns = spark_schema(Schema.from_arrow(schema))
    uris = [uri for found in for_games(changed, lambda game: files_with(changed[game])).values() for uri in found]
    of = game_of_file(uris, pipeline.lakehouse.called.gold_path())
    gold = StructType([f for f in columns.fields if f.name != entity])
    rows = read_files(spark, uris, gold).select(of.alias(entity), *gold.names)
    if kept is not None:
        old = read_files(spark, files_with(kept), columns)
        if len(changed) <= NAMED_GAMES:
            old = old.where(~F.col(entity).isin(*changed))
        else:
            names = F.broadcast(spark.createDataFrame(pa.table({entity: list(changed)}), f"{entity} string"))
            old = old.join(names, entity, "left_anti")
        rows = rows.unionByName(old)
    with crashes_explained(f" over rows for {table.name}"):
        return FileStage(table, schema).write(rows.coalesce(2))


def _changed(
    pipeline: Pipeline, state: Progress, aggregate: GoldAggregate, unified: DeltaTable | None
) -> tuple[dict[str, DeltaTable], dict[str, str]]:
    """Games whose gold is newer than the unified table's rows (None: all games), and games whose gold cannot be read: why."""
    pending = state.failed_in(Layer.UNIFIED)
    # Also those that progress does not know (any more): of a bronze that was replaced.
    games = sorted(pending | {g for g, batch in state.games.items() if batch > state.floor(Layer.UNIFIED)})
    if unified is None:
        # Also of games that a bronze which was replaced does not have any more: they keep their tables.
        games = sorted(state.games.keys() | {g for g in map(game_of_gold, pipeline.lakehouse.names()) if g is not None})
    changed: dict[str, DeltaTable] = {}
    unread: dict[str, str] = {}
    for game, gold in for_games(games, partial(_gold, pipeline)).items():
        if isinstance(gold, GameEventsError):
            unread[game] = str(gold)
        # Gold that does not have the columns of the settings yet has nothing to be shown.
        elif gold is not None and is_current(gold, aggregate):
            held = None if unified is None else unified.transaction_version(gold_app(str(gold.metadata().id)))
            if held != gold.version():
                changed[game] = gold
    return changed, unread


def _gold(pipeline: Pipeline, game: str) -> DeltaTable | GameEventsError | None:
    """A game's gold; None if it has none; what is wrong if it cannot be opened: the other games go on."""
    try:
        return pipeline.lakehouse.gold(game).open()
    except GameEventsError as error:
        return error
