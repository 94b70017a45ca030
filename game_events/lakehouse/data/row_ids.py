"""Rows that are written again keep their number, and the version that they came with, in tables with row tracking.

Both are in columns of the files that no reader shows, under names that the table's properties have.

Source: Delta Lake protocol, "Row Tracking".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.data.reading import numbered_parts, read_parts
from game_events.lakehouse.entries import LogState, asked_of, read_state
from game_events.lakehouse.open_table import of_columns
from game_events.lakehouse.tables import Table


@dataclass(frozen=True)
class RowIds:
    """Numbers and versions of the rows of a version's files; `columns`: their names in files."""

    columns: tuple[str, str]
    state: LogState

    @property
    def fields(self) -> list[pa.Field]:
        """The columns."""
        return [pa.field(name, pa.int64()) for name in self.columns]

    def kept(self, path: str, first: int, rows: pa.Table) -> pa.Table:
        """Rows of a file with both columns, which they may have already; `first`: place of the first one in the file."""
        base, since = self.state.files.get(path, (None, None))
        places = pa.array(np.arange(first, first + rows.num_rows)) if base is not None else None
        numbers = pc.add(places, base) if places is not None else pa.nulls(rows.num_rows, pa.int64())
        versions = pa.repeat(pa.scalar(since, pa.int64()), rows.num_rows)
        for field, values in zip(self.fields, (numbers, versions), strict=True):
            place = rows.schema.get_field_index(field.name)
            if place < 0:
                rows = rows.append_column(field, values)
            else:
                rows = rows.set_column(place, field, pc.coalesce(rows.column(place), values))
        return rows


def row_ids(table: Table, handle: DeltaTable) -> RowIds | None:
    """Those of a version; None: its rows need not keep any."""
    asked = of_columns(handle, asked_of)
    if asked is None or asked.id_columns is None:
        return None
    return RowIds(asked.id_columns, read_state(table.uri, handle.version()))


def read_with_ids(
    table: Table, schema: pa.Schema, paths: Iterable[str], batch_rows: int, ids: RowIds | None
) -> Iterator[pa.Table]:
    """As `read_parts`; `ids`: `schema` has their columns, too."""
    if ids is None:
        yield from read_parts(table, schema, paths, batch_rows)
        return
    for path in paths:
        for first, rows in numbered_parts(table, schema, [path], batch_rows):
            yield ids.kept(path, first, rows)
