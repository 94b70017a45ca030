"""Views of message types: the rows of a type in a game's silver table, with that type's columns alone.

They are in `game-events sql`, and in catalogs (`CATALOG_VIEWS`), whose SQL quotes names and texts in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deltalake import DeltaTable

from game_events.config.type_names import SEPARATOR, TYPE_MARK, of_type, type_name
from game_events.decoding.columns import level_of
from game_events.lakehouse.data.columns import MESSAGE_TYPE, column_map
from game_events.lakehouse.duckdb_connection import identifier, text
from game_events.lakehouse.tables import Lakehouse, Table, called_in_silver, game_of_silver, silver_name


@dataclass(frozen=True)
class Dialect:
    """How an SQL writes names of columns, texts, and names of tables."""

    name: Callable[[str], str]
    text: Callable[[str], str]
    table: Callable[[str], str]


DUCKDB = Dialect(identifier, text, identifier)


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

    @property
    def key(self) -> str:
        """The view's key, as if it were a table."""
        return silver_name(of_type(game_of_silver(self.table.key) or "", self.message_type))

    def query(self, handle: DeltaTable, full_names: Iterable[str], sql: Dialect = DUCKDB) -> str | None:
        """The SELECT of the view; `full_names`: of the types in the table. None: this one is not among them."""
        of_this = sorted(full for full in full_names if type_name(full) == self.message_type)
        if not of_this:
            return None
        names = [field.name for field in handle.schema().fields]
        owners = column_map(handle).owners
        own = {column for key, column in owners.items() if level_of(key)[0] in of_this}
        # Of a type whose fields are under another name, as with titles of JSON schemas, all columns.
        others = set(owners.values()) - own if own else set()
        columns = ", ".join(sql.name(name) for name in names if name not in others)
        wanted = f"{MESSAGE_TYPE} IN ({', '.join(map(sql.text, of_this))})"
        if self.table.by is not None and self.table.part is not None:  # a table of all games
            wanted += f" AND {sql.name(self.table.by)} = {sql.text(self.table.part)}"
        return f"SELECT {columns} FROM {sql.table(self.table.name)} WHERE {wanted}"  # noqa: S608 - quoted
