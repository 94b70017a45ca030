"""Plans of the unified table's refresh: which files of gold are copied, and which of the table's own are removed."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.sql.types import StructType

from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.data.file_copies import copied_name
from game_events.lakehouse.data.staging import partition_of
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.lakehouse.tables import UNIFIED, game_of_gold, is_game, paths
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import is_current, player_agg
from game_events.pipeline.silver.starts import guarded
from game_events.spark.schemas import merged_columns


@dataclass(frozen=True)
class ComparedGame:
    """A game's gold compared with its files in the unified table.

    Attributes:
        missing: paths of gold's files without a copy.
        outdated: paths, in the unified table, of files that are no copy of one of gold's.
        same_version: the unified table has this version of gold by its `txn`.
    """

    gold: DeltaTable
    missing: list[str]
    outdated: frozenset[str]
    same_version: bool

    @property
    def differs(self) -> bool:
        """Whether the unified table has to change."""
        return bool(self.missing or self.outdated) or not self.same_version


@dataclass(frozen=True)
class UnifiedPlan:
    """The next version of the unified table.

    Attributes:
        unified: the version that it follows; None: there is no table.
        replaced: no file stays: a full refresh, other columns, or a table without partitions, as earlier versions wrote it.
        whole: all games were compared: a commit notes it, even if none differs.
        games: those that differ.
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
    unified, aggregate = pipeline.handles.take(pipeline.lakehouse.table(UNIFIED)), player_agg(pipeline.settings)
    reshaped = unified is not None and not is_current(unified, aggregate)
    replaced = unified is not None and (full or reshaped or not is_partitioned(pipeline, unified))
    # `pending` may have games that progress does not know: of a replaced bronze.
    names = state.failed_in(Layer.UNIFIED) | {g for g, batch in state.games.items() if batch > state.floor(Layer.UNIFIED)}
    whole = full or unified is None or reshaped or restored(unified) or (replaced and bool(names))
    if whole:
        # Games of a replaced bronze keep their tables.
        names = state.games.keys() | {g for g in map(game_of_gold, pipeline.lakehouse.names()) if g is not None and is_game(g)}
    found = for_games(sorted(names), guarded(lambda game: pipeline.handles.take(pipeline.lakehouse.gold(game))))
    golds = {g: gold for g, gold in found.items() if isinstance(gold, DeltaTable) and is_current(gold, aggregate)}
    unread = {game: why for game, why in found.items() if isinstance(why, str)}
    copies: dict[str, set[str]] = defaultdict(set)
    for path in paths(unified) if unified is not None and not replaced else ():
        copies[partition_of(path).get(pipeline.settings.entity_column, "")].add(path)
    games = for_games(golds, lambda game: _compared(golds[game], unified, copies.get(game, set())))
    # Without any gold the rows stay.
    lost = copies.keys() - golds.keys() - unread.keys() if whole and golds else ()
    gone = {path for game in lost for path in copies[game]}
    return UnifiedPlan(
        unified, replaced, whole, {g: found for g, found in games.items() if found.differs}, frozenset(gone), unread
    )


def is_partitioned(pipeline: Pipeline, unified: DeltaTable) -> bool:
    """Whether the table has a partition for each game."""
    return unified.metadata().partition_columns == [pipeline.settings.entity_column]


def _compared(gold: DeltaTable, unified: DeltaTable | None, copies: Collection[str]) -> ComparedGame:
    """Compare a game's gold with its copies."""
    files = {PurePosixPath(path).name: path for path in paths(gold)}
    kept = {name: path for path in copies if (name := copied_name(path)) in files}
    missing = [path for name, path in files.items() if name not in kept]
    same_version = txn(unified, gold_app(gold)) == gold.version()
    return ComparedGame(gold, missing, frozenset(copies) - frozenset(kept.values()), same_version)


def unified_columns(plan: UnifiedPlan, entity: str) -> pa.Schema:
    """The entity's column and gold's; structs have the members of all games, also of those that keep their files."""
    tables = [game.gold for game in plan.games.values()]
    tables += [plan.unified] if plan.unified is not None and not plan.replaced else []
    texts = list(dict.fromkeys(table.schema().to_json() for table in tables))
    whole, _ = merged_columns(StructType.fromJson(json.loads(text)) for text in texts)
    types = pa.schema(Schema.from_json(whole.json()))
    schemas = [pa.schema(Schema.from_json(text)) for text in reversed(texts)]
    fields = {f.name: f for schema in schemas for f in schema if f.name != entity}
    # Where types differ, those of the table stay.
    known = [types if name in types.names else next(s for s in schemas if name in s.names) for name in fields]
    found = [f.with_type(schema.field(f.name).type) for f, schema in zip(fields.values(), known, strict=True)]
    return pa.schema([pa.field(entity, pa.string()), *found])
