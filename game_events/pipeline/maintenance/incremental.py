"""Incremental maintenance: compaction and deletion of files, between two cycles of a loop, within a share of its time.

Guarantee: no row and no progress changes; a version that a reader opened less than the retention ago stays readable; staged
files stay. Maintenance that fails is logged and tried again, and never ends the loop.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse.commits.restores import unchecked_restore
from game_events.lakehouse.maintenance.compaction import LOOP_GOAL, Goal, join_files, small_files
from game_events.lakehouse.maintenance.unreferenced_files import ReplacedFiles
from game_events.lakehouse.retention import Retention, is_derived
from game_events.lakehouse.tables import EVENT_LOG, PROGRESS, Lakehouse, Table, paths
from game_events.pipeline.reporting.steps import TableMaintenance

log = logging.getLogger(__name__)

#: A table is due after so many commits, or so many seconds after one.
COMMITS, SECONDS = 16, 300.0
#: Maximum share of the loop's time.
SHARE = 0.1


@dataclass
class IncrementalMaintenance:
    """Maintenance of the tables that one loop commits to."""

    lakehouse: Lakehouse
    retention: Retention
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
        # Unspent time is not saved up: a loop that was idle for an hour has no backlog.
        self._budget_s = min(self._budget_s + SHARE * (clock - self._last), 1.0)
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
        return sorted(due, key=lambda name: -self._commits.get(name, 0))

    def _maintain(self, name: str) -> TableMaintenance:
        table = self.lakehouse.table(name)
        self._commits.pop(name, None)
        self._checked_at[name] = time.monotonic()
        known = self._logs.setdefault(name, ReplacedFiles(table))
        done = TableMaintenance(table.name)
        try:
            handle = table.open()
            done.skipped = unchecked_restore(table, handle) if handle is not None else None
            if handle is not None and not done.skipped:
                if self.retention.apply(name, handle):
                    handle = table.open() or handle
                handle = join_small_files(table, handle, LOOP_GOAL, done)
                delete_replaced(known, handle, self.retention.seconds(name), done)
        except ConflictError as error:
            done.skipped = str(error)
        except Exception as error:  # noqa: BLE001 - an error of one table is logged, and ends no loop
            done.error = str(error)
            log.warning("maintenance=failed table=%s why=%r", name, str(error))
        return done


def groups_of(table: Table, handle: DeltaTable, goal: Goal) -> list[list[str]]:
    """Groups of files to merge; none of a derived table, which is one file."""
    return [] if is_derived(table.key) else small_files(table, handle, goal)


def join_small_files(table: Table, handle: DeltaTable, goal: Goal, done: TableMaintenance) -> DeltaTable:
    """Compact an append-only table; returns the newest version."""
    groups = groups_of(table, handle, goal)
    for group in groups:
        landed = join_files(table, handle, group)
        done.joined += len(group)
        done.into += landed.files
        done.joined_bytes += landed.bytes
    return (table.open() or handle) if groups else handle


def delete_replaced(known: ReplacedFiles, handle: DeltaTable, older_than_s: float, done: TableMaintenance) -> None:
    """Delete files that were removed so long ago."""
    known.read_log(handle)
    done.replaced += known.delete(older_than_s)
    done.waiting = len(known.waiting)
    done.files = len(paths(handle))
