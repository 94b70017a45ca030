"""Tables of message types beside a game's own one (`SILVER_PER=entity_and_type`): where they are, and where their rows start.

A game stays one: its own table, which may be empty, says up to which batch all of its tables are complete, and is committed
last. A crash before that leaves tables of types ahead of it; their rows of these batches are left out when the game is staged
again. All tables of a game have one incarnation: in a replacement those of the types are first, too, so one that is of another
incarnation tells that it was not finished.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import (
    ROW_COUNTERS,
    BronzeIdentity,
    Txn,
    counter,
    incarnation,
    restored,
    txns,
    types_digest,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.silver.stage import GameStart
from game_events.workers.results import FanOutResult


@dataclass(frozen=True)
class TypesOfGames:
    """The tables of message types that there are, as one look at the folders has them.

    `listed`: game -> what they are called. `retired`: they are of other settings, and are emptied.
    """

    pipeline: Pipeline
    bronze: BronzeIdentity
    listed: Mapping[str, list[str]]
    retired: bool = False

    @classmethod
    def of(cls, pipeline: Pipeline, bronze: BronzeIdentity, *, retired: bool) -> TypesOfGames | None:
        """Those of now; None, without a look, where there cannot be any."""
        if pipeline.settings.type_tables is None and not retired:
            return None
        return cls(pipeline, bronze, pipeline.lakehouse.type_tables(always=retired), retired)

    def started(self, start: GameStart, game: str, staged: FanOutResult | None) -> GameStart:
        """The start of a game, with that of the tables of its message types.

        | what they are like | then |
        |---|---|
        | of the incarnation of the game's own table, and not restored | rows up to their own batch are left out |
        | any is of another one, or of other contents of bronze, or was restored or deleted | all tables are replaced |

        `staged`: of a pass over all games: only tables that it has rows of are opened, unless all are replaced.
        """
        listed = self.listed.get(game, [])
        if not listed and not counter(start.handle, Txn.TYPES):
            return start
        every = start.replace or start.judge_again or self.retired
        is_lost = False
        if counter(start.handle, Txn.TYPES) != types_digest(listed):
            # Also folders that are no tables yet: an object store lists those of a first write.
            there = self._opened(listed)
            listed = list(there)
            is_lost = self._is_any_lost(start, there)
        had_rows = set(listed) if every or staged is None else staged.types.get(game, frozenset())
        types = self._opened([name for name in listed if name in had_rows])
        whole = every or is_lost or any(self._is_odd(start, table) for table in types.values())
        if whole:
            types = self._opened(listed)
            for name, table in types.items():
                self.pipeline.lakehouse.silver(name).writable(table, replaced=True)
        of_rows = (Txn.INCARNATION, Txn.ERASURES, Txn.ROWS_EXPIRED, *ROW_COUNTERS)
        needed = (self.bronze.app, self.bronze.erased_app, *of_rows)
        for table in types.values():
            txns(table, needed)  # kept, as of the game's own table
        reached = {name: self.bronze.taken(table) or 0 for name, table in types.items()}
        begin = 0 if whole else start.read_after
        return replace(
            start,
            read_after=begin,
            replace=start.handle is not None and begin == 0,
            types=types,
            renews_types=whole,
            listed_types=listed,
            ahead={} if whole else {name: batch for name, batch in reached.items() if batch > begin},
            furthest=max(reached.values(), default=0),
        )

    def _opened(self, names: Collection[str]) -> dict[str, DeltaTable]:
        tables = {name: self.pipeline.tables.open(self.pipeline.lakehouse.silver(name)) for name in names}
        return {name: table for name, table in tables.items() if table is not None}

    def _is_odd(self, start: GameStart, table: DeltaTable) -> bool:
        """Whether rows cannot be added to a table, or it was replaced without the game's own one."""
        other = incarnation(table) != incarnation(start.handle)
        return other or self.bronze.taken(table) is None or restored(table)

    def _is_any_lost(self, start: GameStart, tables: Mapping[str, DeltaTable]) -> bool:
        """Whether a table is gone that the game's own one knows.

        A crash before the commit of the latter may have left tables that it does not know: with one version, of later batches.
        """
        if start.handle is None:
            return False
        taken = {name: self.bronze.taken(table) or 0 for name, table in tables.items()}
        left = {name for name, table in tables.items() if not table.version() and taken[name] > start.read_after}
        return counter(start.handle, Txn.TYPES) != types_digest(tables.keys() - left)


def open_types(
    pipeline: Pipeline, bronze: BronzeIdentity, silver: DeltaTable, listed: Collection[str]
) -> dict[str, DeltaTable] | None:
    """The tables of a game's message types, opened after its own one, `silver`; None: not all are as that one says.

    `listed`: what they are called, by a look at the folders before.
    """
    if not pipeline.lakehouse.per_type:
        return {}
    there = {name: pipeline.tables.open_to_read(pipeline.lakehouse.silver(name)) for name in listed}
    tables: dict[str, DeltaTable] = {name: table for name, table in there.items() if table is not None}
    upto = bronze.taken(silver) or 0
    fits = all(incarnation(table) == incarnation(silver) and (bronze.taken(table) or 0) <= upto for table in tables.values())
    return tables if fits and types_digest(tables) == counter(silver, Txn.TYPES) else None
