"""Rows that were sent twice: their keys, and which of the rows with one key are left out, because an earlier one is there."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from math import log2
from typing import ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.data.reading import FilePart, read_parts
from game_events.lakehouse.duckdb_connection import connect, identifier
from game_events.lakehouse.tables import Lakehouse, game_of_silver
from game_events.rules import Deduplicate, is_named
from game_events.workers.job import WorkerJob, numbers_of
from game_events.workers.results import extend
from game_events.workers.rules import FILE, ROW

ARRIVAL = "_kafka_timestamp"

#: Columns of rows that are compared: the key as a text, with game and entry; the entry's number; the time in microseconds;
#: whether the row is in silver already.
KEY = "_key"
ENTRY = "_entry"
TIME = "_time"
OLD = "_old"
SORTED_ROWS = pa.schema(
    [
        (KEY, pa.string()),
        (ENTRY, pa.int32()),
        (TIME, pa.int64()),
        (OLD, pa.bool_()),
        (FILE, pa.string()),
        (ROW, pa.int64()),
    ]
)

#: Hash of a row's key.
HASH = "_hash"

#: Columns of the rows that are left out.
LEFT_OUT = pa.schema([(FILE, pa.string()), (ROW, pa.int64())])

#: Rows that are looked at together.
ROWS_AT_ONCE = 250_000

Numbers = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Keys:
    """What tells events from each other; picklable.

    `entity`, `event_time`: columns with the game and the time of the event. `entries`: those of the setting whose columns
    bronze has.
    """

    entity: str = ""
    event_time: str = ""
    entries: tuple[Deduplicate, ...] = ()

    def applies_to(self, game: str) -> bool:
        """Whether rows of a game may be left out."""
        return any(entry.applies_to(game) for entry in self.entries)

    def time_of(self, entry: Deduplicate) -> str:
        """The column with the time that an entry compares."""
        return ARRIVAL if entry.of == "arrival" else self.event_time

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns of keys and times, which silver must have as bronze has them."""
        columns = (column for entry in self.entries for column in (*entry.key, self.time_of(entry)))
        return tuple(dict.fromkeys(columns))

    @cached_property
    def times(self) -> Mapping[str, int]:
        """Column with a time -> the widest window of the entries that compare it, in microseconds."""
        widest = dict[str, int]()
        for entry in self.entries:
            column = self.time_of(entry)
            widest[column] = max(entry.window_us, widest.get(column, 0))
        return widest

    @property
    def windows_us(self) -> tuple[int, ...]:
        """The window of each entry."""
        return tuple(entry.window_us for entry in self.entries)

    @property
    def columns(self) -> frozenset[str]:
        """Columns of silver that are read."""
        more = {MESSAGE_TYPE} if any(entry.types for entry in self.entries) else set()
        return frozenset({self.entity, *self.compared, *more})


@dataclass(frozen=True)
class KeyedRows:
    """Of each row the number of its entry (-1: it has none, or lacks a value), the hash of its key, its time."""

    entries: npt.NDArray[np.int32]
    hashes: HashArray
    times: Numbers

    @classmethod
    def of(cls, parts: Sequence[Self]) -> Self:
        """Of the rows of all parts."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def take(self, rows: npt.NDArray[np.intp]) -> KeyedRows:
        """Of some of the rows, whose numbers are ascending."""
        if len(rows) == len(self.entries):
            return self
        return KeyedRows(self.entries[rows], self.hashes[rows], self.times[rows])


class KeyReader:
    """Makes keys of rows, by a connection of its own; close it."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._distinct = list(dict.fromkeys(entry.key for entry in keys.entries))
        self._key_of = np.array([self._distinct.index(entry.key) for entry in keys.entries])
        self._entry_hashes = np.array([_number_of(f"entry {number}") for number in range(len(keys.entries))], np.uint64)
        self._times = list(keys.times)
        self._time_of = np.array([self._times.index(keys.time_of(entry)) for entry in keys.entries])
        self._connection = connect()
        self._connection.execute("SET threads = 1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def of(self, rows: pa.Table, games: pa.DictionaryArray | str) -> KeyedRows:
        """The keys of rows, of these games or of one."""
        entries = np.full(rows.num_rows, -1, np.int32)
        for number, entry in enumerate(self._keys.entries):  # a row belongs to at most one: `require_apart`
            entries[self._are_of(entry, rows, games) & self._are_whole(entry, rows, games)] = number
        made = self._result("rows_to_hash", rows, [f"hash({_list(key)})" for key in self._distinct])
        hashes = _chosen([column.to_numpy() for column in made.columns], self._key_of[entries])
        micros = [micros_of(rows.column(name)).fill_null(0).to_numpy() for name in self._times]
        times = _chosen(micros, self._time_of[entries])
        return KeyedRows(entries, hashes ^ self._entry_hashes[entries] ^ _numbers_of(games), times)

    def texts(self, rows: pa.Table, entries: npt.NDArray[np.int32]) -> pa.Array:
        """The keys of rows as texts, different for different keys and entries."""
        texts = (f"WHEN {n} THEN {_as_text(n, e.key)}" for n, e in enumerate(self._keys.entries))
        case = f"CASE {identifier(ENTRY)} {' '.join(texts)} END"
        made = self._result("rows_to_name", rows.append_column(ENTRY, pa.array(entries)), [case])
        return made.column(0).combine_chunks().cast(pa.string())

    def _result(self, view: str, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        self._connection.register(view, rows)
        return self._connection.sql(f"SELECT {', '.join(columns)} FROM {view}").to_arrow_table()  # noqa: S608 - quoted

    def _are_of(self, entry: Deduplicate, rows: pa.Table, games: pa.DictionaryArray | str) -> Mask:
        """Which rows are of a game and a type of the entry."""
        mask = np.ones(rows.num_rows, bool)
        if entry.games:
            mask &= _are_in(games, entry.games)
        if entry.types:
            mask &= _are_of_types(rows, entry.types)
        return mask

    def _are_whole(self, entry: Deduplicate, rows: pa.Table, games: pa.DictionaryArray | str) -> Mask:
        """Which rows have all values that are compared."""
        mask = np.ones(rows.num_rows, bool)
        for name in (*entry.key, self._keys.time_of(entry)):
            if rows.column(name).null_count:
                mask &= pc.is_valid(rows.column(name)).to_numpy()
        if isinstance(games, pa.DictionaryArray) and games.null_count:
            mask &= pc.is_valid(games).to_numpy(zero_copy_only=False)
        return mask


def _chosen(columns: Sequence[npt.NDArray[Number]], which: npt.NDArray[np.intp]) -> npt.NDArray[Number]:
    """Of each row the value in the column with this number."""
    values = columns[0]
    for number, column in enumerate(columns[1:], start=1):
        values = np.where(which == number, column, values)
    return values


def _are_in(games: pa.DictionaryArray | str, wanted: Sequence[str]) -> Mask | bool:
    if isinstance(games, str):
        return games in wanted
    are_in = pc.is_in(games.dictionary, value_set=pa.array(wanted)).take(games.indices)
    return np.asarray(are_in.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _are_of_types(rows: pa.Table, names: Sequence[str]) -> Mask:
    """Which rows are of one of these message types, as `is_named`."""
    types = rows.column(MESSAGE_TYPE).combine_chunks().dictionary_encode()
    are_named = pa.array([any(is_named(full, name) for name in names) for full in types.dictionary.to_pylist()], pa.bool_())
    return np.asarray(are_named.take(types.indices).fill_null(False).to_numpy(zero_copy_only=False), bool)


def _numbers_of(games: pa.DictionaryArray | str) -> HashArray | np.uint64:
    """A number for each row's game, as good as different for different games."""
    if isinstance(games, str):
        return np.uint64(_number_of(games))
    numbers = pa.array([_number_of(str(name)) for name in games.dictionary.to_pylist()], pa.uint64())
    return np.asarray(numbers.take(games.indices).fill_null(0).to_numpy(), np.uint64)


def _number_of(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _list(columns: Iterable[str]) -> str:
    return ", ".join(map(identifier, columns))


def _as_text(number: int, columns: Sequence[str]) -> str:
    """Values as one text, with their lengths, so that no two lists of values give the same one."""
    parts = [f"'{number}'"]
    for column in map(identifier, columns):
        parts += ["':'", f"length({column}::VARCHAR)", "':'", f"{column}::VARCHAR"]
    return f"concat({', '.join(parts)})"


def micros_of(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as microseconds since 1970."""
    return times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())


#: Hashes that are looked up together.
HASHES_AT_ONCE = 16_384

#: Bits of a set's table for each of its hashes (as a power of two), and of all of it, at least and at most: of hashes that are
#: not in the set, one in so many is looked up among its values.
BITS_EACH, FEWEST_BITS, MOST_BITS = 6, 16, 28


@dataclass(frozen=True)
class Hashes:
    """A set of hashes; picklable. `values`: ascending. `table`: a bit for the first bits of each."""

    values: HashArray
    table: npt.NDArray[np.uint8]
    bits: int

    @classmethod
    def of(cls, values: HashArray) -> Hashes:
        """The set of these; they are ascending."""
        bits = min(MOST_BITS, max(FEWEST_BITS, round(log2(len(values) + 1)) + BITS_EACH))
        table = np.zeros(1 << (bits - 3), np.uint8)
        for part in _in_slices(values):
            places = _first(part, bits)
            begins = np.flatnonzero(np.diff(places >> 3, prepend=-1))  # of each byte the first of its places
            table[places[begins] >> 3] |= np.bitwise_or.reduceat((1 << (places & 7)).astype(np.uint8), begins)
        return cls(values, table, bits)

    def holds(self, hashes: HashArray) -> Mask:
        """Mask of the hashes that are in the set."""
        return np.concatenate([np.zeros(0, bool), *map(self._holds, _in_slices(hashes))])

    def _holds(self, hashes: HashArray) -> Mask:
        places = _first(hashes, self.bits)
        mask = np.asarray((self.table[places >> 3] >> (places & 7).astype(np.uint8)) & 1, bool)
        maybe = np.flatnonzero(mask)
        at = np.searchsorted(self.values, hashes[maybe])
        at[at == len(self.values)] = 0
        mask[maybe] = self.values[at] == hashes[maybe] if len(self.values) else False
        return mask


def _in_slices(hashes: HashArray) -> Iterator[HashArray]:
    """So many that what is made of them stays in the processor's cache: new memory costs more than the work on it."""
    return (hashes[start : start + HASHES_AT_ONCE] for start in range(0, len(hashes), HASHES_AT_ONCE))


def _first(hashes: HashArray, bits: int) -> Numbers:
    return (hashes >> np.uint64(64 - bits)).view(np.int64)


#: Columns of rows of silver with the key of a new row, or with the same hash.
KNOWN = pa.schema([(KEY, pa.string()), (HASH, pa.uint64()), (ENTRY, pa.int32()), (TIME, pa.int64())])

#: Of these rows, how many one task returns at most.
MOST_KNOWN = 1_000_000


@dataclass
class KnownRows:
    """What a task has found: `rows`, tables with the columns `KNOWN`; `crowded`: more than `MOST_KNOWN`."""

    rows: list[pa.Table]
    crowded: bool = False


@dataclass(frozen=True)
class FindKnown(WorkerJob[KnownRows]):
    """Finds the rows of silver with the keys of new rows; picklable.

    Attributes:
        schema: the columns that are read.
        hashes: of the new rows' keys.
        tasks: the files of each task.
    """

    result: ClassVar[type] = KnownRows
    lakehouse: Lakehouse
    keys: Keys
    schema: pa.Schema
    hashes: Hashes
    tasks: Sequence[Sequence[FilePart]]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> KnownRows:
        """The rows in the files of these tasks."""
        with KeyReader(self.keys) as reader:
            found = list[pa.Table]()
            for number in numbers_of(batches):
                for part in self.tasks[number]:
                    found = extend(found, self._known(reader, part))
                    if sum(rows.num_rows for rows in found) > MOST_KNOWN:
                        return KnownRows([], crowded=True)
        return KnownRows(found)

    def _known(self, reader: KeyReader, part: FilePart) -> Iterator[pa.Table]:
        game = game_of_silver(part.table)
        table = self.lakehouse.table(part.table)
        for rows in read_parts(table, self.schema, [part.path], row_groups=slice(part.number, None, part.of)):
            keyed = reader.of(rows, str(game))
            mine = np.flatnonzero((keyed.entries >= 0) & self.hashes.holds(keyed.hashes))
            if len(mine):
                entries = keyed.entries[mine]
                texts = reader.texts(rows.take(pa.array(mine)), entries)
                named = pc.binary_join_element_wise(str(game), texts, " ")
                columns = [named, pa.array(keyed.hashes[mine]), pa.array(entries), pa.array(keyed.times[mine])]
                yield pa.Table.from_arrays(columns, schema=KNOWN)


@dataclass(frozen=True)
class FindDuplicates:
    """Rows as `SORTED_ROWS` -> those that are left out, as `LEFT_OUT`; picklable.

    The rows come sorted by key, and those of one key in bronze's order, old ones first. `windows_us`: of each entry. `at_once`:
    rows that are looked at together; of a key with more of them, those that are kept stay in memory.
    """

    windows_us: tuple[int, ...]
    at_once: int = ROWS_AT_ONCE

    def among(self, rows: DataFrame) -> DataFrame:
        """The rows that are left out; `rows`: in partitions that are sorted so."""
        return rows.select(*SORTED_ROWS.names).mapInArrow(self, f"{FILE} string, {ROW} bigint")

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: the rows that are left out."""
        open_key = SORTED_ROWS.empty_table()
        for part in _in_parts(batches, self.at_once):
            rows = pa.concat_tables([open_key, part]).combine_chunks()
            groups = _groups(rows)
            old = rows.column(OLD).to_numpy()
            windows = np.array(self.windows_us, np.int64)[rows.column(ENTRY).to_numpy()]
            left_out = duplicates(groups, rows.column(TIME).to_numpy(), old, windows)
            yield from rows.filter(pa.array(left_out)).select(LEFT_OUT.names).cast(LEFT_OUT).combine_chunks().to_batches()
            # The next part may have more rows of the last key: what is kept of it is as good as old then.
            kept = rows.filter(pa.array((groups == groups[-1]) & ~left_out))
            open_key = kept.set_column(rows.schema.get_field_index(OLD), OLD, pa.repeat(True, kept.num_rows))


def _in_parts(batches: Iterable[pa.RecordBatch], at_once: int) -> Iterator[pa.Table]:
    """The rows, at least so many together."""
    waiting = list[pa.RecordBatch]()
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= at_once:
            yield pa.Table.from_batches(waiting).cast(SORTED_ROWS)
            waiting = []
            rows = 0
    if rows:
        yield pa.Table.from_batches(waiting).cast(SORTED_ROWS)


def _groups(rows: pa.Table) -> Numbers:
    """The number of each row's key; rows of one key follow each other."""
    keys = rows.column(KEY).chunk(0)
    begins = np.ones(rows.num_rows, bool)
    begins[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return np.cumsum(begins) - 1


def duplicates(groups: Numbers, times: Numbers, old: Mask, windows: Numbers) -> Mask:
    """Mask of the rows that are left out.

    `groups`: ascending; those of a group are in bronze's order, and its `old` rows are kept. `windows`: of each row; one for a
    group.

    By time, the rows of a group fall apart into clusters with gaps larger than the window, which have nothing to do with each
    other. Nearly always a cluster is no longer than the window: then its first row, or its old ones, keep out all others.
    """
    left_out = np.zeros(len(groups), bool)
    same = groups[1:] == groups[:-1]
    rows = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if not len(rows):
        return left_out
    rows = rows[np.lexsort((times[rows], groups[rows]))]
    by_time = times[rows]
    window = windows[rows].view(np.uint64)
    begins = np.ones(len(rows), bool)
    begins[1:] = (groups[rows][1:] != groups[rows][:-1]) | (_between(by_time[:-1], by_time[1:]) > window[1:])
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(rows))
    is_short = _between(by_time[starts], by_time[ends - 1]) <= window[starts]
    has_old = np.logical_or.reduceat(old[rows], starts)
    first = np.minimum.reduceat(rows, starts)
    of_cluster = np.cumsum(begins) - 1
    is_kept = old[rows] | ((rows == first[of_cluster]) & ~has_old[of_cluster])
    left_out[rows] = ~is_kept
    for number in np.flatnonzero(~is_short):
        cluster = np.sort(rows[starts[number] : ends[number]])
        left_out[cluster] = _one_by_one(times[cluster].tolist(), old[cluster].tolist(), int(window[starts[number]]))
    return left_out


def _between(earlier: Numbers, later: Numbers) -> HashArray:
    """Differences that are not negative: of times that are far apart, too."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _one_by_one(times: Sequence[int], old: Sequence[bool], window: int) -> list[bool]:
    """Which rows of a cluster longer than the window are left out, in bronze's order."""
    kept = sorted(time for time, is_old in zip(times, old, strict=True) if is_old)
    left_out = list[bool]()
    for time, is_old in zip(times, old, strict=True):
        at = bisect_left(kept, time)
        is_near = (at > 0 and time - kept[at - 1] <= window) or (at < len(kept) and kept[at] - time <= window)
        left_out.append(is_near and not is_old)
        if not is_near:
            insort(kept, time)
    return left_out
