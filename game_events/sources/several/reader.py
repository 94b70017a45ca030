"""Reads a micro-batch of several sources in a Spark worker: the tasks of each, one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from game_events.decoding.frame import named
from game_events.sources.source import Reading, ReadNotes

#: Column of the records with the name of their source.
SOURCE = pa.field("source", pa.string())


class NamedReading(NamedTuple):
    """What is read of one source; `registry`: name of its registry in ids of schemas (`frame.named`)."""

    source: str
    registry: str
    reading: Reading


@dataclass(frozen=True)
class SeveralReadings(Reading):
    """The readings of several sources."""

    of: Sequence[NamedReading]

    @property
    def parts(self) -> Sequence[Sequence[object]]:  # type: ignore[override]
        """The tasks of all sources."""
        return list(chain.from_iterable(one.reading.parts for one in self.of))

    @property
    def tasks(self) -> int:
        """Number of the tasks."""
        return sum(one.reading.tasks for one in self.of)

    def sparing(self) -> "SeveralReadings":
        """See `Reading.sparing`."""
        return SeveralReadings([one._replace(reading=one.reading.sparing()) for one in self.of])

    def batches(self, task: int, notes: ReadNotes) -> Iterator[pa.RecordBatch]:
        """The records of a task, with the name of their source; schemas that came with them are of its registry."""
        one, number = self._of_task(task)
        mine = ReadNotes()
        for batch in one.reading.batches(number, mine):
            yield batch.append_column(SOURCE, pa.repeat(pa.scalar(one.source, pa.string()), len(batch)))
        for schema_id, schema in mine.schemas.items():
            known_as = named(one.registry, schema_id)
            notes.schemas[known_as] = replace(schema, schema_id=known_as)
        notes.incomplete += mine.incomplete
        notes.examples += mine.examples

    def _of_task(self, task: int) -> tuple[NamedReading, int]:
        """The source of a task, and the task's number among its own."""
        number = task
        for one in self.of:
            if number < one.reading.tasks:
                return one, number
            number -= one.reading.tasks
        raise IndexError(task)
