"""Functions that Spark's workers run over Arrow batches, and their results as Arrow structs.

A result travels as bytes of Arrow's stream: Spark would make a row of its own of each part of it, and Python objects of these.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from game_events.lakehouse.data.columns import COORDINATES, none_if_empty
from game_events.lakehouse.data.staging import StagedFile, StagedWriter
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
        codec = _codec(self.result)
        result = pa.Table.from_pylist([codec.encode(self.stage(batches))], pa.schema(codec.type))
        yield pa.RecordBatch.from_pydict({RESULT: pa.array([_ipc(result)], pa.binary())})

    def collect(self, rows: DataFrame) -> list[Result]:
        """Run the job over the rows; one result for each task."""
        codec = _codec(self.result)
        rows_of_tasks = rows.mapInArrow(self, f"{RESULT} BINARY").collect()
        return [codec.decode(row) for (data,) in rows_of_tasks for row in _table(data).to_pylist()]


class _Codec(NamedTuple):
    """A type of Python in Arrow: `decode` takes what Arrow's `to_pylist` returns."""

    type: pa.DataType
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


_PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}

_SIMPLE = {
    **{hint: _Codec(kind, lambda value: value, lambda value: value) for hint, kind in _PLAIN.items()},
    pa.Table: _Codec(pa.binary(), _ipc, _table),
    # a schema's id or GUID
    int | str: _Codec(pa.string(), str, lambda text: int(text) if text.isdecimal() else text),
}


@cache
def _codec(hint: Any) -> _Codec:  # noqa: ANN401 - any type
    origin = get_origin(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if NoneType in get_args(hint):
        return _optional(_codec(get_args(hint)[0]))
    if origin is None:
        return _of_fields(_fields(hint), hint)
    if issubclass(origin, Mapping):
        return _of_mapping(origin, get_args(hint))
    if origin is tuple and get_args(hint)[-1] is not Ellipsis:
        return _of_fields({f"_{n}": part for n, part in enumerate(get_args(hint))}, lambda *values: values)
    item = _codec(get_args(hint)[0])
    return _Codec(pa.list_(item.type), lambda v: [item.encode(i) for i in v], lambda v: origin(item.decode(i) for i in v))


def _optional(some: _Codec) -> _Codec:
    return _Codec(
        some.type,
        lambda value: None if value is None else some.encode(value),
        lambda value: None if value is None else some.decode(value),
    )


def _of_mapping(made: Callable[[dict[Any, Any]], Any], args: tuple[Any, ...]) -> _Codec:
    """A list of pairs, not Arrow's map: Spark's does not take every key. A counter's values are numbers."""
    key, value = args if len(args) == 2 else (*args, int)
    pairs = _codec(list[tuple[key, value]])  # type: ignore[valid-type]
    return _Codec(pairs.type, lambda mapping: pairs.encode(mapping.items()), lambda rows: made(dict(pairs.decode(rows))))


def _of_fields(hints: Mapping[str, Any], made: Callable[..., Any]) -> _Codec:
    """A struct: of a dataclass, a named tuple or a tuple."""
    parts = {name: _codec(part) for name, part in hints.items()}

    def encode(value: Any) -> dict[str, Any]:  # noqa: ANN401
        values = value if isinstance(value, tuple) else [getattr(value, name) for name in parts]
        return {name: part.encode(v) for (name, part), v in zip(parts.items(), values, strict=True)}

    kind = pa.struct([(name, part.type) for name, part in parts.items()])
    return _Codec(kind, encode, lambda row: made(*(part.decode(row[name]) for name, part in parts.items())))


def _fields(kind: type) -> dict[str, Any]:
    """Field name -> type of a dataclass or a named tuple."""
    return {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}


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
        writer = StagedWriter(self.table, self.schema)
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
