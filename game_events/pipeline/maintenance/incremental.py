"""Upkeep of the tables that a loop writes, between two cycles, a little at a time: small files joined, replaced ones deleted.

Guarantee: no row is touched, none of a table's progress; what a reader opened less than the retention ago stays readable; files
that are staged for a commit to come stay. Upkeep that fails is told and tried again, and never ends the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import paths
from game_events.lakehouse.commits.restores import unchecked_restore
from game_events.lakehouse.maintenance.compaction import LOOP_GOAL, Goal, join_files, small_files
from game_events.lakehouse.maintenance.unreferenced_files import ReplacedFiles
from game_events.lakehouse.retention import Retention, is_derived
from game_events.lakehouse.tables import EVENT_LOG, PROGRESS, Lakehouse, Table
from game_events.pipeline.reporting.steps import TableMaintenance

log = logging.getLogger(__name__)

#: A table is looked at after so many commits, or so long after one.
COMMITS, SECONDS = 16, 300.0
#: Share of the loop's time that upkeep may take.
SHARE = 0.1


@dataclass
class Upkeep:
    """The upkeep of one loop.

    Attributes:
        lakehouse: its tables.
        retention: how long replaced files stay.
    """

    lakehouse: Lakehouse
    retention: Retention
    _commits: dict[str, int] = field(default_factory=dict)
    _looked_at: dict[str, float] = field(default_factory=dict)
    _logs: dict[str, ReplacedFiles] = field(default_factory=dict)
    _budget_s: float = 0.0
    _last: float = field(default_factory=time.monotonic)

    def note(self, tables: Iterable[str]) -> None:
        """Names of tables that a cycle has committed to; what goes with every cycle is noted with them."""
        changed = [self.lakehouse.key(name) for name in tables]
        for name in (*changed, *((PROGRESS, EVENT_LOG) if changed else ())):
            self._commits[name] = self._commits.get(name, 0) + 1
            self._looked_at.setdefault(name, time.monotonic())

    def work(self) -> list[TableMaintenance]:
        """Look after the tables that are due, as many as there is time for; the others' turn comes."""
        clock = time.monotonic()
        # Unspent time is not saved up: a loop that was idle for an hour has nothing to catch up with.
        self._budget_s = min(self._budget_s + SHARE * (clock - self._last), 1.0)
        self._last = clock
        done = []
        for name in self._due(clock):
            if self._budget_s <= 0:
                break
            began = time.monotonic()
            done.append(self._look_after(name))
            self._budget_s -= time.monotonic() - began
        return done

    def _due(self, clock: float) -> list[str]:
        waiting = {name for name, log_ in self._logs.items() if log_.waiting}
        late = {n for n in self._commits.keys() | waiting if clock - self._looked_at.get(n, 0.0) >= SECONDS}
        due = {name for name, commits in self._commits.items() if commits >= COMMITS} | late
        return sorted(due, key=lambda name: -self._commits.get(name, 0))

    def _look_after(self, name: str) -> TableMaintenance:
        table = self.lakehouse.table(name)
        self._commits.pop(name, None)
        self._looked_at[name] = time.monotonic()
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
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one table is told, and ends no loop
            done.error = str(error)
            log.warning("upkeep=failed table=%s why=%r", name, str(error))
        return done


def join_small_files(table: Table, handle: DeltaTable, goal: Goal, done: TableMaintenance) -> DeltaTable:
    """Join an append-only table's small files; returns the newest version. Derived tables are one file by themselves."""
    groups = [] if is_derived(table.key) else small_files(table, handle, goal)
    for group in groups:
        landed = join_files(table, handle, group)
        done.joined += len(group)
        done.into += landed.files
        done.joined_bytes += landed.bytes
    return (table.open() or handle) if groups else handle


def delete_replaced(known: ReplacedFiles, handle: DeltaTable, older_than_s: float, done: TableMaintenance) -> None:
    """Delete files that the table has replaced so long ago."""
    known.look(handle)
    done.replaced += known.delete(older_than_s)
    done.waiting = len(known.waiting)
    done.files = len(paths(handle))
