"""Which columns a game's table has: those of the message types that the game has sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from game_events.decoding.core.column_map import ColumnMap, level_of


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
