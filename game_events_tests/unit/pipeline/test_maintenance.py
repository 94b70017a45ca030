"""What maintenance would do is what it does. No service."""

import itertools
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.maintenance import COMMITS, SECONDS, IncrementalMaintenance, maintain
from game_events.pipeline.quarantine import ResetList, keep
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

DAY_S = 86_400


def test_files_listed_for_a_full_refresh_count_only_if_it_never_came_about_and_a_dry_run_removes_nothing(tmp_path):
    pipeline = without_spark(tmp_path)
    table = pipeline.quarantine
    rows = pa.table({"layer": ["bronze"]})
    put(table, rows)
    for days in (1, 30):  # the younger one may belong to a full refresh under way
        files = staged(table, rows)
        keep(table, int((time.time() - days * DAY_S) * 1e6), ResetList(1, {}, files))
        os.utime(Path(table.uri, files[0].path), (time.time() - 30 * DAY_S,) * 2)
    before = sorted(Path(table.uri).iterdir())
    report = RunReport()
    maintain(pipeline, report, dry_run=True)
    assert report.maintenance[table.name].orphans == 1
    assert sorted(Path(table.uri).iterdir()) == before
    maintain(pipeline, RunReport())
    assert len(set(before) - set(Path(table.uri).iterdir())) == 2  # a list and its file


class SlowTables(Lakehouse):
    """Each table takes 30 ms of a clock that nothing else moves."""

    now: float

    def table(self, key):
        self.now += 0.03
        return super().table(key)


@pytest.fixture
def slow(tmp_path, monkeypatch):
    tables = SlowTables(str(tmp_path))
    tables.now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: tables.now)
    return tables


def test_in_a_loop_tables_that_become_due_together_are_maintained_a_few_in_each_cycle(slow):
    """Rows that arrive wait for a cycle to end."""
    maintenance, names = IncrementalMaintenance(slow, share=0.1), [f"silver_game_{number}_events" for number in range(12)]
    maintenance.note(names * COMMITS)
    cycles = []
    while sum(map(len, cycles)) < len(names):
        slow.now += 1
        cycles.append([done.table for done in maintenance.work() if done.table in names])
    assert sorted(itertools.chain(*cycles)) == sorted(names)
    assert max(map(len, cycles)) <= 4


def test_long_cycles_leave_maintenance_their_share(slow):
    maintenance = IncrementalMaintenance(slow, share=0.1)
    names = [f"silver_game_{number}_events" for number in range(100)]
    for cycle_s, most in ((5, 17), (30, 34)):
        maintenance.note(names * COMMITS)
        slow.now += cycle_s
        done = len(maintenance.work())
        assert most - 2 <= done <= most, f"a tenth of {cycle_s} s, a second at most"


def test_tables_that_wait_have_their_turn_before_those_with_more_commits(slow):
    maintenance = IncrementalMaintenance(slow, share=0.1)
    maintenance.note(["silver_rare_events"] * COMMITS)
    slow.now += 1
    maintenance.note(["silver_busy_events"] * 9 * COMMITS)
    turns = []
    for _ in range(8):
        slow.now += 1
        turns += [done.table for done in maintenance.work() if done.table.startswith("silver")]
        maintenance.note(["silver_busy_events"] * 9 * COMMITS)
    assert turns[:2] == ["silver_rare_events", "silver_busy_events"]


def test_a_table_whose_maintenance_failed_has_another_turn_after_a_while_without_a_commit(slow):
    table = slow.table("silver_uno_events")
    put(table, pa.table({"n": [1]}))
    entry = Path(table.uri, "_delta_log", f"{0:020}.json")
    good = entry.read_text()
    entry.write_text("not json")
    maintenance = IncrementalMaintenance(slow, share=1.0)
    maintenance.note([table.name] * COMMITS)
    slow.now += 1
    failed = {done.table: done.error for done in maintenance.work()}
    assert failed[table.name]
    entry.write_text(good)
    slow.now += 1
    assert table.name not in {done.table for done in maintenance.work()}
    slow.now += SECONDS
    again = {done.table: done.error for done in maintenance.work()}
    assert again[table.name] is None
