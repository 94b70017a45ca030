"""Worker that writes the rows of a table that is not split by game to Parquet files."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame

from game_events.lakehouse.data.staging import StagedFile, StagedWriter
from game_events.lakehouse.data.worker_job import WorkerJob
from game_events.lakehouse.event_columns import none_if_empty
from game_events.lakehouse.tables import Table


@dataclass(frozen=True)
class StagedFiles:
    """What one worker wrote."""

    files: list[StagedFile]


@dataclass(frozen=True)
class FileStage(WorkerJob[StagedFiles]):
    """Writes rows to files of one table; picklable.

    `headers`: column in which empty lists become NULL again (`event_expressions.travelling`).
    """

    result: ClassVar[type] = StagedFiles
    table: Table
    schema: pa.Schema
    headers: str | None = None

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagedFiles:
        """Write the rows."""
        writer = StagedWriter(self.table, self.schema)
        for batch in batches:
            rows = pa.Table.from_batches([batch]).select(self.schema.names).cast(self.schema)
            if self.headers is not None:
                at = rows.schema.get_field_index(self.headers)
                rows = rows.set_column(at, rows.schema.field(at), none_if_empty(rows.column(at)))
            writer.write(rows)
        return StagedFiles(writer.close())

    def write(self, rows: DataFrame) -> list[StagedFile]:
        """Run the job; the files of all workers."""
        return [file for found in self.collect(rows) for file in found.files]
