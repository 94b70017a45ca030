"""Names of tables as users type them."""

from __future__ import annotations

import difflib

from deltalake import DeltaTable

from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse, Table


def existing_table(lakehouse: Lakehouse, name: str) -> tuple[Table, DeltaTable]:
    """A table that is there, and a handle on its newest version.

    Raises:
        ConfigurationError: there is none of that name; the message has those that are like it.
    """
    tables = {table.name: table for table in map(lakehouse.table, lakehouse.names())}
    names, table = list(tables), tables.get(name)
    handle = table.open() if table is not None else None
    if table is None or handle is None:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigurationError(f"there is no table {name!r} below {lakehouse.root}{hint} (`game-events tables`)")
    return table, handle
