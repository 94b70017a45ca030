"""Rows of many games -> Parquet files of each game, in one Spark job.

Work is O(rows): no filter per game, no job per game. The workers sort what they have buffered by game, and append each game's
part to its file. Memory is bounded by the buffer, whatever share of the rows one game has.

What a worker decides by a row's game: whether its name may be a game's, and which columns the game's table gets.

Partial rows of the built-in aggregate: what a task's rows add to gold, by game and key, aggregated by Arrow.

Guarantee: for the types that `of` takes, merging partial rows gives the rows that Spark's aggregate of the same events has.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import or_
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.config.settings import Settings
from game_events.decoding.columns import ColumnMap, level_of
from game_events.errors import LostFileError, TransientError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse.commits.group import one_ahead
from game_events.lakehouse.data.columns import TIME
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, buffer_bytes, discard, remove_empty_folder
from game_events.lakehouse.data.worker_job import WorkerJob
from game_events.lakehouse.storage import explain
from game_events.lakehouse.tables import Lakehouse, Table, is_game
from game_events.pipeline.fanout.rows import FileRows, OldRows, parts_by_game
from game_events.pipeline.quality.judging import RuleSplit, Splitter
from game_events.pipeline.reporting.counts import Summed, add_counts, by_key, extend, merge, merged
from game_events.pipeline.reporting.result import RuleCounts

#: Why a row is in no game's table.
INVALID, NOT_ALLOWED, OVER_LIMIT = "invalid", "not_allowed", "over_limit"

#: Reason for rows without a name, where not every message type is decoded: no error.
NO_NAME = "no_name"


@dataclass(frozen=True)
class Routing:
    """Rules for the names of games; picklable.

    Attributes:
        allowed: the allow list; empty: every valid name.
        only: if not None, rows of other games are skipped, neither routed nor counted.
        unnamed: reason for rows without a name.
        known: names of existing games.
        room: number of new names that may get files in one pass; None: any.
    """

    allowed: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    unnamed: str = INVALID
    known: frozenset[str] = frozenset()
    room: int | None = None

    @classmethod
    def of_all(cls, settings: Settings, known: Collection[str]) -> Routing:
        """Of every game: the known ones, and new names while there is room.

        Names of the allow list get files, or all while there is room; a worker that meets more new names gives up.
        """
        room = None if settings.games else max(0, settings.max_games - len(known))
        unnamed = NO_NAME if settings.message_types else INVALID
        return cls(frozenset(settings.games), unnamed=unnamed, known=frozenset(known), room=room)

    def refusal(self, name: object) -> str | None:
        """Why a name gets no table; None if it may."""
        if name is None:
            return self.unnamed
        if not is_game(name):
            return INVALID
        return NOT_ALLOWED if self.allowed and name not in self.allowed else None

    def takes(self, name: object, rows: int, refused: dict[str, Counter[str]]) -> bool:
        """Whether rows of this name are written; rows that belong to no game are counted: why -> name -> rows."""
        if self.only is not None and name not in self.only:
            return False  # another pass takes them
        why = self.refusal(name)
        if why is not None:
            # Invalid names together, as their number has no bound.
            refused.setdefault(why, Counter())["" if why in (INVALID, NO_NAME) else str(name)] += rows
        return why is None


@dataclass(frozen=True)
class ColumnChoice:
    """Columns that a game's table lacks until the game has sent a value for them; picklable.

    Attributes:
        together: such a column -> the columns that its first value brings: all those of its message type if no other type has
            the column, else itself.
    """

    together: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, schema: pa.Schema, columns: ColumnMap, always: Collection[str]) -> ColumnChoice | None:
        """The choice among the columns of `schema`; `always`: columns of every table. None: one message type, no choice."""
        of_type, types = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        for key, column in columns.owners.items():
            message, _ = level_of(key)
            of_type[message].add(column)
            types[column].add(message)
        if len(of_type) < 2:
            return None
        optional = [name for name in schema.names if name in types and name not in always]
        found = {name: of_type[next(iter(types[name]))] if len(types[name]) == 1 else {name} for name in optional}
        return cls({name: frozenset(columns) & frozenset(optional) for name, columns in found.items()})

    def sent(self, rows: pa.Table) -> frozenset[str]:
        """The columns that the values in these rows bring."""
        found = set[str]()
        for name, columns in self.together.items():
            if name not in found and rows.column(name).null_count < rows.num_rows:
                found |= columns
        return frozenset(found)

    def chosen(self, schema: pa.Schema, sent: Collection[str]) -> pa.Schema:
        """The columns of `schema`, in its order, without those that were not sent."""
        return pa.schema([field for field in schema if field.name not in self.together or field.name in sent])


#: Partial rows of a task at most: past that they are dropped, and gold reads silver's files.
MOST_ROWS = 200_000

#: Rows of which at least half must have another one's key: else aggregating them here saves nothing.
MANY_ROWS = 50_000

#: Types of keys that Arrow groups, and of times that it compares, as Spark does: no floating-point numbers, no structs.
TIMES = (TIME, pa.int64())

KEYS = (pa.string(), pa.bool_(), *TIMES)

GAME, KEY, COUNT, FIRST, LAST = "game", "key", "count", "first", "last"


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
        key, time = schema.field(self.key).type, schema.field(self.time).type
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
        found = events.group_by([GAME, KEY], use_threads=False).aggregate([([], "count_all"), (FIRST, "min"), (FIRST, "max")])
        found = found.rename_columns([GAME, KEY, COUNT, FIRST, LAST])
        self._parts.append(found)
        self._rows += found.num_rows
        if self._rows > MOST_ROWS:
            self._parts = [merged_partials(self._parts, (GAME, KEY))]
            self._rows = self._parts[0].num_rows
        if self._rows > MOST_ROWS or (rows.num_rows >= MANY_ROWS and 2 * found.num_rows > rows.num_rows):
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


#: Rows of one task. Where its files would have fewer rows than `FILE_ROWS`, there are fewer tasks, of more rows.
TASK_ROWS, MOST_TASK_ROWS = 500_000, 2_000_000

FILE_ROWS, FEWEST_TASKS = 10_000, 2

#: With more files than this, or fewer rows in a file, the rows are shuffled by game first: each file costs 2 to 3 ms to write
#: and to read again, and a request each of an object store; each shuffled row 4 us.
MAX_FILES_UNSHUFFLED, MIN_ROWS_UNSHUFFLED = 16_384, 1_000

#: Seconds that a game's file costs to write and to read again, and a row that a worker reads and leaves to another one.
FILE_S, LEFT_ROW_S = 2e-3, 0.35e-6

#: Share of the rows of one game, times the shares of the games, up to which tasks for shares have about as much to do.
MOST_OF_ONE_GAME = 0.25

#: Parts of a game after the shuffle, so that one game with most of the rows does not land in one task.
SALTS = 4

#: Bytes of rows that are sorted at a time.
SORT_BYTES = 64 * 1024 * 1024

#: Bytes of sorted rows held by the writers together, past which every one writes its row group.
BUFFER_BYTES = 192 * 1024 * 1024


@dataclass
class FanOutResult(Summed):
    """What the workers return.

    Attributes:
        files: game -> its files.
        refused: why -> name -> rows that belong to no game.
        failed: game -> why its files could not be written; its other files must not be committed.
        rejected: game -> its files for quarantine.
        counts: game -> counts of its rows by the rules; empty without rules.
        columns: game -> the optional columns of its files; empty without a choice.
        crowded: a worker met more new names than `Routing.room`, or more games than `FanOut.most_games`: nothing was kept.
        partials: partial rows of gold, of each task (`PartialRows`).
    """

    files: dict[str, list[StagedFile]] = merged(by_key(extend), dict)
    refused: dict[str, Counter[str]] = merged(by_key(add_counts), dict)
    failed: dict[str, str] = merged(or_, dict)
    rejected: dict[str, list[StagedFile]] = merged(by_key(extend), dict)
    counts: dict[str, RuleCounts] = merged(by_key(merge), dict)
    columns: dict[str, frozenset[str]] = merged(by_key(or_), dict)
    crowded: bool = merged(or_, bool)
    partials: list[pa.Table] = merged(extend, list)

    @property
    def games(self) -> set[str]:
        """Games that had rows, rejected or not."""
        return (set(self.files) | set(self.counts)) - set(self.failed)

    def rows(self, game: str) -> int:
        """Rows that a game had, rejected or not."""
        return self.counts[game].rows if game in self.counts else sum(f.rows for f in self.files.get(game, []))

    def discard(self, table: Callable[[str], Table]) -> None:
        """Delete the files, which no commit names, and the folders of tables that were not made; `table`: of a game."""
        for game, files in self.files.items():
            discard(table(game), files)
            remove_empty_folder(table(game))


@dataclass(frozen=True)
class FanOut(WorkerJob[FanOutResult]):
    """Writes rows to files of their games' tables; picklable.

    Attributes:
        layer: silver or gold: which table of a game.
        game_column: column of the rows that names the game.
        split: treatment of rows that violate rules; None: there are no rules, every row is written to its game's files.
        aggregate: for gold: which of a game's tables.
        choice: the columns that not every game's table has; None: all tables have all of `schema`.
        source: files with the rows; None: Spark sends the rows.
        old: rows that are kept unless they have the key of a new row; all new rows of a game are in one task.
        held_bytes: bound of the memory of a task: bytes that wait for their file.
        most_games: a task with rows of more games gives up, as one with too many new names does; None: any number.
        partial: the rows are also aggregated for gold; None: they are not.
    """

    result: ClassVar[type] = FanOutResult
    lakehouse: Lakehouse
    layer: str
    game_column: str
    schema: pa.Schema
    routing: Routing = field(default_factory=Routing)
    split: RuleSplit | None = None
    aggregate: str = PLAYER_AGG
    choice: ColumnChoice | None = None
    source: FileRows | None = None
    old: OldRows | None = None
    held_bytes: int = BUFFER_BYTES
    most_games: int | None = None
    partial: PartialAggregate | None = None

    def table(self, game: str) -> Table:
        """Where a game's rows go."""
        return self.lakehouse.gold(game, self.aggregate) if self.layer == "gold" else self.lakehouse.silver(game)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FanOutResult:
        """Write the rows: the batches, or those of the files of these tasks."""
        sent = rows = iter(batches)
        if self.source is not None:
            rows = (batch for table in self.source.of_tasks(sent) for batch in table.to_batches())
        result = Stage(self).run(rows)
        deque(sent, maxlen=0)  # of a crowded pass: Spark sends the others all the same
        return result


def tasks_for(row_count: int, games: int) -> int:
    """Number of tasks for so many rows of so many games, both estimates; 0 games: unknown, or the rows are shuffled."""
    most = max(1, -(-row_count // TASK_ROWS))
    fewest = max(FEWEST_TASKS, -(-row_count // MOST_TASK_ROWS))
    return min(most, max(fewest, row_count // (games * FILE_ROWS))) if games else most


def shares_for(row_count: int, games: int, largest: float) -> int:
    """How many tasks read the same files, each for its share of the games, which have fewer and larger files then.

    `row_count`, `games`: as for `tasks_for`. `largest`: the share of the rows that one game has.
    """
    tasks = tasks_for(row_count, games)
    possible = (n for n in range(1, tasks + 1) if tasks % n == 0 and (n == 1 or n * largest <= MOST_OF_ONE_GAME))
    return min(possible, key=lambda n: tasks // n * games * FILE_S + (n - 1) * row_count * LEFT_ROW_S)


def is_shuffled(row_count: int, games: int, shares: int = 1) -> bool:
    """Whether rows of so many games are brought together by game before they are written; `shares`: see `shares_for`."""
    tasks = tasks_for(row_count, games)
    files = tasks // shares * games
    small = tasks > shares and row_count < files * MIN_ROWS_UNSHUFFLED  # else a game has one file, as after a shuffle
    return tasks > 1 and (small or files > MAX_FILES_UNSHUFFLED)


def spread(rows: DataFrame, task: FanOut, row_count: int, games: int, salt: str) -> DataFrame:
    """The rows in as many tasks as their number asks for.

    `row_count`, `games`: as for `tasks_for`. `salt`: column by which a game's rows are spread over several tasks.
    """
    if not is_shuffled(row_count, games):
        return rows.coalesce(tasks_for(row_count, games))
    keys, tasks = [F.col(task.game_column)], tasks_for(row_count, 0)
    if games < tasks * SALTS:
        keys.append(F.pmod(F.hash(salt), F.lit(SALTS)))
    return rows.repartition(tasks, *keys)


def stage(rows: DataFrame, task: FanOut) -> FanOutResult:
    """Run the job: each of the rows' tasks writes files."""
    result = FanOutResult.sum(task.collect(rows))
    if result.crowded:
        result.discard(task.table)
        if task.split is not None and task.split.quarantine is not None:
            for files in result.rejected.values():
                discard(task.split.quarantine, files)
        return FanOutResult(crowded=True)
    for game in result.failed:
        # Files of other workers; never committed, removed by maintenance.
        result.files.pop(game, None)
        result.rejected.pop(game, None)
    return result


def written_alone(result: FanOutResult, game: str, table: Table, write: Callable[[], object]) -> None:
    """Write to a game's table; an error fails that game only: it is noted in the result, and nothing more is written.

    Raises:
        OSError: the object store is unavailable, for all games.
    """
    if game in result.failed:
        return
    try:
        write()
    except LostFileError as error:
        result.failed[game] = str(error)
    except OSError as error:
        known = explain(error, table.uri)
        if isinstance(known, TransientError):
            raise
        result.failed[game] = f"its files cannot be written: {known or error}"


class Stage:
    """One task of a worker: it takes rows, and writes them; `result`: whole after `finish` or `give_up`."""

    def __init__(self, task: FanOut) -> None:
        self._task = task
        self._writers: dict[str, StagedWriter] = {}
        self.result = FanOutResult()
        self._buffer: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._held = 0
        self._splitter = Splitter(task.split) if task.split is not None else None
        self._rejected: dict[str, StagedWriter] = {}
        if self._splitter is not None:
            self._rejected, self.result.counts = self._splitter.writers, self._splitter.counts
        self._new: set[str] = set()
        self._partial = PartialRows(task.partial) if task.partial is not None else None
        #: Game -> keys of its new rows.
        self._keys: dict[str, list[pa.Table]] = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> FanOutResult:
        """Take all rows; as soon as the task is crowded no more are asked for."""
        for batch in batches:
            self.add(batch)
            if self.result.crowded:
                break
        return self.finish()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; some are written."""
        if self.result.crowded:
            return
        self._buffer.append(batch)
        self._rows += batch.num_rows
        self._bytes += buffer_bytes(batch)
        if self._rows >= self._task.lakehouse.sizes.sorted_rows or self._bytes >= SORT_BYTES:
            self._write_buffer()

    def finish(self) -> FanOutResult:
        """Write the rest; the files are closed."""
        self._write_buffer()
        if self.result.crowded:
            return self.result
        for game, kept in one_ahead(self._others()):
            self._try(game, partial(self._keep, game, kept))
        self.result.files, self.result.rejected = self._closed(self._writers), self._closed(self._rejected)
        if self._partial is not None:
            self.result.partials = self._partial.tables()
        return self.result

    def give_up(self) -> FanOutResult:
        """Delete what was written and take no more rows: the driver decides what is done instead."""
        for writer in (*self._writers.values(), *self._rejected.values()):
            with suppress(OSError):
                writer.abort()
        for game in self._writers.keys() - self._task.routing.known:
            remove_empty_folder(self._task.table(game))
        self._buffer, self._rows, self._bytes = [], 0, 0
        self._writers, self._rejected, self.result = {}, {}, FanOutResult(crowded=True)
        return self.result

    def _closed(self, writers: dict[str, StagedWriter]) -> dict[str, list[StagedFile]]:
        for game, writer in writers.items():
            self._try(game, writer.close)
        return {game: writer.files for game, writer in writers.items() if writer.files}

    def _try(self, game: str, write: Callable[[], object]) -> None:
        """Write for one game; an error fails that game only.

        Raises:
            OSError: the object store is unavailable, for all games.
        """
        written_alone(self.result, game, self._task.table(game), write)

    def _write_buffer(self) -> None:
        """Sort the buffer by game, once, and write each game's part."""
        if not self._rows:
            return
        task, routing = self._task, self._task.routing
        rows = pa.Table.from_batches(self._buffer).combine_chunks()
        self._buffer, self._rows, self._bytes = [], 0, 0
        order, found = parts_by_game(rows, task.game_column)
        parts = {name: part for name, part in found.items() if routing.takes(name, part[1], self.result.refused)}
        self._new |= parts.keys() - routing.known
        if self._is_crowded(parts):
            self.give_up()
        if not parts or self.result.crowded:
            return
        if self._partial is not None:
            self._partial.add(rows)
        written = rows.select(task.schema.names).take(order).cast(task.schema)
        more = rows.select(task.split.columns).take(order) if task.split is not None else written
        size = buffer_bytes(written)
        for game, part in parts.items():
            share = size * part[1] // rows.num_rows
            self._try(game, partial(self._write_part, game, written.slice(*part), share, more.slice(*part)))
        # Each game's part keeps the whole sorted table in memory: count the table.
        self._held += size
        if self._held > self._task.held_bytes:
            self._held = 0
            for game, writer in self._writers.items():
                self._try(game, writer.flush)

    def _is_crowded(self, parts: Iterable[str]) -> bool:
        room, most = self._task.routing.room, self._task.most_games
        return (room is not None and len(self._new) > room) or (most is not None and len(self._writers.keys() | parts) > most)

    def _write_part(self, game: str, rows: pa.Table, size: int, more: pa.Table) -> None:
        if self._splitter is not None:
            rows = self._splitter.keep(game, rows, more)
        if self._task.old is not None and game in self._task.old.files:
            # A copy: a slice would keep the rows of all games.
            self._keys.setdefault(game, []).append(rows.select(self._task.old.keys).take(np.arange(rows.num_rows)))
        if rows.num_rows:
            writer = self._writer(game, rows)
            writer.write(rows.select(writer.schema.names), size)

    def _writer(self, game: str, rows: pa.Table) -> StagedWriter:
        """The game's writer; one with more columns if these rows have values in more."""
        choice, writer, known = self._task.choice, self._writers.get(game), self.result.columns.get(game, frozenset())
        sent = known if choice is None else known | choice.sent(rows)
        if writer is None or sent != known:
            schema = self._task.schema if choice is None else choice.chosen(self._task.schema, sent)
            wider = StagedWriter(self._task.table(game), schema, game, short_lived=self._task.layer == "gold")
            wider.files = [] if writer is None else writer.close()
            self._writers[game] = writer = wider
            if sent:
                self.result.columns[game] = sent
        return writer

    def _others(self) -> Iterator[tuple[str, pa.Table | Exception | None]]:
        """The old rows of each game with other keys than those of its new rows, or why they cannot be read; None: the end."""
        old = self._task.old
        if old is None:
            return
        for game, keys in self._keys.items():
            try:
                yield from ((game, rows) for rows in old.others(game, pa.concat_tables(keys)))
            except (OSError, LostFileError) as error:
                yield game, error
            yield game, None

    def _keep(self, game: str, kept: pa.Table | Exception | None) -> None:
        if isinstance(kept, Exception):
            raise kept
        if kept is not None:
            self._writer(game, kept).write(kept)
        elif game in self._writers:
            self._writers[game].close()  # else the ends of all games are in memory together
