"""What workers read of a source, in this process and in Spark's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import Schema
from pyspark.sql import DataFrame, SparkSession

from game_events.lakehouse.data.spark_files import spark_schema
from game_events.sources.source import KAFKA, RECORD_SCHEMA, MicroBatch, Offsets, Partition, Reading, ReadNotes, Source
from game_events.workers.job import task_numbers


def rows_of(reading: Reading, notes: ReadNotes | None = None) -> list[dict[str, Any]]:
    """The rows of all tasks, sorted by topic, partition and offset."""
    noted = notes or ReadNotes()
    found = [row for task in range(reading.tasks) for batch in reading.batches(task, noted) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def records(source: Source, part: MicroBatch) -> list[dict[str, Any]]:
    """The records of a micro-batch, sorted as `rows_of`."""
    return rows_of(source.reading(part))


@dataclass(frozen=True)
class _InWorker:
    """For `mapInArrow`: numbers of tasks -> their records."""

    reading: Reading

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in batches:
            for task in numbers.column(0).to_pylist():
                yield from self.reading.batches(task, ReadNotes())


def read_by_workers(spark: SparkSession, source: Source, part: MicroBatch) -> DataFrame:
    """The records of a micro-batch, read by Spark's workers."""
    reading = source.reading(part)
    schema = spark_schema(Schema.from_arrow(RECORD_SCHEMA))
    return task_numbers(spark, reading.tasks).mapInArrow(_InWorker(reading), schema)


class ScriptedSource(Source):
    """A topic of which the test defines what is asked."""

    kind = KAFKA

    def offsets_at(self, partitions: Iterable[Partition], when: datetime) -> Offsets:  # noqa: ARG002
        raise AssertionError("the test does not ask for times")

    def reading(self, batch: MicroBatch) -> Reading:  # noqa: ARG002
        raise AssertionError("no worker reads")
