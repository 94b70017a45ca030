"""Maintenance of tables: compaction, deletion of old files, shorter logs; of all of them, or between two cycles of a loop.

Guarantee: no row and no progress changes; a version that a reader opened less than the retention ago stays readable; staged
files stay. What a concurrent writer prevents, or an error of one table, is done the next time, and ends neither run nor loop.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from deltalake import DeltaTable

from game_events.config.names import PROGRESS
from game_events.errors import ConfigurationError, ConflictError, LostFileError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.group import for_games, guarded
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import unchecked_restore
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.maintenance import (
    FULL_GOAL,
    LOOP_GOAL,
    Goal,
    ReplacedFiles,
    delete_files,
    first_groups,
    join_files,
    orphans,
    outdated_files,
    renew,
    small_files,
)
from game_events.lakehouse.table_properties import is_derived
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
from game_events.pipeline.retention.expire import expire

log = logging.getLogger(__name__)
#: Tables at a time; each holds a row group in memory.
TABLES_AT_ONCE = 4
#: A log with more entries gets a checkpoint, so that older entries can be deleted.
LOG_ENTRIES = 10
#: In a loop a table is due after so many commits, or so many seconds after one.
COMMITS, SECONDS = 16, 300.0
#: Maximum share of the loop's time (`IncrementalMaintenance.share`).
SHARE = 0.1
#: Seconds of maintenance between two cycles at most: saved up over short cycles, and for one long cycle. All tables become due
#: at the same time, and new rows wait meanwhile.
MOST_SAVED_S, MOST_AT_ONCE_S = 0.1, 1.0


def maintain(pipeline: Pipeline, report: RunReport, only: Collection[str] = (), *, dry_run: bool = False) -> None:
    """Maintain the tables, several at a time; no Spark job.

    `only`: names of tables; empty: all of this project. `dry_run`: only count what would be done.

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
    wanted = [name for name in names if (name in chosen.values() if only else _is_ours(pipeline, name))]
    pipeline.on_progress(f"maintenance: {len(wanted)} tables")

    work = partial(_count if dry_run else _work, pipeline)
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
    _logs: dict[str, ReplacedFiles] = field(default_factory=dict)
    _budget_s: float = 0.0
    _last: float = field(default_factory=time.monotonic)

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
        waiting = {name for name, log_ in self._logs.items() if log_.waiting}
        late = {n for n in self._commits.keys() | waiting if clock - self._checked_at.get(n, 0.0) >= SECONDS}
        due = {name for name, commits in self._commits.items() if commits >= COMMITS} | late
        # So each has its turn, however many commits the others have.
        return sorted(due, key=lambda name: self._checked_at.get(name, 0.0))

    def _maintain(self, name: str) -> TableMaintenance:
        table = self.lakehouse.table(name)
        self._commits.pop(name, None)
        self._checked_at[name] = time.monotonic()
        known = self._logs.setdefault(name, ReplacedFiles(table))
        done = _maintained(table, lambda _, handle, done: _tidy(known, handle, LOOP_GOAL, done))
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
    known: ReplacedFiles, handle: DeltaTable, goal: Goal, done: TableMaintenance, lakehouse: Lakehouse | None = None
) -> DeltaTable:
    """Compact a table, then delete files that were removed longer ago than the retention; returns the newest version.

    `lakehouse`: the table's, to renew outdated files and to sort silver's rows, too.
    """
    table = known.table
    if table.retention.apply(table.key, handle):
        handle = table.open() or handle
    groups = _groups_of(table, handle, goal)
    order = _order_of(table, handle, lakehouse) if lakehouse is not None else ()
    for group in groups:
        landed = join_files(table, handle, group, order)
        done.joined += len(group)
        done.into += landed.files
        done.joined_bytes += landed.bytes
    handle = (table.open() or handle) if groups else handle
    if lakehouse is not None:
        handle = _renewed(table, handle, done)
    known.read_log(handle)
    done.replaced += known.delete(table.retention.seconds(table.key))
    done.waiting = len(known.waiting)
    done.files = len(paths(handle))
    return handle


def _renewed(table: Table, handle: DeltaTable, done: TableMaintenance) -> DeltaTable:
    """Renew the oldest outdated files, as many as there is time for; returns the newest version.

    A lost file is an error of the table, and its group is left for the next maintenance.
    """
    outdated = outdated_files(handle)
    for group in first_groups(outdated):
        try:
            renew(table, handle, group)
        except LostFileError as error:
            done.error = str(error)
            continue
        done.renewed += len(group)
    done.outdated = len(outdated) - done.renewed
    return (table.open() or handle) if outdated else handle


def outdated_tables(pipeline: Pipeline, most: int) -> tuple[dict[str, int], int]:
    """Name -> outdated files of each of this project's tables that has any, and how many tables were not looked at.

    At most so many are looked at, the own ones of the project first; a table that cannot be opened has none.
    """
    keys = [name for name in pipeline.lakehouse.names() if _is_ours(pipeline, name)]
    keys.sort(key=lambda name: name not in OWN_TABLES)

    def outdated(key: str) -> int:
        handle = pipeline.lakehouse.table(key).open()
        return len(outdated_files(handle)) if handle is not None else 0

    by_table = for_games(keys[:most], guarded(outdated))
    counts = {pipeline.lakehouse.table(key).name: count for key, count in by_table.items() if isinstance(count, int) and count}
    return counts, max(0, len(keys) - most)


def _groups_of(table: Table, handle: DeltaTable, goal: Goal) -> list[list[str]]:
    """Groups of files to merge; none of a derived table, which is one file."""
    return [] if is_derived(table.key) else small_files(table, handle, goal)


def _order_of(table: Table, handle: DeltaTable, lakehouse: Lakehouse) -> list[str]:
    """Columns by which compaction sorts silver's rows: message type and time; none of other tables."""
    return [name for name in (MESSAGE_TYPE, lakehouse.time) if name in names_of(handle)] if is_silver(table.key) else []


def _is_ours(pipeline: Pipeline, name: str) -> bool:
    """Whether a table is one of this project's, by its key: other tables below the root are never touched."""
    aggregates = (PLAYER_AGG, *(aggregate.name for aggregate in pipeline.extensions.aggregates))
    games = (game_of_silver(name), *(game_of_gold(name, aggregate) for aggregate in aggregates))
    of_all = [gold_of_all(aggregate) for aggregate in aggregates if pipeline.lakehouse.is_partitioned]
    return name in (*OWN_TABLES, *of_all) or any(is_game(game) for game in games)


def _work(pipeline: Pipeline, table: Table, handle: DeltaTable, done: TableMaintenance) -> None:
    handle = _without_older_rows(pipeline, table, handle, done)
    known = ReplacedFiles(table)
    handle = _tidy(known, handle, FULL_GOAL, done, pipeline.lakehouse)
    orphans = _orphans(pipeline, table, known, dry_run=False)
    done.orphan_bytes += sum(orphans.values())
    done.orphans += delete_files(table, sorted(orphans), pipeline.settings.orphan_retention_h * 3600)
    # Writers make checkpoints as they go; a table that is seldom written has log entries that no checkpoint covers.
    if known.entries > LOG_ENTRIES:
        handle.create_checkpoint()
        failpoints.reach("checkpoint_written", table.name)
    TableLog(table).delete_expired(table.retention.seconds(table.key))


def _count(pipeline: Pipeline, table: Table, handle: DeltaTable, done: TableMaintenance) -> None:
    """Count what `_work` would do now."""
    _without_older_rows(pipeline, table, handle, done, dry_run=True)
    groups = _groups_of(table, handle, FULL_GOAL)
    done.joined = sum(len(group) for group in groups)
    done.into = len(groups)
    merged = {path for group in groups for path in group}
    outdated = [file for file in outdated_files(handle) if file.path not in merged]
    done.renewed = sum(map(len, first_groups(outdated)))
    done.outdated = len(outdated) - done.renewed
    known = ReplacedFiles(table)
    known.read_log(handle)
    done.replaced = len(known.due(table.retention.seconds(table.key)))
    done.waiting = len(known.waiting) - done.replaced
    done.files = len(paths(handle))
    orphans = _orphans(pipeline, table, known, dry_run=True)
    done.orphans = len(orphans)
    done.orphan_bytes = sum(orphans.values())


def _without_older_rows(
    pipeline: Pipeline, table: Table, handle: DeltaTable, done: TableMaintenance, *, dry_run: bool = False
) -> DeltaTable:
    """Remove rows by age, if any of the table have a limit; returns the newest version."""
    days = pipeline.settings.row_retention
    if days is None:
        return handle
    return expire(pipeline, days, table, handle, done, dry_run=dry_run)


def _orphans(pipeline: Pipeline, table: Table, known: ReplacedFiles, *, dry_run: bool) -> dict[str, int]:
    age = pipeline.settings.orphan_retention_h * 3600
    keep = listed_files(pipeline, age, dry_run=dry_run) if table.key == QUARANTINE else ()
    return orphans(table, age, known, keep)
