"""Rows of the tables that a job replaces: the job's workers read them from the files, and merge or carry over.

The rows of a table that a job does not change are copied, as Arrow, into the table's new file. Rows of small
tables pass through Spark all the same: copying them would read the file a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.commits.parallel import ahead
from game_events.lakehouse.data.snapshot import read_parts
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.fanout.batches import in_batches


@dataclass(frozen=True)
class OldRows:
    """The files of the games' tables before the job, and the columns that identify a row; picklable.

    Attributes:
        aggregate: which of a game's gold tables.
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

    def without_small(self) -> OldRows:
        """Those of the other games, some of whose rows `with_old` leaves out."""
        return replace(self, files={game: files for game, files in self.files.items() if game not in self.small})

    def with_old(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: the new rows, and the old rows with the same keys, or all old rows of a game with new ones.

        All new rows of a game are in one task.
        """
        new: list[pa.RecordBatch] = []
        schema, games = pa.schema([]), pa.array(self.files, pa.string())
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
        small = [game for game in keys if game in self.small]
        for game, tables in zip(small, ahead(small, lambda game: list(self._rows(game))), strict=True):
            yield from (self._named(game, rows) for rows in tables)
        for game in keys.keys() - self.small:
            yield from (self._named(game, rows.filter(found)) for rows, found in self.matched(game, keys[game]))

    def _named(self, game: str, rows: pa.Table) -> pa.Table:
        return rows.add_column(0, self.game_column, pa.repeat(pa.scalar(game), rows.num_rows))

    def others(self, game: str, keys: pa.Table) -> Iterator[pa.Table]:
        """The old rows of a game with other keys than these."""
        for rows, found in self.matched(game, keys):
            yield rows.filter(pc.invert(found)) if pc.any(found).as_py() else rows

    def matched(self, game: str, keys: pa.Table) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The old rows of a game, part by part, and which of them have one of these keys."""
        for rows in self._rows(game):
            yield rows, has_key(rows, keys)

    def _rows(self, game: str) -> Iterator[pa.Table]:
        return read_parts(self.lakehouse.gold(game, self.aggregate), self.schema, self.files[game])


def parts_by_game(rows: pa.Table, game_column: str) -> tuple[pa.Array, dict[Any, tuple[int, int]]]:
    """The order of the rows by game, and game -> start and length of its part in this order."""
    codes = rows.column(game_column).combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    numbers = codes.indices.to_numpy()
    names = codes.dictionary.to_pylist()
    # numpy sorts 16-bit numbers in linear time.
    order = np.argsort(numbers.astype(np.min_scalar_type(len(names))), kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(len(names) + 1)).tolist()
    return pa.array(order), {name: (bounds[n], bounds[n + 1] - bounds[n]) for n, name in enumerate(names)}


def has_key(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """Which rows have one of these keys; NULL equals NULL, as in Spark's `groupBy`.

    Each further column makes numbers of the pairs of the number so far and its own.
    """
    if not keys.column_names:
        return pa.repeat(pa.scalar(True), rows.num_rows)
    first, *others = keys.column_names
    if not others:
        return pc.is_in(rows.column(first), value_set=keys.column(first).combine_chunks())
    known, found = _numbers(keys.column(first), rows.column(first))
    for name in others:
        wanted, asked = _numbers(keys.column(name), rows.column(name))
        size = keys.num_rows
        known, found = _numbers(pc.add(pc.multiply(known, size), wanted), pc.add(pc.multiply(found, size), asked))
    return pc.is_valid(found)


def _numbers(keys: pa.ChunkedArray, values: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Both as numbers of the keys' distinct values; a value that is none of these is NULL."""
    distinct = keys.unique()
    return pc.index_in(keys, value_set=distinct).cast(pa.int64()), pc.index_in(values, value_set=distinct).cast(pa.int64())
