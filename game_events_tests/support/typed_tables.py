"""A silver table with rows of several message types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from game_events.decoding.columns import ColumnMap, Field
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.group import commit_group
from game_events.lakehouse.data.columns import bronze_schema, column_map
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Lakehouse, table_id

#: Transaction id with the batch.
APP = "bronze:b"

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
    batch = 1 + ((handle.transaction_version(APP) if handle is not None else None) or 0)
    rows = [{"_message_type": kind, "game_name": game, "_batch": batch, **values} for kind, values in types.items()]
    writer = StagedWriter(table, schema, game)
    writer.write(pa.Table.from_pylist(rows, schema=schema).select(writer.schema.names))
    before = {APP: batch - 1 or None}
    plan = Commit(table, schema, writer.close(), before, {APP: batch}, table_id=table_id(handle), from_table=handle)
    if table.part is None:
        commit(plan)
        return
    (outcome,) = commit_group({game: plan}).values()
    assert isinstance(outcome, Landed), outcome
