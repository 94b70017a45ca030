"""One commit makes an Iceberg table what its Delta table is: once, whatever ends in between, and whoever else commits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ServerError
from pyiceberg.manifest import ManifestFile

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.maintenance import join_files
from game_events.lakehouse.tables import paths
from game_events.plugins.iceberg import snapshots
from game_events.plugins.iceberg.snapshots import TABLE_ID, VERSION
from game_events_tests.support.faults import at_failpoints
from game_events_tests.support.iceberg import caught_up, iceberg_table, metadata_files, rows_in_delta, rows_in_iceberg
from game_events_tests.support.killing.sitecustomize import killed_at
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put


def some(*numbers):
    return pa.table({"_batch": pa.array(numbers, pa.int64()), "s": pa.array([f"s{n}" for n in numbers], pa.string())})


def said(held):
    return held.metadata.current_snapshot().summary.additional_properties


def test_a_snapshot_says_which_version_of_which_table_it_is(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    held = iceberg_table(pipeline, silver)
    handle = silver.open()
    assert (said(held)[VERSION], said(held)[TABLE_ID]) == (str(handle.version()), str(handle.metadata().id))
    assert held.properties[VERSION] == str(handle.version())
    assert held.metadata.format_version == 2
    assert held.location() == f"file://{silver.uri}"


def test_several_versions_become_one_snapshot(pipeline, silver):
    for number in range(4):
        put(silver, some(number))
    caught_up(pipeline)
    held = iceberg_table(pipeline, silver)
    assert len(held.metadata.snapshots) == 1
    assert rows_in_iceberg(held) == rows_in_delta(silver)


def test_a_version_without_files_is_noted_without_a_snapshot(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(), {"seen": 1})
    result = caught_up(pipeline)
    held = iceberg_table(pipeline, silver)
    assert (result.tables, result.added, len(held.metadata.snapshots)) == (1, 0, 1)
    assert held.properties[VERSION] == str(silver.open().version())


def test_an_append_reads_no_list_of_files(pipeline, silver, monkeypatch):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2))
    read = []
    usual = ManifestFile.fetch_manifest_entry
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", lambda *a, **b: read.append(a) or usual(*a, **b))
    assert caught_up(pipeline).added == 1
    assert not read
    join_files(silver, silver.open(), paths(silver.open()))
    assert caught_up(pipeline).removed == 2
    assert read


def test_manifests_do_not_pile_up_in_a_table_that_is_only_replaced(pipeline):
    gold = pipeline.lakehouse.table("gold_rummy_player_agg")
    for number in range(6):
        put(gold, some(number), replace=True)
        caught_up(pipeline)
    held = iceberg_table(pipeline, gold)
    assert len(held.metadata.current_snapshot().manifests(held.io)) == 2  # of the new file, of the one that is gone
    assert rows_in_iceberg(held) == rows_in_delta(gold)


class KilledError(BaseException):
    """The process ended."""


@pytest.mark.parametrize("point", ["iceberg_staged", "iceberg_committed"])
@pytest.mark.parametrize("change", ["append", "compaction"])
def test_a_crash_before_or_after_the_commit_neither_loses_nor_doubles_a_file(pipeline, silver, point, change):
    put(silver, some(1))
    put(silver, some(2))
    caught_up(pipeline)
    if change == "append":
        put(silver, some(3))
    else:
        join_files(silver, silver.open(), paths(silver.open()))

    def kill(name, _):
        if name == point:
            raise KilledError

    with at_failpoints(kill), pytest.raises(KilledError):
        caught_up(pipeline)
    caught_up(without_spark(pipeline.lakehouse.root, iceberg=True))
    held = iceberg_table(pipeline, silver)
    assert rows_in_iceberg(held) == rows_in_delta(silver)
    assert len(held.metadata.snapshots) == 2
    assert said(held)["total-data-files"] == str(len(paths(silver.open())))


@pytest.mark.parametrize("point", ["iceberg_staged", "iceberg_committed"])
def test_a_process_that_is_killed_there_leaves_the_rest_to_the_next_one(pipeline, silver, point):
    put(silver, some(1))
    program = (
        "from game_events_tests.support.iceberg import caught_up\n"
        "from game_events_tests.support.pipelines import without_spark\n"
        f"caught_up(without_spark({pipeline.lakehouse.root!r}, iceberg=True))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ | killed_at(point), check=False)
    assert ended.returncode == -signal.SIGKILL
    caught_up(pipeline)
    held = iceberg_table(pipeline, silver)
    assert rows_in_iceberg(held) == rows_in_delta(silver)
    assert len(held.metadata.snapshots) == 1


def test_a_rival_that_commits_first_is_looked_at_again(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2))
    others = [without_spark(pipeline.lakehouse.root, iceberg=True)]

    def rival(name, _):
        if name == "iceberg_staged" and others:
            other = others.pop()
            caught_up(other)
            put(silver, some(3))  # a version later than the one that this process has planned with

    with at_failpoints(rival):
        result = caught_up(pipeline)
    held = iceberg_table(pipeline, silver)
    assert not result.failed
    assert rows_in_iceberg(held) == rows_in_delta(silver)
    assert len(held.metadata.snapshots) == 3


def test_a_version_that_a_slower_process_has_set_back_doubles_nothing(pipeline, silver):
    """Two processes note versions without files: none is compared with the other's."""
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2))
    caught_up(pipeline)
    held = iceberg_table(pipeline, silver)
    with held.transaction() as change:
        change.set_properties({VERSION: "0"})
    put(silver, some(3))
    caught_up(pipeline)
    held = iceberg_table(pipeline, silver)
    assert rows_in_iceberg(held) == rows_in_delta(silver)
    assert said(held)["total-data-files"] == "3"


def test_what_others_commit_to_the_iceberg_table_is_replaced(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    iceberg_table(pipeline, silver).append(some(7).rename_columns(["_batch", "s"]))
    put(silver, some(2))
    assert caught_up(pipeline).removed == 1
    assert rows_in_iceberg(iceberg_table(pipeline, silver)) == rows_in_delta(silver)


def test_a_table_that_was_made_again_is_one_snapshot_of_the_same_iceberg_table(pipeline, silver):
    put(silver, some(1))
    put(silver, some(2))
    caught_up(pipeline)
    before = iceberg_table(pipeline, silver).metadata.table_uuid
    for entry in Path(silver.uri).glob("*.parquet"):
        entry.unlink()
    shutil.rmtree(Path(silver.uri, "_delta_log"))
    put(silver, some(5))
    caught_up(without_spark(pipeline.lakehouse.root, iceberg=True))
    held = iceberg_table(pipeline, silver)
    assert held.metadata.table_uuid == before
    assert rows_in_iceberg(held) == rows_in_delta(silver)


def test_a_table_whose_folder_was_deleted_with_the_metadata_is_made_anew(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    shutil.rmtree(silver.uri)
    put(silver, some(5))
    assert not caught_up(without_spark(pipeline.lakehouse.root, iceberg=True)).failed
    assert rows_in_iceberg(iceberg_table(pipeline, silver)) == rows_in_delta(silver)


@pytest.fixture(params=["of a file", "of a server"])
def lost(request):
    """How a catalog says that the metadata of a table is gone."""

    def said(folder):
        file = f"{folder}/_iceberg/00001-x.metadata.json"
        if request.param == "of a file":
            return FileNotFoundError(2, f"Failed to open local file '{file}'. Detail: [errno 2] No such file or directory")
        return ServerError(f"NotFoundException: Failed to open input stream for file: file:{file}")

    return said


def load_fails_once(monkeypatch, error):
    usual = SqlCatalog.load_table
    errors = [error]

    def load(catalog, identifier):
        if errors:
            raise errors.pop()
        return usual(catalog, identifier)

    monkeypatch.setattr(SqlCatalog, "load_table", load)


def test_a_table_of_which_the_catalog_says_that_the_metadata_is_gone_is_made_anew(pipeline, silver, monkeypatch, lost):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2))
    load_fails_once(monkeypatch, lost(silver.uri))
    assert not caught_up(pipeline).failed
    held = iceberg_table(pipeline, silver)
    assert len(held.metadata.snapshots) == 1
    assert rows_in_iceberg(held) == rows_in_delta(silver)


@pytest.mark.parametrize("elsewhere", ["/other/lake/silver_rummy_events", "/other{}", "{}_2"])
def test_a_foreign_table_is_not_dropped_although_its_metadata_is_gone(pipeline, silver, monkeypatch, lost, elsewhere):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2))
    monkeypatch.setattr(SqlCatalog, "drop_table", lambda *_: pytest.fail("the table was dropped"))
    load_fails_once(monkeypatch, lost(elsewhere.format(silver.uri)))
    why = caught_up(pipeline).failed[silver.name]
    assert "its metadata is gone" in why
    assert "GAME_EVENTS_ICEBERG_NAMESPACE" in why


def test_of_another_fault_of_the_catalog_nothing_is_dropped(pipeline, silver, monkeypatch):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2))
    monkeypatch.setattr(SqlCatalog, "drop_table", lambda *_: pytest.fail("the table was dropped"))
    load_fails_once(monkeypatch, ServerError("NullPointerException: x"))
    assert "NullPointerException" in caught_up(pipeline).failed[silver.name]


def test_snapshots_older_than_the_retention_are_expired_as_their_files_are_deleted_then(pipeline, silver, monkeypatch):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2))
    caught_up(pipeline)
    assert caught_up(pipeline).tables == 0
    now = time.time
    retention = silver.retention.seconds(silver.key)
    monkeypatch.setattr(time, "time", lambda: now() + retention + 60)
    assert caught_up(pipeline).tables == 1
    held = iceberg_table(pipeline, silver)
    assert [s.snapshot_id for s in held.metadata.snapshots] == [held.metadata.current_snapshot_id]
    assert rows_in_iceberg(held) == rows_in_delta(silver)
    assert caught_up(pipeline).tables == 0


def test_metadata_is_bounded_however_long_a_loop_runs(pipeline, silver, monkeypatch):
    monkeypatch.setattr(snapshots, "MOST_SNAPSHOTS", 4)
    monkeypatch.setattr(snapshots, "YOUNG_S", -1.0)
    sizes = []
    for number in range(40):
        put(silver, some(number), **({"replace": True} if number % 5 == 4 else {}))
        caught_up(pipeline)
        sizes.append(len(metadata_files(silver)))
    held = iceberg_table(pipeline, silver)
    assert len(held.metadata.snapshots) <= 5
    assert max(sizes[30:]) <= max(sizes[10:30]) + 2
    assert rows_in_iceberg(held) == rows_in_delta(silver)
    oldest = min(held.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    assert rows_in_iceberg(held, snapshot=oldest.snapshot_id)


def test_metadata_that_no_snapshot_names_is_deleted_when_it_is_old(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    old = Path(silver.uri, "_iceberg", "of-a-crash.avro")
    young = Path(silver.uri, "_iceberg", "of-a-commit-under-way.avro")
    for file in (old, young):
        file.write_text("")
    os.utime(old, (time.time() - 4000,) * 2)
    put(silver, some(2))
    caught_up(pipeline)
    caught_up(pipeline, forget=True)
    assert not old.exists()
    assert young.exists()


def test_after_an_erasure_no_other_snapshot_is_left(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    put(silver, some(2), rewritten=frozenset(paths(silver.open())))
    caught_up(pipeline, forget=True)
    held = iceberg_table(pipeline, silver)
    assert len(held.metadata.snapshots) == 1
    assert rows_in_iceberg(held) == rows_in_delta(silver)


def test_engines_are_told_to_delete_no_file(pipeline, silver):
    put(silver, some(1))
    caught_up(pipeline)
    assert iceberg_table(pipeline, silver).properties["gc.enabled"] == "false"


def test_a_table_of_another_lakehouse_in_the_namespace_is_refused_and_stays(pipeline, silver, tmp_path):
    put(silver, some(1))
    caught_up(pipeline)
    other = without_spark(tmp_path / "other", iceberg=True)
    shutil.copytree(Path(pipeline.lakehouse.root, "_iceberg"), Path(other.lakehouse.root, "_iceberg"))
    put(other.lakehouse.table(silver.key), some(2))
    result = caught_up(other)
    assert "ICEBERG_NAMESPACE" in result.failed[silver.name]
    assert ConfigurationError.__name__ in result.failed[silver.name]
    assert rows_in_iceberg(iceberg_table(pipeline, silver)) == rows_in_delta(silver)


def test_files_of_which_rows_keep_their_numbers_are_read(pipeline, silver):
    put(silver, some(1))
    put(silver, some(2))
    assert enable(replace(silver, features=("rowTracking",)), silver.open())
    join_files(silver, silver.open(), paths(silver.open()))
    caught_up(pipeline)
    assert rows_in_iceberg(iceberg_table(pipeline, silver)) == rows_in_delta(silver)
