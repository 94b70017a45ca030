"""Names of tables as users type them."""

from __future__ import annotations

from deltalake import DeltaTable

from game_events.lakehouse.tables import Lakehouse, Table, no_table


def existing_table(lakehouse: Lakehouse, name: str) -> tuple[Table, DeltaTable]:
    """A table that is there, and a handle on its newest version.

    Raises:
        ConfigurationError: there is none of that name; the message has those that are like it.
    """
    tables = {table.name: table for table in map(lakehouse.table, lakehouse.names())}
    table = tables.get(name)
    handle = table.open() if table is not None else None
    if table is None or handle is None:
        raise no_table(lakehouse, name, tables)
    return table, handle
