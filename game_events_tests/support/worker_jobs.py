"""Worker jobs without Spark: in this process, with their results through Arrow as Spark brings them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from game_events.lakehouse.data.worker_job import Result, WorkerJob


def spark_row(value: Any) -> Any:
    """A value of Arrow's `to_pylist` as Spark's `collect` returns it: structs are tuples."""
    if isinstance(value, dict):
        return tuple(map(spark_row, value.values()))
    return list(map(spark_row, value)) if isinstance(value, list) else value


class Rows:
    """As much of a DataFrame as a worker job needs, all rows in one task."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches

    def coalesce(self, _: int) -> Rows:
        """The same rows."""
        return self

    def mapInArrow(self, job: WorkerJob[Any], _: Any) -> Rows:  # noqa: N802 - Spark's name
        """The worker, here and now."""
        return Rows(job(iter(self._batches)))

    def collect(self) -> list[Any]:
        """The rows."""
        return [spark_row(row) for batch in self._batches for row in batch.to_pylist()]


def run(job: WorkerJob[Result], batches: Iterable[pa.RecordBatch]) -> Result:
    """The result of one task."""
    (found,) = job.collect(Rows(batches))  # type: ignore[arg-type]
    return found
