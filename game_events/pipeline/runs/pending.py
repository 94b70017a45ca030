"""Pending work: the lag of each layer, what the next run will do, and tables that were deleted or restored since the last one.

All of it from the source's offsets, Delta logs and one column of bronze, without a Spark job.

Deleted and restored tables cost, on a local disk, one look at the folder of each table's log, and a small file of those that
have changed since the last search; in an object store one listing of the root and a small file of each. Triggered runs search
each time, continuous mode every ten minutes. Their games are noted in `progress`, and retried as after a failure.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain

from deltalake.exceptions import DeltaError

from game_events.config.settings import Settings
from game_events.config.sources.several import settings_by_source
from game_events.config.type_names import game_of
from game_events.errors import GameEventsError, first_few
from game_events.lakehouse.commits.group import for_games, opened
from game_events.lakehouse.commits.log import FOLDER
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, restored, restored_lately, types_digest
from game_events.lakehouse.parts import PartedTable
from game_events.lakehouse.storage import is_remote
from game_events.lakehouse.system_tables import Admission, Progress, ProgressTable, Search
from game_events.lakehouse.tables import BRONZE, DOWNSTREAM, Lakehouse, Layer, Table, gold_name, silver_name
from game_events.pipeline.bronze.offsets import OffsetPlan, changes, starting_point
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.offsets import next_offsets
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.admission import due
from game_events.sources.factory import make_source
from game_events.sources.source import Offsets, Partition, SourceSnapshot
from game_events.workers.fanout import Routing

log = logging.getLogger(__name__)
#: Games, or tables, that a text names.
NAMED = 5
#: Logs that are read in each search (`find_lost_tables`).
FEW = 100


@dataclass(frozen=True)
class PipelineLag:
    """Lag at one moment.

    Attributes:
        name: name of the source, for display.
        seen: snapshot of the source.
        next: partition -> next offset to read; of a partition that bronze never read, the earliest.
        lag: partition -> records that bronze has not read.
        made: bronze exists and has offsets of every topic.
        ahead: partitions that end before the next offset: the topic was truncated.
        batch: bronze's last batch; `floors`: layer -> batch up to which the layer is complete.
        failed: games that a layer has to retry; without those that the allow list lacks.
        let_in: the settings let in names that they left out before: their rows may be due.
        failures: source that does not answer -> why; the others have.
    """

    name: str
    seen: SourceSnapshot
    next: Offsets
    lag: Offsets
    made: bool = True
    ahead: tuple[Partition, ...] = ()
    batch: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    let_in: bool = False
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_lag(self) -> int:
        """Records that bronze has not read, over all partitions."""
        return sum(self.lag.values())

    @property
    def to_read(self) -> bool:
        """Whether a run of bronze has work: records, a new topic, or an error to report."""
        return self.total_lag > 0 or not self.made or bool(self.ahead)

    @property
    def behind(self) -> tuple[str, ...]:
        """Layers that lack batches of the layer before."""
        steps = [self.batch, *(self.floors.get(layer, 0) for layer in DOWNSTREAM)]
        return tuple(layer for layer, before, here in zip(DOWNSTREAM, steps, steps[1:], strict=False) if here < before)

    @property
    def progress_digest(self) -> str:
        """Digest of everything that a run changes: an equal one later means that the runs between made no progress."""
        # The creation of an empty table is no progress: no floor and a floor of 0 are the same.
        floors = sorted((layer, batch) for layer, batch in self.floors.items() if batch)
        parts = [sorted(self.next.items()), self.made, self.batch, floors, self.failed, *([True] if self.let_in else [])]
        return digest(parts)


def digest(parts: list[object]) -> str:
    """Short hash of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_lag(settings: Settings, timeout_s: float) -> PipelineLag:
    """Query the broker (each answer within `timeout_s`), and read the logs of bronze and of the progress table.

    Raises:
        GameEventsError: the broker does not answer, the topic does not exist, or a table cannot be read.
    """
    source = make_source(settings, timeout_s)
    seen = source.snapshot()
    name = source.name(settings)
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open_to_read()
    if bronze is None:
        # The first run decides where it starts: only records that exist already can wait for it.
        each = settings_by_source(settings)
        earliest = {name for name, one in each.items() if one.starting_offsets == "earliest"}
        lag = {p: records if p.source in earliest else 0 for p, records in seen.there.items()}
        return PipelineLag(name, seen, seen.earliest, lag, made=bool(earliest), failures=source.failures)
    # A partition that bronze never read is read from its start: also an added one, and all of a recreated topic.
    known = next_offsets(bronze, seen.latest)
    reached = seen.earliest | known
    state = ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key)
    admission = Admission.of(settings)
    return PipelineLag(
        name,
        seen,
        reached,
        lag={p: max(0, end - reached[p]) // seen.unit_of(p) for p, end in seen.latest.items()},
        made=not changes(source, settings, bronze, seen, known).anything,
        ahead=tuple(p for p, at in sorted(reached.items()) if at > seen.latest[p]),
        batch=counter(bronze, Txn.BATCH),
        floors={layer: state.floor(layer) for layer in DOWNSTREAM},
        failed=tuple(sorted({game for _, game in state.failed} - state.held(admission))),
        let_in=not state.left_out.covers(admission),
        failures=source.failures,
    )


@dataclass(frozen=True)
class Backlog:
    """Pending work of the next run.

    `records`: split -> number of records to read, if any. `rows`: rows of bronze that are not in silver. `readmitted`: game ->
    those of them that the settings left out until now.
    """

    records: Offsets = field(default_factory=dict)
    games: dict[str, list[str]] = field(default_factory=dict)
    rows: int = 0
    readmitted: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = ", ".join(f"{p} {n:,}" for p, n in sorted(self.records.items()))
        read = f"{sum(self.records.values()):,} records to read" + (f" ({parts})" if parts else "")
        behind = "; ".join(f"{layer}: {len(games)} games behind" for layer, games in self.games.items())
        until_now = f", {left_out_until_now(self.readmitted)}" if self.readmitted else ""
        return f"{read}; {behind}; {self.rows:,} rows of bronze wait for silver{until_now}"


def backlog(pipeline: Pipeline) -> Backlog:
    """Pending work of the next run; nothing is written.

    Raises:
        ConfigurationError, TransientError: the broker is unavailable.
        DataError: the run would stop, because unread records were deleted.
    """
    now = pipeline.source_snapshot()
    bronze = pipeline.open_bronze()
    if bronze is None:
        return Backlog(_records(now, starting_point(pipeline, now), now.latest), {layer: [] for layer in DOWNSTREAM})
    part = OffsetPlan.of(pipeline, bronze, now, {}, sum(now.latest.values()) + 1).micro_batch
    state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
    owed = due(pipeline)
    behind = {*owed.rows, *owed.failed}
    games: dict[str, list[str]] = {}
    for layer in DOWNSTREAM:
        behind |= state.failed_in(layer).difference(owed.held)
        if layer != Layer.SILVER:
            behind |= {game for game, batch in state.games.items() if batch > state.floor(layer)}
        games[layer] = sorted(behind)
    records = {} if part is None else _records(now, part.start, part.end)
    return Backlog(records, games, owed.rows.total(), owed.readmitted)


def _records(now: SourceSnapshot, start: Offsets, end: Offsets) -> Offsets:
    """Partition -> number of records in a range, if any."""
    return {p: (last - start[p]) // now.unit_of(p) for p, last in end.items() if last > start[p]}


def left_out_until_now(games: Mapping[str, int]) -> str:
    """Words for rows of these games that wait because the settings left them out before."""
    return f"{sum(games.values()):,} of them left out by the settings until now ({first_few(sorted(games), NAMED, ', ')})"


def find_lost_tables(pipeline: Pipeline, report: RunReport, *, few: int = FEW) -> None:
    """Note in `progress` the games with deleted or restored silver or gold tables, and warn of them.

    `few`: with more logs read than this, the next search reads only those that have changed since.
    """
    bronze = pipeline.open_bronze()
    if bronze is None:
        return
    key = BronzeIdentity.of(bronze).key
    scope = _scope(pipeline)
    began = _changed_s(pipeline.progress.declaration.table.uri)
    state = pipeline.progress.read(key)
    search = _Search(pipeline, state.searched.at_s if state.searched.scope == scope else 0)
    lost = search.lost_by_layer(state)
    is_complete = bool(began) and not search.unreadable
    names = sorted(what for tables in lost.values() for what in tables.values())
    if names:
        report.warn(f"made whole again: {first_few(names, NAMED, ', ')}")
        log.info("lost_tables=%d first=%r", len(names), names[0])
    elif search.read <= few or pipeline.read_only or not is_complete:
        return
    why = note(pipeline, "its table was deleted or restored")

    def noted(now: Progress) -> Progress:
        after = now.pending_downstream(lost[Layer.SILVER], why).pending(Layer.UNIFIED, lost[Layer.GOLD], why)
        for layer, tables in lost.items():
            after = after.pending(layer, tables, why)
        return replace(after, searched=Search(int(began or 0), scope)) if is_complete else after

    pipeline.progress.update(key, noted)


def _scope(pipeline: Pipeline) -> str:
    """What decides which tables are searched: tables that come back were not looked at meanwhile."""
    aggregates = sorted((aggregate.layer, *sorted(aggregate.games)) for aggregate in pipeline.extensions.aggregates)
    types = [sorted(chain.from_iterable(pipeline.lakehouse.type_tables().values()))] if pipeline.lakehouse.per_type else []
    return digest([sorted(pipeline.settings.games), aggregates, *types])


class _Search:
    """A search for deleted and restored tables; `read`: logs that were read; `unreadable`: those that could not be.

    A restore adds an entry to the table's log, and so changes the folder of the log: a folder that has not changed since the
    last search needs no second look. Both times are of the tables' file system, whatever the clocks of the machines show: the
    time of a search is that of the last commit to `progress` before it.
    """

    def __init__(self, pipeline: Pipeline, since_s: float) -> None:
        self._pipeline = pipeline
        self._lakehouse = pipeline.lakehouse
        self._since_s = since_s
        self.read = self.unreadable = 0

    def lost_by_layer(self, state: Progress) -> dict[str, dict[str, str]]:
        """Layer -> game -> name of its deleted or restored table, with what happened."""
        routing = Routing.of(self._pipeline.settings)
        # Tables of games that are not allowed any more are not rebuilt.
        games = sorted(game for game in state.games if routing.refusal(game) is None)
        lost: dict[str, dict[str, str]] = {
            Layer.SILVER: self._lost_types(games) | self._lost(games, self._lakehouse.silver, silver_name),
            Layer.GOLD: self._lost(_made(state, Layer.GOLD, games), self._lakehouse.gold, gold_name),
        }
        for aggregate in self._pipeline.extensions.aggregates:
            mine = [game for game in _made(state, aggregate.layer, games) if aggregate.applies_to(game)]
            table = partial(self._lakehouse.gold, aggregate=aggregate.name)
            lost[aggregate.layer] = self._lost(mine, table, partial(gold_name, aggregate=aggregate.name))
        return lost

    def _lost(self, games: Sequence[str], table: Callable[[str], Table], key: Callable[[str], str]) -> dict[str, str]:
        """Those of one layer; `table`, `key`: those of a game."""
        if games and self._lakehouse.is_partitioned:
            return self._lost_parts(games, table(games[0]).whole)
        ages = {game: self._changed_s(key(game)) for game in games}
        changed = {game: self._lakehouse.table(key(game)) for game in self._changed_since(ages)}
        self.read += len(changed)
        answers = for_games(changed, lambda game: _restored(changed[game]))
        self.unreadable += sum(restored is None for restored in answers.values())
        lost = {game: f"{self._lakehouse.name_of(key(game))} (deleted)" for game, at_s in ages.items() if at_s is None}
        return lost | {game: f"{changed[game].name} (restored)" for game, restored in answers.items() if restored}

    def _lost_types(self, games: Sequence[str]) -> dict[str, str]:
        """Those games with a deleted or restored table of a message type.

        A deleted one changes what there is to search (`_scope`); then each game's own table is asked which ones it knows.
        """
        listed = self._lakehouse.type_tables()
        names = [name for game in games for name in listed.get(game, ())]
        ages = {name: self._changed_s(silver_name(name)) for name in names}
        changed = {name: self._lakehouse.silver(name) for name in self._changed_since(ages)}
        self.read += len(changed)
        answers = for_games(changed, lambda name: _restored(changed[name]))
        self.unreadable += sum(restored is None for restored in answers.values())
        lost = {game_of(name): f"{changed[name].name} (restored)" for name, restored in answers.items() if restored}
        if self._since_s or not self._lakehouse.per_type:
            return lost
        own = opened(games, self._lakehouse.silver, self._pipeline.tables.open_to_read)
        odd = [game for game, table in own.items() if counter(table, Txn.TYPES) != types_digest(listed.get(game, []))]
        return {game: f"a table of a message type of {game} (deleted)" for game in odd} | lost

    def _changed_since(self, ages: Mapping[str, float | None]) -> list[str]:
        """The games with a log that has changed since the last search; `ages`: game -> when, None: there is no log."""
        return [game for game, at_s in ages.items() if at_s is not None and at_s >= self._since_s]

    def _lost_parts(self, games: Sequence[str], table: Table) -> dict[str, str]:
        """Likewise, of games that share a table."""
        try:
            whole = self._pipeline.tables.peek(table)
        except (GameEventsError, DeltaError, OSError):  # an error of the layer, which opens the table, too
            self.unreadable += 1
            return {}
        if not isinstance(whole, PartedTable):
            return dict.fromkeys(games, f"{table.name} (deleted)")
        if restored(whole):
            return dict.fromkeys(games, f"{table.name} (restored)")
        parts = {game: whole.part(game) for game in games}
        lost = {game: f"{game} in {table.name} (deleted)" for game, part in parts.items() if part is None}
        return lost | {g: f"{table.name} (restored)" for g, part in parts.items() if part is not None and restored(part)}

    def _changed_s(self, key: str) -> float | None:
        """As `_changed_s`; infinity for a table in an object store, as it is not known there."""
        if is_remote(self._lakehouse.root):
            return float("inf") if key in self._there else None
        # No `Table` for each of them: most have not changed.
        return _changed_s(f"{self._lakehouse.root}/{self._lakehouse.name_of(key)}")

    @cached_property
    def _there(self) -> set[str]:
        return set(self._lakehouse.names())


def _made(state: Progress, layer: str, games: Iterable[str]) -> list[str]:
    """Games with a table in this layer. Tables of pending or failed games are opened by the layer anyway."""
    floor = state.floor(layer)
    failed = state.failed_in(layer)
    return [game for game in games if state.games[game] <= floor and game not in failed]


def _changed_s(uri: str) -> float | None:
    """When the folder of a local table's log has changed, in seconds since 1970; None: there is no local table."""
    try:
        return os.stat(f"{uri}/{FOLDER}").st_mtime  # noqa: PTH116 - a `Path` for each table takes longer
    except (FileNotFoundError, NotADirectoryError):
        return None


def _restored(table: Table) -> bool | None:
    """Whether a table was restored; None: its log cannot be read, which is an error of the layer that opens the table."""
    try:
        return restored_lately(table)
    except (OSError, ValueError):
        return None
