"""Rows that were sent twice (setting `deduplicate`): of these the first one, in bronze's order, is in silver.

Guarantee: whatever runs have brought a game's rows to silver, the rows that are left out are those that one run over all of
bronze leaves out, with the settings of now. For a row depends on the rows before it alone: on those of the same job, and on
those that are in silver, of the versions of the game's tables that the commits compare (`History.is_of`).

Work follows the new rows. Of the games' silver tables only files are read whose times can be near those of new rows, and of
these only the columns of keys and times; hashes of the keys choose the few rows that are compared. Where workers read bronze's
files themselves, and the new rows are not too many for this process, no row goes through Spark (`find`); else its plan does
the same (`duplicates_in_spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.config.extensions import Extensions
from game_events.config.settings import Settings
from game_events.decoding.columns import type_name
from game_events.errors import ConfigurationError, some_columns
from game_events.lakehouse.commits.group import one_ahead
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, txns
from game_events.lakehouse.data.columns import BRONZE_ONLY, MESSAGE_TYPE, OWN_COLUMNS
from game_events.lakehouse.data.reading import FilePart, FileSelection, numbered_parts, parts_of, read_parts
from game_events.lakehouse.data.staging import buffer_bytes
from game_events.lakehouse.open_table import data_files
from game_events.lakehouse.tables import Lakehouse, Table, add_actions, silver_name, table_id
from game_events.rules import Deduplicate, have_common_types
from game_events.sources.source import dealt
from game_events.workers.duplicates import (
    ARRIVAL,
    ENTRY,
    HASH,
    KEY,
    KNOWN,
    LEFT_OUT,
    TIME,
    FindKnown,
    Hashes,
    KeyedRows,
    KeyReader,
    Keys,
    duplicates,
    micros_of,
)
from game_events.workers.job import task_numbers
from game_events.workers.rules import FILE, ROW, Violations

SETTING = "GAME_EVENTS_DEDUPLICATE"
#: Columns by which rows are in bronze's order.
ORDER = ("_batch", "_kafka_topic_id", "_kafka_partition", "_kafka_offset")

#: Stretches of time that are compared with silver's files: longer ones where there would be more.
MOST_STRETCHES = 100_000

#: Microseconds of stretches that are as long as time.
ALL_TIME_US = 2**62

#: Other engines note times to the millisecond.
MARGIN_US = 1_000_000

#: New rows, and bytes of their keys, up to which this process finds those that were sent twice, about 100 bytes more each.
MOST_NEW_ROWS, MOST_NEW_BYTES = 4_000_000, 512 * 1024 * 1024

#: Rows of silver that this process looks at by itself, in less time than a Spark job takes to start; of one task of a job.
FEW_ROWS, HISTORY_TASK_ROWS = 2_000_000, 5_000_000

#: Rows of silver that are compared in this process at most.
MOST_KNOWN_ROWS = 2_000_000

Numbers = npt.NDArray[np.int64]

#: Columns with the bounds of stretches of time.
BOUNDS = ("first", "last")


def keys_of(settings: Settings, extensions: Extensions, columns: pa.Schema) -> tuple[Keys, list[str]]:
    """What tells rows with these columns of silver from each other; and why entries are left out, in words.

    The game is in no key: rows of different games are never compared.

    ConfigurationError: a column cannot tell events from each other, is no time, or is not there, though the entry is for every
    game and type; or a transformation may make any number of rows, so that silver does not tell what came before.
    """
    entries = list[Deduplicate]()
    notices = list[str]()
    for number, entry in enumerate(settings.deduplicate, start=1):
        where = f"{SETTING}, entry {number}"
        _refuse_transformed(where, entry, extensions)
        missing = _missing(where, entry, ARRIVAL if entry.of == "arrival" else settings.time_column, columns)
        if missing is None:
            entries.append(_within_games(where, entry, settings.entity_column))
        elif entry.games or entry.types:  # the first of these rows may be still to come
            notices.append(f"{missing}: {entry} is not looked for")
        else:
            raise ConfigurationError(f"{missing}. It has {some_columns(columns.names, entry.key[0])}")
    return Keys(settings.entity_column, settings.time_column, tuple(entries)), notices


def _within_games(where: str, entry: Deduplicate, entity: str) -> Deduplicate:
    """The entry without the column of the game in its key; ConfigurationError: the key has no other column."""
    key = tuple(name for name in entry.key if name != entity)
    if not key:
        raise ConfigurationError(
            f"{where}: {entity} alone does not tell the events of a game from each other: name what does in `key`, such as an "
            f"event's id. {entity} can be left out, as only rows of the same one are compared"
        )
    return entry.model_copy(update={"key": key})


def _missing(where: str, entry: Deduplicate, time: str, columns: pa.Schema) -> str | None:
    """What bronze lacks for an entry, in words; ConfigurationError: a column that is there does not suit."""
    for name in entry.key:
        if name in (*BRONZE_ONLY, *ORDER):
            raise ConfigurationError(f"{where}: {name} cannot be of the key: silver lacks it, or each record has another one")
        if name in columns.names and not _tells_apart(columns.field(name).type):
            raise ConfigurationError(
                f"{where}: {name} cannot be of the key, as it is {type_name(columns.field(name).type)}: name top-level columns "
                "of texts, numbers without fractions, times or truth values"
            )
    if time in columns.names and not pa.types.is_timestamp(columns.field(time).type):
        raise ConfigurationError(
            f"{where}: {time} is {type_name(columns.field(time).type)}, no time: say `of: arrival`, or name another column in "
            "GAME_EVENTS_TIME_COLUMN"
        )
    needed = (*entry.key, time, MESSAGE_TYPE) if entry.types else (*entry.key, time)
    lacking = [name for name in needed if name not in columns.names]
    return f"{where}: bronze has no column {', '.join(lacking)}" if lacking else None


def _tells_apart(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_decimal)
    return any(is_of(kind) for is_of in kinds)


def _refuse_transformed(where: str, entry: Deduplicate, extensions: Extensions) -> None:
    """Raise ConfigurationError if a transformation may drop or multiply rows that the entry is for."""
    for transformation in extensions.transformations:
        common = not entry.games or not transformation.games or not transformation.games.isdisjoint(entry.games)
        if transformation.rows == "any" and common and have_common_types(entry.types, transformation.types):
            raise ConfigurationError(
                f"{where}: {transformation} has rows='any', so silver does not tell which events came before: name in `games` "
                "or `types` those without this transformation"
            )


@dataclass(frozen=True)
class NewKeys:
    """Keys of new rows of one file, in its order.

    `places`: of each row in the file. `rows`: columns with keys and order, and the game as `KEY`.
    """

    path: str
    places: Numbers
    keyed: KeyedRows
    rows: pa.Table

    def take(self, which: npt.NDArray[np.intp]) -> NewKeys:
        """Of some of the rows, whose numbers are ascending."""
        if len(which) == len(self.places):
            return self
        return NewKeys(self.path, self.places[which], self.keyed.take(which), self.rows.take(pa.array(which)))

    def without(self, violations: Violations) -> NewKeys:
        """Of the rows that rules let into silver."""
        return self.take(np.flatnonzero(~np.isin(self.places, violations.kept_out(self.path))))


@dataclass(frozen=True)
class NewRows:
    """New rows of games that may have been sent twice.

    `games`: those with new rows. `times`: column -> game -> stretches of time, their first and last microseconds, ascending.
    `keys`: of all new rows, in parts; None: they were not asked for, or are too many for this process.
    """

    games: frozenset[str] = frozenset()
    times: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]] = field(default_factory=dict)
    keys: Sequence[NewKeys] | None = None


@dataclass
class _Stretches:
    """The first and last times of rows of each game in stretches of time, which have no time in common.

    `length`: of a stretch, in microseconds. `parts`: columns `game`, `first` and `last`. `rows`: of all parts.
    """

    length: int
    parts: list[pa.Table]
    rows: int = 0

    @classmethod
    def of(cls, window_us: int) -> Self:
        """Without a row; a stretch is as long as a window, until they are too many."""
        return cls(max(1, window_us), [pa.schema([("game", pa.string()), *((n, pa.int64()) for n in BOUNDS)]).empty_table()])

    def add(self, codes: pa.Array, names: pa.Array, times: pa.ChunkedArray) -> None:
        """Note times of rows; `codes`: the numbers of their games' names."""
        micros = micros_of(times)
        rows = pa.table({"game": codes, "first": micros, "last": micros})
        part = _joined([rows.filter(pc.is_valid(micros)) if micros.null_count else rows], self.length)
        self.parts.append(part.set_column(0, "game", names.take(part.column("game").combine_chunks())))
        self.rows += part.num_rows
        if self.rows > 2 * MOST_STRETCHES:
            self.join()

    def join(self) -> pa.Table:
        """All of them, in one part."""
        joined = _joined(self.parts, self.length)
        while joined.num_rows > MOST_STRETCHES and self.length < ALL_TIME_US:
            self.length *= 2
            joined = _joined([joined], self.length)
        self.parts = [joined]
        self.rows = joined.num_rows
        return joined

    def by_game(self) -> Mapping[str, tuple[Numbers, Numbers]]:
        """Game -> the first and the last times of its stretches, ascending."""
        stretches = self.join().sort_by([("game", "ascending"), ("first", "ascending")])
        names = stretches.column("game").to_pylist()
        first, last = (stretches.column(name).to_numpy() for name in BOUNDS)
        ends = dict[str, int]()
        for number, name in enumerate(names, start=1):
            ends[name] = number
        starts = [0, *ends.values()]
        return {name: (first[begin:end], last[begin:end]) for begin, (name, end) in zip(starts, ends.items(), strict=False)}


def _joined(parts: Sequence[pa.Table], length: int) -> pa.Table:
    """The parts' rows as one for each game and stretch; their stretches are as long, or were before it was doubled."""
    rows = pa.concat_tables(parts)
    rows = rows.append_column("number", pc.divide(rows.column("first"), length))
    grouped = rows.group_by(["game", "number"], use_threads=False).aggregate([("first", "min"), ("last", "max")])
    return grouped.select(["game", "first_min", "last_max"]).rename_columns(["game", *BOUNDS])


@dataclass
class _Reader:
    """Reads new rows of bronze, part by part; without Spark, as they are few, or few columns.

    `above`: rows of later batches are new: a batch, or those of each game. `games`: whose times are noted.
    """

    keys: Keys
    above: Mapping[str, int] | int
    games: Collection[str]
    names: set[str] = field(default_factory=set)
    stretches: dict[str, _Stretches] = field(init=False)

    def __post_init__(self) -> None:
        self.stretches = {column: _Stretches.of(window_us) for column, window_us in self.keys.times.items()}

    def is_new(self, rows: pa.Table, games: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
        """Mask of the new rows; notes their games and times."""
        bounds: int | pa.Array = 0
        if isinstance(self.above, int):
            bounds = self.above
        else:
            bounds = pa.array([self.above.get(name) for name in games.dictionary.to_pylist()], pa.int64()).take(games.indices)
        later = pc.fill_null(pc.greater(rows.column("_batch"), bounds), False)
        is_known = pa.array([name in self.games for name in games.dictionary.to_pylist()], pa.bool_()).take(games.indices)
        noted = pc.and_(later, is_known.fill_null(False))
        codes = games.indices.filter(noted.combine_chunks())
        names = games.dictionary.to_pylist()
        self.names.update(names[code] for code in pc.unique(codes).to_pylist())
        for column, stretches in self.stretches.items():
            stretches.add(codes, games.dictionary, rows.column(column).filter(noted))
        return np.asarray(later.to_numpy(), bool)

    def new_rows(self, keys: Sequence[NewKeys] | None) -> NewRows:
        """What was read."""
        times = {column: stretches.by_game() for column, stretches in self.stretches.items()}
        return NewRows(frozenset(self.names), times, keys)


def new_times(keys: Keys, bronze: Table, columns: pa.Schema, files: FileSelection, above: Mapping[str, int]) -> NewRows:
    """The games and times of new rows in files of bronze; `above`: game -> its rows of later batches are new."""
    if not above:
        return NewRows()
    wanted = pa.schema([f for f in columns if f.name in (keys.entity, "_batch", *keys.times)])
    reader = _Reader(keys, above, above.keys())
    for rows in read_parts(bronze, wanted, files.paths):
        reader.is_new(rows, _games(rows, keys))
    return reader.new_rows(None)


def new_keys(
    keys: Keys, bronze: Table, columns: pa.Schema, files: FileSelection, above: int, games: Collection[str]
) -> NewRows:
    """The new rows, of batches after one, in files of bronze: games and times of these games, and the keys of all rows."""
    if files.rows > MOST_NEW_ROWS or not files.rows_known:
        return new_times(keys, bronze, columns, files, dict.fromkeys(games, above))
    order = [OWN_COLUMNS.field(name) for name in ORDER]
    wanted = pa.schema([*order, *(f for f in columns if f.name in keys.columns and f.name not in ORDER)])
    kept = [*ORDER, *dict.fromkeys(name for entry in keys.entries for name in entry.key)]
    parts: list[NewKeys] | None = []
    reading = _Reader(keys, above, games)
    size = 0
    with KeyReader(keys) as reader:
        for path, first, rows in one_ahead(_with_paths(bronze, wanted, files.paths)):
            named = _games(rows, keys)
            is_new = reading.is_new(rows, named)
            size += buffer_bytes(rows)
            parts = parts if size <= MOST_NEW_BYTES else None
            if parts is not None:
                keyed = reader.of(rows, named)
                part = NewKeys(
                    path, np.arange(first, first + rows.num_rows), keyed, rows.select(kept).append_column(KEY, named)
                )
                parts.append(part.take(np.flatnonzero((keyed.entries >= 0) & is_new)))
    return reading.new_rows(parts)


def _with_paths(bronze: Table, columns: pa.Schema, paths: Sequence[str]) -> Iterator[tuple[str, int, pa.Table]]:
    """Rows of files, with the file's path and the place of the first of them there."""
    for path in paths:
        yield from ((path, first, rows) for first, rows in numbered_parts(bronze, columns, [path]))


def _games(rows: pa.Table, keys: Keys) -> pa.DictionaryArray:
    return rows.column(keys.entity).combine_chunks().dictionary_encode()


@dataclass(frozen=True)
class History:
    """Rows that are in silver already: tables of games, and those of their files that may hold times near those of new rows.

    `tables`: game -> what its tables are called -> handle (`GameStart.continued`): its own one, and those of its message types,
    as rows of different types may have one key. `files`: by what the table is called.
    """

    tables: Mapping[str, Mapping[str, DeltaTable]] = field(default_factory=dict)
    files: Mapping[str, FileSelection] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Keys, new: NewRows, tables: Mapping[str, Mapping[str, DeltaTable]]) -> History:
        """Of the tables, if there are any, of games with new rows."""
        games = {game: of_game for game, of_game in tables.items() if game in new.games}
        files = {name: _near(keys, new, game, table) for game, each in games.items() for name, table in each.items()}
        return cls(games, {name: selected for name, selected in files.items() if selected.data})

    def is_of(self, game: str, tables: Mapping[str, DeltaTable], bronze: BronzeIdentity) -> bool:
        """Whether these tables of a game with rows of this bronze are what was compared with; there may be none."""
        before = self.tables.get(game, {})
        apps = (bronze.app, Txn.INCARNATION, Txn.ERASURES)
        return before.keys() == tables.keys() and all(
            table_id(table) == table_id(tables[name]) and txns(table, apps) == txns(tables[name], apps)
            for name, table in before.items()
        )

    @property
    def rows(self) -> int:
        """Rows in the files."""
        return sum(selected.rows for selected in self.files.values())

    def in_tasks(self) -> list[Sequence[FilePart]]:
        """The files, in tasks of about as many rows."""
        tasks = max(1, ceil(self.rows / HISTORY_TASK_ROWS))
        parts = chain.from_iterable(
            parts_of(selected, silver_name(name), HISTORY_TASK_ROWS) for name, selected in self.files.items()
        )
        return dealt(list(parts), tasks)


def _near(keys: Keys, new: NewRows, game: str, table: DeltaTable) -> FileSelection:
    """A table's files that may hold times near those of a game's new rows, by the log's statistics."""
    actions = add_actions(table)
    chosen = np.zeros(actions.num_rows, bool)
    for column, by_game in new.times.items():
        if game in by_game:
            chosen |= _may_hold(actions, column, *by_game[game], keys.times[column] + MARGIN_US)
    return FileSelection(table.table_uri.rstrip("/"), data_files(actions.filter(pa.array(chosen))))


def _may_hold(actions: pa.Table, column: str, first: Numbers, last: Numbers, window: int) -> npt.NDArray[np.bool_]:
    """Mask of the files that may hold a time at most a window away from one of the stretches."""
    bounds = [f"min.{column}", f"max.{column}"]
    if not set(bounds) <= set(actions.column_names):
        return np.ones(actions.num_rows, bool)
    low, high = (actions.column(name).combine_chunks().cast(pa.timestamp("us", "UTC")).cast(pa.int64()) for name in bounds)
    known = np.asarray(pc.and_(pc.is_valid(low), pc.is_valid(high)))
    low, high = (np.asarray(values.fill_null(0)) for values in (low, high))
    at = np.searchsorted(last, low - window)
    reaches = at < len(first)
    reaches[reaches] = first[at[reaches]] <= high[reaches] + window
    return np.asarray(reaches | ~known)


def find(
    spark: Callable[[], SparkSession],
    lakehouse: Lakehouse,
    keys: Keys,
    columns: pa.Schema,
    new: Sequence[NewKeys],
    violations: Violations | None,
    history: History,
) -> pa.Table | None:
    """`FILE` (its path) and `ROW` of the new rows that were sent twice; None: there is too much to compare in this process.

    Hashes of all new keys are in memory; the workers look for these in silver, and what has one of them is compared.
    `columns`: silver's. `violations`: what rules keep out takes no part.
    """
    parts = new if violations is None else [part.without(violations) for part in new]
    hashes = np.concatenate([np.zeros(0, np.uint64), *(part.keyed.hashes for part in parts)])
    hashes.sort()
    known = _known(spark, lakehouse, keys, columns, history, hashes)
    if known is None:
        return None
    again = Hashes.of(np.sort(np.concatenate([hashes[1:][hashes[1:] == hashes[:-1]], known.column(HASH).to_numpy()])))
    compared = [part.take(np.flatnonzero(again.holds(part.keyed.hashes))) for part in parts]
    compared = [part for part in compared if len(part.places)]
    if not compared:
        return LEFT_OUT.empty_table()
    keyed = KeyedRows.of([part.keyed for part in compared])
    left_out = _left_out(keys, keyed, pa.concat_tables([part.rows for part in compared]), known)
    paths = pa.chunked_array([pa.repeat(part.path, len(part.places)) for part in compared])
    places = np.concatenate([part.places for part in compared])
    return pa.table({FILE: paths, ROW: places}).filter(pa.array(left_out))


def _known(
    spark: Callable[[], SparkSession],
    lakehouse: Lakehouse,
    keys: Keys,
    columns: pa.Schema,
    history: History,
    hashes: npt.NDArray[np.uint64],
) -> pa.Table | None:
    """Rows of silver with one of these hashes, as `KNOWN`; None: they are too many."""
    tasks = history.in_tasks() if history.files and len(hashes) else []
    if not tasks:
        return KNOWN.empty_table()
    schema = pa.schema([f for f in columns if f.name in keys.columns and f.name != keys.entity])
    job = FindKnown(lakehouse, keys, schema, Hashes.of(hashes), tasks)
    if history.rows <= FEW_ROWS:
        found = [job.stage([pa.RecordBatch.from_pydict({"id": list(range(len(tasks)))})])]
    else:
        found = job.collect(task_numbers(spark(), len(tasks)))
    rows = pa.concat_tables([KNOWN.empty_table(), *chain.from_iterable(task.rows for task in found)])
    return None if any(task.crowded for task in found) or rows.num_rows > MOST_KNOWN_ROWS else rows


def _left_out(keys: Keys, keyed: KeyedRows, rows: pa.Table, known: pa.Table) -> npt.NDArray[np.bool_]:
    """Mask of the new rows that were sent twice; `known`: rows of silver, some with the same keys."""
    old = known.num_rows
    with KeyReader(keys) as reader:
        texts = pc.binary_join_element_wise(rows.column(KEY).cast(pa.string()), reader.texts(rows, keyed.entries), " ")
    texts = pa.chunked_array([*known.column(KEY).chunks, *texts.chunks], pa.string())
    groups = texts.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    topics = rows.column("_kafka_topic_id").combine_chunks().dictionary_encode()
    ranks = np.argsort(np.argsort(topics.dictionary.to_numpy(zero_copy_only=False)))
    topic = pa.array(ranks, pa.int64()).take(topics.indices)
    places = [topic, *(rows.column(name).cast(pa.int64()) for name in ("_kafka_partition", "_kafka_offset"))]
    of_all = [np.concatenate([np.zeros(old, np.int64), values.fill_null(-1).to_numpy()]) for values in places]
    batch = np.concatenate([np.full(old, -1), rows.column("_batch").to_numpy()])
    order = np.lexsort((*of_all[::-1], batch, groups))
    entries = np.concatenate([known.column(ENTRY).to_numpy(), keyed.entries])
    times = np.concatenate([known.column(TIME).to_numpy(), keyed.times])
    is_old = np.arange(len(groups)) < old
    windows = np.array(keys.windows_us, np.int64)[entries]
    mask = np.zeros(len(groups), bool)
    mask[order] = duplicates(groups[order], times[order], is_old[order], windows[order])
    return mask[old:]
