"""Rows that Spark's workers read from tables' files with Arrow, instead of rows that the JVM reads and sends to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from game_events.lakehouse.commits.parallel import ahead
from game_events.lakehouse.data.file_parts import FilePart
from game_events.lakehouse.data.snapshot import numbered_parts
from game_events.lakehouse.data.worker_job import task_numbers
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.fanout.batches import in_batches
from game_events.pipeline.quality.violations import Violations


def in_share(games: pa.ChunkedArray, share: int, shares: int) -> pa.Array:
    """Which of the rows' games are in a share; each name, NULL too, is in one."""
    codes = games.combine_chunks().dictionary_encode(null_encoding="encode")
    mine = [crc32(str(name).encode()) % shares == share for name in codes.dictionary.to_pylist()]
    return pa.array(mine, pa.bool_()).take(codes.indices)


@dataclass(frozen=True)
class FileRows:
    """The rows of files, by task; picklable.

    Attributes:
        schema: columns of the rows; what a file lacks is NULL.
        tasks: the files of each task, or of each group of `shares` tasks.
        above: only rows of later bronze batches; None: all rows.
        few: each file has few rows: in an object store several are read at the same time.
        shares: tasks that read the same files, each the rows of its share of the games.
        game_column: with `shares`: names the game.
        violations: those of silver's rules: rows have the columns of its `RuleSplit`, too. None: there are no rules.
    """

    lakehouse: Lakehouse
    schema: pa.Schema
    tasks: Sequence[Sequence[FilePart]]
    above: int | None = None
    few: bool = False
    shares: int = 1
    game_column: str = ""
    violations: Violations | None = None

    def numbers(self, spark: SparkSession) -> DataFrame:
        """The numbers of the tasks, each in a task of Spark's."""
        return task_numbers(spark, len(self.tasks) * self.shares)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: numbers of tasks -> their rows."""
        return in_batches(self.of_tasks(batches), self.schema, self.lakehouse.sizes.sent_rows)

    def of_tasks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The rows of the tasks of these numbers."""
        for group, share in (divmod(n, self.shares) for batch in batches for n in batch.column(0).to_pylist()):
            parts = self.tasks[group]
            read = (rows for tables in ahead(parts, self._whole) for rows in tables) if self.few else self._one_by_one(parts)
            for rows in read:
                later = rows if self.above is None else rows.filter(pc.greater(rows.column("_batch"), self.above))
                yield later if self.shares == 1 else later.filter(in_share(later.column(self.game_column), share, self.shares))

    def _whole(self, part: FilePart) -> list[pa.Table]:
        return list(self._rows(part))

    def _one_by_one(self, parts: Iterable[FilePart]) -> Iterator[pa.Table]:
        for part in parts:
            yield from self._rows(part)

    def _rows(self, part: FilePart) -> Iterator[pa.Table]:
        table, schema, found = self.lakehouse.table(part.table), self.schema, self.violations
        if found is not None:
            violating = found.of_file(part.path)
            schema = found.schema(schema, violating)
        groups = slice(part.number, None, part.of)
        for first, rows in numbered_parts(table, schema, [part.path], table.sizes.row_group_rows, groups):
            yield rows if found is None else found.added(rows, first, violating)
