"""Rows of many games -> Parquet files of each game, in a task of a Spark job; also beside bronze's rows, in the same pass.

The workers sort what they have buffered by game, and append each game's part to its file. Memory is bounded by the buffer,
whatever share of the rows one game has.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.config.settings import Settings
from game_events.config.type_names import SEPARATOR, TypeTables, game_of, of_type
from game_events.decoding.columns import ColumnMap, level_of
from game_events.errors import LostFileError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse.commits.group import one_ahead
from game_events.lakehouse.data.columns import BRONZE_ONLY, MESSAGE_TYPE, bronze_schema
from game_events.lakehouse.data.layout import Writer, by_day, days_of, has_days, writer_of
from game_events.lakehouse.data.staging import StagedFile, buffer_bytes, remove_empty_folder
from game_events.lakehouse.tables import Lakehouse, Layer, Table, is_game
from game_events.workers.job import WorkerJob
from game_events.workers.results import FanOutResult
from game_events.workers.rows import FileRows, OldRows, PartialAggregate, PartialRows, parts_by_game, parts_by_type
from game_events.workers.rules import OutcomeWriter, RuleOutcome

log = logging.getLogger(__name__)

#: Why a row is in no game's table.
INVALID = "invalid"
NOT_ALLOWED = "not_allowed"
OVER_LIMIT = "over_limit"

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
        reserved: what no name may have in it.
    """

    allowed: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    unnamed: str = INVALID
    known: frozenset[str] = frozenset()
    room: int | None = None
    reserved: str | None = None

    @classmethod
    def of(cls, settings: Settings, only: Collection[str] | None = None) -> Routing:
        """Of the names that the settings allow; `only`: of these."""
        reserved = SEPARATOR if settings.type_tables is not None else None
        return cls(frozenset(settings.games), None if only is None else frozenset(only), reserved=reserved)

    @classmethod
    def of_all(cls, settings: Settings, known: Collection[str]) -> Routing:
        """Of every game: the known ones, and new names while there is room.

        Names of the allow list get files, or all while there is room; a worker that meets more new names gives up.
        """
        room = None if settings.games else max(0, settings.max_games - len(known))
        unnamed = NO_NAME if settings.message_types else INVALID
        return replace(cls.of(settings), unnamed=unnamed, known=frozenset(known), room=room)

    def refusal(self, name: object) -> str | None:
        """Why a name gets no table; None if it may."""
        if name is None:
            return self.unnamed
        if not is_game(name) or (self.reserved is not None and self.reserved in str(name)):
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
        of_type = defaultdict[str, set[str]](set)
        types = defaultdict[str, set[str]](set)
        for key, column in columns.owners.items():
            message, _ = level_of(key)
            of_type[message].add(column)
            types[column].add(message)
        if len(of_type) < 2:
            return None
        optional = [name for name in schema.names if name in types and name not in always]
        needed = {name: of_type[next(iter(types[name]))] if len(types[name]) == 1 else {name} for name in optional}
        return cls({name: frozenset(columns) & frozenset(optional) for name, columns in needed.items()})

    def sent(self, rows: pa.Table) -> frozenset[str]:
        """The columns that the values in these rows bring."""
        sent = set[str]()
        for name in rows.column_names:
            columns = self.together.get(name)
            if columns is not None and name not in sent and rows.column(name).null_count < rows.num_rows:
                sent |= columns
        return frozenset(sent)

    def chosen(self, schema: pa.Schema, sent: Collection[str]) -> pa.Schema:
        """The columns of `schema`, in its order, without those that were not sent."""
        return pa.schema([field for field in schema if field.name not in self.together or field.name in sent])


#: Bytes of rows that are sorted at a time.
SORT_BYTES = 64 * 1024 * 1024

#: Bytes of sorted rows held by the writers together, past which every one writes its row group.
BUFFER_BYTES = 192 * 1024 * 1024


@dataclass(frozen=True)
class FanOut(WorkerJob[FanOutResult]):
    """Writes rows to files of their games' tables; picklable.

    Attributes:
        layer, aggregate: which table of a game.
        outcome: treatment of rows that violate rules; None: there are no rules, every row is written to its game's files.
        choice: the columns that not every game's table has; None: all tables have all of `schema`.
        source: files with the rows; None: Spark sends the rows.
        old: rows that are kept unless they have the key of a new row; all new rows of a game are in one task.
        held_bytes: bound of the memory of a task: bytes that wait for their file.
        most_games: a task with rows of more games gives up, as one with too many new names does; None: any number.
        partial: the rows are also aggregated for gold.
        types: the message types whose rows are in tables of their own; None: a game has one table.
        above: such a table -> the bronze batch up to which it has its rows already: they are left out.
    """

    result: ClassVar[type] = FanOutResult
    lakehouse: Lakehouse
    layer: str
    game_column: str
    schema: pa.Schema
    routing: Routing = field(default_factory=Routing)
    outcome: RuleOutcome | None = None
    aggregate: str = PLAYER_AGG
    choice: ColumnChoice | None = None
    source: FileRows | None = None
    old: OldRows | None = None
    held_bytes: int = BUFFER_BYTES
    most_games: int | None = None
    partial: PartialAggregate | None = None
    types: TypeTables | None = None
    above: Mapping[str, int] = field(default_factory=dict)

    def table(self, name: str) -> Table:
        """Where rows go: those of a game, or of one of its message types (`of_type`)."""
        return self.lakehouse.gold(name, self.aggregate) if self.layer == "gold" else self.lakehouse.silver(name)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FanOutResult:
        """Write the rows: the batches, or those of the files of these tasks."""
        sent = rows = iter(batches)
        if self.source is not None:
            rows = (batch for table in self.source.of_tasks(sent) for batch in table.to_batches())
        stage = Stage(self)
        for batch in rows:
            stage.add(batch)
            if stage.result.crowded:
                break
        deque(sent, maxlen=0)  # of a crowded pass: Spark sends the others all the same
        return stage.finish()


class TableRows(NamedTuple):
    """Rows of some tables, of a buffer: their order, the start and length of each table's part in it, and their columns."""

    order: pa.Array
    parts: dict[str, tuple[int, int]]
    columns: list[str]


class Stage:
    """One task of a worker: it takes rows, and writes them; `result`: whole after `finish` or `give_up`."""

    def __init__(self, task: FanOut) -> None:
        self._task = task
        self._writers: dict[str, Writer] = {}
        self.result = FanOutResult()
        self._buffer: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._held = 0
        self._splitter = OutcomeWriter(task.outcome) if task.outcome is not None else None
        self._rejected: Mapping[str, Writer] = {}
        if self._splitter is not None:
            self._rejected = self._splitter.writers
            self.result.counts = self._splitter.counts
        self._new: set[str] = set()
        self._partial = PartialRows(task.partial) if task.partial is not None else None
        #: Message type, None for the others -> columns that its tables may have, of those that not every table has.
        self._of_type: dict[str | None, set[str]] = {}
        #: Game -> keys of its new rows.
        self._keys: dict[str, list[pa.Table]] = {}

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
        self.result.files = self._closed(self._writers)
        self.result.rejected = self._closed(self._rejected)
        if self._partial is not None:
            self.result.partials = self._partial.tables()
        return self.result

    def give_up(self) -> FanOutResult:
        """Delete what was written and take no more rows: the driver decides what is done instead."""
        for writer in (*self._writers.values(), *self._rejected.values()):
            with suppress(OSError):
                writer.abort()
        for name in self._writers.keys() - self._task.routing.known:
            remove_empty_folder(self._task.table(name))
        self._buffer = []
        self._rows = 0
        self._bytes = 0
        self._writers = {}
        self._rejected = {}
        self.result = FanOutResult(crowded=True)
        return self.result

    def _closed(self, writers: Mapping[str, Writer]) -> dict[str, list[StagedFile]]:
        for name, writer in writers.items():
            self._try(name, writer.close)
        return {name: writer.files for name, writer in writers.items() if writer.files}

    def _try(self, name: str, write: Callable[[], object]) -> None:
        self.result.write_alone(name, self._task.table(name), write)

    def _write_buffer(self) -> None:
        if not self._rows:
            return
        task = self._task
        rows = pa.Table.from_batches(self._buffer).combine_chunks()
        self._buffer = []
        self._rows = 0
        self._bytes = 0
        order, by_game = parts_by_game(rows, task.game_column, self._within(rows))
        games = self._routed(by_game)
        tables = self._tables(rows, order, games) if games else []
        if self._has_too_many({name for group in tables for name in group.parts}):
            self.give_up()
        if not tables or self.result.crowded:
            return
        if self._partial is not None:
            self._partial.add(rows)
        for group in tables:
            self._write_rows(rows, group)
        if self._held > self._task.held_bytes:
            self._flush()

    def _within(self, rows: pa.Table) -> npt.NDArray[np.intp] | None:
        """The order of the rows of each game: by day, where its files are so; None: as they are."""
        layout = self._task.lakehouse.file_layouts.get(self._task.layer)
        if layout is None or layout.day is None or not has_days(rows.schema, layout.day):
            return None
        return by_day(days_of(rows.column(layout.day)))

    def _write_rows(self, rows: pa.Table, group: TableRows) -> None:
        task = self._task
        schema = task.schema if group.columns == task.schema.names else pa.schema([task.schema.field(n) for n in group.columns])
        written = rows.select(group.columns).take(group.order).cast(schema)
        more = rows.select(task.outcome.columns).take(group.order) if task.outcome is not None else written
        size = buffer_bytes(written)
        for name, part in group.parts.items():
            share = size * part[1] // written.num_rows
            self._try(name, partial(self._write_part, name, written.slice(*part), share, more.slice(*part)))
        # Each part keeps the whole sorted table in memory: count the table.
        self._held += size

    def _routed(self, by_game: Mapping[Any, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """The games' parts that the routing takes; notes which games are new, and the rows of the other names."""
        routing = self._task.routing
        parts = {name: part for name, part in by_game.items() if routing.takes(name, part[1], self.result.refused)}
        self._new |= parts.keys() - routing.known
        return parts

    def _tables(self, rows: pa.Table, order: pa.Array, games: Mapping[str, tuple[int, int]]) -> list[TableRows]:
        """The rows of each table: all of them in one order, or those of each message type."""
        types = self._task.types
        if types is None or MESSAGE_TYPE not in rows.column_names:  # as of bronze's rows from before it had the column
            return [TableRows(order, dict(games), self._task.schema.names)]
        groups = []
        for message_type, taken, of_type_parts in parts_by_type(rows, order, games, types):
            parts = {of_type(game, message_type): part for game, part in of_type_parts.items()}
            groups.append(TableRows(taken, parts, self._columns(rows, taken, message_type, parts)))
            if message_type is not None:
                for game in of_type_parts:
                    self.result.types[game] = self.result.types.get(game, frozenset()) | {of_type(game, message_type)}
        return groups

    def _columns(self, rows: pa.Table, taken: pa.Array, message_type: str | None, tables: Iterable[str]) -> list[str]:
        """The columns that the tables of a type need of these rows: the others, of other types, are not even copied."""
        names: list[str] = self._task.schema.names
        choice = self._task.choice
        if choice is None:
            return names
        # What workers know of the tables before, and what values there are now.
        known = self._of_type.setdefault(message_type, set())
        known |= choice.sent(rows.select([name for name in choice.together if name not in known]).take(taken))
        known.update(*(self.result.columns.get(name, frozenset()) for name in tables))
        return [name for name in names if name not in choice.together or name in known]

    def _has_too_many(self, tables: Collection[str]) -> bool:
        """Whether there are more new games than there is room for, or, with these, more than the task may write files of."""
        room = self._task.routing.room
        most = self._task.most_games
        too_many_new = room is not None and len(self._new) > room
        return too_many_new or (most is not None and len(self._writers.keys() | tables) > most)

    def _flush(self) -> None:
        """Write what the files of all tables hold in memory."""
        self._held = 0
        for name, writer in self._writers.items():
            self._try(name, writer.flush)

    def _write_part(self, name: str, rows: pa.Table, size: int, more: pa.Table) -> None:
        above = self._task.above.get(name)
        if above is not None:
            is_later = pc.greater(rows.column("_batch"), above)
            rows = rows.filter(is_later)
            more = more.filter(is_later)
        if self._splitter is not None:
            rows = self._splitter.keep(name, rows, more)
        if self._task.old is not None and name in self._task.old.files:
            # A copy: a slice would keep the rows of all games.
            self._keys.setdefault(name, []).append(rows.select(self._task.old.keys).take(np.arange(rows.num_rows)))
        if rows.num_rows:
            writer = self._writer(name, rows)
            writer.write(rows.select(writer.schema.names), size)

    def _writer(self, name: str, rows: pa.Table) -> Writer:
        """The table's writer; one with more columns if these rows have values in more."""
        choice = self._task.choice
        writer = self._writers.get(name)
        known = self.result.columns.get(name, frozenset())
        sent = known if choice is None else known | choice.sent(rows)
        if writer is None or sent != known:
            schema = self._task.schema if choice is None else choice.chosen(self._task.schema, sent)
            wider = writer_of(self._task.table(name), schema, game_of(name), short_lived=self._task.layer == "gold")
            wider.files = [] if writer is None else writer.close()
            self._writers[name] = writer = wider
            if sent:
                self.result.columns[name] = sent
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


@dataclass(frozen=True)
class OnePassTask:
    """What bronze's workers need to write silver's files, too; picklable. `aggregate`: whether gold's partial rows are made."""

    lakehouse: Lakehouse
    routing: Routing
    columns: PartialAggregate
    aggregate: bool
    most_games: int | None
    types: TypeTables | None = None

    def fan_out(self, columns: ColumnMap) -> FanOut | None:
        """The fan-out of rows decoded to these columns; None: none of them names the game."""
        schema = pa.schema([f for f in bronze_schema(columns) if f.name not in BRONZE_ONLY])
        own = self.columns
        if own.game not in schema.names:
            return None
        return FanOut(
            self.lakehouse,
            Layer.SILVER,
            own.game,
            schema,
            self.routing,
            choice=ColumnChoice.of(schema, columns, (own.game, own.key, own.time)),
            held_bytes=BUFFER_BYTES // 2,  # bronze's rows wait beside them
            most_games=self.most_games,
            partial=own if self.aggregate and own.fits(schema) else None,
            types=self.types,
        )


class SecondStage:
    """Silver's files in a task of bronze's job. What goes wrong here is no error of that job: silver reads bronze then."""

    def __init__(self, task: FanOut) -> None:
        self._names = task.schema.names
        self._stage = Stage(task)

    def add(self, rows: pa.Table) -> None:
        """Write rows of bronze."""
        for batch in rows.select(self._names).to_batches():
            self._trying(partial(self._stage.add, batch))

    def finish(self) -> FanOutResult:
        """Write the rest."""
        self._trying(self._stage.finish)
        return self._stage.result

    def give_up(self) -> None:
        """Delete what was written, and take no more rows."""
        self._stage.give_up()

    def _trying(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - whatever it is, bronze's rows are not affected
            log.warning("one_pass=given_up error=%r", error)
            self._stage.give_up()
