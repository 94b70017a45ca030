"""Rows that Spark's workers read from tables' files with Arrow, instead of rows that the JVM reads and sends to them.

Those of a table that a job replaces are merged or, as Arrow, copied into its new file. Rows of small tables pass through Spark
all the same: copying them would read the file a second time.

Partial rows of the built-in aggregate: what a task's rows add to gold, by game and key. Guarantee: for the types that
`PartialAggregate.fits` takes, merging partial rows gives the rows that Spark's aggregate of the same events has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from game_events.config.type_names import TypeTables
from game_events.lakehouse.commits.group import ahead
from game_events.lakehouse.data.columns import MESSAGE_TYPE, TIME
from game_events.lakehouse.data.reading import FilePart, numbered_parts, read_parts
from game_events.lakehouse.data.staging import StagedWriter, buffer_bytes
from game_events.lakehouse.tables import Lakehouse
from game_events.workers.job import WorkerJob, numbers_of, task_numbers
from game_events.workers.results import FanOutResult
from game_events.workers.rules import Violations


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
        violations: those of silver's rules: rows have the columns of its `RuleOutcome`, too. None: there are no rules.
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

    def rows(self, spark: SparkSession, columns: StructType) -> DataFrame:
        """The rows, which workers send to Spark; `columns`: `schema` as Spark has it."""
        return self.numbers(spark).mapInArrow(self, columns)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: numbers of tasks -> their rows."""
        return in_batches(self.of_tasks(batches), self.schema, self.lakehouse.sizes.sent_rows)

    def of_tasks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The rows of the tasks of these numbers."""
        for number in numbers_of(batches):
            group, share = divmod(number, self.shares)
            parts = self.tasks[group]
            read = ahead(parts, lambda part: list(self._rows(part))) if self.few else map(self._rows, parts)
            for rows in chain.from_iterable(read):
                later = rows if self.above is None else rows.filter(pc.greater(rows.column("_batch"), self.above))
                yield later if self.shares == 1 else later.filter(in_share(later.column(self.game_column), share, self.shares))

    def _rows(self, part: FilePart) -> Iterator[pa.Table]:
        table = self.lakehouse.table(part.table)
        schema = self.schema
        violations = self.violations
        if violations is not None:
            violating = violations.of_file(part.path)
            schema = violations.schema(schema, violating)
        groups = slice(part.number, None, part.of)
        for first, rows in numbered_parts(table, schema, [part.path], table.sizes.row_group_rows, groups):
            yield rows if violations is None else violations.added(rows, first, violating)


@dataclass(frozen=True)
class OldRows:
    """The files of the games' tables before the job, and the columns that identify a row; picklable.

    Attributes:
        keys: columns that identify a row; none: each table has one row.
        schema: columns of the tables; a file's missing ones are NULL.
        files: game -> paths of the files below the table's folder.
        small: games of which `with_old` gives all old rows.
    """

    lakehouse: Lakehouse
    aggregate: str
    game_column: str
    keys: tuple[str, ...]
    schema: pa.Schema
    files: Mapping[str, Sequence[str]]
    small: frozenset[str] = frozenset()

    def added_to(self, rows: DataFrame) -> DataFrame:
        """New rows, and old ones, which workers send to Spark (`with_old`)."""
        return rows.mapInArrow(self.with_old, rows.schema)

    def without_small(self) -> OldRows:
        """Those of the other games, some of whose rows `with_old` leaves out."""
        return replace(self, files={game: files for game, files in self.files.items() if game not in self.small})

    def with_old(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: the new rows, and the old rows with the same keys, or all old rows of a game with new ones.

        All new rows of a game are in one task.
        """
        new: list[pa.RecordBatch] = []
        schema = pa.schema([])
        games = pa.array(self.files, pa.string())
        for batch in batches:
            yield batch
            schema = batch.schema
            wanted = pc.is_in(batch.column(self.game_column), value_set=games)
            # A copy: the columns of a batch that Spark has sent share one buffer.
            new.append(batch.select([self.game_column, *self.keys]).filter(wanted))
        if not new:
            return
        keys = pa.Table.from_batches(new)
        order, parts = parts_by_game(keys, self.game_column)
        keys = keys.select(self.keys).take(order)
        yield from in_batches(
            self._to_merge({game: keys.slice(*part) for game, part in parts.items()}), schema, self.lakehouse.sizes.sent_rows
        )

    def _to_merge(self, keys: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        """With the column of the game: the old rows of games with these keys; of small games all."""

        def named(game: str, rows: pa.Table) -> pa.Table:
            return rows.add_column(0, self.game_column, pa.repeat(pa.scalar(game), rows.num_rows))

        small = [game for game in keys if game in self.small]
        for game, tables in zip(small, ahead(small, lambda game: list(self._rows(game))), strict=True):
            yield from (named(game, rows) for rows in tables)
        for game in keys.keys() - self.small:
            yield from (named(game, rows.filter(has_new)) for rows, has_new in self.matched(game, keys[game]))

    def others(self, game: str, keys: pa.Table) -> Iterator[pa.Table]:
        """The old rows of a game with other keys than these."""
        for rows, has_new in self.matched(game, keys):
            yield rows.filter(pc.invert(has_new)) if pc.any(has_new).as_py() else rows

    def matched(self, game: str, keys: pa.Table) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The old rows of a game, part by part, and which of them have one of these keys."""
        for rows in self._rows(game):
            yield rows, has_key(rows, keys)

    def _rows(self, game: str) -> Iterator[pa.Table]:
        return read_parts(self.lakehouse.gold(game, self.aggregate), self.schema, self.files[game])


def parts_by_game(
    rows: pa.Table, game_column: str, within: npt.NDArray[np.intp] | None = None
) -> tuple[pa.Array, dict[Any, tuple[int, int]]]:
    """The order of the rows by game, and game -> start and length of its part in this order.

    `within`: the order of a game's rows; None: as they are.
    """
    numbers, names = _encoded(rows.column(game_column))
    # numpy sorts 16-bit numbers in linear time.
    short = numbers.astype(np.min_scalar_type(len(names)))
    order = np.argsort(short, kind="stable") if within is None else within[np.argsort(short[within], kind="stable")]
    bounds = np.searchsorted(numbers[order], np.arange(len(names) + 1)).tolist()
    return pa.array(order), {name: (bounds[n], bounds[n + 1] - bounds[n]) for n, name in enumerate(names)}


def parts_by_type(
    rows: pa.Table, order: pa.Array, games: Mapping[str, tuple[int, int]], types: TypeTables
) -> Iterator[tuple[str | None, pa.Array, dict[str, tuple[int, int]]]]:
    """Each message type that has tables, None for all others: its rows by game, and game -> start and length of its part.

    `order`, `games`: of `parts_by_game`; rows of other games are left out.
    """
    written, full_names = _encoded(rows.column(MESSAGE_TYPE))
    names = [types.name(full_name) for full_name in full_names]
    known: list[str | None] = [None, *sorted({name for name in names if name is not None})]
    number_of = {name: number for number, name in enumerate(known)}
    by_game = order.to_numpy()
    taken = np.concatenate([by_game[start : start + length] for start, length in games.values()])
    game_numbers = np.repeat(np.arange(len(games)), [length for _, length in games.values()])
    type_numbers = np.array([number_of[name] for name in names])[written][taken]
    codes = type_numbers * len(games) + game_numbers
    within = np.argsort(codes.astype(np.min_scalar_type(len(games) * len(known))), kind="stable")
    bounds = np.searchsorted(codes[within], np.arange(len(games) * len(known) + 1))
    for number, name in enumerate(known):
        of_type = bounds[number * len(games) : (number + 1) * len(games) + 1]
        begin = int(of_type[0])
        lengths = np.diff(of_type).tolist()
        parts = {game: (int(start) - begin, n) for game, start, n in zip(games, of_type, lengths, strict=False) if n}
        if parts:
            yield name, pa.array(taken[within[begin : of_type[-1]]]), parts


def _encoded(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.integer[Any]], list[Any]]:
    """The number of each value, and the values, NULL too."""
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    return codes.indices.to_numpy(), codes.dictionary.to_pylist()


def has_key(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """Which rows have one of these keys; NULL equals NULL, as in Spark's `groupBy`.

    Each further column makes numbers of the pairs of the number so far and its own.
    """
    if not keys.column_names:
        return pa.repeat(pa.scalar(True), rows.num_rows)
    first, *others = keys.column_names
    if not others:
        return pc.is_in(rows.column(first), value_set=keys.column(first).combine_chunks())
    key_numbers, row_numbers = _numbers(keys.column(first), rows.column(first))
    for name in others:
        wanted, asked = _numbers(keys.column(name), rows.column(name))
        size = keys.num_rows
        key_numbers, row_numbers = _numbers(
            pc.add(pc.multiply(key_numbers, size), wanted), pc.add(pc.multiply(row_numbers, size), asked)
        )
    return pc.is_valid(row_numbers)


def _numbers(keys: pa.ChunkedArray, values: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Both as numbers of the keys' distinct values; a value that is none of these is NULL."""
    distinct = keys.unique()
    return pc.index_in(keys, value_set=distinct).cast(pa.int64()), pc.index_in(values, value_set=distinct).cast(pa.int64())


#: Bytes of rows that go to Spark together.
BATCH_BYTES = 16 * 1024 * 1024


def in_batches(parts: Iterable[pa.Table], schema: pa.Schema, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of small tables, about so many together, in exactly this schema: Spark compares types and nullability."""
    joined = list[pa.Table]()
    rows = 0
    size = 0
    for part in parts:
        if part.num_rows:
            joined.append(part)
            rows += part.num_rows
            size += buffer_bytes(part)
        if rows >= most_rows or size >= BATCH_BYTES:
            yield from _joined(joined, schema)
            joined = []
            rows = 0
            size = 0
    if joined:
        yield from _joined(joined, schema)


def _joined(parts: list[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in pa.concat_tables(parts).combine_chunks().to_batches():
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


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
        game, key, time = (schema.field(name).type for name in (self.game, self.key, self.time))
        return game == pa.string() and key in KEYS and time in TIMES


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
