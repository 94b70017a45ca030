"""What maintenance would do is what it does. No service."""

import os
import time
from pathlib import Path

import pyarrow as pa

from game_events.lakehouse.data.staging import staged
from game_events.pipeline.maintenance.run import maintain
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
