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
    names = lakehouse.names()
    table = lakehouse.table(name)
    handle = table.open() if name in names else None
    if handle is None:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigurationError(f"there is no table {name!r} below {lakehouse.root}{hint} (`game-events tables`)")
    return table, handle
