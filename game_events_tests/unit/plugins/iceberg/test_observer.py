"""What each run does for Iceberg: what has changed is committed, and no fault of a catalog is one of the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from game_events.pipeline.event_log import RunFacts, event_rows
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.iceberg import current, work
from game_events.plugins.iceberg.catalog import open_catalog
from game_events.plugins.iceberg.lag import lags
from game_events.plugins.iceberg.observer import CURRENT, IcebergObserver
from game_events.plugins.iceberg.work import IcebergResult
from game_events_tests.support.altered_tables import altered
from game_events_tests.support.iceberg import iceberg_table, metadata_files, rows_in_delta, rows_in_iceberg, run_ended
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
    assert "1 tables cannot be Iceberg tables, so the catalog has none of them: silver_odd_events" in report.notices[0]
    assert report.part(IcebergResult).tables == 1
    assert [check.summary for check in report.checks] == ["1 of 2 changed tables are in Iceberg, 1 cannot be"]
    assert run_ended(pipeline).part(IcebergResult) is None  # said once for each version
    rows = [row for row in event_rows(report, RunFacts("refresh", 1.0), pipeline.settings) if row["kind"] == "iceberg"]
    assert [(row["status"], row.get("table"), row.get("rows")) for row in rows] == [
        ("done", None, 1),
        ("refused", odd.name, None),
    ]


#: What a table may get so that it can be no Iceberg table any more.
REFUSED = {
    "deletion vectors": {"features": ["deletionVectors"], "reader": ["deletionVectors"]},
    "mapped names": {"properties": {"delta.columnMapping.mode": "name"}},
    "a type of another format": {"features": ["variantType"], "reader": ["variantType"]},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_table_that_can_be_none_any_more_leaves_the_catalog_and_comes_back_when_it_can(pipeline, silver, why):
    put(silver, some(1))
    run_ended(pipeline)
    before = lags(pipeline.settings, pipeline.lakehouse)
    version = altered(silver, **REFUSED[why])
    (stale,) = lags(pipeline.settings, pipeline.lakehouse)
    assert (before[0].is_current, stale.is_current) == (True, False)
    assert stale.refused in stale.behind
    report = run_ended(pipeline)
    assert report.part(IcebergResult).refused == {silver.name: stale.refused}
    assert not open_catalog(pipeline.settings, pipeline.lakehouse).table_exists(("game_events", silver.name))
    (gone,) = lags(pipeline.settings, pipeline.lakehouse)
    assert (gone.is_current, gone.metadata, gone.refused) == (True, None, stale.refused)
    Path(silver.uri, "_delta_log", f"{version:020}.json").unlink()
    put(silver, some(2))
    assert run_ended(without_spark(pipeline.lakehouse.root, iceberg=True)).part(IcebergResult).tables == 1
    assert rows_in_iceberg(iceberg_table(pipeline, silver)) == rows_in_delta(silver)


def test_a_table_that_the_catalog_does_not_let_go_is_behind_with_the_reason(pipeline, silver, monkeypatch):
    put(silver, some(1))
    run_ended(pipeline)
    altered(silver, **REFUSED["deletion vectors"])

    def refuse(*_):
        raise OSError("this login may not drop tables")

    monkeypatch.setattr(SqlCatalog, "drop_table", refuse)
    assert "may not drop" in run_ended(pipeline).part(IcebergResult).failed[silver.name]
    (lag,) = lags(pipeline.settings, pipeline.lakehouse)
    assert not lag.is_current
    monkeypatch.undo()
    assert run_ended(pipeline).part(IcebergResult).refused.keys() == {silver.name}


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


def test_a_table_whose_newest_version_cannot_be_looked_up_holds_up_no_other(pipeline, silver, monkeypatch):
    broken = pipeline.lakehouse.table("silver_broken_events")
    for table in (silver, broken):
        put(table, some(1))
    run_ended(pipeline)
    put(silver, some(2))
    usual = current.has_entry

    def failing(uri, *rest):
        if uri == broken.uri:
            raise OSError("the store says no")
        return usual(uri, *rest)

    monkeypatch.setattr(current, "has_entry", failing)
    assert run_ended(pipeline).part(IcebergResult).tables == 1


def test_without_its_library_a_run_goes_on_and_says_which_extra_to_install(pipeline, silver):
    put(silver, some(1))
    program = (
        "import sys\n"
        "sys.modules['pyiceberg'] = None\n"
        "from game_events_tests.support.pipelines import without_spark\n"
        "from game_events.pipeline.reporting.report import RunReport\n"
        "from game_events.plugins.iceberg.lag import iceberg_is_current\n"
        "from game_events.plugins.iceberg.observer import IcebergObserver\n"
        f"pipeline = without_spark({pipeline.lakehouse.root!r}, iceberg=True)\n"
        "report = RunReport()\n"
        "IcebergObserver(pipeline, 'refresh', False).close(report, None, stopped=False)\n"
        "print(*report.notices, *(check.summary for check in report.checks), iceberg_is_current(pipeline).summary, sep='\\n')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert len(lines) == 3
    assert all("needs the package pyiceberg" in line and "pip install 'game-events[iceberg]'" in line for line in lines)


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


@pytest.mark.parametrize("command", ["maintain", "erase --gamer-id ann", "run"])
def test_a_dry_run_commits_nothing_to_iceberg_and_expires_no_snapshot(cli, pipeline, silver, monkeypatch, command):
    for number in range(2):
        put(silver, some(number))
        run_ended(pipeline)
    put(silver, some(2))
    settings = {"LAKEHOUSE": pipeline.lakehouse.root, "ICEBERG": "on", "ERASURE_KEY": "a key of the tests, long enough"}
    settings |= {"EVERY_VERSION_H": "0.000001", "KAFKA_BROKERS": "127.0.0.1:9"}
    for name, value in settings.items():
        monkeypatch.setenv(f"GAME_EVENTS_{name}", value)
    before = metadata_files(silver)
    said = cli(*command.split(), "--dry-run", "--json")
    assert "success" in said.result, said.err
    assert metadata_files(silver) == before


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
