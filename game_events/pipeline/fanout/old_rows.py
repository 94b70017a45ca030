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

from game_events.lakehouse.data.snapshot import read_parts
from game_events.lakehouse.data.staging import buffer_bytes
from game_events.lakehouse.tables import Lakehouse

#: Old rows, and their bytes, that go to Spark together: each batch costs Spark more than some hundred rows.
PASSED_ROWS, PASSED_BYTES = 10_000, 16 * 1024 * 1024


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
        passed, count, size = list[pa.Table](), 0, 0
        for game in parts:
            for rows in self._to_merge(game, keys.slice(*parts[game])):
                if rows.num_rows:
                    passed.append(rows.add_column(0, self.game_column, pa.repeat(pa.scalar(game), rows.num_rows)))
                    count, size = count + rows.num_rows, size + buffer_bytes(rows)
                if count >= PASSED_ROWS or size >= PASSED_BYTES:
                    yield from _joined(passed, schema)
                    passed, count, size = [], 0, 0
        if passed:
            yield from _joined(passed, schema)

    def _to_merge(self, game: str, keys: pa.Table) -> Iterator[pa.Table]:
        """The old rows of a game with these keys; of a small game all."""
        if game in self.small:
            yield from self._rows(game)
            return
        for rows, found in self._matched(game, keys):
            yield rows.filter(found)

    def others(self, game: str, keys: pa.Table) -> Iterator[pa.Table]:
        """The old rows of a game with other keys than these."""
        for rows, found in self._matched(game, keys):
            yield rows.filter(pc.invert(found)) if pc.any(found).as_py() else rows

    def _matched(self, game: str, keys: pa.Table) -> Iterator[tuple[pa.Table, pa.Array]]:
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
    order = np.argsort(numbers, kind="stable")
    names = codes.dictionary.to_pylist()
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


def _joined(parts: Sequence[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Old rows together, in the schema of the new ones (types and nullability: Spark compares them)."""
    for batch in pa.concat_tables(parts).combine_chunks().to_batches():
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
