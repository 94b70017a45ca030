"""What a worker decides by a row's game: whether its name may be a game's, and which columns the game's table gets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from game_events.config.settings import Settings
from game_events.decoding.core.column_map import ColumnMap, level_of
from game_events.lakehouse.tables import is_game

#: Why a row is in no game's table.
INVALID, NOT_ALLOWED, OVER_LIMIT = "invalid", "not_allowed", "over_limit"
#: Reason for rows without a name, where not every message type is decoded: no error.
NO_NAME = "no_name"


@dataclass(frozen=True)
class Routing:
    """Rules for the names of games; picklable.

    Attributes:
        allowed: the allow list; empty: every valid name.
        only: if not None, rows of other games are skipped, neither routed nor counted.
        unnamed: reason for rows without a name.
        known: names of existing games.
        room: number of new names that may get files in one pass; None: any.
    """

    allowed: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    unnamed: str = INVALID
    known: frozenset[str] = frozenset()
    room: int | None = None

    @classmethod
    def of_all(cls, settings: Settings, known: Collection[str]) -> Routing:
        """Of every game: the known ones, and new names while there is room.

        Names of the allow list get files, or all while there is room; a worker that meets more new names gives up.
        """
        room = None if settings.games else max(0, settings.max_games - len(known))
        unnamed = NO_NAME if settings.message_types else INVALID
        return cls(frozenset(settings.games), unnamed=unnamed, known=frozenset(known), room=room)

    def refusal(self, name: object) -> str | None:
        """Why a name gets no table; None if it may."""
        if name is None:
            return self.unnamed
        if not is_game(name):
            return INVALID
        return NOT_ALLOWED if self.allowed and name not in self.allowed else None

    def takes(self, name: object, rows: int, refused: dict[str, Counter[str]]) -> bool:
        """Whether rows of this name are written; rows that belong to no game are counted: why -> name -> rows."""
        if self.only is not None and name not in self.only:
            return False  # another pass takes them
        why = self.refusal(name)
        if why is not None:
            # Invalid names together, as their number has no bound.
            refused.setdefault(why, Counter())["" if why in (INVALID, NO_NAME) else str(name)] += rows
        return why is None


@dataclass(frozen=True)
class ColumnChoice:
    """Columns that a game's table lacks until the game has sent a value for them; picklable.

    Attributes:
        together: such a column -> the columns that its first value brings: all those of its message type if no other type has
            the column, else itself.
    """

    together: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, schema: pa.Schema, columns: ColumnMap, always: Collection[str]) -> ColumnChoice | None:
        """The choice among the columns of `schema`; `always`: columns of every table. None: one message type, no choice."""
        of_type, types = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        for key, column in columns.owners.items():
            message, _ = level_of(key)
            of_type[message].add(column)
            types[column].add(message)
        if len(of_type) < 2:
            return None
        optional = [name for name in schema.names if name in types and name not in always]
        found = {name: of_type[next(iter(types[name]))] if len(types[name]) == 1 else {name} for name in optional}
        return cls({name: frozenset(columns) & frozenset(optional) for name, columns in found.items()})

    def sent(self, rows: pa.Table) -> frozenset[str]:
        """The columns that the values in these rows bring."""
        found = set[str]()
        for name, columns in self.together.items():
            if name not in found and rows.column(name).null_count < rows.num_rows:
                found |= columns
        return frozenset(found)

    def chosen(self, schema: pa.Schema, sent: Collection[str]) -> pa.Schema:
        """The columns of `schema`, in its order, without those that were not sent."""
        return pa.schema([field for field in schema if field.name not in self.together or field.name in sent])
