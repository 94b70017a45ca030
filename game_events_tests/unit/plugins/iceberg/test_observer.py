"""What each run does for Iceberg: what has changed is committed, and no fault of a catalog is one of the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from game_events.pipeline.event_log import RunFacts, event_rows
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult
from game_events.plugins.governance.commits import Erasure
from game_events.plugins.iceberg import work
from game_events.plugins.iceberg.lag import lags
from game_events.plugins.iceberg.observer import CURRENT, IcebergObserver
from game_events.plugins.iceberg.work import IcebergResult
from game_events_tests.support.altered_tables import altered
from game_events_tests.support.iceberg import iceberg_table, rows_in_delta, rows_in_iceberg, run_ended
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put


def some(*numbers):
    return pa.table({"_batch": pa.array(numbers, pa.int64())})


@pytest.fixture
def away(pipeline):
    """The same lakehouse, whose catalog does not answer."""
    return without_spark(pipeline.lakehouse.root, iceberg=True, iceberg_catalog="away")


@pytest.fixture(autouse=True)
def _catalogs(monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", "http://127.0.0.1:9")


def test_each_run_commits_what_has_changed_since_the_last_one_whoever_changed_it(pipeline, silver):
    gold = pipeline.lakehouse.table("gold_rummy_player_agg")
    put(silver, some(1))
    put(gold, some(1))
    assert run_ended(pipeline).part(IcebergResult).tables == 2
    put(gold, some(2), replace=True)
    report = run_ended(pipeline, "any_other_job")
    assert report.part(IcebergResult).to_dict() == {"tables": 1, "added": 1, "removed": 1, "failed": {}, "refused": {}}
    assert rows_in_iceberg(iceberg_table(pipeline, gold)) == rows_in_delta(gold)


def test_a_run_that_changed_nothing_asks_no_catalog(pipeline, silver, monkeypatch):
    put(silver, some(1))
    run_ended(pipeline)
    monkeypatch.setattr(work, "open_catalog", lambda *_: pytest.fail("the catalog was opened"))
    assert run_ended(without_spark(pipeline.lakehouse.root, iceberg=True)).part(IcebergResult) is None


def test_the_pipelines_own_tables_are_no_iceberg_tables(pipeline, silver):
    put(silver, some(1))
    put(pipeline.lakehouse.table("event_log"), some(1))
    put(pipeline.lakehouse.table("progress"), some(1))
    assert run_ended(pipeline).part(IcebergResult).tables == 1


@pytest.mark.parametrize("settings", [{}, {"iceberg": True}])
def test_where_it_is_off_or_has_nothing_to_do_its_library_is_not_even_loaded(tmp_path, settings):
    program = (
        "import sys, json\n"
        "from game_events_tests.support.pipelines import without_spark\n"
        "from game_events.plugin import parts\n"
        "from game_events.pipeline.reporting.report import RunReport\n"
        f"pipeline = without_spark({str(tmp_path)!r}, **json.loads({json.dumps(settings)!r}))\n"
        "for observe in parts('run_observer'):\n"
        "    observe(pipeline, 'refresh', False).close(RunReport(), None, stopped=False)\n"
        "print('pyiceberg' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]
    assert not list(tmp_path.iterdir())


def test_a_run_that_only_looks_commits_nothing(pipeline, silver):
    put(silver, some(1))
    looking = without_spark(pipeline.lakehouse.root, iceberg=True)
    run_ended(type(looking)(looking.settings, looking.get_spark, read_only=True))
    assert [lag.iceberg for lag in lags(pipeline.settings, pipeline.lakehouse)] == [None]


def test_after_a_signal_the_next_run_commits(pipeline, silver):
    put(silver, some(1))
    report = RunReport()
    IcebergObserver(pipeline, "refresh", False).close(report, KeyboardInterrupt(), stopped=True)
    assert report.part(IcebergResult) is None
    assert run_ended(pipeline).part(IcebergResult).tables == 1


def test_a_catalog_that_does_not_answer_fails_no_run_and_the_next_run_catches_up(pipeline, silver, away):
    put(silver, some(1))
    report = run_ended(away)
    assert report.success
    assert "1 tables are behind in Iceberg, the next run catches up" in report.notices[0]
    (check,) = report.checks
    assert (check.name, check.passed, check.wrong_rows) == (CURRENT, False, False)
    put(silver, some(2))
    assert run_ended(pipeline).part(IcebergResult).added == 2
    assert rows_in_iceberg(iceberg_table(pipeline, silver)) == rows_in_delta(silver)


def test_a_catalog_that_hangs_holds_a_run_no_longer_than_the_setting(tmp_path, monkeypatch):
    hanging = without_spark(tmp_path, iceberg=True, iceberg_timeout_s=0.3)
    put(hanging.lakehouse.table("silver_rummy_events"), some(1))
    monkeypatch.setattr(work, "open_catalog", lambda *_: time.sleep(3))
    observer = IcebergObserver(hanging, "refresh", True)
    report = RunReport()
    began = time.monotonic()
    observer.part(report)
    observer.close(report, None, stopped=False)
    assert time.monotonic() - began < 2.5
    assert all("the next run catches up" in notice for notice in report.notices)
    assert len(report.notices) == 2


def test_a_table_that_iceberg_cannot_have_is_named_and_the_others_go_on(pipeline, silver):
    odd = pipeline.lakehouse.table("silver_odd_events")
    put(silver, some(1))
    put(odd, some(1))
    altered(odd, features=["typeWidening"], reader=["typeWidening"])
    report = run_ended(pipeline)
    assert "1 tables cannot be Iceberg tables: silver_odd_events" in report.notices[0]
    assert report.part(IcebergResult).tables == 1
    assert run_ended(pipeline).part(IcebergResult) is None  # said once for each version
    rows = [row for row in event_rows(report, RunFacts("refresh", 1.0), pipeline.settings) if row["kind"] == "iceberg"]
    assert [(row["status"], row.get("table"), row.get("rows")) for row in rows] == [
        ("done", None, 1),
        ("refused", odd.name, None),
    ]


def test_one_tables_error_is_not_anothers(pipeline, silver, monkeypatch):
    broken = pipeline.lakehouse.table("silver_broken_events")
    put(silver, some(1))
    put(broken, some(1))
    usual = work.sync

    def failing(table, *rest, **more):
        if table == broken:
            raise OSError("the disk is full")
        return usual(table, *rest, **more)

    monkeypatch.setattr(work, "sync", failing)
    report = run_ended(pipeline)
    assert report.part(IcebergResult).failed == {broken.name: "OSError: the disk is full"}
    assert report.part(IcebergResult).tables == 1
    monkeypatch.undo()
    assert run_ended(pipeline).part(IcebergResult).tables == 1


def test_maintenance_expires_snapshots_before_it_deletes_their_files(pipeline, silver, monkeypatch):
    put(silver, some(1))
    run_ended(pipeline)
    put(silver, some(2), rewritten=frozenset(file.path for file in silver.open().files()))
    run_ended(pipeline)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + silver.retention.seconds(silver.key) + 60)
    IcebergObserver(pipeline, "maintain", False)
    assert len(iceberg_table(pipeline, silver).metadata.snapshots) == 1


def test_an_erasure_leaves_the_current_snapshots_alone_even_where_it_changed_nothing_this_time(pipeline, silver):
    """It may be the second attempt: the first one was killed after its commits."""
    for number in range(3):
        put(silver, some(number))
        run_ended(pipeline)
    run_ended(pipeline, "erase")
    assert len(iceberg_table(pipeline, silver).metadata.snapshots) == 1


def test_an_erasure_that_only_counts_leaves_older_snapshots(pipeline, silver):
    for number in range(2):
        put(silver, some(number))
        run_ended(pipeline)
    report = RunReport()
    report.add(RunResult(parts={"erasure": Erasure(dry_run=True)}))
    IcebergObserver(pipeline, "erase", False).close(report, None, stopped=False)
    assert len(iceberg_table(pipeline, silver).metadata.snapshots) == 2


def test_what_is_known_may_be_lost_or_damaged(pipeline, silver):
    put(silver, some(1))
    run_ended(pipeline)
    (file,) = Path(pipeline.lakehouse.root, "_iceberg").glob("*.json")
    for text in ("", "{", '{"silver_rummy_events": 3}'):
        file.write_text(text)
        assert run_ended(without_spark(pipeline.lakehouse.root, iceberg=True)).part(IcebergResult).tables == 0
    file.unlink()
    assert run_ended(without_spark(pipeline.lakehouse.root, iceberg=True)).part(IcebergResult).tables == 0


def test_a_catalog_that_was_deleted_is_filled_again(pipeline, silver):
    put(silver, some(1))
    run_ended(pipeline)
    Path(pipeline.lakehouse.root, "_iceberg", "catalog.db").unlink()
    assert run_ended(without_spark(pipeline.lakehouse.root, iceberg=True)).part(IcebergResult).tables == 1
    assert rows_in_iceberg(iceberg_table(pipeline, silver)) == rows_in_delta(silver)
