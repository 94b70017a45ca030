"""What maintenance would do is what it does. No service."""

import itertools
import os
import time
from pathlib import Path

import pyarrow as pa

from game_events.lakehouse.data.staging import staged
from game_events.pipeline.maintenance.run import COMMITS, IncrementalMaintenance, maintain
from game_events.pipeline.quarantine.full_refresh import ResetList, keep
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


def test_in_a_loop_tables_that_become_due_together_are_maintained_a_few_in_each_cycle(tmp_path, monkeypatch):
    """Rows that arrive wait for a cycle to end."""
    pipeline = without_spark(tmp_path)
    tables = [pipeline.lakehouse.table(f"silver_game_{number}_events").name for number in range(12)]
    clock = itertools.count(time.monotonic(), 0.03)  # of each table's work, and of whatever else asks
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    maintenance = IncrementalMaintenance(pipeline.lakehouse, share=1.0)
    for _ in range(COMMITS):
        maintenance.note(tables)
    cycles = []
    while sum(map(len, cycles)) < len(tables):
        cycles.append([done.table for done in maintenance.work() if done.table in tables])
    assert sorted(itertools.chain(*cycles)) == sorted(tables)
    assert max(map(len, cycles)) <= 2
