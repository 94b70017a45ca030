"""How Spark's workers read a micro-batch: tasks of the driver's plan, and the reader of each, as Arrow batches.

The driver plans ranges, Spark distributes the numbers of their tasks, and a worker reads the ranges of a task by itself: no
record becomes a row of the JVM. A task may run twice (a crashed worker, a lost executor): it gives the same records.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.lakehouse.event_columns import OWN_COLUMNS, RAW_COLUMNS, STORED_AS

Part = TypeVar("Part")
Integers = npt.NDArray[np.int64]
#: Columns of `RAW_COLUMNS` with their types.
RAW_SCHEMA = pa.schema([pa.field(name, OWN_COLUMNS.field(STORED_AS[name]).type) for name in RAW_COLUMNS])
#: Reason (`decoding.core.reasons`) and detail of rows that are no records to decode; else NULL.
WHY = (pa.field("reason", pa.string()), pa.field("detail", pa.string()))
#: Columns of every batch of records; those of files have more.
RECORD_SCHEMA = pa.schema([*RAW_SCHEMA, *WHY])
#: Records of one task: fewer tasks for small micro-batches, as each costs Spark some 50 ms.
TASK_RECORDS = 500_000
#: Records of a batch: large enough for groups of 20 schema versions.
BATCH_RECORDS = 32_768
#: Bytes of values, keys and headers of a batch: some records are megabytes.
BATCH_BYTES = 64 * 1024 * 1024


@dataclass
class ReadNotes:
    """What a reader tells besides the records.

    Attributes:
        schemas: those found in files, by GUID or id.
        incomplete: number of records that were read without what no column can hold; `examples` names some of them.
    """

    schemas: dict[int | str, RegistrySchema] = field(default_factory=dict)
    incomplete: int = 0
    examples: list[str] = field(default_factory=list)


class Reading(ABC):
    """A micro-batch, planned; picklable, as it goes to the workers.

    Guarantee asked of it: all tasks together give each record of the micro-batch once, in every attempt the same ones, and
    never fewer without an error.
    """

    @property
    @abstractmethod
    def tasks(self) -> int:
        """Number of the tasks."""

    @abstractmethod
    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """Non-empty batches of the records of a task: `RECORD_SCHEMA`, and what only files have.

        Raises:
            ConflictError: a record is gone, or others are in its place, since the micro-batch was planned.
            TransientError, ConfigurationError: the source does not answer, or refuses.
        """

    def sparing(self) -> "Reading":
        """The same records with as little memory as possible, after a worker crashed, perhaps for lack of it; slower."""
        return self


def dealt(parts: Sequence[Part], tasks: int) -> list[Sequence[Part]]:
    """The parts in so many tasks, or fewer."""
    tasks = max(1, min(tasks, len(parts)))
    return [parts[number::tasks] for number in range(tasks)]


def columns_of(rows: Mapping[str, pa.Array], count: int, schema: pa.Schema = RECORD_SCHEMA) -> pa.RecordBatch:
    """A batch of these columns; those that are not given are NULL."""
    arrays = [rows[f.name] if f.name in rows else pa.nulls(count, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class RecordBytes:
    """Sizes of records by their columns `value`, `key` and `headers`.

    Attributes:
        headers: of each record, bytes of the names and values of its headers.
        all: with value and key.
    """

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self.headers = _header_bytes(columns["headers"])
        self.all = _lengths(columns["value"]) + _lengths(columns["key"]) + self.headers


def _lengths(values: pa.Array) -> Integers:
    found: Integers = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _header_bytes(headers: pa.ListArray) -> Integers:
    """Bytes of each record's headers, names and values."""
    ends = headers.offsets.to_numpy() if len(headers) else np.zeros(1, np.int64)
    if ends[-1] == ends[0]:
        return np.zeros(len(headers), np.int64)
    items = headers.values.slice(ends[0], ends[-1] - ends[0])
    sizes = _lengths(items.field("key")) + _lengths(items.field("value"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    places = ends - ends[0]
    found: Integers = before[places[1:]] - before[places[:-1]]
    return found
