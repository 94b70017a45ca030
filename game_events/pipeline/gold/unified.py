"""Unified gold table: `gold_{game}_player_agg` of all games -> `gold_unified_player_agg`, one table for dashboards.

Guarantee: its rows of a game are that game's gold at one version; a refresh of several games is one commit. Its files are
copies of gold's files, partitioned by game: only files of gold that changed are copied, and no row is read.
"""

import json
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.sql.types import StructType

from game_events.errors import ConflictError, DataError, GameEventsError
from game_events.extending import GoldAggregate
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit, retry_on_conflict
from game_events.lakehouse.commits.evolution import changed_types
from game_events.lakehouse.commits.group import GAME_ATTEMPTS, for_games, guarded
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, restored, txn
from game_events.lakehouse.data.columns import comments_in
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import StagedFile, copied_name, copy_file, discard, name_of_copy, partition_of
from game_events.lakehouse.open_table import of_columns
from game_events.lakehouse.system_tables import Progress
from game_events.lakehouse.tables import UNIFIED, Layer, Table, files_of, game_of_gold, is_game, paths, table_id, version_of
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.gold.plan import definition_for, is_current, player_agg
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableReport
from game_events.spark.schemas import merged_columns


@dataclass(frozen=True)
class ComparedGame:
    """A game's gold that differs from its files in the unified table: files without a copy, and copies without a file."""

    gold: DeltaTable
    missing: list[str]
    outdated: frozenset[str]


@dataclass(frozen=True)
class UnifiedPlan:
    """The next version of the unified table: the games that differ.

    Attributes:
        unified: the version that it follows.
        replaced: no file stays: a full refresh, other columns, or a table without partitions, as earlier versions wrote it.
        whole: all games were compared: a commit notes it, even if none differs.
        gone: paths of files of games without gold.
        unread: game with unreadable gold -> reason.
    """

    unified: DeltaTable | None
    replaced: bool
    whole: bool
    games: Mapping[str, ComparedGame]
    gone: frozenset[str]
    unread: dict[str, str]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.games and (self.unified is None or self.replaced or not self.whole)


def gold_app(gold: DeltaTable) -> str:
    """Name of the `txn` with the version of a gold table in the unified table."""
    return Txn.GOLD.of(gold.metadata().id)


def plan_unified(pipeline: Pipeline, state: Progress, *, full: bool) -> UnifiedPlan:
    """Compare the games that may have changed; or all games, if the table's `txn` do not tell what its rows are."""
    unified = pipeline.tables.open(pipeline.lakehouse.table(UNIFIED))
    aggregate = player_agg(pipeline.settings)
    floor = state.floor(Layer.UNIFIED)
    names = state.failed_in(Layer.UNIFIED) | {game for game, batch in state.games.items() if batch > floor}
    replaced, whole = _extent(pipeline, unified, aggregate, names, full=full)
    if whole:  # games of a replaced bronze keep their gold
        names = state.games.keys() | _games_with_gold(pipeline)
    golds, unread = _opened(pipeline, aggregate, names)
    copies = _copies(pipeline, None if replaced else unified)
    compared = for_games(golds, lambda game: _compared(golds[game], unified, copies.get(game, set())))
    games = {game: differing for game, differing in compared.items() if differing is not None}
    gone = frozenset[str]()
    if whole and golds:  # without any gold the rows stay
        gone = gone.union(*(copies[game] for game in copies.keys() - golds.keys() - unread.keys()))
    return UnifiedPlan(unified, replaced, whole, games, gone, unread)


def _games_with_gold(pipeline: Pipeline) -> set[str]:
    """Games with a table of gold, by the names of the tables."""
    return {game for game in map(game_of_gold, pipeline.lakehouse.names()) if game is not None and is_game(game)}


def _opened(
    pipeline: Pipeline, aggregate: GoldAggregate, games: Collection[str]
) -> tuple[Mapping[str, DeltaTable], dict[str, str]]:
    """Game -> its gold, if that has the aggregate's definition; and game -> why it cannot be read."""
    opened = for_games(sorted(games), guarded(lambda game: pipeline.tables.open(pipeline.lakehouse.gold(game))))
    unread = {game: why for game, why in opened.items() if isinstance(why, str)}
    golds = {game: gold for game, gold in opened.items() if isinstance(gold, DeltaTable) and is_current(gold, aggregate)}
    return golds, unread


def _extent(
    pipeline: Pipeline, unified: DeltaTable | None, aggregate: GoldAggregate, changed: Collection[str], *, full: bool
) -> tuple[bool, bool]:
    if unified is None:
        return False, True
    reshaped = not is_current(unified, aggregate)
    replaced = full or reshaped or not is_partitioned(pipeline, unified)
    # It may have games that progress does not know: of a replaced bronze.
    return replaced, full or reshaped or restored(unified) or (replaced and bool(changed))


def _copies(pipeline: Pipeline, unified: DeltaTable | None) -> Mapping[str, set[str]]:
    """Game -> paths of its files in a version of the unified table; None: there is no file to keep."""
    copies = defaultdict[str, set[str]](set)
    for path in paths(unified) if unified is not None else ():
        copies[partition_of(path).get(pipeline.settings.entity_column, "")].add(path)
    return copies


def is_partitioned(pipeline: Pipeline, unified: DeltaTable) -> bool:
    """Whether the table has a partition for each game."""
    return unified.metadata().partition_columns == [pipeline.settings.entity_column]


def _compared(gold: DeltaTable, unified: DeltaTable | None, copies: Collection[str]) -> ComparedGame | None:
    """Compare a game's gold with its copies; None: the unified table has all its files, and this version by its `txn`."""
    files = {PurePosixPath(path).name: path for path in paths(gold)}
    kept = {name: path for path in copies if (name := copied_name(path)) in files}
    missing = [path for name, path in files.items() if name not in kept]
    outdated = frozenset(copies) - frozenset(kept.values())
    if not (missing or outdated) and txn(unified, gold_app(gold)) == gold.version():
        return None
    return ComparedGame(gold, missing, outdated)


def unified_columns(plan: UnifiedPlan, entity: str) -> pa.Schema:
    """The entity's column and gold's; structs have the members of all games, also of those that keep their files."""
    tables = [game.gold for game in plan.games.values()]
    if plan.unified is not None and not plan.replaced:
        tables.append(plan.unified)
    texts = list(dict.fromkeys(table.schema().to_json() for table in tables))
    whole, _ = merged_columns(StructType.fromJson(json.loads(text)) for text in texts)
    merged = pa.schema(Schema.from_json(whole.json()))
    types: dict[str, pa.DataType] = dict(zip(merged.names, merged.types, strict=True))
    fields: dict[str, pa.Field] = {}
    for text in reversed(texts):
        for field in pa.schema(Schema.from_json(text)):
            types.setdefault(field.name, field.type)  # where types differ, those of the table, the last one of all, stay
            fields[field.name] = field
    columns = [field.with_type(types[name]) for name, field in fields.items() if name != entity]
    return pa.schema([pa.field(entity, pa.string()), *columns])


def refresh_unified(pipeline: Pipeline, report: RunReport, *, full: bool = False) -> None:
    """Replace the rows of games with new gold in the unified table; `full`: the rows of all games."""
    began = time.monotonic()
    bronze = pipeline.open_bronze()
    if bronze is None:
        return
    key = BronzeIdentity.of(bronze).key
    state = pipeline.progress.read(key)
    if pipeline.lakehouse.is_partitioned:
        _report_gold(pipeline, report, state)
        if state.floor(Layer.UNIFIED) != state.floor(Layer.GOLD) or state.failed_in(Layer.UNIFIED):
            pipeline.progress.update(key, partial(_progress, state, {}))
        return
    table = pipeline.lakehouse.table(UNIFIED)
    behind = state.failed_in(Layer.GOLD)
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


def _report_gold(pipeline: Pipeline, report: RunReport, state: Progress) -> None:
    """Report the table of the layout `partitioned`, which is gold itself, if this run has committed to it."""
    games = [entry for entry in report.of(Layer.GOLD) if entry.error is None]
    table = pipeline.lakehouse.table(UNIFIED)
    handle = pipeline.tables.peek(table) if games else None
    if handle is None:
        return
    landed = _landed(table, handle, games)
    new = any(entry.new for entry in games) and handle.version() == 0
    report.add_landed(Layer.UNIFIED, table, landed, pa.schema(handle.schema()), state.floor(Layer.GOLD), new=new)


def _landed(table: Table, handle: DeltaTable, games: Collection[TableReport]) -> Landed:
    """The table as the commits of these games have left it, as of one commit."""
    stored = files_of(handle)
    return Landed(
        table.name,
        handle.version(),
        str(table_id(handle)),
        sum(entry.rows for entry in games),
        len(games),
        sum(file.rows or 0 for file in stored),
        sum(file.size for file in stored),
        comments=of_columns(handle, comments_in),
    )


def _progress(seen: Progress, unread: dict[str, str], now: Progress) -> Progress:
    """The progress `now`, after a run over every game that began with the progress `seen`."""
    # If the low watermark was lost, so were the failures that it did not cover: the next run reads all games.
    kept = now.floor(Layer.UNIFIED) >= seen.floor(Layer.UNIFIED)
    return now.done(Layer.UNIFIED, seen.floor(Layer.GOLD) if kept else 0, failed=unread, seen=seen)


@retry_on_conflict(GAME_ATTEMPTS)
def _refresh(pipeline: Pipeline, state: Progress, report: RunReport, *, full: bool) -> dict[str, str]:
    """Plan, copy and commit, if any game changed; ConflictError: another commit to the table, or a game's gold, came first.

    Returns game with unreadable gold -> reason. Its old rows stay, unless the whole table is replaced: then they are missing
    until its gold can be read.
    """
    plan = plan_unified(pipeline, state, full=full)
    table = pipeline.lakehouse.table(UNIFIED)
    if plan.is_empty:
        pipeline.tables.publish(table, plan.unified)
        return plan.unread
    pipeline.on_progress(f"{table.name}: {len(plan.games)} {pipeline.settings.names.entities}")
    schema = unified_columns(plan, pipeline.settings.entity_column)
    files, failed = _copied(pipeline, plan, schema)
    failpoints.reach("unified_staged")
    plan = replace(plan, games={game: compared for game, compared in plan.games.items() if game not in failed})
    if not plan.is_empty:
        batch = state.floor(Layer.GOLD)
        landed = commit(_commit_plan(pipeline, plan, schema, files, batch))
        report.add_landed(Layer.UNIFIED, table, landed, schema, batch, new=plan.unified is None)
        if plan.unified is not None and not is_partitioned(pipeline, plan.unified):
            raise ConflictError(f"{table.name} was partitioned, which may have replaced a concurrent commit: compare again")
        pipeline.tables.publish(table, landed.handle)
    for game, compared in plan.games.items():
        pipeline.tables.publish(pipeline.lakehouse.gold(game), compared.gold)
    return plan.unread | failed


def _copied(pipeline: Pipeline, plan: UnifiedPlan, schema: pa.Schema) -> tuple[list[StagedFile], dict[str, str]]:
    copied = for_games(plan.games, lambda name: _copied_game(pipeline, name, plan.games[name], schema))
    files = [file for result in copied.values() if isinstance(result, list) for file in result]
    for result in copied.values():
        if isinstance(result, ConflictError):
            discard(pipeline.lakehouse.table(UNIFIED), files)
            raise result
    return files, {name: str(error) for name, error in copied.items() if isinstance(error, GameEventsError)}


def _copied_game(pipeline: Pipeline, name: str, game: ComparedGame, schema: pa.Schema) -> list[StagedFile] | GameEventsError:
    lakehouse = pipeline.lakehouse
    files = list[StagedFile]()
    gold = lakehouse.gold(name)
    unified = lakehouse.table(UNIFIED)
    other = changed_types(game.gold, schema)
    if other:
        return DataError(f"{gold.name} has other types than the table of all games: {'; '.join(other)}. Refresh gold fully")
    try:
        for path in game.missing:
            copy = name_of_copy(path, f"{schema.names[0]}={name}")
            files.append(copy_file(lakehouse, gold, path, unified, copy))
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        discard(unified, files)
        try:
            now = gold.open()
        except GameEventsError as second:
            return second
        if (table_id(now), version_of(now)) != (table_id(game.gold), game.gold.version()):
            return ConflictError(f"{gold.name}: its files were replaced while they were copied")
        what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        return DataError(f"{gold.uri}/{path} {what}: refresh this gold table fully, which writes its files again")
    return files


def _commit_plan(pipeline: Pipeline, plan: UnifiedPlan, schema: pa.Schema, files: list[StagedFile], batch: int) -> Commit:
    """The commit of a plan; it fails after any concurrent commit to the table."""
    unified = plan.unified
    aggregate = player_agg(pipeline.settings)
    words = pipeline.settings.names
    commits = txn(unified, Txn.COMMITS)
    versions = {gold_app(game.gold): game.gold.version() for game in plan.games.values()}
    if (definition := definition_for(unified, aggregate)) is not None:
        versions[Txn.AGGREGATE.of(aggregate.name)] = definition
    info = {"run_id": pipeline.run_id}
    if unified is None or is_partitioned(pipeline, unified):
        # Without it the commit counts as unchecked: all games are compared again.
        info[BATCH_INFO] = str(batch)
    return Commit(
        pipeline.lakehouse.table(UNIFIED),
        schema,
        files,
        expect_transactions={Txn.COMMITS: commits},
        set_transactions=versions | {Txn.COMMITS: (commits or 0) + 1},
        table_id=table_id(unified),
        from_table=unified,
        # A restore leaves every `txn` as it is, and may bring back old rows of games that are not in the plan.
        from_version=None if plan.replaced else version_of(unified),
        replace=plan.replaced,
        reshape=plan.replaced,
        rewritten=plan.gone.union(*(game.outdated for game in plan.games.values())),
        partition_by=(pipeline.settings.entity_column,),
        info=info,
        description=f"One row per {words.entity} and {words.key}: all {words.entities}' aggregates in one table",
    )
