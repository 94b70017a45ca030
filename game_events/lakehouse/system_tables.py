"""The project's own small tables, read and written by the driver with Arrow: `progress`, `event_log`, and what they share.

`progress` has the low watermark of each layer, which saves work: each table's own `txn` decides. A low watermark (`floor`)
means: everything up to this bronze batch is in the layer, but for the games listed as failed. A lost or old one costs reads,
never a row. Layers: silver, gold, unified, and `gold:{name}` for each user-defined aggregate.

`event_log`: what every run did, one row per fact; append-only, without a value of any event. Guarantee: the events of a run's
part are in the table once, also with concurrent writers and repeated calls.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import compress, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.config.names import PROGRESS
from game_events.config.settings import Settings
from game_events.errors import LostFileError, without_quotes
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit, retry_on_conflict
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, txn
from game_events.lakehouse.data.columns import COMMENT
from game_events.lakehouse.data.reading import may_hold, read_parts
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import EVENT_LOG, OWN_GOLD, Lakehouse, Layer, Table, add_actions, table_id, version_of
from game_events.lakehouse.tables import paths as paths_of

log = logging.getLogger(__name__)


def schema_of(**described: tuple[pa.DataType, str]) -> pa.Schema:
    """A schema of columns with their types and comments."""
    return pa.schema([pa.field(name, kind, metadata={COMMENT: text}) for name, (kind, text) in described.items()])


@dataclass(frozen=True)
class SystemTable:
    """A table with a fixed schema; each commit compares and advances the number of commits.

    Guarantee: rows are committed to the version they were planned from, or not at all.

    `description`: Delta's description of a new table. `counter`: `txn` with the number of commits.
    """

    table: Table
    schema: pa.Schema
    description: str
    counter: Txn = Txn.COMMITS

    def read(
        self, handle: DeltaTable | None, columns: Sequence[str] | None = None, paths: Sequence[str] | None = None
    ) -> pa.Table:
        """Rows of a version (none without a table), of all files or some; columns that an older table lacks are NULL."""
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        if paths is None:
            paths = [] if handle is None else paths_of(handle)
        none = pa.Table.from_batches([], schema)  # for `empty_table()` Arrow imports pandas
        return pa.concat_tables([none, *read_parts(self.table, schema, paths)])

    def commit(
        self,
        handle: DeltaTable | None,
        rows: pa.Table,
        *,
        replace: bool = False,
        set_transactions: Mapping[str, int] | None = None,
        info: Mapping[str, str] | None = None,
    ) -> Landed:
        """Append rows, or replace all rows by them; a table that does not exist is created.

        `handle`: the version that the rows were planned from (`Commit.from_table`); None: there was no table. `replace`: remove
        the rows of `handle`. `set_transactions`, `info`: further ones of the commit.

        Raises:
            ConflictError: a concurrent writer committed since `handle`.
        """
        before = txn(handle, self.counter)
        return commit(
            Commit(
                self.table,
                self.schema,
                staged(self.table, rows.cast(self.schema)),
                expect_transactions={self.counter: before},
                set_transactions={self.counter: (before or 0) + 1, **(set_transactions or {})},
                table_id=table_id(handle),
                from_table=handle,
                replace=replace,
                info=info or {},
                description=self.description,
            )
        )


PROGRESS_SCHEMA = schema_of(
    bronze_id=(pa.string(), "Content of bronze_events that the row speaks of"),
    layer=(pa.string(), "Layer"),
    kind=(pa.string(), "floor, game, failed, unrouted, decided_anew, searched or counted"),
    game=(pa.string(), "Game"),
    batch=(pa.int64(), "Batch of bronze_events that it has come to"),
    detail=(pa.string(), "More, as JSON or in words"),
)


@dataclass(frozen=True)
class Mark:
    """Metadata of a low watermark.

    `definition`: declaration of the aggregate; with another one the low watermark is void. Of silver the entity column, or
    all that tables are made by, with slashes between; empty: not known. `committed_at`: time of the newest commit to a table of
    the layer, in seconds since 1970.
    """

    definition: str = ""
    committed_at: float | None = None


class Search(NamedTuple):
    """A search of tables.

    `at_s`: when it began, in seconds since 1970 by the clock of the tables' file system; 0: there was none. `scope`: what
    decides which tables are searched.
    """

    at_s: int = 0
    scope: str = ""


class GameRows(NamedTuple):
    """A game's rows of bronze, and those of them that rules have dropped, or put into quarantine, or that were sent twice.

    `rows`: with those that bronze has lost by age; `expired`: those that silver lacks by age.
    """

    rows: int
    dropped: int = 0
    quarantined: int = 0
    duplicates: int = 0
    expired: int = 0


@dataclass(frozen=True)
class CountedRows:
    """Rows of bronze that a check has counted and found in silver.

    `batch`: the last of their batches; 0: none were counted. `games`: game -> its rows; None: those of no game with a silver
    table.
    """

    batch: int = 0
    games: Mapping[str | None, GameRows] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission:
    """The settings that decide which names in bronze may be games.

    Attributes:
        games: allow list, which alone decides then; empty: every valid name within the limits.
        max_games: number of games up to which every new name comes in.
        most_games: number of games up to which names with `min_rows` rows come in.
    """

    games: frozenset[str] = frozenset()
    max_games: int = 0
    most_games: int = 0
    min_rows: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Admission:
        """The admission by these settings."""
        if settings.games:
            return cls(frozenset(settings.games))
        most = max(settings.max_games, settings.max_games_ever)
        return cls(frozenset(), settings.max_games, most, settings.new_game_min_rows)

    def covers(self, other: Admission) -> bool:
        """Whether no name that another admission lets in can have been left out by this one."""
        if self.games or other.games:
            return bool(self.games and other.games) and other.games <= self.games
        limits = other.max_games <= self.max_games and other.most_games <= self.most_games
        return limits and other.min_rows >= self.min_rows

    def narrowed(self, other: Admission) -> Admission | None:
        """Lets in no name that one of both may have left out; None: that cannot be said."""
        for one, wider in ((self, other), (other, self)):
            if wider.covers(one):
                return one
        common = self.games & other.games
        return Admission(common) if common else None


@dataclass(frozen=True)
class LeftOut:
    """Rows below silver's low watermark whose names are valid, and were not admitted when the rows were due.

    Attributes:
        first, last: the bronze batches that may hold such rows; 0: there are none.
        by: lets in none of their names; None: it is not known which names they have.
    """

    first: int = 0
    last: int = 0
    by: Admission | None = None

    def covers(self, now: Admission) -> bool:
        """Whether none of the rows can be of a name that is let in now."""
        return not self.last or (self.by is not None and self.by.covers(now))

    def and_also(self, first: int, last: int, by: Admission) -> LeftOut:
        """With the rows that a run of this admission has left out in some batches."""
        if not self.last:
            return LeftOut(first, last, by)
        narrow = self.by.narrowed(by) if self.by is not None else None
        return LeftOut(min(self.first, first), max(self.last, last), narrow)

    def detail(self) -> str:
        """Everything but `last`, as JSON."""
        by = None if self.by is None else [sorted(self.by.games), self.by.max_games, self.by.most_games, self.by.min_rows]
        return json.dumps({"first": self.first, "by": by})

    @classmethod
    def of(cls, last: int, detail: str) -> LeftOut:
        """The inverse of `detail`."""
        content: dict[str, Any] = json.loads(detail)
        if content["by"] is None:
            return cls(content["first"], last)
        games, *limits = content["by"]
        return cls(content["first"], last, Admission(frozenset(games), *limits))


@dataclass(frozen=True)
class Progress:
    """One state of the table.

    Attributes:
        bronze_id: incarnation of bronze; another one starts from nothing.
        floors: layer -> bronze batch up to which it is complete, but for `failed`.
        games: game -> highest bronze batch in its silver table, of all known games.
        failed: (layer, game) -> why it failed last time.
        left_out: rows that no run has to look for until the settings let their names in.
        redecided: number of quarantine's repeated decisions that silver has carried out.
        marks: layer -> metadata of its low watermark; of silver and of aggregates with a definition.
        searched: the last search of the games' tables for deleted and restored ones.
        counted: what the last check of silver's rows has counted.
    """

    bronze_id: str
    floors: dict[str, int] = field(default_factory=dict)
    games: dict[str, int] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    redecided: int = 0
    marks: dict[str, Mark] = field(default_factory=dict)
    searched: Search = field(default_factory=Search)
    counted: CountedRows = field(default_factory=CountedRows)

    def floor(self, layer: str) -> int:
        """Bronze batch up to which a layer is complete."""
        return self.floors.get(layer, 0)

    def failed_in(self, layer: str) -> set[str]:
        """Games that are behind the low watermark of a layer."""
        return {game for at, game in self.failed if at == layer}

    def held(self, now: Admission) -> set[str]:
        """Games that silver has to retry, and does not while the allow list leaves them out."""
        return {game for game in self.failed_in(Layer.SILVER) if now.games and game not in now.games}

    def left_out_to(self, game: str) -> int:
        """The last bronze batch that may hold rows of this game that were left out, and are not listed as failed; 0: none."""
        by = self.left_out.by
        always_in = by is not None and (game in by.games if by.games else game in self.games)
        return 0 if always_in else self.left_out.last

    def done(
        self,
        layer: str,
        floor: int,
        games: dict[str, int] | None = None,
        failed: dict[str, str] | None = None,
        seen: Progress | None = None,
    ) -> Progress:
        """This state with a layer complete up to `floor`, but for exactly `failed`.

        If a concurrent run is further, its failures remain, too: they are of batches that this run has not read. So do failures
        since this run read the state (`seen`), as the concurrent run may have replaced tables after this run read them.
        """
        known = dict(self.games)
        for game, batch in (games or {}).items():
            known[game] = max(batch, known.get(game, 0))
        failures = self.failed
        if self.floor(layer) <= floor:
            before = self.failed if seen is None else seen.failed
            failures = {k: why for k, why in self.failed.items() if k[0] != layer or before.get(k) != why}
        failures = failures | {(layer, game): why for game, why in (failed or {}).items()}
        floors = self.floors | {layer: max(floor, self.floor(layer))}
        return replace(self, floors=floors, games=known, failed=failures)

    def pending(self, layer: str, games: Iterable[str], why: str) -> Progress:
        """This state with games that a layer has to process again, whatever its low watermark is."""
        return replace(self, failed=self.failed | {(layer, game): why for game in games})

    def pending_downstream(self, games: Iterable[str], why: str) -> Progress:
        """This state with games pending in all layers made from silver, aggregates that are not declared any more included."""
        names = list(games)
        state = self
        for layer in (Layer.GOLD, Layer.UNIFIED, *(at for at in self.floors if at.startswith(OWN_GOLD))):
            state = state.pending(layer, names, why)
        return state

    def marked(self, layer: str, mark: Mark) -> Progress:
        """This state with a layer's metadata; low watermark and failures of another definition are removed."""
        state = self
        if self.marks.get(layer, Mark()).definition != mark.definition:
            floors = {at: batch for at, batch in self.floors.items() if at != layer}
            state = replace(self, floors=floors, failed={k: v for k, v in self.failed.items() if k[0] != layer})
        return replace(state, marks=self.marks | {layer: mark})


class _Version(NamedTuple):
    """A version of the table; without a row, it has no state."""

    table_id: str | None
    version: int | None
    state: Progress | None

    def of(self, bronze_id: str) -> Progress:
        """The state for a bronze table; an empty one if this version speaks of another."""
        return self.state if self.state is not None and self.state.bronze_id == bronze_id else Progress(bronze_id)


class ProgressTable:
    """Reads and replaces the state; changes by concurrent runs are never overwritten.

    A run reads the state many times, and it grows with the number of games: the newest version is kept.
    """

    def __init__(self, lakehouse: Lakehouse) -> None:
        description = "How far each layer has come: a hint that saves work; each table's own txn is the truth"
        self.declaration = SystemTable(lakehouse.table(PROGRESS), PROGRESS_SCHEMA, description, Txn.PROGRESS)
        self._pool = TablePool()
        self._newest = _Version(None, None, None)

    def read(self, bronze_id: str) -> Progress:
        """The state for this bronze table; an empty one if there is none."""
        return self._current().of(bronze_id)

    def silver_batch(self, bronze: DeltaTable) -> int:
        """The low watermark of silver for a bronze table, in whatever incarnation; 0: there is none."""
        state = self._current().state
        if state is None or BronzeIdentity.of_key(state.bronze_id).table_id != table_id(bronze):
            return 0
        return state.floor(Layer.SILVER)

    def _current(self) -> _Version:
        handle = self._pool.open(self.declaration.table)
        newest = self._read(handle)
        self._pool.publish(self.declaration.table, handle)
        return newest

    @retry_on_conflict()
    def update(self, bronze_id: str, change: Callable[[Progress], Progress]) -> Progress:
        """Apply a change to the newest state, again after a conflict.

        Raises:
            ConflictError: concurrent runs won every attempt; nothing is lost, the next run does the same work again.
        """
        handle = self._pool.open(self.declaration.table)
        newest = self._read(handle)
        before = newest.of(bronze_id)
        after = change(before)
        if after == before or (newest.state is not None and _is_later(newest.state.bronze_id, bronze_id)):
            return after
        rows = _rows(after)
        follows = version_of(handle)
        columns = [[bronze_id] * len(rows), *map(list, zip(*rows, strict=True))] if rows else [[]] * len(PROGRESS_SCHEMA)
        landed = self.declaration.commit(handle, pa.table(columns, schema=PROGRESS_SCHEMA), replace=True)
        # With another version between the two, the newest one is not this commit's.
        if landed.version == (0 if follows is None else follows + 1):
            self._newest = _Version(landed.table_id, landed.version, _state(bronze_id, rows))
        self._pool.publish(self.declaration.table, landed.handle)
        failpoints.reach("progress_moved")
        return after

    def _read(self, handle: DeltaTable | None) -> _Version:
        """The content of a version."""
        newest = self._newest  # of another thread's read, too
        if handle is not None and (newest.table_id, newest.version) == (table_id(handle), handle.version()):
            return newest
        state = None
        try:
            ids, *columns = (column.to_pylist() for column in self.declaration.read(handle).columns)
            state = _state(ids[0], zip(*columns, strict=True)) if ids else None
        except LostFileError as error:  # costs reads; the next commit replaces it
            log.warning("table=%s progress_lost=true cause=%r", self.declaration.table.name, str(error))
        self._newest = newest = _Version(table_id(handle), version_of(handle), state)
        return newest


#: A row of the table without its first column, in the order of `PROGRESS_SCHEMA`.
_Row = tuple[Any, ...]


def _state(bronze_id: str, rows: Iterable[_Row]) -> Progress:
    """The state of which these are the rows."""
    state = Progress(bronze_id)
    counted: dict[str | None, GameRows] = {}
    more: dict[str, Any] = {}
    for layer, kind, game, batch, detail in rows:
        match kind:
            case "floor":
                state.floors[layer] = batch
                if detail:
                    state.marks[layer] = Mark(**json.loads(detail))
            case "game":
                state.games[game] = batch
            case "failed":
                state.failed[layer, game] = detail
            case "unrouted":
                more["left_out"] = LeftOut.of(batch, detail)
            case "decided_anew":
                more["redecided"] = batch
            case "searched":
                more["searched"] = Search(batch, detail)
            case "counted":
                counted[game] = _counted_rows(detail)
                more["counted"] = CountedRows(batch, counted)
    return replace(state, **more)


def _is_later(held: str, bronze_id: str) -> bool:
    """Whether the table is of a later incarnation of the same bronze: the earlier one needs no state."""
    there = BronzeIdentity.of_key(held)
    other = BronzeIdentity.of_key(bronze_id)
    return there.table_id == other.table_id and there.incarnation > other.incarnation


#: Counts of games that are kept with their texts: most games have no new rows.
CACHED_COUNTS = 8_192


@lru_cache(CACHED_COUNTS)
def _counted_detail(rows: GameRows) -> str:
    return json.dumps(rows)


@lru_cache(CACHED_COUNTS)
def _counted_rows(detail: str) -> GameRows:
    return GameRows(*json.loads(detail))


def _rows(state: Progress) -> list[_Row]:
    """The inverse of `_state`; those of games by `zip`, as there are thousands."""
    marks = {at: json.dumps(asdict(mark)) for at, mark in state.marks.items()}
    silver = Layer.SILVER
    counted = state.counted
    rows: list[_Row] = [(layer, "floor", None, batch, marks.get(layer)) for layer, batch in state.floors.items()]
    rows += zip(repeat(silver), repeat("game"), state.games, state.games.values(), repeat(None), strict=False)
    rows += [(layer, "failed", game, None, without_quotes(why)) for (layer, game), why in state.failed.items()]
    if state.left_out.last:
        rows.append((silver, "unrouted", None, state.left_out.last, state.left_out.detail()))
    if state.redecided:
        rows.append((silver, "decided_anew", None, state.redecided, None))
    if state.searched.at_s:
        rows.append((None, "searched", None, state.searched.at_s, state.searched.scope))
    details = map(_counted_detail, counted.games.values())
    rows += zip(repeat(silver), repeat("counted"), counted.games, repeat(counted.batch), details, strict=False)
    return rows


#: Maximum age of the rows that may be the same part: it is written again within minutes, or never.
AGAIN = timedelta(hours=1)

EVENT_LOG_SCHEMA = schema_of(
    time=(pa.timestamp("us", tz="UTC"), "When that part of the run ended (UTC)"),
    run_id=(pa.string(), "Run"),
    part=(pa.string(), "Which of the run's commits to this table"),
    kind=(pa.string(), "What the row says (docs/observability.md)"),
    layer=(pa.string(), "Layer"),
    table=(pa.string(), "Table"),
    game=(pa.string(), "Game"),
    name=(pa.string(), "Topic, check, rule, reason, column or job that the row is about"),
    rows=(pa.int64(), "Rows of this run"),
    table_rows=(pa.int64(), "Rows of the table after it"),
    table_bytes=(pa.int64(), "Bytes of the table's files after it"),
    delta_version=(pa.int64(), "Version of the table after it"),
    batch=(pa.int64(), "Highest batch of bronze_events in the table"),
    lag=(pa.int64(), "Records left behind in the topic"),
    seconds=(pa.float64(), "Seconds"),
    status=(pa.string(), "How it ended"),
    detail=(pa.string(), "More, as JSON"),
)

#: Kinds of rows besides those of counters (docs/observability.md describes all of them).
KINDS = (
    "run",
    "layer",
    "read",
    "table",
    "gap",
    "erased",
    "exported",
    "schema",
    "rule",
    "check",
    "maintenance",
    "iceberg",
    "gone_by_age",
)
EventRow = Mapping[str, Any]


def event_log_table(lakehouse: Lakehouse) -> SystemTable:
    """The table of a lakehouse, existing or not."""
    description = "What every run did: tables, offsets, rejections, checks, schema changes, who ran it; append-only"
    return SystemTable(lakehouse.table(EVENT_LOG), EVENT_LOG_SCHEMA, description)


@retry_on_conflict()
def append_events(lakehouse: Lakehouse, events: Sequence[EventRow], run_id: str, part: str) -> bool:
    """Append a run's events in one commit.

    `run_id` and `part` (step and attempt of the run, or minute of a continuous run) are filled in. Returns False if the part is
    in the table already: nothing was written. ConflictError: concurrent writers won every attempt.
    """
    log = event_log_table(lakehouse)
    handle = log.table.open()
    if handle is not None and _holds(log, handle, run_id, part, min(event["time"] for event in events) - AGAIN):
        return False
    log.commit(
        handle, pa.Table.from_pylist([{**event, "run_id": run_id, "part": part} for event in events], schema=EVENT_LOG_SCHEMA)
    )
    return True


def _holds(log: SystemTable, handle: DeltaTable, run_id: str, part: str, since: datetime) -> bool:
    """Whether a part of a run is in the table; only files with recent rows are read."""
    actions = add_actions(handle)
    actions = _newer_than(actions.filter(may_hold(actions, "run_id", run_id, run_id)), since)
    paths = actions.column("path").to_pylist()
    rows = log.read(handle, ["run_id", "part"], paths)
    return bool(pc.any(pc.and_(pc.equal(rows.column("run_id"), run_id), pc.equal(rows.column("part"), part))).as_py())


def _newer_than(actions: pa.Table, since: datetime) -> pa.Table:
    """The files that may have rows of that time or later."""
    newest = actions.column("max.time")
    return actions.filter(pc.fill_null(pc.greater_equal(newest, pa.scalar(since, newest.type)), True))


def _may_hold_kind(actions: pa.Table, kind: str) -> Iterator[bool]:
    """For each file whether it may have rows of a kind."""
    # Not by Arrow: to make a scalar of a Python value it imports pandas, a quarter of a short command's time.
    bounds = zip(actions.column("min.kind").to_pylist(), actions.column("max.kind").to_pylist(), strict=True)
    return (low is None or high is None or low <= kind <= high for low, high in bounds)


def read_events(
    lakehouse: Lakehouse,
    since: datetime | None = None,
    newest_files: int | None = None,
    kind: str | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Rows, unsorted; none without the table. Files without any, by their statistics, are not opened.

    `since`: only rows of that time or later. `newest_files`: only so many files, those with the newest rows of the `kind`: a
    run is one file until compaction. `columns`: only these, `time` and `kind` among them.
    """
    log = event_log_table(lakehouse)
    handle = log.table.open_to_read()
    actions = add_actions(handle) if handle is not None else None
    if actions is None or not actions.num_rows:
        return log.read(None, columns)
    actions = actions.sort_by([("max.time", "descending")])
    if since is not None:
        actions = _newer_than(actions, since)
    paths = actions.column("path").to_pylist()
    if kind is not None:
        paths = list(compress(paths, _may_hold_kind(actions, kind)))
    rows = log.read(handle, columns, paths[:newest_files])
    if kind is not None:
        rows = rows.filter(pc.match_substring_regex(rows.column("kind"), f"^{re.escape(kind)}$"))
    if since is not None:
        rows = rows.filter(pc.field("time") >= pa.scalar(since, EVENT_LOG_SCHEMA.field("time").type))
    return rows
