"""Unified gold table: `gold_{game}_player_agg` of all games -> `gold_unified_player_agg`, one table for dashboards.

Guarantee: its rows of a game are that game's gold at one version; a refresh of several games is one commit. Only gold tables of
games that may have changed are opened; rows of the other games are carried over from the table itself.
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
from game_events.pipeline.reporting.report import RunReport, TableReport
from game_events.spark.crashed_workers import crashes_explained
from game_events.spark.schemas import merged_columns


def gold_app(gold_id: str) -> str:
    """Name of the `txn` with the version of a gold table in the unified table."""
    return Txn.GOLD.of(gold_id)


#: Games in a filter at most; more are joined, which costs a Spark job.
NAMED_GAMES = 200


def refresh_unified(pipeline: Pipeline, report: RunReport, *, full: bool = False) -> None:
    """Replace the rows of games with new gold in the unified table; `full`: the rows of all games."""
    began = time.monotonic()
    bronze = pipeline.bronze.open()
    if bronze is None:
        return
    key = BronzeIdentity.of(bronze).key
    state = pipeline.progress.read(key)
    table, behind = pipeline.lakehouse.table(UNIFIED), state.failed_in(Layer.GOLD)
    try:
        unread = _refresh(pipeline, state, report, full=full)
    except ConflictError:
        why = "commit conflict: every attempt lost to concurrent runs; run again"
        report.tables.append(TableReport(Layer.UNIFIED, table.name, table.uri, error=why))
        return
    failpoints.reach("unified_committed")
    if not behind:
        pipeline.progress.update(key, partial(_progress, state, unread))
    elif unread:
        why = note(pipeline, "its gold cannot be read")
        pipeline.progress.update(key, lambda now: now.pending(Layer.UNIFIED, unread, why))
    for game in unread.keys() - behind:  # gold has reported the others
        why = f"its gold cannot be read: {unread[game]}"
        report.tables.append(TableReport(Layer.UNIFIED, table.name, table.uri, game, error=why))
    report.seconds[Layer.UNIFIED] = report.seconds.get(Layer.UNIFIED, 0.0) + time.monotonic() - began


def _progress(seen: Progress, unread: dict[str, str], now: Progress) -> Progress:
    """The progress `now`, after a run over every game that began with the progress `seen`."""
    # If the low watermark was lost, so were the failures that it did not cover: the next run reads all games.
    kept = now.floor(Layer.UNIFIED) >= seen.floor(Layer.UNIFIED)
    return now.done(Layer.UNIFIED, seen.floor(Layer.GOLD) if kept else 0, failed=unread, seen=seen)


@retry_on_conflict(GAME_ATTEMPTS)
def _refresh(pipeline: Pipeline, state: Progress, report: RunReport, *, full: bool) -> dict[str, str]:
    """Plan, stage and commit, if any game changed.

    Returns:
        game with unreadable gold -> reason. Its old rows stay, unless the whole table is written: then they are missing until
        its gold can be read.
    """
    table, aggregate = pipeline.lakehouse.table(UNIFIED), player_agg(pipeline.settings)
    handle = table.open()
    # A new or restored table, or one with other columns, has no rows to carry over.
    reshaped = handle is not None and not is_current(handle, aggregate)
    full = full or handle is None or reshaped or restored(handle)
    changed, unread = _changed(pipeline, state, aggregate, None if full else handle)
    if not changed:
        return unread
    pipeline.on_progress(f"{table.name}: {len(changed)} {pipeline.settings.names.entities}")
    kept = handle if handle is not None and not full and files_with(handle) else None
    schema = _columns(changed.values(), kept, pipeline.settings.entity_column)
    files = _stage(pipeline, changed, kept, schema)
    failpoints.reach("unified_staged")
    versions = {gold_app(str(gold.metadata().id)): gold.version() for gold in changed.values()}
    if (definition := definition_for(handle, aggregate)) is not None:
        versions[definition_app(aggregate.name)] = definition
    batch = state.floor(Layer.GOLD)
    landed = commit(_commit_plan(pipeline, handle, schema, files, versions, batch, reshape=reshaped))
    report.add_landed(Layer.UNIFIED, table, landed, schema, batch).new = handle is None
    return unread


def _commit_plan(
    pipeline: Pipeline,
    handle: DeltaTable | None,
    schema: pa.Schema,
    files: list[StagedFile],
    versions: dict[str, int],
    batch: int,
    *,
    reshape: bool,
) -> Commit:
    """The commit that replaces all rows; `versions`: the `txn` of the games' gold tables in it, and of the definition."""
    # It fails after any concurrent commit: rows of unchanged games are carried over.
    commits = handle.transaction_version(Txn.COMMITS) if handle is not None else None
    words = pipeline.settings.names
    return Commit(
        pipeline.lakehouse.table(UNIFIED),
        schema,
        files,
        expected={Txn.COMMITS: commits},
        advance=versions | {Txn.COMMITS: (commits or 0) + 1},
        table_id=str(handle.metadata().id) if handle is not None else None,
        replace=handle is not None,
        reshape=reshape,
        info={BATCH_INFO: str(batch), "run_id": pipeline.run_id},
        description=f"One row per {words.entity} and {words.key}: all {words.entities}' aggregates in one table",
    )


def _columns(golds: Collection[DeltaTable], unified: DeltaTable | None, entity: str) -> pa.Schema:
    """The entity's column and gold's; structs have the members of all games, and of the rows that are carried over."""
    first = pa.schema(next(iter(golds)).schema())
    texts = dict.fromkeys(table.schema().to_json() for table in (*golds, *([unified] if unified is not None else [])))
    whole, _ = merged_columns(StructType.fromJson(json.loads(text)) for text in texts)
    types = pa.schema(Schema.from_json(whole.json()))
    found = [f.with_type(types.field(f.name).type) if f.name in types.names else f for f in first]
    return pa.schema([pa.field(entity, pa.string()), *found])


def _stage(pipeline: Pipeline, changed: dict[str, DeltaTable], kept: DeltaTable | None, schema: pa.Schema) -> list[StagedFile]:
    """Stage the rows of the games that changed, and of the others from a version of the unified table."""
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
    """Gold tables that are newer than their rows in the unified table (None: all), and game with unreadable gold -> reason."""
    pending = state.failed_in(Layer.UNIFIED)
    # `pending` may have games that progress does not know: of a replaced bronze.
    games = sorted(pending | {g for g, batch in state.games.items() if batch > state.floor(Layer.UNIFIED)})
    if unified is None:
        # Games of a replaced bronze keep their tables.
        games = sorted(state.games.keys() | {g for g in map(game_of_gold, pipeline.lakehouse.names()) if g is not None})
    changed: dict[str, DeltaTable] = {}
    unread: dict[str, str] = {}
    for game, gold in for_games(games, partial(_gold, pipeline)).items():
        if isinstance(gold, GameEventsError):
            unread[game] = str(gold)
        # Gold with other columns than those of the settings is not shown.
        elif gold is not None and is_current(gold, aggregate):
            held = None if unified is None else unified.transaction_version(gold_app(str(gold.metadata().id)))
            if held != gold.version():
                changed[game] = gold
    return changed, unread


def _gold(pipeline: Pipeline, game: str) -> DeltaTable | GameEventsError | None:
    """A game's gold; None if it has none; an error if it cannot be opened, which does not stop the other games."""
    try:
        return pipeline.lakehouse.gold(game).open()
    except GameEventsError as error:
        return error
