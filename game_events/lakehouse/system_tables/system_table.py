"""Small tables of the project's own state, read and written by the driver with Arrow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.descriptions import COMMENT
from game_events.lakehouse.tables import Table, table_id


def schema_of(**described: tuple[pa.DataType, str]) -> pa.Schema:
    """A schema of columns with their types and comments."""
    return pa.schema([pa.field(name, kind, metadata={COMMENT: text}) for name, (kind, text) in described.items()])


@dataclass(frozen=True)
class SystemTable:
    """A table with a fixed schema; each commit compares and advances the number of commits.

    Guarantee: rows are committed to the version they were planned from, or not at all.

    `description`: Delta's description of a new table. `counter`: `txn` with the number of commits.
    """

    table: Table
    schema: pa.Schema
    description: str
    counter: Txn = Txn.COMMITS

    def read(
        self, handle: DeltaTable | None, columns: Sequence[str] | None = None, paths: Sequence[str] | None = None
    ) -> pa.Table:
        """Rows of a version (none without a table), of all files or some; columns that an older table lacks are NULL."""
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        if handle is None:
            return pa.Table.from_batches([], schema)  # for `empty_table()` Arrow imports pandas
        rows = read_arrow(self.table, handle, schema.names, paths)
        for field in schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(schema.names)

    def commit(
        self,
        handle: DeltaTable | None,
        rows: pa.Table,
        *,
        replace: bool = False,
        advance: Mapping[str, int] | None = None,
        info: Mapping[str, str] | None = None,
    ) -> Landed:
        """Append rows, or replace all rows by them; a table that does not exist is created.

        `handle`: the version that the rows were planned from, not used by others any more (`Commit.follows`); None: there was
        no table. `replace`: remove the rows of `handle`. `advance`, `info`: further ones of the commit.

        Raises:
            ConflictError: a concurrent writer committed since `handle`.
        """
        before = txn(handle, self.counter)
        return commit(
            Commit(
                self.table,
                self.schema,
                staged(self.table, rows.cast(self.schema)),
                expected={self.counter: before},
                advance={self.counter: (before or 0) + 1, **(advance or {})},
                table_id=table_id(handle),
                follows=handle,
                replace=replace,
                info=info or {},
                description=self.description,
            )
        )
