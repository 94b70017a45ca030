"""Which rows of a table are older than their limit, by the files' statistics or by a few of their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.config.retention import RetentionDays
from game_events.lakehouse.data.reading import may_hold

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

DAY_US = 86_400_000_000
#: Before every time: the limit of rows that stay; and after every time, and every batch.
FOR_EVER, NEVER = -(2**63), 2**63 - 1
#: Other engines cut the upper bounds of times to milliseconds.
CUT_US = 1_000


@dataclass(frozen=True)
class Ages:
    """The ages and limits of the rows of one table, or of a game's part of one.

    Attributes:
        layer: of the limits (`config.retention.LAYERS`).
        now_us: the time that ages are counted from, in microseconds since 1970.
        times: columns of which the first one with a value is the time of a row. A row without any, or with a time in the
            future, is never older.
        game: of all rows; None: `game_column` says it.
        game_column, type_column: of the rows, if they are there.
    """

    layer: str
    days: RetentionDays
    now_us: int
    times: tuple[str, ...]
    game: str | None = None
    game_column: str | None = None
    type_column: str | None = None

    @cached_property
    def limits(self) -> frozenset[int]:
        """The times before which rows may be older; `FOR_EVER` is among them if some rows stay."""
        games = [self.game] if self.game is not None else [None, *self.days.games(self.layer)]
        types = [None, *(self.days.types(self.layer, self.game) if self.type_column is not None else ())]
        return frozenset(self.limit(game, message_type) for game in games for message_type in types)

    def limit(self, game: str | None, message_type: str | None = None) -> int:
        """The time before which a row is older than its limit."""
        days = self.days.of(self.layer, game, message_type)
        return FOR_EVER if days is None else self.now_us - round(days * DAY_US)

    @property
    def latest_limit(self) -> int:
        """The time from which on no row is older."""
        return max(self.limits)

    def columns(self) -> list[str]:
        """The columns that `time_and_limit` reads, if they are there."""
        by = (self.game_column, self.type_column) if len(self.limits) > 1 else ()
        return [*self.times, *(name for name in by if name is not None)]

    def time_and_limit(self, rows: pa.Table) -> tuple[Numbers, Numbers]:
        """Of each row its time, and the time before which it is older than its limit."""
        times = [in_us(rows.column(name)) for name in self.times if name in rows.column_names]
        time = pc.fill_null(pc.coalesce(*times), NEVER).to_numpy() if times else np.full(rows.num_rows, NEVER)
        if len(self.limits) == 1:
            return time, np.full(rows.num_rows, self.latest_limit)
        games, game_numbers = ([self.game], 0) if self.game is not None else coded(rows, self.game_column)
        types, type_numbers = coded(rows, self.type_column)
        limits = np.array([[self.limit(_text(game), _text(kind)) for kind in types] for game in games], np.int64)
        return time, limits[game_numbers, type_numbers]

    def bounds(self, actions: pa.Table) -> tuple[Numbers, Numbers]:
        """Of each file (`add_actions`) a time that no row is before, and one that no row is after."""
        first = np.full(actions.num_rows, NEVER)
        last = np.full(actions.num_rows, FOR_EVER)
        complete = np.full(actions.num_rows, False)
        for name in self.times:
            low, high = _bounds_of(actions, name)
            first = np.where(complete, first, np.minimum(first, low))
            last = np.where(complete, last, np.maximum(last, high))
            complete |= nulls_in(actions, name) == 0
        # Rows without any time are never older.
        return first, np.where(complete, last, NEVER)

    def limits_in(self, actions: pa.Table) -> tuple[Numbers, Numbers]:
        """Of each file (`add_actions`) the earliest and the latest limit of its rows, by the games and types it may have."""
        earliest = np.full(actions.num_rows, NEVER)
        latest = np.full(actions.num_rows, FOR_EVER)
        own_types = self.days.types(self.layer, self.game) if self.type_column is not None else frozenset[str]()
        types = list(_files_with(actions, self.type_column, own_types))
        named = self.days.games(self.layer) if self.game is None else frozenset[str]()
        for game, has_game in _files_with(actions, self.game_column, named):
            for message_type, has_type in types:
                limit = self.limit(game or self.game, message_type)
                both = has_game & has_type
                earliest[both] = np.minimum(earliest[both], limit)
                latest[both] = np.maximum(latest[both], limit)
        return earliest, latest


def _files_with(actions: pa.Table, column: str | None, names: Collection[str]) -> Iterator[tuple[str | None, Mask]]:
    """Each name, and which files may have rows with it; then None, and which may have rows without any of the names."""
    others = np.full(actions.num_rows, True)
    for name in names:
        yield name, np.asarray(may_hold(actions, str(column), name, name).to_numpy(zero_copy_only=False), np.bool_)
        others &= ~_only(actions, str(column), name)
    yield None, others


def _only(actions: pa.Table, column: str, name: str) -> Mask:
    """Which files have one value alone, by their statistics."""
    if f"min.{column}" not in actions.column_names:
        return np.full(actions.num_rows, False)
    bounds = (pc.fill_null(pc.equal(actions.column(f"{end}.{column}"), name), False).to_numpy() for end in ("min", "max"))
    return np.asarray(np.logical_and(*bounds) & (nulls_in(actions, column) == 0), np.bool_)


def _text(name: object) -> str | None:
    return name if isinstance(name, str) else None


def _bounds_of(actions: pa.Table, name: str) -> tuple[Numbers, Numbers]:
    """Of each file the bounds of a column; of one in which all values are NULL none that count."""
    if f"min.{name}" not in actions.column_names or not pa.types.is_timestamp(actions.column(f"min.{name}").type):
        return np.full(actions.num_rows, FOR_EVER), np.full(actions.num_rows, NEVER)
    low = pc.fill_null(in_us(actions.column(f"min.{name}")), FOR_EVER).to_numpy()
    high = pc.fill_null(pc.add(in_us(actions.column(f"max.{name}")), CUT_US), NEVER).to_numpy()
    is_empty = nulls_in(actions, name) == actions.column("num_records").to_numpy()
    return np.where(is_empty, NEVER, low), np.where(is_empty, FOR_EVER, high)


def nulls_in(actions: pa.Table, name: str) -> Numbers:
    """NULLs of a column in each file; -1: not known."""
    if f"null_count.{name}" not in actions.column_names:
        return np.full(actions.num_rows, -1)
    return np.asarray(pc.fill_null(actions.column(f"null_count.{name}").cast(pa.int64()), -1).to_numpy())


def in_us(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as microseconds since 1970; NULL for values that are no times."""
    if not pa.types.is_timestamp(times.type):
        return pa.chunked_array([pa.nulls(len(times), pa.int64())])
    return pc.cast(pc.cast(times, pa.timestamp("us", times.type.tz), safe=False), pa.int64())


def coded(rows: pa.Table, name: str | None) -> tuple[list[object], Numbers]:
    """The values of a column, and of each row the number of its value; one NULL without such a column."""
    if name is None or name not in rows.column_names:
        return [None], np.zeros(rows.num_rows, np.int64)
    encoded = pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


@dataclass(frozen=True)
class Settled:
    """Which rows may go, as the tables that are made from them have them.

    Attributes:
        upto: name of a game -> the last bronze batch of which its rows may go; None: all rows may go.
        game, game_column: as of `Ages`.
        free: columns of which one marks rows that may go whatever their batch is, by `is_free`.
    """

    upto: Callable[[object], int] | None = None
    game: str | None = None
    game_column: str | None = None
    free: tuple[str, ...] = ()
    is_free: Callable[[pa.Table], Mask] | None = None

    def columns(self) -> list[str]:
        """The columns that `mask` reads, if they are there."""
        by = [] if self.upto is None else ["_batch", *([self.game_column] if self.game_column is not None else [])]
        return [*by, *self.free]

    def whole(self, highest_batch: int | None) -> bool:
        """Whether all rows of a file may go, by its last batch, where all are of one game."""
        return self.upto is None or (
            self.game is not None and highest_batch is not None and highest_batch <= self.upto(self.game)
        )

    def mask(self, rows: pa.Table) -> Mask:
        """Of each row whether it may go."""
        if self.upto is None:
            return np.full(rows.num_rows, True)
        names, numbers = ([self.game], np.zeros(rows.num_rows, np.int64)) if self.game else coded(rows, self.game_column)
        limits = np.array([self.upto(name) for name in names], np.int64)
        batches = pc.fill_null(rows.column("_batch"), NEVER).to_numpy()
        may_go = batches <= limits[numbers]
        return np.asarray(may_go if self.is_free is None else may_go | self.is_free(rows), np.bool_)
