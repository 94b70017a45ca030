"""What older versions cost: a week of continuous mode with default times, by a clock that runs faster than ours.

Commits, handles, compaction and thinning out are those of a loop. The files of the log are given the times of the simulated
clock, by which all of it is decided.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.arena import Arena, settings_for
from benchmarks.figures import Figure, Target
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import txn
from game_events.lakehouse.commits.versions import DAY_S
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table, files_of, table_id
from game_events.pipeline.maintenance import IncrementalMaintenance

#: Days, and seconds between two commits; in a quick run fewer and longer ones.
DAYS, EVERY_S = 7, 60.0
QUICK_DAYS, QUICK_EVERY_S = 3, 600.0
#: Gold is replaced at each so many cycles.
GOLD_CYCLES = 3
#: The simulated week is as long ago: whatever has a time of today is new.
AGO_S = 60 * DAY_S
ROWS = pa.table({"gamer_id": [f"gamer_{number}" for number in range(100)], "_batch": [1] * 100})
GOLD_ROWS = pa.table({"gamer_id": [f"gamer_{number}" for number in range(10_000)], "_batch": [1] * 10_000})
OPENED = 5


@dataclass
class Week:
    """A lakehouse of three tables, and the clock."""

    lakehouse: Lakehouse
    now: float
    pool: TablePool = field(default_factory=lambda: TablePool(summaries=False))

    @property
    def tables(self) -> dict[str, Table]:
        """Bronze and silver are added to, gold is replaced."""
        lakehouse = self.lakehouse
        return {"bronze": lakehouse.table(BRONZE), "silver": lakehouse.silver("uno"), "gold": lakehouse.gold("uno")}

    def commit(self, table: Table, *, replace: bool) -> None:
        """One more version."""
        handle = self.pool.open(table)
        before = txn(handle, "bench")
        rows = GOLD_ROWS if replace else ROWS
        landed = commit(
            Commit(
                table,
                rows.schema,
                staged(table, rows),
                expect_transactions={"bench": before},
                set_transactions={"bench": (before or 0) + 1},
                table_id=table_id(handle),
                replace=replace and handle is not None,
                from_table=handle,
                info={"bronze_batch": "1", "batch": "1", "sources": "[]"},
            )
        )
        self.pool.publish(table, landed.handle)

    def date(self) -> None:
        """Give the new files of the logs the time of the clock, but for the newest entries, by which kept handles know them."""
        for table in self.tables.values():
            log = Path(table.uri, "_delta_log")
            entries = sorted(entry.name for entry in os.scandir(log) if entry.name.startswith("0")) if log.is_dir() else []
            newest = max((name for name in entries if name.endswith(".json")), default="")
            for name in entries:
                if name != newest and (log / name).stat().st_mtime > self.now + DAY_S:
                    os.utime(log / name, (self.now, self.now))


@contextmanager
def clock_of(week: Week) -> Iterator[None]:
    """`time` says what the clock does."""
    real, monotonic = time.time, time.monotonic
    time.time = lambda: week.now
    time.monotonic = lambda: week.now
    try:
        yield
    finally:
        time.time, time.monotonic = real, monotonic


def time_travel(arena: Arena) -> list[Figure]:
    """Room, entries of the logs and times of opening, after each day."""
    quick = arena.seconds <= 20
    days, every_s = (QUICK_DAYS, QUICK_EVERY_S) if quick else (DAYS, EVERY_S)
    by_day: list[dict[str, float]] = []
    with arena.lakehouse() as root:
        settings = settings_for(arena.folder, "bench_time_travel", root)
        week = Week(Lakehouse.of(settings), time.time() - AGO_S)
        with clock_of(week):
            maintenance = IncrementalMaintenance(week.lakehouse, most_saved_s=1e9)
            for number in range(int(days * DAY_S / every_s)):
                _cycle(week, maintenance, gold=number % GOLD_CYCLES == 0)
                week.now += every_s
                if (number + 1) % int(DAY_S / every_s) == 0:
                    by_day.append(_looked_at(week))
                    arena.say(f"day {len(by_day)} of {days} has passed")
    return [figure for what in by_day[0] for figure in _figures(what, [day[what] for day in by_day])]


def _cycle(week: Week, maintenance: IncrementalMaintenance, *, gold: bool) -> None:
    chosen = [table for name, table in week.tables.items() if gold or name != "gold"]
    for table in chosen:
        week.commit(table, replace=table.key.startswith("gold"))
    week.date()
    maintenance.note(table.name for table in chosen)
    done = maintenance.work()
    assert not any(one.error for one in done), done
    if done:
        week.date()


def _looked_at(week: Week) -> dict[str, float]:
    """What there is of each table now."""
    found = dict[str, float]()
    for name, table in week.tables.items():
        handle = table.open()
        assert handle is not None
        live = sum(file.size for file in files_of(handle))
        disk = sum(file.stat().st_size for file in Path(table.uri).rglob("*") if file.is_file())
        times = list[float]()
        for _ in range(OPENED):
            began = time.perf_counter()
            table.open()
            times.append(1_000 * (time.perf_counter() - began))
        found[f"{name}: MiB besides the newest version"] = (disk - live) / 2**20
        found[f"{name}: MiB of the newest version"] = live / 2**20
        found[f"{name}: entries in the log"] = len(list(Path(table.uri, "_delta_log").glob("0*.json")))
        found[f"{name}: ms to open"] = median(times)
    return found


def _figures(what: str, values: list[float]) -> list[Figure]:
    """Of each day, and the last one by the second."""
    name, _, unit = what.partition(": ")
    days = Figure(f"{name}: {unit}, each day", unit.split()[0], values)
    if "of the newest" in unit:
        return [days]
    return [days, Figure(f"{name}: {unit}, last day / second day", "x", [values[-1] / values[1]], Target("<=", 1.2))]
