"""Partial rows of the built-in aggregate: what a task's rows add to gold, by game and key; and their merge with old rows.

Guarantee: for the types that `PartialAggregate.fits` takes, merging partial rows gives the rows that Spark's aggregate of the
same events has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.data.columns import TIME
from game_events.lakehouse.data.staging import StagedWriter
from game_events.workers.job import WorkerJob, numbers_of
from game_events.workers.results import FanOutResult
from game_events.workers.rows import OldRows

#: Partial rows of a task at most: past that they are dropped, and gold reads silver's files.
MOST_ROWS = 200_000


#: Rows of which at least half must have another one's key: else aggregating them here saves nothing.
MANY_ROWS = 50_000


#: Types of keys that Arrow groups, and of times that it compares, as Spark does: no floating-point numbers, no structs.
TIMES = (TIME, pa.int64())


KEYS = (pa.string(), pa.bool_(), *TIMES)


GAME = "game"
KEY = "key"
COUNT = "count"
FIRST = "first"
LAST = "last"


@dataclass(frozen=True)
class PartialAggregate:
    """The columns of the events from which partial rows are made; picklable."""

    game: str
    key: str
    time: str

    def fits(self, schema: pa.Schema) -> bool:
        """Whether the columns are there, with types for which Arrow does what Spark does."""
        if not {self.game, self.key, self.time} <= set(schema.names):
            return False
        key = schema.field(self.key).type
        time = schema.field(self.time).type
        return schema.field(self.game).type == pa.string() and key in KEYS and time in TIMES


class PartialRows:
    """The partial rows of one task, which are bounded."""

    def __init__(self, aggregate: PartialAggregate) -> None:
        self._aggregate = aggregate
        self._parts: list[pa.Table] | None = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Aggregate rows of events; all partial rows are dropped where there are too many."""
        if self._parts is None:
            return
        columns = [rows.column(name) for name in (self._aggregate.game, self._aggregate.key, self._aggregate.time)]
        events = pa.Table.from_arrays(columns, [GAME, KEY, FIRST])
        counted = events.group_by([GAME, KEY], use_threads=False).aggregate([([], "count_all"), (FIRST, "min"), (FIRST, "max")])
        counted = counted.rename_columns([GAME, KEY, COUNT, FIRST, LAST])
        self._parts.append(counted)
        self._rows += counted.num_rows
        if self._rows > MOST_ROWS:
            self._parts = [merged_partials(self._parts, (GAME, KEY))]
            self._rows = self._parts[0].num_rows
        if self._rows > MOST_ROWS or (rows.num_rows >= MANY_ROWS and 2 * counted.num_rows > rows.num_rows):
            self._parts = None

    def tables(self) -> list[pa.Table]:
        """One table of game, key, count, first, last; none if the rows were dropped, or there are none."""
        return [merged_partials(self._parts, (GAME, KEY))] if self._parts else []


def merged_partials(parts: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Partial rows with one row for each value of the key columns; the other columns are `COUNT`, `FIRST`, `LAST`.

    NULL is a key; a time that is NULL in every row stays NULL.
    """
    rows = pa.concat_tables(parts).group_by(list(keys), use_threads=False)
    return rows.aggregate([(COUNT, "sum"), (FIRST, "min"), (LAST, "max")]).rename_columns([*keys, COUNT, FIRST, LAST])


@dataclass(frozen=True)
class GoldMerge(WorkerJob[FanOutResult]):
    """Merges partial rows with old ones and writes each game's file; picklable.

    Attributes:
        old: the games' old rows, with gold's columns.
        rows: partial rows of all games, with the names of gold's columns; a key more than once.
        parts: game -> start and length of its partial rows.
        tasks: the games of each task.
    """

    result: ClassVar[type] = FanOutResult
    old: OldRows
    rows: pa.Table
    parts: Mapping[str, tuple[int, int]]
    tasks: Sequence[Sequence[str]]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FanOutResult:
        """Write the files of the games of these tasks."""
        result = FanOutResult()
        for number in numbers_of(batches):
            for game in self.tasks[number]:
                result.write_alone(game, self.old.lakehouse.gold(game), partial(self._write, result, game))
        return result

    def _write(self, result: FanOutResult, game: str) -> None:
        lakehouse = self.old.lakehouse
        schema = self.old.schema
        new = self.rows.slice(*self.parts[game])
        writer = StagedWriter(lakehouse.gold(game), schema, game, short_lived=True)
        changed = [new]
        if game in self.old.files:
            for rows, renewed in self.old.matched(game, new.select(self.old.keys)):
                changed.append(rows.filter(renewed))
                writer.write(rows.filter(pc.invert(renewed)))
        partial_rows = [rows.rename_columns([KEY, COUNT, FIRST, LAST]) for rows in changed]
        writer.write(merged_partials(partial_rows, (KEY,)).rename_columns(schema.names).cast(schema))
        result.files[game] = writer.close()
