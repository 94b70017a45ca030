"""Removal of rows by age, by maintenance: whole files without reading their rows where statistics say enough, others rewritten.

Guarantee: each removed row was older than its limit, and no layer needs it any more: of bronze silver has taken it, of silver
gold, of quarantine's rejected rows silver. A commit compares what it was planned from and counts what it removes
(`Txn.EXPIRED`, `Txn.ROWS_EXPIRED`), so reconciliation stays exact; appends go on beside it, and after a conflict the next
maintenance does the work. A file with some older rows is rewritten once its oldest row is older than the limit by a day: not in
each maintenance. A killed maintenance leaves files that no commit names, or a commit that is complete.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.config.retention import RetentionDays
from game_events.errors import ConflictError, LostFileError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.group import commit_group
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import EXPIRED_INFO, MAINTENANCE_INFO, Txn, counter, txns
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.parts import PartedTable
from game_events.lakehouse.tables import (
    BRONZE,
    EVENT_LOG,
    SILVER,
    Table,
    table_id,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offsets import ERASED_BY_BATCH, bronze_commit
from game_events.pipeline.reporting.result import TableMaintenance
from game_events.pipeline.retention.ages import DAY_US, NEVER, Mask
from game_events.pipeline.retention.files import File, Turn, rewritten
from game_events.pipeline.retention.raw_values import drop_raw_values
from game_events.pipeline.retention.settled import Plan, plan_of, plans_of_parts

T = TypeVar("T")


@dataclass
class _Tally:
    """The rows of one file, as far as they are counted.

    Attributes:
        rows: rows that go. `overdue`: whether one of them is older than its limit by a day.
        waiting: rows that are older than their limit, and that another layer still needs.
        games: game -> rows of bronze, or rejected rows of quarantine. batches: bronze batch -> rows of bronze.
    """

    rows: int = 0
    overdue: bool = False
    waiting: int = 0
    games: Counter[str] = field(default_factory=Counter)
    batches: Counter[int] = field(default_factory=Counter)

    def add(self, plan: Plan, rows: pa.Table) -> None:
        """Count some rows."""
        time_us, limit_us = plan.ages.time_and_limit(rows)
        is_older = time_us < limit_us
        goes = is_older & plan.settled.mask(rows)
        self.rows += int(goes.sum())
        self.overdue |= bool((goes & (time_us < limit_us - DAY_US)).any())
        self.waiting += int((is_older & ~goes).sum())
        if plan.counts_rows and goes.any():
            self.games += plan.games_of(rows, goes)
            self.batches += _batches_of(rows, goes)


@dataclass
class Old:
    """The rows of one table that go now.

    Attributes:
        files: those that go, or are written again without some rows, and what is counted of each.
        waiting: rows that are older than their limit, and that another layer still needs.
        left: rows for the next maintenance, as this one has written enough.
        lost: why a file could not be read; None: all could.
    """

    files: dict[File, _Tally] = field(default_factory=dict)
    waiting: int = 0
    left: int = 0
    lost: str | None = None

    @property
    def paths(self) -> frozenset[str]:
        """The files."""
        return frozenset(file.path for file in self.files)

    @property
    def mixed(self) -> list[str]:
        """Those of them that have other rows, too."""
        return [file.path for file, tally in self.files.items() if tally.rows < file.rows]

    @property
    def rows(self) -> int:
        """Rows that go."""
        return sum(tally.rows for tally in self.files.values())

    @property
    def bytes(self) -> int:
        """About their share of the files."""
        return sum(file.size * tally.rows // max(1, file.rows) for file, tally in self.files.items())

    @property
    def games(self) -> Counter[str]:
        """As of a file."""
        return _together(tally.games for tally in self.files.values())

    @property
    def batches(self) -> Counter[int]:
        """As of a file."""
        return _together(tally.batches for tally in self.files.values())


def _together(counters: Iterable[Counter[T]]) -> Counter[T]:
    """Their sum; `+` would copy it for each."""
    total = Counter[T]()
    for one in counters:
        total.update(one)
    return total


def expire(
    pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, done: TableMaintenance, *, dry_run: bool = False
) -> DeltaTable:
    """Remove a table's older rows and raw values, or count them; returns its newest version."""
    return _expired(pipeline, days, table, handle, Turn(round(time.time() * 1_000_000), dry_run), done)


def count_expired(pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, done: TableMaintenance) -> Turn:
    """Count what `expire` would remove; returns also which files."""
    turn = Turn(round(time.time() * 1_000_000), dry_run=True)
    _expired(pipeline, days, table, handle, turn, done)
    return turn


def _expired(
    pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, turn: Turn, done: TableMaintenance
) -> DeltaTable:
    handle = _without_rows(pipeline, days, table, handle, turn, done)
    if table.key == BRONZE and days.has("raw") and not done.skipped:
        handle = drop_raw_values(pipeline, days, handle, turn, done)
    return handle


def _without_rows(
    pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, turn: Turn, done: TableMaintenance
) -> DeltaTable:
    if isinstance(handle, PartedTable):
        plans = plans_of_parts(pipeline, days, handle, turn.now_us) if table.key == SILVER else []
    else:
        plan = plan_of(pipeline, days, table, handle, turn.now_us)
        plans = [plan] if plan is not None else []
    planned = []
    for plan in plans:
        found = find(plan, turn)
        done.expired_later += found.waiting + found.left
        done.error = found.lost or done.error
        if found.files:
            planned.append((plan, found))
    if turn.dry_run:
        for plan, found in planned:
            _add(plan, found, done)
            turn.changed.update(found.mixed)
            turn.whole |= found.paths - turn.changed
            turn.stays, turn.columns = plan.without_old, frozenset(_narrow(plan).names)
    if turn.dry_run or not planned:
        return handle
    # Until they are committed.
    done.expired_later += sum(found.rows for _, found in planned)
    try:
        if isinstance(handle, PartedTable):
            _commit_parts(pipeline, planned, done)
        else:
            _commit_one(pipeline, *planned[0], done)
    except ConflictError as error:
        done.skipped = str(error)
    return table.open() or handle


def _add(plan: Plan, found: Old, done: TableMaintenance) -> None:
    """Add rows that are gone, or would be."""
    done.expired += found.rows
    done.expired_bytes += found.bytes
    if plan.ages.game is not None and found.rows:
        before = done.expired_games.get(plan.ages.game, 0)
        done.expired_games = {**done.expired_games, plan.ages.game: before + found.rows}


def _note_committed(plan: Plan, found: Old, done: TableMaintenance) -> None:
    _add(plan, found, done)
    done.expired_later -= found.rows


def _commit_one(pipeline: Pipeline, plan: Plan, found: Old, done: TableMaintenance) -> None:
    staged = _staged(pipeline, plan, found, done)
    if staged is not None:
        commit(staged)
        failpoints.reach("expired_committed", plan.table.name)
        _note_committed(plan, found, done)


def _commit_parts(pipeline: Pipeline, planned: Sequence[tuple[Plan, Old]], done: TableMaintenance) -> None:
    """Commit the plans of games in one table; those that conflict or fail are left for the next time."""
    commits: dict[str, Commit] = {}
    try:
        for plan, found in planned:
            if (staged := _staged(pipeline, plan, found, done)) is not None:
                commits[str(plan.table.part)] = staged
    except BaseException:
        for of_game in commits.values():
            discard(of_game.table, list(of_game.files))
        raise
    outcome = commit_group(commits)
    failpoints.reach("expired_committed", planned[0][0].table.name)
    for plan, found in planned:
        error = outcome.get(str(plan.table.part))
        if isinstance(error, Landed):
            _note_committed(plan, found, done)
        elif isinstance(error, ConflictError):
            done.skipped = str(error)
        elif error is not None:
            done.error = str(error)


def find(plan: Plan, turn: Turn) -> Old:
    """The rows that go now, the oldest files first; of most files only a few columns are read, or nothing."""
    old = Old()
    for file in plan.files:
        try:
            tally = _counted(plan, file)
        except LostFileError as error:
            old.lost = str(error)
            continue
        old.waiting += tally.waiting
        if not tally.rows or (tally.rows < file.rows and not tally.overdue):
            continue
        if tally.rows < file.rows and not turn.takes(file.size):
            old.left += tally.rows
            continue
        old.files[file] = tally
    return old


def _counted(plan: Plan, file: File) -> _Tally:
    if not plan.counts_rows and file.all_older and plan.settled.whole(file.highest_batch):
        return _Tally(file.rows)
    tally = _Tally()
    for rows in read_parts(plan.table, _narrow(plan), [file.path]):
        tally.add(plan, rows)
    return tally


def _narrow(plan: Plan) -> pa.Schema:
    """The columns that decide which rows go."""
    wanted = {*plan.ages.columns(), *plan.settled.columns(), *plan.counted}
    return pa.schema([item for item in pa.schema(plan.handle.schema()) if item.name in wanted])


def _batches_of(rows: pa.Table, which: Mask) -> Counter[int]:
    if "_batch" not in rows.column_names:
        return Counter()
    counted = pc.value_counts(rows.column("_batch").combine_chunks().filter(pa.array(which)))
    return Counter({int(entry["values"]): entry["counts"] for entry in counted.to_pylist() if entry["values"] is not None})


def _staged(pipeline: Pipeline, plan: Plan, found: Old, done: TableMaintenance) -> Commit | None:
    """The commit that removes the rows, with the files that replace those with other rows; None: there is nothing to remove."""
    handle = plan.handle
    plan.table.writable(handle, replaced=True)
    files, lost = rewritten(plan.table, handle, found.mixed, plan.without_old)
    done.error = next(iter(lost.values()), done.error)
    found.files = {file: tally for file, tally in found.files.items() if file.path not in lost}
    failpoints.reach("expired_staged", plan.table.name)
    if not found.files:
        return None
    expected, advance = _transactions(plan, found)
    info = {MAINTENANCE_INFO: "rows by age", EXPIRED_INFO: str(found.rows), "run_id": pipeline.run_id}
    if plan.table.key == BRONZE:
        first = _first_batch_in_log(plan.table, handle.version())
        info[ERASED_BY_BATCH] = json.dumps({batch: rows for batch, rows in found.batches.items() if batch >= first})
    return Commit(
        plan.table,
        pa.schema([]),  # no column changes
        files,
        expected,
        advance,
        table_id(handle),
        handle.version(),
        rewritten=found.paths,
        info=info,
    )


def _transactions(plan: Plan, found: Old) -> tuple[dict[str, int | None], dict[str, int]]:
    """What the commit compares, and what it sets."""
    handle = plan.handle
    counted = {str(Txn.ROWS_EXPIRED): found.rows}
    counted |= {Txn.ROWS_EXPIRED.of(game): rows for game, rows in found.games.items()}
    expected = txns(handle, (Txn.EXPIRED, Txn.INCARNATION, *counted, *plan.compared))
    advance = {app: counter(handle, app) + rows for app, rows in counted.items()}
    limit_ms = plan.ages.latest_limit // 1_000
    advance |= {Txn.EXPIRED: max(limit_ms, counter(handle, Txn.EXPIRED) + 1)}
    if plan.table.key == EVENT_LOG:  # whoever appends has read all rows that were there
        advance |= {Txn.COMMITS: counter(handle, Txn.COMMITS) + 1}
    return expected, advance


def _first_batch_in_log(bronze: Table, version: int) -> int:
    """The oldest batch of which the check of offsets compares the rows: it reads bronze's log back to the first gap.

    `NEVER`: none.
    """
    log = TableLog(bronze)
    there = set(log.versions())
    first = next((number + 1 for number in range(version, -1, -1) if number not in there), 0)
    for number in range(first, version + 1):
        info = next(log.infos(number, number - 1), None)
        note = bronze_commit(info) if info is not None else None
        if note is not None:
            return note.batch
    return NEVER
