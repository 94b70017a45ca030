"""Worker jobs without Spark: in this process, with their results through Arrow as Spark brings them back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from game_events.sources.source import Reading, ReadNotes
from game_events.workers.job import Result, WorkerJob


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
        return [tuple(row.values()) for batch in self._batches for row in batch.to_pylist()]


def run(job: WorkerJob[Result], batches: Iterable[pa.RecordBatch]) -> Result:
    """The result of one task."""
    (found,) = job.collect(Rows(batches))  # type: ignore[arg-type]
    return found


@dataclass(frozen=True)
class ReadByHand(Reading):
    """Batches that a test has made, by task; picklable."""

    found: Sequence[Sequence[pa.RecordBatch]]

    @property
    def tasks(self) -> int:
        """Number of the tasks."""
        return len(self.found)

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Those of a task."""
        yield from self.found[task]


def task_numbers(*tasks: int) -> list[pa.RecordBatch]:
    """The numbers of tasks, as Spark gives them to a worker."""
    return [pa.RecordBatch.from_pydict({"id": list(tasks)})]
