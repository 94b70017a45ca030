"""Rows of many games -> Parquet files of each game, in one Spark job (`workers.fanout`), or in bronze's, where that is plain.

Work is O(rows): no filter per game, no job per game.

Where it is plain, bronze's workers also write silver's files and gold's partial rows, which this process holds (`OnePass`).
What is held is the result of the job that silver would run: of the same files of bronze, routed in the same way, with the same
columns. Files never change, so it stays that job's result; it is taken only if silver would read exactly these files now, in
exactly this way. In every other case, after a crash too, it is deleted (or, after a crash, left to maintenance), and silver
reads bronze. The same holds for partial rows: they are those of a set of silver's files, and taken if gold would read these.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.config.file_layout import NO_LAYOUT
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.data.reading import FileSelection, SelectedFiles, selection
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.system_tables import Admission
from game_events.lakehouse.tables import Layer
from game_events.pipeline.context import Pipeline
from game_events.sources.source import TASK_RECORDS
from game_events.workers.fanout import FanOut, OnePassTask, Routing
from game_events.workers.results import FanOutResult
from game_events.workers.rows import COUNT, FIRST, GAME, KEY, LAST, PartialAggregate, merged_partials, parts_by_game

log = logging.getLogger(__name__)

#: Rows of one task. Where its files would have fewer rows than `FILE_ROWS`, there are fewer tasks, of more rows.
TASK_ROWS = 500_000
MOST_TASK_ROWS = 2_000_000
FILE_ROWS = 10_000
FEWEST_TASKS = 2

#: With more files than this, or fewer rows in a file, the rows are shuffled by game first: each file costs 2 to 3 ms to write
#: and to read again, and a request each of an object store; each shuffled row 4 us.
MAX_FILES_UNSHUFFLED = 16_384
MIN_ROWS_UNSHUFFLED = 1_000

#: Seconds that a game's file costs to write and to read again, and a row that a worker reads and leaves to another one.
FILE_S = 2e-3
LEFT_ROW_S = 0.35e-6

#: Share of the rows of one game, times the shares of the games, up to which tasks for shares have about as much to do.
MOST_OF_ONE_GAME = 0.25

#: Parts of a game after the shuffle, so that one game with most of the rows does not land in one task.
SALTS = 4


def tasks_for(row_count: int, games: int) -> int:
    """Number of tasks for so many rows of so many games, both estimates; 0 games: unknown, or the rows are shuffled."""
    most = max(1, math.ceil(row_count / TASK_ROWS))
    fewest = max(FEWEST_TASKS, math.ceil(row_count / MOST_TASK_ROWS))
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
    keys = [F.col(task.game_column)]
    tasks = tasks_for(row_count, 0)
    if games < tasks * SALTS:
        keys.append(F.pmod(F.hash(salt), F.lit(SALTS)))
    return rows.repartition(tasks, *keys)


def write_game_files(rows: DataFrame, task: FanOut) -> FanOutResult:
    """Run the job: each of the rows' tasks writes files of its games."""
    result = FanOutResult.sum(task.collect(rows))
    if result.crowded:
        result.discard(task.table)
        if task.outcome is not None and task.outcome.quarantine is not None:
            for files in result.rejected.values():
                discard(task.outcome.quarantine, files)
        return FanOutResult(crowded=True)
    for game in result.failed:
        # Files of other workers; never committed, removed by maintenance.
        for name in result.tables(game):
            result.files.pop(name, None)
        result.rejected.pop(game, None)
    return result


#: Where a game may get several files, a task gives up that would write fewer rows to each: a job of silver's own, which knows
#: the number of games, writes fewer files.
FEWEST_FILE_ROWS = FILE_ROWS // 2
#: Files, and partial rows, that are held at most: beyond that silver reads bronze, and gold silver.
MOST_FILES = 16_384
MOST_PARTIAL_ROWS = 500_000


@dataclass(frozen=True)
class GamePartial:
    """A game's partial rows (`KEY`, `COUNT`, `FIRST`, `LAST`; a key more than once), and the paths of the files they are of."""

    paths: frozenset[str]
    rows: pa.Table


@dataclass
class OnePass:
    """What this process holds for its next steps: silver's files, not committed, and gold's partial rows.

    Attributes:
        enabled: False, for comparisons: nothing is held, and each layer reads the one before.
        taken, merged: how often silver took its files, and games' gold their partial rows.
    """

    enabled: bool = True
    taken: int = 0
    merged: int = 0
    #: What is held of committed micro-batches, and paths of the files of bronze that it is of.
    _held: tuple[FanOut, FanOutResult] | None = None
    _sources: frozenset[str] = frozenset()
    #: Of a micro-batch that is not committed yet.
    _pending: tuple[FanOut, FanOutResult] | None = None
    _partials: dict[str, GamePartial] = field(default_factory=dict)

    def plan(self, pipeline: Pipeline, bronze: DeltaTable, tasks: int) -> OnePassTask | None:
        """How workers shall write silver's files of the next micro-batch, of so many tasks; None: silver will read bronze."""
        self._drop_pending()  # of a micro-batch whose commit failed
        settings = pipeline.settings
        ruled = {rule.layer for rule in pipeline.rules}
        if not self.enabled or pipeline.extensions.transformations or "silver" in ruled or settings.deduplicate:
            return None
        state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
        # Silver must lack nothing but the next micro-batch and what is held, and not write larger files by itself.
        all_admitted = state.left_out.covers(Admission.of(settings)) and not state.failed_in(Layer.SILVER)
        lacks_others = not self._is_of(selection(bronze, state.floor(Layer.SILVER)))
        if not all_admitted or lacks_others or self._has_small_files():
            self.drop()
            return None
        return OnePassTask(
            pipeline.lakehouse,
            Routing.of_all(settings, state.games),
            PartialAggregate(settings.entity_column, settings.key_column, settings.time_column),
            not settings.gold_columns and "gold" not in ruled,
            self._most_games(tasks),
            settings.type_tables,
        )

    def _has_small_files(self) -> bool:
        """Whether the held files have fewer rows than those that silver's own job would write."""
        if self._held is None:
            return False
        task, result = self._held
        files = list(chain.from_iterable(result.files.values()))
        layout = task.lakehouse.file_layouts.get(task.layer, NO_LAYOUT)
        # By day, there may be one of late rows beside each of a day, whoever writes them.
        fewest = FEWEST_FILE_ROWS if layout.day is None else FEWEST_FILE_ROWS // 2
        return sum(file.rows for file in files) < len(files) * fewest

    def _most_games(self, tasks: int) -> int | None:
        """Games for which one of so many tasks writes files at most; None: any number, as each game gets one file."""
        return None if tasks == 1 and not self._sources else TASK_RECORDS // FEWEST_FILE_ROWS

    def staged(self, task: FanOut | None, result: FanOutResult) -> None:
        """Note what the workers have written of a micro-batch, before its commit."""
        if task is None:
            return
        self._pending = task, result
        if result.crowded or result.failed:
            log.info("one_pass=given_up crowded=%s failed=%d", result.crowded, len(result.failed))
            self._drop_pending()

    def committed(self, files: Iterable[StagedFile]) -> None:
        """Hold what was staged of a micro-batch whose files bronze has now."""
        if self._pending is None:
            return
        task, result = self._pending
        if self._held is not None:
            if not _alike(self._held[0], task):
                self.drop()
                return
            result = FanOutResult.sum([self._held[1], result])
        self._pending = None
        self._held = task, result
        self._sources |= {file.path for file in files}
        if sum(map(len, result.files.values())) > MOST_FILES:
            self.drop()

    def take(self, files: FileSelection, task: FanOut) -> FanOutResult | None:
        """The result of a job of silver's over these files of bronze, if it is held; the caller commits its files."""
        held = self._held
        if held is None or not (self._is_of(files) and _alike(held[0], task)):
            self.drop()
            return None
        self.taken += 1
        self._note_partials(held[1])
        self._held = None  # its files are the caller's now
        self._sources = frozenset()
        return held[1]

    def drop(self) -> None:
        """Delete silver's files that are held; none of them is in a commit."""
        self._drop_pending()
        if self._held is not None:
            task, result = self._held
            result.discard(task.table)
        self._held = None
        self._sources = frozenset()

    @contextmanager
    def dropped_on_error(self) -> Iterator[None]:
        """Delete what is held if the steps inside end by an error: perhaps no step of this process takes it then."""
        try:
            yield
        except BaseException:
            self.drop()
            raise

    @contextmanager
    def used(self) -> Iterator[None]:
        """After silver's step nothing is held but partial rows."""
        try:
            yield
        finally:
            self.drop()

    def take_partial(self, game: str, files: SelectedFiles) -> pa.Table | None:
        """The partial rows of a game's new rows, if they are those of these files of silver; nothing of the game stays."""
        partial = self._partials.pop(game, None)
        if partial is None or not files.exact or partial.paths != set(files.paths):
            return None
        # Of a task that had too many of them, partial rows are missing.
        return partial.rows if pc.sum(partial.rows.column(COUNT)).as_py() == files.rows else None

    def _is_of(self, files: FileSelection) -> bool:
        return files.exact and set(files.paths) == self._sources

    def _drop_pending(self) -> None:
        if self._pending is not None:
            task, result = self._pending
            self._pending = None
            result.discard(task.table)

    def _note_partials(self, result: FanOutResult) -> None:
        """Add the partial rows of files that silver takes to those that gold has not taken yet."""
        if not result.partials:
            return
        rows = merged_partials(result.partials, (GAME, KEY))
        order, parts = parts_by_game(rows, GAME)
        rows = rows.select([KEY, COUNT, FIRST, LAST]).take(order)
        for game in result.games & parts.keys():
            files = chain.from_iterable(result.files.get(name, []) for name in result.tables(game))
            new = GamePartial(frozenset(file.path for file in files), rows.slice(*parts[game]))
            old = self._partials.get(game)
            if old is not None and old.rows.schema == new.rows.schema:
                new = GamePartial(old.paths | new.paths, merged_partials([old.rows, new.rows], (KEY,)))
            self._partials[game] = new
        if sum(partial.rows.num_rows for partial in self._partials.values()) > MOST_PARTIAL_ROWS:
            self._partials = {}


def _alike(one: FanOut, other: FanOut) -> bool:
    """Whether both write the same files of the same rows."""
    return _types(one) == _types(other) and (one.routing, one.choice) == (other.routing, other.choice)


def _types(task: FanOut) -> dict[str, pa.DataType]:
    return {column.name: column.type for column in task.schema}
