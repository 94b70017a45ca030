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
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.config.retention import RetentionDays
from game_events.errors import ConflictError, LostFileError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.group import commit_group
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import EXPIRED_INFO, MAINTENANCE_INFO, Txn, counter, txns
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.rewriting import Rewriting
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.maintenance import MOST_BYTES
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
from game_events.pipeline.retention.ages import DAY_US, Mask
from game_events.pipeline.retention.files import Removal, candidates
from game_events.pipeline.retention.raw_values import drop_raw_values, find_raw_values
from game_events.pipeline.retention.settled import Plan, plan_of, plans_of_parts


@dataclass
class Old:
    """The rows of one table that go now.

    Attributes:
        whole: paths of files of which all rows go; `mixed`: of those that are rewritten without some.
        rows: rows that go; `bytes`: about their share of the files.
        games: game -> rows of bronze, or rejected rows of quarantine. batches: bronze batch -> rows of bronze.
        waiting: rows that are older than their limit, and that another layer still needs.
        left: rows for the next maintenance, as this one has rewritten enough.
    """

    whole: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    games: Counter[str] = field(default_factory=Counter)
    batches: Counter[int] = field(default_factory=Counter)
    waiting: int = 0
    left: int = 0


def expire(pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, done: TableMaintenance) -> DeltaTable:
    """Remove a table's older rows and raw values; returns its newest version."""
    now_us = round(time.time() * 1_000_000)
    planned = _planned(pipeline, days, table, handle, now_us, done)
    if planned:
        handle = _without_rows(pipeline, table, handle, planned, done)
    if table.key == BRONZE and days.has("raw") and not done.skipped:
        handle = drop_raw_values(pipeline, days, handle, now_us, done)
    return handle


def count_expired(pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, done: TableMaintenance) -> Removal:
    """Count what `expire` would remove."""
    now_us = round(time.time() * 1_000_000)
    removal = Removal()
    for plan, found in _planned(pipeline, days, table, handle, now_us, done):
        removal.whole.update(found.whole)
        removal.changed.update(found.mixed)
        removal.stays, removal.columns = plan.without_old, tuple(_narrow(plan).names)
    if table.key == BRONZE and days.has("raw"):
        found_values = find_raw_values(pipeline, days, handle, now_us, removal)
        removal.changed.update(found_values.files)
        done.raw_values = found_values.values
    return removal


def _planned(
    pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, now_us: int, done: TableMaintenance
) -> list[tuple[Plan, Old]]:
    """The plans with rows that go, which are counted; a game of which a file is lost has none, and is an error of the table."""
    if isinstance(handle, PartedTable):
        plans = plans_of_parts(pipeline, days, handle, now_us) if table.key == SILVER else []
    else:
        plan = plan_of(pipeline, days, table, handle, now_us)
        plans = [plan] if plan is not None else []
    planned: list[tuple[Plan, Old]] = []
    for plan in plans:
        try:
            found = _counted(plan, done)
        except LostFileError as error:
            if plan.table.part is None:
                raise
            done.error = str(error)
            continue
        if found.rows:
            planned.append((plan, found))
    return planned


def _without_rows(
    pipeline: Pipeline, table: Table, handle: DeltaTable, planned: Sequence[tuple[Plan, Old]], done: TableMaintenance
) -> DeltaTable:
    try:
        if isinstance(handle, PartedTable):
            _commit_parts(pipeline, planned, done)
        else:
            _commit_one(pipeline, *planned[0], done)
    except ConflictError as error:
        done.skipped = str(error)
    return table.open() or handle


def _counted(plan: Plan, done: TableMaintenance) -> Old:
    found = find(plan)
    done.expired_later += found.waiting + found.left
    _add(plan, found, done)
    return found


def _add(plan: Plan, found: Old, done: TableMaintenance, times: int = 1) -> None:
    """Add the rows to what was done; `times`: -1: take them back."""
    done.expired += times * found.rows
    done.expired_bytes += times * found.bytes
    if plan.ages.game is not None and found.rows:
        games = Counter(done.expired_games)
        games[plan.ages.game] += times * found.rows
        done.expired_games = {game: rows for game, rows in games.items() if rows}


def _commit_one(pipeline: Pipeline, plan: Plan, found: Old, done: TableMaintenance) -> None:
    try:
        commit(_staged(pipeline, plan, found))
    except Exception:
        _add(plan, found, done, -1)
        raise
    failpoints.reach("expired_committed", plan.table.name)


def _commit_parts(pipeline: Pipeline, planned: Sequence[tuple[Plan, Old]], done: TableMaintenance) -> None:
    """Commit the plans of games in one table; those that conflict are left for the next time."""
    commits: dict[str, Commit] = {}
    try:
        for plan, found in planned:
            commits[str(plan.table.part)] = _staged(pipeline, plan, found)
    except BaseException:
        for plan, found in planned:
            _add(plan, found, done, -1)
        for staged in commits.values():
            discard(staged.table, list(staged.files))
        raise
    outcome = commit_group(commits)
    failpoints.reach("expired_committed", planned[0][0].table.name)
    failed: Exception | None = None
    for plan, found in planned:
        error = outcome[str(plan.table.part)]
        if isinstance(error, Exception):
            _add(plan, found, done, -1)
            if isinstance(error, ConflictError):
                done.skipped = str(error)
            else:
                failed = error
    if failed is not None:
        raise failed


def find(plan: Plan) -> Old:
    """The rows that go now, the oldest files first; of most files only a few columns are read, or nothing."""
    old = Old()
    size = 0
    for file in candidates(plan.handle, plan.ages):
        if not plan.counts_rows and file.last_us < min(plan.ages.limits) and plan.settled.whole(file.highest_batch):
            old.whole.append(file.path)
            old.rows += file.rows
            old.bytes += file.size
            continue
        tally = _Tally()
        for rows in read_parts(plan.table, _narrow(plan), [file.path]):
            tally.add(plan, rows)
        old.waiting += tally.waiting
        if not tally.rows or (tally.rows < file.rows and not tally.overdue):
            continue
        if tally.rows < file.rows:
            if size and size + file.size > MOST_BYTES:
                old.left += tally.rows
                continue
            size += file.size
        (old.whole if tally.rows == file.rows else old.mixed).append(file.path)
        old.rows += tally.rows
        old.bytes += file.size * tally.rows // max(1, file.rows)
        old.games += tally.games
        old.batches += tally.batches
    return old


def _narrow(plan: Plan) -> pa.Schema:
    """The columns that decide which rows go."""
    wanted = {*plan.ages.columns(), *plan.settled.columns(), *plan.counted}
    return pa.schema([item for item in pa.schema(plan.handle.schema()) if item.name in wanted])


@dataclass
class _Tally:
    """What was found in a file so far; `overdue`: whether a row is older than its limit by a day."""

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


def _batches_of(rows: pa.Table, which: Mask) -> Counter[int]:
    if "_batch" not in rows.column_names:
        return Counter()
    counted = pc.value_counts(rows.column("_batch").combine_chunks().filter(pa.array(which)))
    return Counter({int(entry["values"]): entry["counts"] for entry in counted.to_pylist() if entry["values"] is not None})


def _staged(pipeline: Pipeline, plan: Plan, found: Old) -> Commit:
    """The commit that removes the rows, with the files that replace those with other rows."""
    handle = plan.handle
    plan.table.writable(handle, replaced=True)
    files = Rewriting(plan.table, handle).one_by_one(found.mixed, plan.without_old)
    failpoints.reach("expired_staged", plan.table.name)
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
        rewritten=frozenset((*found.whole, *found.mixed)),
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
    """The oldest batch of which bronze's log has the commit: the check of offsets compares their rows."""
    for number in sorted(number for number in TableLog(bronze).versions() if number <= version):
        info = next(TableLog(bronze).infos(number, number - 1), None)
        note = bronze_commit(info) if info is not None else None
        if note is not None:
            return note.batch
    return 0
