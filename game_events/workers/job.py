"""Functions that Spark's workers run over Arrow batches, and how their results reach the driver: as MessagePack."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from game_events.lakehouse.data.columns import COORDINATES, none_if_empty
from game_events.lakehouse.data.layout import writer_of
from game_events.lakehouse.data.staging import StagedFile
from game_events.lakehouse.tables import Table
from game_events.sources.source import Reading, ReadNotes

Result = TypeVar("Result")

#: The column of results.
RESULT = "result"


def task_numbers(spark: SparkSession, tasks: int) -> DataFrame:
    """The numbers of so many tasks, each in a task of Spark's: for workers that read their rows themselves."""
    return spark.range(0, tasks, 1, tasks)


def numbers_of(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """In a worker: the numbers of its tasks, as `task_numbers` has them."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


class WorkerJob(ABC, Generic[Result]):
    """A function for `mapInArrow` that consumes a task's rows and returns one result; picklable.

    `result`: dataclass of the result, of texts, numbers, tuples, lists, sets, mappings, tables and other such dataclasses.
    """

    result: ClassVar[type]

    @abstractmethod
    def stage(self, batches: Iterable[pa.RecordBatch]) -> Result:
        """Consume a task's rows, in a worker."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: one row for each task."""
        result = msgspec.msgpack.encode(self.stage(batches), enc_hook=_to_plain)
        yield pa.RecordBatch.from_pydict({RESULT: pa.array([result], pa.binary())})

    def collect(self, rows: DataFrame) -> list[Result]:
        """Run the job over the rows; one result for each task."""
        decoder = _decoder(self.result)
        return [decoder.decode(result) for (result,) in rows.mapInArrow(self, f"{RESULT} BINARY").collect()]


@cache
def _decoder(kind: type[Result]) -> msgspec.msgpack.Decoder[Result]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_plain)


def _to_plain(value: object) -> object:
    """What msgspec cannot write by itself: tables, and numbers of numpy."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, pa.Table):
        raise NotImplementedError(type(value))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value)
    return bytes(sink.getvalue())


def _from_plain(kind: Any, value: Any) -> object:  # noqa: ANN401 - any type
    if get_origin(kind) is Counter:
        return Counter(msgspec.convert(value, dict[get_args(kind)[0], int]))  # type: ignore[misc]
    return pa.ipc.open_stream(pa.py_buffer(value)).read_all()


@dataclass(frozen=True)
class StagedFiles:
    """What one worker wrote."""

    files: list[StagedFile]


@dataclass(frozen=True)
class FileStage(WorkerJob[StagedFiles]):
    """Writes rows to files of one table; picklable.

    `headers`: column in which empty lists become NULL again (`spark_files.travelling`).
    """

    result: ClassVar[type] = StagedFiles
    table: Table
    schema: pa.Schema
    headers: str | None = None

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagedFiles:
        """Write the rows."""
        writer = writer_of(self.table, self.schema)
        for batch in batches:
            rows = pa.Table.from_batches([batch]).select(self.schema.names).cast(self.schema)
            if self.headers is not None:
                index = rows.schema.get_field_index(self.headers)
                rows = rows.set_column(index, rows.schema.field(index), none_if_empty(rows.column(index)))
            writer.write(rows)
        return StagedFiles(writer.close())

    def write(self, rows: DataFrame) -> list[StagedFile]:
        """Run the job; the files of all workers."""
        return [file for result in self.collect(rows) for file in result.files]


@dataclass(frozen=True)
class Coordinates:
    """Where the records of a reading's tasks are; picklable."""

    COLUMNS: ClassVar[str] = "_kafka_topic_id string, _kafka_partition int, _kafka_offset bigint"
    reading: Reading

    def rows(self, spark: SparkSession) -> DataFrame:
        """The coordinates, which workers read."""
        return task_numbers(spark, self.reading.tasks).mapInArrow(self, self.COLUMNS)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: numbers of tasks -> coordinates of their records."""
        for task in numbers_of(batches):
            for batch in self.reading.batches(task, ReadNotes()):
                places = [batch.column(name.removeprefix("_kafka_")) for name in COORDINATES]
                yield pa.RecordBatch.from_arrays(places, list(COORDINATES))
