"""Unified gold table: `gold_{game}_player_agg` of all games -> `gold_unified_player_agg`, one table for dashboards.

Guarantee: its rows of a game are that game's gold at one version; a refresh of several games is one commit. Its files are
copies of gold's files, partitioned by game: only files of gold that changed are copied, and no row is read.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from game_events.errors import ConflictError, DataError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.evolution import changed_types
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.parallel import GAME_ATTEMPTS, for_games
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.data.file_copies import copy_file
from game_events.lakehouse.data.snapshot import BATCH_INFO
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.lakehouse.tables import UNIFIED, table_id, version_of
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.gold.aggregates import definition_app, definition_for, player_agg
from game_events.pipeline.gold.unified_plan import (
    ComparedGame,
    UnifiedPlan,
    gold_app,
    is_partitioned,
    plan_unified,
    unified_columns,
)
from game_events.pipeline.reporting.report import RunReport


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
        report.add_failed(Layer.UNIFIED, table, why)
        return
    failpoints.reach("unified_committed")
    if not behind:
        pipeline.progress.update(key, partial(_progress, state, unread))
    elif unread:
        why = note(pipeline, "its gold cannot be read")
        pipeline.progress.update(key, lambda now: now.pending(Layer.UNIFIED, unread, why))
    for game in unread.keys() - behind:  # gold has reported the others
        why = f"its gold cannot be read: {unread[game]}"
        report.add_failed(Layer.UNIFIED, table, why, game)
    report.add_seconds(Layer.UNIFIED, time.monotonic() - began)


def _progress(seen: Progress, unread: dict[str, str], now: Progress) -> Progress:
    """The progress `now`, after a run over every game that began with the progress `seen`."""
    # If the low watermark was lost, so were the failures that it did not cover: the next run reads all games.
    kept = now.floor(Layer.UNIFIED) >= seen.floor(Layer.UNIFIED)
    return now.done(Layer.UNIFIED, seen.floor(Layer.GOLD) if kept else 0, failed=unread, seen=seen)


@retry_on_conflict(GAME_ATTEMPTS)
def _refresh(pipeline: Pipeline, state: Progress, report: RunReport, *, full: bool) -> dict[str, str]:
    """Plan, copy and commit, if any game changed.

    Returns:
        game with unreadable gold -> reason. Its old rows stay, unless the whole table is replaced: then they are missing until
        its gold can be read.
    """
    plan = plan_unified(pipeline, state, full=full)
    table, batch = pipeline.lakehouse.table(UNIFIED), state.floor(Layer.GOLD)
    if plan.is_empty:
        pipeline.handles.keep(table, plan.unified)
        return plan.unread
    replaced_layout = plan.unified is not None and not is_partitioned(pipeline, plan.unified)
    pipeline.on_progress(f"{table.name}: {len(plan.games)} {pipeline.settings.names.entities}")
    schema = unified_columns(plan, pipeline.settings.entity_column)
    files, failed = _copied(pipeline, plan.games, schema)
    failpoints.reach("unified_staged")
    plan = replace(plan, games={game: found for game, found in plan.games.items() if game not in failed})
    if not plan.is_empty:
        landed = commit(_commit_plan(pipeline, plan, schema, files, batch))
        report.add_landed(Layer.UNIFIED, table, landed, schema, batch, new=plan.unified is None)
        if replaced_layout:
            raise ConflictError(f"{table.name} was partitioned, which may have replaced a concurrent commit: compare again")
        pipeline.handles.keep(table, landed.handle)
    for game, found in plan.games.items():
        pipeline.handles.keep(pipeline.lakehouse.gold(game), found.gold)
    return plan.unread | failed


def _copied(
    pipeline: Pipeline, games: Mapping[str, ComparedGame], schema: pa.Schema
) -> tuple[list[StagedFile], dict[str, str]]:
    """Copies of the missing files of gold; game without copies -> reason.

    Raises:
        ConflictError: gold was replaced meanwhile.
    """
    results = for_games(games, lambda name: _copied_game(pipeline, name, games[name], schema))
    files = [file for result in results.values() if isinstance(result, list) for file in result]
    for result in results.values():
        if isinstance(result, ConflictError):
            discard(pipeline.lakehouse.table(UNIFIED), files)
            raise result
    return files, {name: str(error) for name, error in results.items() if isinstance(error, GameEventsError)}


def _copied_game(pipeline: Pipeline, name: str, game: ComparedGame, schema: pa.Schema) -> list[StagedFile] | GameEventsError:
    lakehouse, files = pipeline.lakehouse, list[StagedFile]()
    gold, unified = lakehouse.gold(name), lakehouse.table(UNIFIED)
    other = changed_types(game.gold, schema)
    if other:
        return DataError(f"{gold.name} has other types than the table of all games: {'; '.join(other)}. Refresh gold fully")
    try:
        for path in game.missing:
            files.append(copy_file(lakehouse, gold, path, unified, f"{schema.names[0]}={name}"))
    except FileNotFoundError:
        discard(unified, files)
        try:
            now = gold.open()
        except GameEventsError as second:
            return second
        if (table_id(now), version_of(now)) != (table_id(game.gold), game.gold.version()):
            return ConflictError(f"{gold.name}: its files were replaced while they were copied")
        return DataError(f"{gold.uri}/{path} is missing: refresh this gold table fully, which writes its files again")
    return files


def _commit_plan(pipeline: Pipeline, plan: UnifiedPlan, schema: pa.Schema, files: list[StagedFile], batch: int) -> Commit:
    """The commit of a plan; it fails after any concurrent commit to the table."""
    unified, aggregate, words = plan.unified, player_agg(pipeline.settings), pipeline.settings.names
    commits = txn(unified, Txn.COMMITS)
    versions = {gold_app(game.gold): game.gold.version() for game in plan.games.values()}
    if (definition := definition_for(unified, aggregate)) is not None:
        versions[definition_app(aggregate.name)] = definition
    info = {"run_id": pipeline.run_id}
    if unified is None or is_partitioned(pipeline, unified):
        # Without it the commit counts as unchecked: all games are compared again.
        info[BATCH_INFO] = str(batch)
    return Commit(
        pipeline.lakehouse.table(UNIFIED),
        schema,
        files,
        expected={Txn.COMMITS: commits},
        advance=versions | {Txn.COMMITS: (commits or 0) + 1},
        table_id=table_id(unified),
        follows=unified,
        # A restore leaves every `txn` as it is, and may bring back old rows of games that are not in the plan.
        seen=None if plan.replaced else version_of(unified),
        replace=plan.replaced,
        reshape=plan.replaced,
        rewritten=plan.gone.union(*(game.outdated for game in plan.games.values())),
        partition_by=(pipeline.settings.entity_column,),
        info=info,
        description=f"One row per {words.entity} and {words.key}: all {words.entities}' aggregates in one table",
    )
