"""A silver table with rows of several message types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from game_events.decoding.columns import ColumnMap, Field
from game_events.lakehouse.data.columns import bronze_schema, column_map
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.tables import put

OWN = ("_message_type", "_batch")


def add_types(root: Path | Lakehouse, types: Mapping[str, Mapping[str, str]], game: str = "a") -> None:
    """Commit a row of each type to a game's silver: full name -> the values of its fields, besides the game's name."""
    lakehouse = root if isinstance(root, Lakehouse) else Lakehouse(str(root))
    table = lakehouse.silver(game)
    handle = table.open()
    columns = ColumnMap() if handle is None else column_map(handle)
    for kind, values in types.items():
        fields = [Field(number, name, pa.string()) for number, name in enumerate(("game_name", *values), 1)]
        columns = columns.with_message(kind, fields)
    named = {*OWN, "game_name", *(name for values in types.values() for name in values)}
    schema = pa.schema([field for field in bronze_schema(columns) if field.name in named])
    batch = 1 if handle is None else handle.version() + 2
    rows = [{"_message_type": kind, "game_name": game, "_batch": batch, **values} for kind, values in types.items()]
    put(table, pa.Table.from_pylist(rows, schema=schema))
