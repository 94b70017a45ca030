"""Worker that writes the rows of a table that is not split by game to Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Row

from game_events.lakehouse.data.staging import StagedFile, StagedWriter, report
from game_events.lakehouse.event_columns import none_if_empty
from game_events.lakehouse.tables import Table


@dataclass(frozen=True)
class FileStage:
    """Table and columns of the files; picklable.

    Attributes:
        headers: column in which empty lists become NULL again (`event_columns.travelling`).
    """

    table: Table
    schema: pa.Schema
    headers: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: consumes the rows, yields the report (`REPORT_SCHEMA`)."""
        writer = StagedWriter(self.table, self.schema)
        for batch in batches:
            rows = pa.Table.from_batches([batch]).select(self.schema.names).cast(self.schema)
            if self.headers is not None:
                at = rows.schema.get_field_index(self.headers)
                rows = rows.set_column(at, rows.schema.field(at), none_if_empty(rows.column(at)))
            writer.write(rows)
        yield report(("file", f.to_json()) for f in writer.close())


def staged_files(rows: Iterable[Row]) -> list[StagedFile]:
    """The files in the workers' reports."""
    return [StagedFile.from_json(r["body"]) for r in rows]
