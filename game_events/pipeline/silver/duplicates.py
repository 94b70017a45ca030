"""Rows that were sent twice (setting `deduplicate`): of these the first one, in bronze's order, is in silver.

Guarantee: whatever runs have brought a game's rows to silver, the rows that are left out are those that one run over all of
bronze leaves out, with the settings of now. For a row depends on the rows before it alone: on those of the same job, and on
those that are in silver, of the version of the table that the commit compares (`History.is_of`).

Work follows the new rows. Of the games' silver tables only files are read whose times can be near those of new rows, and of
these only the columns of keys and times; hashes of the keys choose the few rows that are compared. Where workers read bronze's
files themselves, and the new rows are not too many for this process, no row goes through Spark (`find`); else its plan does
the same (`duplicates_in_spark`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil

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
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, txns
from game_events.lakehouse.data.columns import BRONZE_ONLY, OWN_COLUMNS
from game_events.lakehouse.data.reading import FilePart, FileSelection, numbered_parts, parts_of, read_parts
from game_events.lakehouse.data.staging import buffer_bytes
from game_events.lakehouse.open_table import data_files
from game_events.lakehouse.tables import Lakehouse, Table, add_actions, silver_name, table_id
from game_events.rules import Deduplicate
from game_events.sources.source import dealt
from game_events.workers.duplicates import (
    ARRIVAL,
    ENTRY,
    HASH,
    KEY,
    KNOWN,
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

#: Stretches of time that are compared with silver's files; of more, those of a game become one.
MOST_STRETCHES = 100_000

#: Other engines note times to the millisecond.
MARGIN_US = 1_000_000

#: New rows, and bytes of their keys, up to which this process finds those that were sent twice, about 100 bytes more each.
MOST_NEW_ROWS, MOST_NEW_BYTES = 4_000_000, 512 * 1024 * 1024

#: Rows of silver that this process looks at by itself, in less time than a Spark job takes to start; of one task of a job.
FEW_ROWS, HISTORY_TASK_ROWS = 500_000, 5_000_000

#: Rows of silver that are compared in this process at most.
MOST_KNOWN_ROWS = 2_000_000

Numbers = npt.NDArray[np.int64]


def keys_of(settings: Settings, extensions: Extensions, columns: pa.Schema) -> tuple[Keys, list[str]]:
    """What tells rows with these columns of silver from each other; and why entries are left out, in words.

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
            entries.append(entry)
        elif entry.games or entry.types:  # the first of these rows may be still to come
            notices.append(f"{missing}: {entry} is not looked for")
        else:
            raise ConfigurationError(f"{missing}. It has {some_columns(columns.names, entry.key[0])}")
    return Keys(settings.entity_column, settings.time_column, tuple(entries)), notices


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
    lacking = [name for name in (*entry.key, time) if name not in columns.names]
    return f"{where}: bronze has no column {', '.join(lacking)}" if lacking else None


def _tells_apart(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_decimal)
    return any(is_of(kind) for is_of in kinds)


def _refuse_transformed(where: str, entry: Deduplicate, extensions: Extensions) -> None:
    """Raise ConfigurationError if a transformation may drop or multiply rows that the entry is for."""
    for transformation in extensions.transformations:
        common = not entry.games or not transformation.games or not transformation.games.isdisjoint(entry.games)
        if transformation.rows == "any" and common:
            raise ConfigurationError(
                f"{where}: {transformation} has rows='any', so silver does not tell which events came before: name in `games` "
                "those without this transformation"
            )


@dataclass(frozen=True)
class NewRows:
    """New rows of games that may have been sent twice.

    `games`: those with new rows. `times`: column -> game -> stretches of time, their first and last microseconds, ascending.
    """

    games: frozenset[str]
    times: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]]


def new_rows(keys: Keys, bronze: Table, columns: pa.Schema, paths: Iterable[str], above: Mapping[str, int]) -> NewRows:
    """The new rows in files of bronze; read here, without Spark: the columns with game, batch and times.

    `above`: game -> its rows of later batches are new; other games are not looked at.
    """
    wanted = pa.schema([f for f in columns if f.name in (keys.entity, "_batch", *keys.times)])
    names = set[str]()
    parts = defaultdict[str, list[pa.Table]](list)
    for rows in read_parts(bronze, wanted, paths):
        encoded = rows.column(keys.entity).combine_chunks().dictionary_encode()
        bounds = pa.array([above.get(name) for name in encoded.dictionary.to_pylist()], pa.int64()).take(encoded.indices)
        is_new = pc.fill_null(pc.greater(rows.column("_batch"), bounds), False)
        new = rows.filter(is_new)
        names.update(pc.unique(new.column(keys.entity)).to_pylist())
        for column, window in keys.times.items():
            parts[column].append(_stretches(new.column(keys.entity), new.column(column), window))
    return NewRows(frozenset(names), {column: _by_game(stretches) for column, stretches in parts.items()})


def _stretches(games: pa.ChunkedArray, times: pa.ChunkedArray, window: int) -> pa.Table:
    """Game -> first and last time of its rows in each stretch as long as a window."""
    micros = micros_of(times)
    rows = pa.table({"game": games, "number": pc.divide(micros, window), "first": micros, "last": micros})
    return _joined([rows.filter(pc.is_valid(micros))], ["game", "number"])


def _joined(parts: Sequence[pa.Table], by: list[str]) -> pa.Table:
    grouped = pa.concat_tables(parts).group_by(by, use_threads=False).aggregate([("first", "min"), ("last", "max")])
    return grouped.rename_columns([*by, "first", "last"])


def _by_game(parts: Sequence[pa.Table]) -> Mapping[str, tuple[Numbers, Numbers]]:
    stretches = _joined(parts, ["game", "number"])
    if stretches.num_rows > MOST_STRETCHES:
        stretches = _joined([stretches], ["game"])
    stretches = stretches.sort_by([("game", "ascending"), ("first", "ascending")])
    names = stretches.column("game").to_pylist()
    first, last = (stretches.column(name).to_numpy() for name in ("first", "last"))
    ends = dict[str, int]()
    for number, name in enumerate(names, start=1):
        ends[name] = number
    starts = [0, *ends.values()]
    return {name: (first[begin:end], last[begin:end]) for begin, (name, end) in zip(starts, ends.items(), strict=False)}


@dataclass(frozen=True)
class History:
    """Rows that are in silver already: tables of games, and those of their files that may hold times near those of new rows."""

    tables: Mapping[str, DeltaTable] = field(default_factory=dict)
    files: Mapping[str, FileSelection] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Keys, new: NewRows, tables: Mapping[str, DeltaTable | None]) -> History:
        """Of the tables, if there are any, of games with new rows."""
        games = {game: table for game, table in tables.items() if game in new.games and table is not None}
        files = {game: _near(keys, new, game, table) for game, table in games.items()}
        return cls(games, {game: selected for game, selected in files.items() if selected.data})

    def is_of(self, game: str, table: DeltaTable | None, bronze: BronzeIdentity) -> bool:
        """Whether a game's table, or that it has no rows of this bronze (None), is what was compared with."""
        before = self.tables.get(game)
        if before is None or table is None:
            return before is table
        apps = (bronze.app, Txn.INCARNATION, Txn.ERASURES)
        return table_id(before) == table_id(table) and txns(before, apps) == txns(table, apps)

    @property
    def rows(self) -> int:
        """Rows in the files."""
        return sum(selected.rows for selected in self.files.values())

    def in_tasks(self) -> list[Sequence[FilePart]]:
        """The files, in tasks of about as many rows."""
        tasks = max(1, ceil(self.rows / HISTORY_TASK_ROWS))
        parts = chain.from_iterable(
            parts_of(selected, silver_name(game), HISTORY_TASK_ROWS) for game, selected in self.files.items()
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


@dataclass(frozen=True)
class BronzeRows:
    """New rows in files of bronze that workers read themselves.

    `columns`: silver's. `above`: only rows of later batches; None: all. `violations`: what rules keep out takes no part.
    """

    bronze: Table
    columns: pa.Schema
    files: FileSelection
    above: int | None
    violations: Violations

    @property
    def is_many(self) -> bool:
        """Whether there are too many for this process."""
        return self.files.rows > MOST_NEW_ROWS or not self.files.rows_known


@dataclass(frozen=True)
class _NewKeys:
    """Keys of new rows, the number of each row's file and its place there, and the columns with keys and order."""

    keyed: KeyedRows
    files: Numbers
    places: Numbers
    rows: pa.Table


def find(
    spark: Callable[[], SparkSession], lakehouse: Lakehouse, keys: Keys, new: BronzeRows, history: History
) -> pa.Table | None:
    """`FILE` (its path) and `ROW` of the new rows that were sent twice; None: there is too much to compare in this process.

    Hashes of all new keys are in memory; the workers look for these in silver, and what has one of them is compared.
    """
    with KeyReader(keys) as reader:
        added = _read_new(reader, keys, new)
        if added is None:
            return None
        ordered = np.sort(added.keyed.hashes)
        known = _known(spark, lakehouse, keys, new.columns, history, ordered)
        if known is None:
            return None
        again = np.unique(np.concatenate([ordered[1:][ordered[1:] == ordered[:-1]], known.column(HASH).to_numpy()]))
        which = np.flatnonzero(Hashes.of(again).holds(added.keyed.hashes))
        rows = added.rows.take(pa.array(which))
        texts = reader.texts(rows, added.keyed.entries[which])
    left_out = which[_left_out(keys, added.keyed, which, rows, texts, known)]
    paths = pa.array(new.files.paths, pa.string()).take(pa.array(added.files[left_out]))
    return pa.table({FILE: paths, ROW: added.places[left_out]})


def _read_new(reader: KeyReader, keys: Keys, new: BronzeRows) -> _NewKeys | None:
    """The keys of the new rows; None: they have more than `MOST_NEW_BYTES`."""
    order = [OWN_COLUMNS.field(name) for name in ORDER]
    named = [f for f in new.columns if f.name in keys.columns and f.name not in ORDER]
    kept = [*ORDER, keys.entity, *dict.fromkeys(name for entry in keys.entries for name in entry.key)]
    nothing = np.zeros(0, np.int64)
    parts = [_NewKeys(KeyedRows.none(), nothing, nothing, pa.schema([*order, *named]).empty_table().select(kept))]
    size = 0
    for number, path in enumerate(new.files.paths):
        kept_out = new.violations.kept_out(path)
        for first, rows in numbered_parts(new.bronze, pa.schema([*order, *named]), [path]):
            keyed = reader.of(rows)
            takes_part = keyed.entries >= 0
            if new.above is not None:
                takes_part &= pc.fill_null(pc.greater(rows.column("_batch"), new.above), False).to_numpy()
            begin, end = np.searchsorted(kept_out, [first, first + rows.num_rows])
            takes_part[kept_out[begin:end] - first] = False
            which = np.flatnonzero(takes_part)
            taken = rows.select(kept).take(pa.array(which)) if len(which) < rows.num_rows else rows.select(kept)
            parts.append(_NewKeys(keyed.take(which), np.full(len(which), number), which + first, taken))
            size += buffer_bytes(taken)
            if size > MOST_NEW_BYTES:
                return None
    files = np.concatenate([part.files for part in parts])
    places = np.concatenate([part.places for part in parts])
    rows_of_all = pa.concat_tables([part.rows for part in parts])
    return _NewKeys(KeyedRows.of([part.keyed for part in parts]), files, places, rows_of_all)


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
    schema = pa.schema([f for f in columns if f.name in keys.columns and f.name != keys.entity])
    job = FindKnown(lakehouse, keys, schema, Hashes.of(hashes), tasks)
    if history.rows <= FEW_ROWS:
        found = [job.stage([pa.RecordBatch.from_pydict({"id": list(range(len(tasks)))})])]
    else:
        found = job.collect(task_numbers(spark(), len(tasks)))
    rows = pa.concat_tables([KNOWN.empty_table(), *chain.from_iterable(task.rows for task in found)])
    return None if any(task.crowded for task in found) or rows.num_rows > MOST_KNOWN_ROWS else rows


def _left_out(
    keys: Keys, added: KeyedRows, which: Numbers, rows: pa.Table, texts: pa.Array, known: pa.Table
) -> npt.NDArray[np.bool_]:
    """Mask of the new rows of these numbers that were sent twice; `known`: rows of silver, some with the same keys."""
    old = known.num_rows
    nothing = np.zeros(old, np.int64)
    texts = pa.chunked_array([*known.column(KEY).chunks, texts], pa.string())
    groups = texts.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    topics = rows.column("_kafka_topic_id").combine_chunks().dictionary_encode()
    ranks = np.argsort(np.argsort(topics.dictionary.to_numpy(zero_copy_only=False)))
    topic = pa.array(ranks, pa.int64()).take(topics.indices)
    of_new = [topic, *(rows.column(name).cast(pa.int64()) for name in ("_kafka_partition", "_kafka_offset"))]
    places = [np.concatenate([nothing, values.fill_null(-1).to_numpy()]) for values in of_new]
    batch = np.concatenate([nothing - 1, rows.column("_batch").to_numpy()])
    order = np.lexsort((*places[::-1], batch, groups))
    entries = np.concatenate([known.column(ENTRY).to_numpy(), added.entries[which]])
    times = np.concatenate([known.column(TIME).to_numpy(), added.times[which]])
    is_old = np.arange(len(groups)) < old
    mask = np.zeros(len(groups), bool)
    windows = np.array(keys.windows_us, np.int64)[entries]
    mask[order] = duplicates(groups[order], times[order], is_old[order], windows[order])
    return mask[old:]
