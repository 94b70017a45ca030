"""Maintenance of tables: compaction, deletion of old files, shorter logs; of all of them, or between two cycles of a loop.

Guarantee: no row and no progress changes; the versions that are promised stay readable (`lakehouse/commits/versions.py`), and
staged files stay. What a concurrent writer prevents, or an error of one table, is done the next time, and ends neither run nor
loop.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from game_events.config.file_layout import NO_LAYOUT
from game_events.config.names import PROGRESS
from game_events.errors import ConfigurationError, ConflictError, LostFileError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.commits.evolution import is_refusal
from game_events.lakehouse.commits.group import for_games, guarded
from game_events.lakehouse.commits.transactions import unchecked_restore
from game_events.lakehouse.commits.versions import OldVersions, delete_files, files_there
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.laying_out import (
    can_be_sorted,
    count,
    due_in_loop,
    first_of,
    lay_out,
    not_laid_out,
    without_statistics,
)
from game_events.lakehouse.maintenance import (
    FULL_GOAL,
    LOOP_GOAL,
    MOST_BYTES,
    Goal,
    OutdatedFile,
    first_groups,
    join_groups,
    orphans,
    outdated_files,
    renew,
    small_files,
)
from game_events.lakehouse.open_table import OpenTable
from game_events.lakehouse.table_properties import INDEXED, indexed_up_to, is_derived
from game_events.lakehouse.tables import (
    EVENT_LOG,
    OWN_TABLES,
    QUARANTINE,
    Lakehouse,
    Table,
    game_of_gold,
    game_of_silver,
    gold_of_all,
    is_game,
    is_silver,
    names_of,
    paths,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine import listed_files
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableMaintenance
from game_events.pipeline.retention.expire import count_expired, expire
from game_events.pipeline.retention.files import Turn

log = logging.getLogger(__name__)
#: Attempts to set a table's properties and features beside concurrent commits.
ATTEMPTS = 5
#: Tables at a time; each holds a row group in memory.
TABLES_AT_ONCE = 4
#: A log with more entries gets a checkpoint, so that older entries can be deleted.
LOG_ENTRIES = 10
#: Groups of small files, each of a day, that are merged in one commit.
GROUPS_OF_DAYS = 64
#: In a loop a table is due after so many commits, or so many seconds after one.
COMMITS, SECONDS = 16, 300.0
#: Older versions are thinned out as often as this: it lists the log. Without commits their time comes all the same.
THIN_OUT_S, IDLE_S = 60.0, 3_600.0
#: Maximum share of the loop's time (`IncrementalMaintenance.share`).
SHARE = 0.1
#: Seconds of maintenance between two cycles at most: saved up over short cycles, and for one long cycle. All tables become due
#: at the same time, and new rows wait meanwhile.
MOST_SAVED_S, MOST_AT_ONCE_S = 0.1, 1.0


def maintain(
    pipeline: Pipeline, report: RunReport, only: Collection[str] = (), *, dry_run: bool = False, layout: bool = False
) -> None:
    """Maintain the tables, several at a time; no Spark job.

    `only`: names of tables; empty: all of this project. `dry_run`: only count what would be done. `layout`: until no file is
    left that the settings want otherwise, with more statistics, too.

    Raises:
        ConfigurationError: a name in `only` has no table.
    """
    began = time.monotonic()
    names = pipeline.lakehouse.names()
    chosen = {name: pipeline.lakehouse.key(name) for name in only}
    unknown = sorted(name for name, key in chosen.items() if key not in names)
    if unknown:
        raise ConfigurationError(
            f"no table {', '.join(unknown)} below {pipeline.lakehouse.root}: `game-events tables` names those that are there"
        )
    wanted = [name for name in names if (name in chosen.values() if only else is_ours(pipeline, name))]
    pipeline.on_progress(f"maintenance: {len(wanted)} tables")

    work = partial(_count if dry_run else _work, pipeline, layout)
    with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
        report.add_maintenance(pool.map(lambda name: _maintained(pipeline.lakehouse.table(name), work), wanted))
    report.add_seconds("maintenance", time.monotonic() - began)


@dataclass
class IncrementalMaintenance:
    """Maintenance of the tables that one loop commits to, within a share of its time.

    `share`: of the loop's time. `most_saved_s`: seconds of this share that are saved up over short cycles at most.
    """

    lakehouse: Lakehouse
    share: float = SHARE
    most_saved_s: float = MOST_SAVED_S
    _commits: dict[str, int] = field(default_factory=dict)
    _checked_at: dict[str, float] = field(default_factory=dict)
    _versions: dict[str, OldVersions] = field(default_factory=dict)
    _thinned_at: dict[str, float] = field(default_factory=dict)
    _budget_s: float = 0.0
    _last: float = field(default_factory=time.monotonic)

    @property
    def _thin_out_s(self) -> float:
        return min(THIN_OUT_S, self.lakehouse.retention.every_s)

    def note(self, tables: Iterable[str]) -> None:
        """Count a commit to each table of a cycle, and to the tables that every cycle commits to."""
        changed = [self.lakehouse.key(name) for name in tables]
        for name in (*changed, *((PROGRESS, EVENT_LOG) if changed else ())):
            self._commits[name] = self._commits.get(name, 0) + 1
            self._checked_at.setdefault(name, time.monotonic())

    def work(self) -> list[TableMaintenance]:
        """Maintain the tables that are due, as many as there is time for; the others remain due."""
        clock = time.monotonic()
        gained = self.share * (clock - self._last)
        self._budget_s = min(self._budget_s + gained, max(self.most_saved_s, min(gained, MOST_AT_ONCE_S)))
        self._last = clock
        done = []
        for name in self._due(clock):
            if self._budget_s <= 0:
                break
            began = time.monotonic()
            done.append(self._maintain(name))
            self._budget_s -= time.monotonic() - began
        return done

    def _due(self, clock: float) -> list[str]:
        waits_s = dict.fromkeys((name for name, versions in self._versions.items() if versions.waiting), IDLE_S)
        waits_s |= dict.fromkeys(self._commits, SECONDS)
        late = {name for name, wait_s in waits_s.items() if clock - self._checked_at.get(name, 0.0) >= wait_s}
        due = {name for name, commits in self._commits.items() if commits >= COMMITS} | late
        # So each has its turn, however many commits the others have.
        return sorted(due, key=lambda name: self._checked_at.get(name, 0.0))

    def _maintain(self, name: str) -> TableMaintenance:
        table = self.lakehouse.table(name)
        self._commits.pop(name, None)
        self._checked_at[name] = time.monotonic()
        thins_out = self._checked_at[name] - self._thinned_at.get(name, float("-inf")) >= self._thin_out_s

        def work(table: Table, handle: DeltaTable, done: TableMaintenance) -> None:
            handle = _tidy(table, handle, LOOP_GOAL, done)
            if thins_out:
                if name not in self._versions:
                    self._versions[name] = OldVersions(table)
                _thin_out(self._versions[name], handle, done)
                self._thinned_at[name] = self._checked_at[name]

        done = _maintained(table, work)
        if done.error:
            log.warning("maintenance=failed table=%s why=%r", name, done.error)
        if done.error or done.skipped:
            self._commits[name] = 1  # due again after a while, whether it gets commits or not
        return done


def _maintained(table: Table, work: Callable[[Table, DeltaTable, TableMaintenance], object]) -> TableMaintenance:
    """The result of some work on a table; nothing is done after a restore that has to be checked first."""
    done = TableMaintenance(table.name)
    try:
        handle = table.open()
        if handle is not None:
            done.skipped = unchecked_restore(table, handle)
            if not done.skipped:
                work(table, handle, done)
    except ConflictError as error:
        done.skipped = str(error)
    except Exception as error:  # noqa: BLE001 - an error of one table is reported, and the others are maintained
        done.error = str(error) or type(error).__name__
    return done


def _tidy(
    table: Table,
    handle: DeltaTable,
    goal: Goal,
    done: TableMaintenance,
    lakehouse: Lakehouse | None = None,
    *,
    layout: bool = False,
) -> DeltaTable:
    """Compact a table; returns the newest version.

    `lakehouse`: the table's, to renew outdated files and to sort silver's rows, too. `layout`: as of `maintain`.
    """
    handle = _as_set(table, handle)
    order = _order_of(table, handle, lakehouse) if lakehouse is not None else ()
    if table.file_layout != NO_LAYOUT:
        handle = _laid_out(table, handle, order, done, in_loop=lakehouse is None, all_files=layout)
    groups = _groups_of(table, handle, goal)
    for several in _commits(table, groups):
        landed = join_groups(table, handle, several, order)
        done.joined += sum(map(len, several))
        done.into += landed.files
        done.joined_bytes += landed.bytes
    handle = (table.open() or handle) if groups else handle
    if lakehouse is not None:
        handle = _renewed(table, handle, done, statistics=layout)
    done.files = len(paths(handle))
    return handle


def _thin_out(versions: OldVersions, handle: DeltaTable, done: TableMaintenance) -> None:
    """Thin out a table's older versions, and delete the files that none needs any more."""
    done.replaced += versions.thin_out(handle)
    done.waiting = versions.waiting


def _as_set(table: Table, handle: DeltaTable) -> DeltaTable:
    """The version with the properties and features of the settings; after a concurrent commit it is tried again.

    Raises:
        ConflictError: concurrent commits were always first.
        CommitFailedError: delta-rs refuses the change.
    """
    refused: CommitFailedError | None = None
    for _ in range(ATTEMPTS):
        try:
            if table.retention.apply(table.key, handle, _properties(table, handle)):
                handle = table.open() or handle
            if isinstance(handle, OpenTable) and enable(table, handle):
                handle = table.open() or handle
            return handle
        except CommitFailedError as error:
            now = table.open()
            if now is None or not is_refusal(error, handle, now):
                raise
            refused, handle = error, now
    raise ConflictError(f"{table.name}: its properties stay as they are: concurrent runs commit first ({refused})")


def _properties(table: Table, handle: DeltaTable) -> dict[str, str]:
    """Properties that the layout needs beside the others, so that readers look at the statistics of its columns."""
    columns = table.file_layout.with_statistics
    return indexed_up_to(pa.schema(handle.schema()), columns, handle.metadata().configuration.get(INDEXED)) if columns else {}


def _laid_out(
    table: Table, handle: DeltaTable, order: Sequence[str], done: TableMaintenance, *, in_loop: bool, all_files: bool
) -> DeltaTable:
    """Put rows into files as the layout says, of the oldest files, as many as there is time for; returns the newest version.

    `all_files`: of all. A lost file is an error of the table.
    """
    spread = due_in_loop(table, handle) if in_loop else not_laid_out(table, handle, few=all_files)
    chosen = spread if all_files else first_of(spread, MOST_BYTES)
    done.laid_out += _written(chosen, partial(lay_out, table, handle, order=order), done)
    done.spread = 0 if in_loop else count(spread) - done.laid_out
    return (table.open() or handle) if spread else handle


def _written(
    groups: Iterable[Sequence[OutdatedFile]], write: Callable[[Sequence[OutdatedFile]], object], done: TableMaintenance
) -> int:
    """Write groups of files again; the number of files. A lost file is an error of the table, and its group is left."""
    written = 0
    for group in groups:
        try:
            write(group)
        except LostFileError as error:
            done.error = str(error)
            continue
        written += len(group)
    return written


def _commits(table: Table, groups: Sequence[list[str]]) -> Iterator[Sequence[list[str]]]:
    """The groups of each commit: one; of small ones, as days have, several."""
    size = GROUPS_OF_DAYS if table.file_layout.day is not None else 1
    return (groups[begin : begin + size] for begin in range(0, len(groups), size))


def _renewed(table: Table, handle: DeltaTable, done: TableMaintenance, *, statistics: bool) -> DeltaTable:
    """Renew the oldest outdated files, as many as there is time for; returns the newest version.

    `statistics`: and all files without statistics that the settings ask for. A lost file is an error of the table, and its
    group is left for the next maintenance.
    """
    outdated = outdated_files(handle)
    renewed = _written(first_groups(outdated), partial(renew, table, handle), done)
    done.renewed += renewed
    done.outdated = len(outdated) - renewed
    handle = (table.open() or handle) if outdated else handle
    lacking = without_statistics(table, handle) if statistics else []
    done.renewed += _written(first_groups(lacking, math.inf), partial(renew, table, handle), done)
    return (table.open() or handle) if lacking else handle


def outdated_tables(pipeline: Pipeline, most: int) -> tuple[dict[str, int], int]:
    """Name -> outdated files of each of this project's tables that has any, and how many tables were not looked at.

    At most so many are looked at, the own ones of the project first; a table that cannot be opened has none.
    """
    return _tables_with(pipeline, most, lambda _, handle: len(outdated_files(handle)))


def spread_tables(pipeline: Pipeline, most: int) -> tuple[dict[str, int], int]:
    """As `outdated_tables`, of the files that are not as the layout says."""
    return _tables_with(pipeline, most, lambda table, handle: count(not_laid_out(table, handle)))


def _tables_with(pipeline: Pipeline, most: int, files: Callable[[Table, DeltaTable], int]) -> tuple[dict[str, int], int]:
    keys = [name for name in pipeline.lakehouse.names() if is_ours(pipeline, name)]
    keys.sort(key=lambda name: name not in OWN_TABLES)

    def counted(key: str) -> int:
        table = pipeline.lakehouse.table(key)
        handle = table.open()
        return files(table, handle) if handle is not None else 0

    by_table = for_games(keys[:most], guarded(counted))
    counts = {pipeline.lakehouse.table(key).name: count for key, count in by_table.items() if isinstance(count, int) and count}
    return counts, max(0, len(keys) - most)


def _groups_of(table: Table, handle: DeltaTable, goal: Goal) -> list[list[str]]:
    """Groups of files to merge; none of a derived table, which is one file."""
    return [] if is_derived(table.key) else small_files(table, handle, goal)


def _order_of(table: Table, handle: DeltaTable, lakehouse: Lakehouse) -> list[str]:
    """Columns by which compaction sorts rows: the layout's, else of silver message type and time; none of other tables."""
    cluster = table.file_layout.cluster
    if cluster and can_be_sorted(pa.schema(handle.schema()), cluster):
        return list(cluster)
    return [name for name in (MESSAGE_TYPE, lakehouse.time) if name in names_of(handle)] if is_silver(table.key) else []


def is_ours(pipeline: Pipeline, name: str) -> bool:
    """Whether a table is one of this project's, by its key: other tables below the root are never touched."""
    aggregates = (PLAYER_AGG, *(aggregate.name for aggregate in pipeline.extensions.aggregates))
    games = (game_of_silver(name), *(game_of_gold(name, aggregate) for aggregate in aggregates))
    of_all = [gold_of_all(aggregate) for aggregate in aggregates if pipeline.lakehouse.is_partitioned]
    return name in (*OWN_TABLES, *of_all) or any(is_game(game) for game in games)


def _work(pipeline: Pipeline, layout: bool, table: Table, handle: DeltaTable, done: TableMaintenance) -> None:
    if (days := pipeline.settings.row_retention) is not None:
        handle = expire(pipeline, days, table, handle, done)
    handle = _tidy(table, handle, FULL_GOAL, done, pipeline.lakehouse, layout=layout)
    versions = OldVersions(table)
    _thin_out(versions, handle, done)
    orphans = _orphans(pipeline, table, versions, dry_run=False)
    done.orphan_bytes += sum(orphans.values())
    done.orphans += delete_files(table, sorted(orphans), pipeline.settings.orphan_retention_h * 3600)
    # Writers make checkpoints as they go; a table that is seldom written has log entries that no checkpoint covers.
    if versions.entries > LOG_ENTRIES:
        handle.create_checkpoint()
        failpoints.reach("checkpoint_written", table.name)


def _count(pipeline: Pipeline, layout: bool, table: Table, handle: DeltaTable, done: TableMaintenance) -> None:
    """Count what `_work` would do now."""
    days = pipeline.settings.row_retention
    turn = Turn(0) if days is None else count_expired(pipeline, days, table, handle, done)
    _count_written(table, handle, turn, done, layout=layout)
    versions = OldVersions(table)
    todo = versions.plan(handle)
    done.replaced = files_there(table, todo.files)
    done.waiting = todo.waiting
    done.files = len(paths(handle))
    orphans = _orphans(pipeline, table, versions, dry_run=True)
    done.orphans = len(orphans)
    done.orphan_bytes = sum(orphans.values())


def _count_written(table: Table, handle: DeltaTable, turn: Turn, done: TableMaintenance, *, layout: bool) -> None:
    """Count the files that would be written again, each by the first step that does it; `turn`: the one before these."""
    gone = turn.whole
    spread = not_laid_out(table, handle, few=layout) if table.file_layout != NO_LAYOUT else []
    spread = [left for group in spread if (left := [file for file in group if file.path not in gone])]
    chosen = spread if layout else first_of(spread, MOST_BYTES)
    done.laid_out = count(chosen)
    done.spread = count(spread) - done.laid_out
    gone = gone | {file.path for group in chosen for file in group}
    small = [[path for path in group if path not in gone] for group in _groups_of(table, handle, FULL_GOAL)]
    groups = [group for group in small if len(group) >= FULL_GOAL.files]
    done.joined = sum(map(len, groups))
    done.into = len(groups)
    written = gone | turn.changed | {path for group in groups for path in group}
    outdated = [file for file in outdated_files(handle) if file.path not in written]
    renewed = {file.path for group in first_groups(outdated) for file in group}
    done.outdated = len(outdated) - len(renewed)
    lacking = without_statistics(table, handle) if layout else []
    done.renewed = len(renewed | {file.path for file in lacking if file.path not in written})


def _orphans(pipeline: Pipeline, table: Table, versions: OldVersions, *, dry_run: bool) -> dict[str, int]:
    age = pipeline.settings.orphan_retention_h * 3600
    keep = listed_files(pipeline, age, dry_run=dry_run) if table.key == QUARANTINE else ()
    return orphans(table, age, versions, keep)
