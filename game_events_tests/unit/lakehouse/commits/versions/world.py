"""A table with a clock of its own: what its older versions are, and what is promised of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.commits.versions import DAY_S, HOUR_S, LogFiles, OldVersions
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.maintenance import FULL_GOAL, join_files, small_files
from game_events.lakehouse.tables import Table, paths
from game_events_tests.support.tables import data_files, plan, staged_numbers

#: A Tuesday in 2020, half an hour after noon: no file that is written now is as old as the world's clock.
BEGIN = 1_600_777_800.0


class Killed(BaseException):
    """Ends the work at a failpoint, as a kill does."""


@dataclass
class World:
    """A table whose log is as old as a clock says that only the test moves on."""

    table: Table
    now: float = BEGIN
    commits: int = 0
    erasures: int = 0
    #: Version -> its numbers; when it was made; people that were erased before it.
    rows: dict[int, list[int]] = field(default_factory=dict)
    made: dict[int, float] = field(default_factory=dict)
    erased: dict[int, int] = field(default_factory=dict)
    _content: dict[str, list[int]] = field(default_factory=dict)

    def dated(self) -> None:
        """The files of the log that are new have the time of the clock."""
        for file in Path(self.table.uri, "_delta_log").glob("*"):
            if file.stat().st_mtime > self.now + DAY_S or file.stat().st_mtime < BEGIN - DAY_S:
                os.utime(file, (self.now, self.now))

    def noted(self) -> None:
        self.dated()
        handle = DeltaTable(self.table.uri)
        for version in range(max(self.rows, default=-1) + 1, handle.version() + 1):
            self.rows[version] = self.read(version)
            self.made[version] = self.now
            self.erased[version] = self.erasures

    def put(self, count: int = 1, **options: object) -> None:
        before = self.commits or None
        self.commits += 1
        info = {BATCH_INFO: "1"}
        new = [1000 * self.commits + n for n in range(count)]
        commit(plan(self.table, new, before, self.commits, info=info, **options))
        self.noted()

    def erase(self) -> None:
        """Files with odd numbers are replaced by others, as an erasure does it."""
        hits = [path for path in paths(self.table.open()) if any(n % 2 for n in self.content(path))]
        kept = [n for path in hits for n in self.content(path) if n % 2 == 0]
        self.erasures += 1
        files = staged_numbers(self.table, kept)
        one = plan(self.table, [], self.erasures - 1 or None, self.erasures, app=Txn.ERASURES, files=files)
        commit(replace(one, rewritten=frozenset(hits), info={BATCH_INFO: "1"}))
        self.noted()

    def join(self) -> None:
        for group in small_files(self.table, self.table.open(), FULL_GOAL):
            join_files(self.table, self.table.open(), group)
        self.noted()

    def restore(self, version: int) -> None:
        DeltaTable(self.table.uri).restore(version)
        self.noted()

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def tidy(self, **options: int) -> int:
        try:
            return OldVersions(self.table, **options).thin_out(self.table.open())
        finally:
            self.dated()

    def content(self, path: str) -> list[int]:
        """The numbers of a file that is there."""
        file = Path(self.table.uri, path)
        assert file.exists(), path
        if path not in self._content:
            self._content[path] = pq.read_table(file, columns=["n"]).column("n").to_pylist()
        return self._content[path]

    def read(self, version: int) -> list[int]:
        """The numbers of a version, as delta-rs opens it."""
        handle = DeltaTable(self.table.uri, version)
        return sorted(n for path in paths(handle) for n in self.content(path))

    @property
    def readable(self) -> list[int]:
        return LogFiles.of(TableLog(self.table)).readable()

    def promised(self) -> set[int]:
        """By the words of the documents: all of the last hours, then one an hour, then one a day; none before an erasure."""
        retention = self.table.retention
        every_s, kept_s = retention.every_s, retention.seconds(self.table.key)
        newest = max(self.rows)
        recent = {v for v in self.rows if v == newest or self.made[v + 1] > self.now - every_s}
        older = set()
        moment = self.now // HOUR_S * HOUR_S
        while moment > self.now - kept_s:
            is_kept = moment > self.now - DAY_S or moment % DAY_S == 0
            before = [v for v in self.rows if self.made[v] <= moment]
            if is_kept and moment <= self.now - every_s and before:
                older.add(max(before))
            moment -= HOUR_S
        return recent | {v for v in older if self.erased[v] == self.erased[newest]}


def busy(world: World, hours: float, every_s: float = 600.0, tidy_s: float = HOUR_S, **options: object) -> None:
    """Commits and maintenance for so long."""
    for n in range(int(hours * HOUR_S / every_s)):
        world.put(**options)
        world.passes(every_s)
        if (n + 1) * every_s % tidy_s == 0:
            world.tidy(few=3)


def assert_kept(world: World, few: int = 3) -> None:
    """What is promised has its rows, and what is not is not there."""
    wanted, left = world.promised(), set(world.readable)
    assert wanted <= left
    assert {version: world.read(version) for version in wanted} == {version: world.rows[version] for version in wanted}
    needed = {path for version in left for path in paths(DeltaTable(world.table.uri, version))}
    assert data_files(world.table) == needed
    begin = min(v for v in left if v == max(left) or world.made[v + 1] > world.now - world.table.retention.every_s)
    more = [v for v in left - wanted if v < begin - 10]
    assert len(more) <= few, more
