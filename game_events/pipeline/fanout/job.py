"""Rows of many games -> one set of Parquet files for each game, in ONE Spark job.

Work is O(rows): no filter per game, no job per game. A worker sorts what it has buffered by game and appends each game's part
to that game's writer; memory is bounded by the buffer, whatever share of the rows one game has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.errors import TransientError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, buffer_bytes, discard, remove_empty_folder
from game_events.lakehouse.data.worker_job import WorkerJob
from game_events.lakehouse.storage.errors import explain
from game_events.lakehouse.tables import Lakehouse, Table
from game_events.pipeline.fanout.routing import Routing
from game_events.pipeline.quality.worker import RuleSplit, Splitter
from game_events.pipeline.reporting.report import RuleCounts

#: Rows and bytes sorted at a time: large enough that a game's part is more than a handful of rows.
SORT_ROWS = 262_144
SORT_BYTES = 64 * 1024 * 1024
#: Bytes of sorted rows held by the writers together, past which every one writes its row group.
BUFFER_BYTES = 192 * 1024 * 1024
#: Rows of one task.
TASK_ROWS = 500_000
#: With more files than this the rows are shuffled by game first: a file costs ~1 ms to write and open, a shuffled row ~2 us.
MAX_FILES_UNSHUFFLED = 512
#: Parts of a game after the shuffle, so that one game with most of the rows does not land in one task.
SALTS = 4


@dataclass
class FanOutResult:
    """What the workers return.

    Attributes:
        files: game -> its files.
        refused: why -> name -> rows that belong to no game.
        failed: game -> why its files could not be written; it has none then.
        rejected: game -> its files for quarantine.
        counts: game -> counts of its rows by the rules; empty without rules.
        crowded: a worker met more new names than `Routing.room`: nothing was kept.
    """

    files: dict[str, list[StagedFile]] = field(default_factory=dict)
    refused: dict[str, Counter[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, list[StagedFile]] = field(default_factory=dict)
    counts: dict[str, RuleCounts] = field(default_factory=dict)
    crowded: bool = False

    @property
    def games(self) -> set[str]:
        """Games that had rows, rejected or not."""
        return (set(self.files) | set(self.counts)) - set(self.failed)

    def rows(self, game: str) -> int:
        """Rows that a game had, rejected or not."""
        return self.counts[game].rows if game in self.counts else rows_of(self.files.get(game, []))

    def add(self, other: FanOutResult) -> None:
        """Add what workers return of other rows; a game that failed there has no files here either."""
        for mine, theirs in ((self.files, other.files), (self.rejected, other.rejected)):
            for game, files in theirs.items():
                mine.setdefault(game, []).extend(files)
        for why, names in other.refused.items():
            self.refused.setdefault(why, Counter()).update(names)
        for game, counts in other.counts.items():
            self.counts.setdefault(game, RuleCounts()).add(counts)
        self.failed.update(other.failed)
        self.crowded |= other.crowded


@dataclass(frozen=True)
class FanOut(WorkerJob[FanOutResult]):
    """Writes rows to files of their games' tables; picklable.

    Attributes:
        lakehouse: where the tables are.
        layer: silver or gold: which table of a game.
        game_column: column of the rows that names the game.
        schema: columns of the files.
        routing: which names get files.
        split: what becomes of rows that violate rules; None: there are no rules, every row goes to its game's files.
        aggregate: for gold: which of a game's tables.
    """

    result: ClassVar[type] = FanOutResult
    lakehouse: Lakehouse
    layer: str
    game_column: str
    schema: pa.Schema
    routing: Routing = field(default_factory=Routing)
    split: RuleSplit | None = None
    aggregate: str = PLAYER_AGG

    def table(self, game: str) -> Table:
        """Where a game's rows go."""
        return self.lakehouse.gold(game, self.aggregate) if self.layer == "gold" else self.lakehouse.silver(game)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FanOutResult:
        """Write the rows."""
        return _FanOutStage(self).run(batches)


def stage(rows: DataFrame, task: FanOut, row_count: int, games: int, salt: str | None = None) -> FanOutResult:
    """Run the job.

    Args:
        rows: the rows, `task.game_column` and all columns of `task.schema` among them.
        task: where they go.
        row_count: about how many there are: chooses the number of tasks.
        games: about how many games there are: chooses whether to shuffle.
        salt: column by which a game's rows are spread over several tasks; None: a game stays in one.
    """
    tasks = max(1, -(-row_count // TASK_ROWS))
    if tasks * games > MAX_FILES_UNSHUFFLED and tasks > 1:
        keys = [F.col(task.game_column)]
        if salt is not None and games < tasks * SALTS:
            keys.append(F.pmod(F.hash(salt), F.lit(SALTS)))
        rows = rows.repartition(tasks, *keys)
    else:
        rows = rows.coalesce(tasks)
    result = FanOutResult()
    for found in task.collect(rows):
        result.add(found)
    if result.crowded:
        _discard(task, result)
        return FanOutResult(crowded=True)
    for game in result.failed:
        # Files of other workers; never committed, removed by maintenance.
        result.files.pop(game, None)
        result.rejected.pop(game, None)
    return result


def _discard(task: FanOut, result: FanOutResult) -> None:
    """Delete all that was staged."""
    for game, files in result.files.items():
        discard(task.table(game), files)
        remove_empty_folder(task.table(game))
    for files in result.rejected.values():
        if task.split is not None and task.split.quarantine is not None:
            discard(task.split.quarantine, files)


class _FanOutStage:
    """One worker's pass."""

    def __init__(self, task: FanOut) -> None:
        self._task = task
        self._writers: dict[str, StagedWriter] = {}
        self._result = FanOutResult()
        self._buffer: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._held = 0
        self._splitter = Splitter(task.split) if task.split is not None else None
        self._new: set[str] = set()

    def run(self, batches: Iterable[pa.RecordBatch]) -> FanOutResult:
        for batch in batches:
            if self._result.crowded:
                continue  # the driver decides who comes in, and asks again
            self._buffer.append(batch)
            self._rows += batch.num_rows
            self._bytes += buffer_bytes(batch)
            if self._rows >= SORT_ROWS or self._bytes >= SORT_BYTES:
                self._split()
        self._split()
        if self._result.crowded:
            return FanOutResult(crowded=True)
        self._result.files = self._closed(self._writers)
        if self._splitter is not None:
            self._result.rejected = self._closed(self._splitter.writers)
            self._result.counts = self._splitter.counts
            self._result.files = {game: files for game, files in self._result.files.items() if game not in self._result.failed}
        return self._result

    def _closed(self, writers: dict[str, StagedWriter]) -> dict[str, list[StagedFile]]:
        for game, writer in writers.items():
            self._try(game, writer.close)
        return {game: w.files for game, w in writers.items() if w.files and game not in self._result.failed}

    def _try(self, game: str, write: Callable[[], object]) -> None:
        """One game's folder that cannot be written is that game's failure; the others go on.

        An object store that is away is away for all of them: the job ends instead of waiting once for each game.
        """
        if game not in self._result.failed:
            try:
                write()
            except OSError as error:
                known = explain(error, self._task.table(game).uri)
                if isinstance(known, TransientError):
                    raise
                self._result.failed[game] = f"its files cannot be written: {known or error}"

    def _split(self) -> None:
        """Sort the buffer by game, once, and hand each game its part."""
        if not self._rows:
            return
        rows = pa.Table.from_batches(self._buffer).combine_chunks()
        self._buffer, self._rows, self._bytes = [], 0, 0
        codes = rows.column(self._task.game_column).combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(codes, pa.ChunkedArray):
            codes = codes.combine_chunks()
        numbers = codes.indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        columns = rows.select(self._task.schema.names)
        names = codes.dictionary.to_pylist()
        bounds = np.searchsorted(numbers[order], np.arange(len(names) + 1))
        routed = []
        for number, name in enumerate(names):
            if not self._task.routing.skips(name) and self._route(name, int(bounds[number + 1] - bounds[number])):
                routed.append(number)
        if self._room_is_over(names[number] for number in routed):
            self._give_up()
            return
        if not routed:
            return
        sorted_rows = columns.take(pa.array(order)).cast(self._task.schema)
        more = rows.select(self._task.split.columns).take(pa.array(order)) if self._task.split is not None else None
        size = buffer_bytes(sorted_rows)
        for number in routed:
            start, count = int(bounds[number]), int(bounds[number + 1] - bounds[number])
            of_game, part = more.slice(start, count) if more is not None else None, sorted_rows.slice(start, count)
            self._try(names[number], partial(self._write, names[number], part, size * count // rows.num_rows, of_game))
        # A game's part is a slice: it keeps the whole sorted table alive, so that is what is counted.
        self._held += size
        if self._held > BUFFER_BYTES:
            self._held = 0
            for game, writer in self._writers.items():
                self._try(game, writer.flush)

    def _room_is_over(self, names: Iterable[str]) -> bool:
        """Whether there are more new names than there is room for."""
        routing = self._task.routing
        if routing.room is None:
            return False
        self._new.update(name for name in names if name not in routing.known)
        return len(self._new) > routing.room

    def _give_up(self) -> None:
        """Delete what was written."""
        self._result.crowded = True
        for game, writer in self._writers.items():
            with suppress(OSError):
                writer.abort()
            if game in self._new:
                remove_empty_folder(self._task.table(game))
        for writer in self._splitter.writers.values() if self._splitter is not None else ():
            with suppress(OSError):
                writer.abort()

    def _write(self, game: str, rows: pa.Table, size: int, more: pa.Table | None) -> None:
        if self._splitter is not None and more is not None:
            rows = self._splitter.keep(game, rows, more)
        if rows.num_rows:
            self._writer(game).write(rows, size)

    def _route(self, name: object, rows: int) -> bool:
        why = self._task.routing.refusal(name)
        if why is None:
            return True
        self._result.refused.setdefault(why, Counter())[self._task.routing.counted_as(name, why)] += rows
        return False

    def _writer(self, game: str) -> StagedWriter:
        if game not in self._writers:
            self._writers[game] = StagedWriter(self._task.table(game), self._task.schema, game)
        return self._writers[game]


def rows_of(files: Iterable[StagedFile]) -> int:
    """Rows of staged files."""
    return sum(f.rows for f in files)
