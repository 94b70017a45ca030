"""Views of message types in `game-events sql`: the rows of a type in a game's silver table, with that type's columns alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deltalake import DeltaTable

from game_events.config.type_names import SEPARATOR, TYPE_MARK, type_name
from game_events.decoding.columns import level_of
from game_events.lakehouse.data.columns import MESSAGE_TYPE, column_map
from game_events.lakehouse.duckdb_connection import identifier, text
from game_events.lakehouse.tables import Lakehouse, Table, called_in_silver


@dataclass(frozen=True)
class TypeView:
    """A view over a game's silver table; `message_type`: as the names of tables have it."""

    table: Table
    message_type: str

    @classmethod
    def named(cls, lakehouse: Lakehouse, name: str) -> TypeView | None:
        """The view of a name (`silver_rummy__level_start_events`); None: it is none of a view."""
        called = (called_in_silver(lakehouse.key(name)) or "").replace(TYPE_MARK, SEPARATOR)
        game, separator, message_type = called.rpartition(SEPARATOR)
        return cls(lakehouse.silver(game), message_type) if separator and game and message_type else None

    @property
    def types_query(self) -> str:
        """The SELECT of the full names of all types in the table."""
        return f"SELECT DISTINCT {MESSAGE_TYPE} FROM {identifier(self.table.name)}"  # noqa: S608 - quoted

    def query(self, handle: DeltaTable, full_names: Iterable[str]) -> str | None:
        """The SELECT of the view; `full_names`: of the types in the table. None: this one is not among them."""
        of_type = sorted(full for full in full_names if type_name(full) == self.message_type)
        if not of_type:
            return None
        names = [field.name for field in handle.schema().fields]
        owners = column_map(handle).owners
        own = {column for key, column in owners.items() if level_of(key)[0] in of_type}
        # Of a type whose fields are under another name, as with titles of JSON schemas, all columns.
        others = set(owners.values()) - own if own else set()
        columns = ", ".join(identifier(name) for name in names if name not in others)
        wanted = ", ".join(map(text, of_type))
        return f"SELECT {columns} FROM {identifier(self.table.name)} WHERE {MESSAGE_TYPE} IN ({wanted})"  # noqa: S608 - quoted
