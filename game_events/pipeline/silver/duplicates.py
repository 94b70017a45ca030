"""Rows that were sent twice (setting `deduplicate`): of these the first one, in bronze's order, is in silver.

Guarantee: whatever runs have brought a game's rows to silver, the rows that are left out are those that one run over all of
bronze leaves out, with the settings of now. For a row depends on the rows before it alone: on those of the same job, and on
those that are in silver, of the version of the table that the commit compares (`History.is_of`).

Work follows the new rows. Of the games' silver tables only files are read whose times can be near those of new rows, and of
these only the columns of keys and times; hashes of the keys choose the few rows that are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.config.extensions import Extensions
from game_events.config.settings import Settings
from game_events.decoding.columns import type_name
from game_events.errors import ConfigurationError, some_columns
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, txns
from game_events.lakehouse.data.columns import BRONZE_ONLY, MESSAGE_TYPE
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.spark_files import read_files
from game_events.lakehouse.tables import Table, add_actions, table_id
from game_events.rules import Deduplicate
from game_events.spark.schemas import quoted
from game_events.workers.duplicates import ENTRY, KEY, OLD, ROWS_AT_ONCE, SORTED_ROWS, TIME, FindDuplicates
from game_events.workers.rules import FILE, ROW

SETTING = "GAME_EVENTS_DEDUPLICATE"
ARRIVAL = "_kafka_timestamp"
#: Columns by which rows are in bronze's order.
ORDER = ("_batch", "_kafka_topic_id", "_kafka_partition", "_kafka_offset")

#: Hash of a row's key.
HASH = "_hash"

#: New rows up to which the hashes of their keys are sent to every executor, which then reads silver without a shuffle.
MOST_SENT_HASHES = 4_000_000

#: Stretches of time that are compared with silver's files; of more, those of a game become one.
MOST_STRETCHES = 100_000

#: Other engines note times to the millisecond.
MARGIN_US = 1_000_000

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Deduplication:
    """The entries of the setting whose columns bronze has.

    `notices`: why others are left out.
    """

    entity: str = ""
    event_time: str = ""
    entries: tuple[Deduplicate, ...] = ()
    notices: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, extensions: Extensions, columns: pa.Schema) -> Deduplication:
        """The entries for rows with these columns of silver.

        ConfigurationError: a column cannot tell events from each other, is no time, or is not there, though the entry is for
        every game and type; or a transformation may make any number of rows, so that silver does not tell what came before.
        """
        entries = list[Deduplicate]()
        notices = list[str]()
        for number, entry in enumerate(settings.deduplicate, start=1):
            where = f"{SETTING}, entry {number}"
            _refuse_transformed(where, entry, extensions)
            time = ARRIVAL if entry.of == "arrival" else settings.time_column
            missing = _missing(where, entry, time, columns)
            if missing is None:
                entries.append(entry)
            elif entry.games or entry.types:  # the first of these rows may be still to come
                notices.append(f"{missing}: {entry} is not looked for")
            else:
                raise ConfigurationError(f"{missing}. It has {some_columns(columns.names, entry.key[0])}")
        return cls(settings.entity_column, settings.time_column, tuple(entries), tuple(notices))

    def applies_to(self, game: str) -> bool:
        """Whether rows of a game may be left out."""
        return any(entry.applies_to(game) for entry in self.entries)

    def time_of(self, entry: Deduplicate) -> str:
        """The column with the time that an entry compares."""
        return ARRIVAL if entry.of == "arrival" else self.event_time

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns of keys and times, which silver must have as bronze has them."""
        columns = (column for entry in self.entries for column in (*entry.key, self.time_of(entry)))
        return tuple(dict.fromkeys(columns))

    @cached_property
    def times(self) -> Mapping[str, int]:
        """Column with a time -> the widest window of the entries that compare it."""
        widest = dict[str, int]()
        for entry in self.entries:
            column = self.time_of(entry)
            widest[column] = max(entry.window_us, widest.get(column, 0))
        return widest

    @property
    def columns(self) -> frozenset[str]:
        """Columns of silver that are read."""
        more = {MESSAGE_TYPE} if any(entry.types for entry in self.entries) else set()
        return frozenset({self.entity, *self.kept, *more})

    def left_out(self, new: DataFrame, old: DataFrame | None, count: int) -> DataFrame:
        """`FILE` and `ROW` of the new rows that were sent twice.

        `new`: bronze's rows, about so many, with these two columns. `old`: rows of silver; None: there are none.
        """
        keyed = self._keyed(new)
        rows = keyed.select(HASH, self._key, ENTRY, TIME, F.lit(False).alias(OLD), FILE, ROW, *ORDER)
        if old is not None:
            hashes = keyed.select(HASH)
            hashes = F.broadcast(hashes) if count <= MOST_SENT_HASHES else hashes
            same = self._keyed(old).join(hashes, HASH, "left_semi")
            nothing = (F.lit(None).cast(rows.schema[name].dataType).alias(name) for name in (FILE, ROW, *ORDER))
            rows = rows.union(same.select(HASH, self._key, ENTRY, TIME, F.lit(True).alias(OLD), *nothing))
        rows = rows.repartition(max(1, ceil(count / ROWS_AT_ONCE)), HASH)
        rows = rows.sortWithinPartitions(HASH, KEY, F.col(OLD).desc(), *ORDER).select(*SORTED_ROWS.names)
        find = FindDuplicates(tuple(entry.window_us for entry in self.entries))
        return rows.mapInArrow(find, f"{FILE} string, {ROW} bigint")

    def _keyed(self, rows: DataFrame) -> DataFrame:
        """The rows that have a key and a time, with the number of their entry, their time and the hash of their key."""
        number = F.coalesce(*(self._number(n, entry, rows.columns) for n, entry in enumerate(self.entries)))
        rows = rows.withColumn(ENTRY, number).where(F.col(ENTRY) >= 0)
        times = (F.unix_micros(F.col(quoted(self.time_of(entry))).cast("timestamp")) for entry in self.entries)
        hashes = (F.xxhash64(F.lit(n), *self._values(entry)) for n, entry in enumerate(self.entries))
        return rows.withColumn(TIME, _of_entry(times)).withColumn(HASH, _of_entry(hashes))

    def _number(self, number: int, entry: Deduplicate, columns: Sequence[str]) -> Column:
        """The entry's number for its rows, -1 for those that lack a value; NULL for rows of other games and types."""
        is_mine = F.lit(True)
        if entry.games:
            is_mine &= F.col(quoted(self.entity)).isin(*entry.games)
        if entry.types:
            is_mine &= F.col(MESSAGE_TYPE).isin(*entry.types) if MESSAGE_TYPE in columns else F.lit(False)
        is_whole = F.col(quoted(self.time_of(entry))).isNotNull()
        for value in self._values(entry):
            is_whole &= value.isNotNull()
        return F.when(is_mine, F.when(is_whole, F.lit(number)).otherwise(F.lit(-1)))

    def _values(self, entry: Deduplicate) -> list[Column]:
        return [F.col(quoted(name)) for name in (self.entity, *entry.key)]

    @property
    def _key(self) -> Column:
        """The key as a text, different for different keys, games and entries."""
        return _of_entry(_as_text(n, self._values(entry)) for n, entry in enumerate(self.entries)).alias(KEY)


def _of_entry(values: Iterable[Column]) -> Column:
    """The value for the entry of each row."""
    return F.coalesce(*(F.when(F.col(ENTRY) == number, value) for number, value in enumerate(values)))


def _as_text(number: int, values: Sequence[Column]) -> Column:
    """Values of columns as one text, with their lengths, so that no two lists of values give the same one."""
    parts = [F.lit(str(number))]
    for value in values:
        text = value.cast("string")
        parts += [F.lit(":"), F.length(text).cast("string"), F.lit(":"), text]
    return F.concat(*parts)


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


def new_rows(plan: Deduplication, bronze: Table, columns: pa.Schema, paths: Iterable[str], above: Mapping[str, int]) -> NewRows:
    """The new rows in files of bronze; read here, without Spark: the columns with game, batch and times.

    `above`: game -> its rows of later batches are new; other games are not looked at.
    """
    wanted = pa.schema([f for f in columns if f.name in (plan.entity, "_batch", *plan.times)])
    names = set[str]()
    parts = defaultdict[str, list[pa.Table]](list)
    for rows in read_parts(bronze, wanted, paths):
        encoded = rows.column(plan.entity).combine_chunks().dictionary_encode()
        bounds = pa.array([above.get(name) for name in encoded.dictionary.to_pylist()], pa.int64()).take(encoded.indices)
        is_new = pc.fill_null(pc.greater(rows.column("_batch"), bounds), False)
        new = rows.filter(is_new)
        names.update(pc.unique(new.column(plan.entity)).to_pylist())
        for column, window in plan.times.items():
            parts[column].append(_stretches(new.column(plan.entity), new.column(column), window))
    return NewRows(frozenset(names), {column: _by_game(stretches) for column, stretches in parts.items()})


def _stretches(games: pa.ChunkedArray, times: pa.ChunkedArray, window: int) -> pa.Table:
    """Game -> first and last time of its rows in each stretch as long as a window."""
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
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
    """Rows that are in silver already: the games' tables, and addresses of their files that may hold rows near new ones."""

    tables: Mapping[str, DeltaTable] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Deduplication, new: NewRows, tables: Mapping[str, DeltaTable | None]) -> History:
        """Of the tables, if there are any, of games with new rows."""
        games = {game: table for game, table in tables.items() if game in new.games and table is not None}
        return cls(games, tuple(file for game, table in games.items() for file in _near(plan, new, game, table)))

    def is_of(self, game: str, table: DeltaTable | None, bronze: BronzeIdentity) -> bool:
        """Whether a game's table, or that it has no rows of this bronze (None), is what was compared with."""
        before = self.tables.get(game)
        if before is None or table is None:
            return before is table
        apps = (bronze.app, Txn.INCARNATION, Txn.ERASURES)
        return table_id(before) == table_id(table) and txns(before, apps) == txns(table, apps)

    def rows(self, spark: SparkSession, plan: Deduplication, columns: StructType) -> DataFrame | None:
        """The rows, with the columns that are compared; None: there is no file."""
        if not self.files:
            return None
        return read_files(spark, self.files, StructType([f for f in columns.fields if f.name in plan.columns]))


def _near(plan: Deduplication, new: NewRows, game: str, table: DeltaTable) -> list[str]:
    """Addresses of a table's files that may hold times near those of a game's new rows, by the log's statistics."""
    actions = add_actions(table)
    chosen = np.zeros(actions.num_rows, bool)
    for column, by_game in new.times.items():
        if game in by_game:
            chosen |= _may_hold(actions, column, *by_game[game], plan.times[column] + MARGIN_US)
    root = table.table_uri.rstrip("/")
    return [f"{root}/{path}" for path in actions.column("path").filter(pa.array(chosen)).to_pylist()]


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
