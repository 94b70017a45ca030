"""The refresh of the unified table: crashes, concurrent runs, lost files, erased people. No Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import UNIFIED, paths
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.catalog.sql import TablesSql
from game_events.plugins.governance.commits import Erasure, remove_old_files, without
from game_events.plugins.governance.workers import EraseTask, PeopleToErase
from game_events_tests.support.pipelines import at_progress
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.unified import OWN_COMMIT
from game_events_tests.support.worlds.waves import at_point, power_cut_at

PEOPLE = PeopleToErase("gamer_id", "game_name", frozenset({"a"}))


def test_sql_and_arrow_read_the_games_column_as_text(world):
    world.refresh()
    with TablesSql(world.pipeline.lakehouse) as sql:
        names, rows = sql.query(f"SELECT * FROM {UNIFIED} ORDER BY 1, 2")
        assert names[:2] == ["game_name", "gamer_id"]
        assert [row[:3] for row in rows] == [("0123", "a", 3), ("rummy", "a", 1), ("rummy", "b", 2)]
    arrow = read_arrow(world.table, world.handle())
    assert arrow.schema.names == [f.name for f in world.handle().schema().fields]
    assert sorted(arrow.column("game_name").to_pylist()) == ["0123", "rummy", "rummy"]


@pytest.mark.parametrize("harm", [os.remove, lambda path: os.truncate(path, 20)], ids=["gone", "damaged"])
def test_a_file_that_gold_has_lost_fails_its_game_alone(world, harm):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    world.gold("0123", {"a": 7})
    gold = world.pipeline.lakehouse.gold("rummy")
    (lost,) = paths(gold.open())
    harm(Path(gold.uri, lost))
    report = world.refresh()
    assert [t.game for t in report.tables if t.error] == ["rummy"]
    assert lost in str(report.errors[0].error)
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 7}}
    world.gold("rummy", {"a": 8, "b": 8})
    assert world.refresh().errors == []
    assert world.shown()["rummy"] == {"a": 8, "b": 8}


def test_gold_that_is_replaced_and_vacuumed_before_it_is_copied_is_planned_again(world):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    gold, plans = world.pipeline.lakehouse.gold("rummy"), []

    def planned(message):
        plans.append(message)
        if len(plans) == 1:
            (old,) = paths(gold.open())
            world.gold("rummy", {"a": 8, "b": 8})
            Path(gold.uri, old).unlink()

    world.pipeline = at_progress(world.pipeline, planned)
    assert world.refresh().errors == []
    assert plans == [f"{UNIFIED}: 1 games"] * 2
    assert world.shown()["rummy"] == {"a": 8, "b": 8}


def test_a_crash_between_copies_and_commit_leaves_files_that_maintenance_removes_and_the_next_run_does_it_again(world):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    with power_cut_at("unified_staged"):
        world.refresh()
    (left,) = world.on_disk() - {file for files in world.files().values() for file in files}
    assert world.shown()["rummy"] == {"a": 1, "b": 2}
    maintain(world.pipeline, RunReport(), [world.table.name])
    assert left.exists(), "a run may be about to commit it"
    world.refresh()
    assert world.shown()["rummy"] == {"a": 7, "b": 7}
    os.utime(left, (time.time() - 30 * 86_400,) * 2)
    old = world.files()
    maintain(world.pipeline, RunReport(), [world.table.name])
    assert not left.exists()
    assert world.files() == old
    assert world.shown()["rummy"] == {"a": 7, "b": 7}


def test_a_copy_of_an_old_file_is_as_young_as_the_copy_until_it_is_committed(world, monkeypatch):
    gold = world.pipeline.lakehouse.gold("rummy")
    (source,) = Path(gold.uri).glob("*.parquet")
    os.utime(source, (time.time() - 30 * 86_400,) * 2)
    at_point(monkeypatch, "unified_staged", lambda: maintain(world.pipeline, RunReport()))
    put(world.table, {"n": [1]}, info=OWN_COMMIT)
    assert world.refresh().errors == []
    assert world.shown()["rummy"] == {"a": 1, "b": 2}


def test_of_two_runs_at_once_one_commits_and_the_other_compares_again(world, monkeypatch):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    version = world.handle().version()
    at_point(monkeypatch, "unified_staged", world.refresh)
    assert world.refresh().errors == []
    assert world.handle().version() == version + 1
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 3}}
    live = {file for files in world.files().values() for file in files}
    assert len([file for file in world.on_disk() - live if "rummy" in str(file)]) == 1, "only the old file is left"


def test_a_run_that_was_overtaken_by_one_with_newer_gold_of_another_game_keeps_it(world, monkeypatch):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})

    def other_run():
        world.gold("0123", {"a": 8})
        world.refresh()

    at_point(monkeypatch, "unified_staged", other_run)
    world.refresh()
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}


def test_a_table_that_is_restored_between_plan_and_commit_does_not_keep_the_old_rows_of_other_games(world, monkeypatch):
    world.refresh()
    world.gold("0123", {"a": 8})
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    at_point(monkeypatch, "unified_staged", lambda: world.handle().restore(0))
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}


def test_vacuum_of_an_erasure_removes_the_old_copies_with_golds_old_files(world):
    world.refresh()
    copies = {file for files in world.files().values() for file in files}
    golds = {file for game in ("rummy", "0123") for file in Path(world.pipeline.lakehouse.gold(game).uri).glob("*.parquet")}
    world.gold("rummy", {"b": 2})
    world.gold("0123", {})
    world.refresh()
    assert all(file.exists() for file in copies | golds)
    result = Erasure()
    remove_old_files(world.pipeline, result, PEOPLE)
    assert not any(file.exists() for file in copies | golds)
    assert result.removed_files[world.table.name] == 2
    assert world.shown() == {"rummy": {"b": 2}}


def test_rows_that_are_erased_from_the_table_itself_leave_their_game_in_its_partition(world):
    world.refresh()
    table, files = world.table, paths(world.handle())
    task = EraseTask({UNIFIED: table}, PEOPLE, rewrite=True)
    commit(without(table, world.handle(), [task.scan(UNIFIED, path) for path in files], "run"))
    assert world.shown() == {"rummy": {"b": 2}}
    # They are no copies of gold's files: the next refresh of the game replaces them.
    world.gold("rummy", {"b": 3})
    world.refresh()
    assert world.shown() == {"rummy": {"b": 3}}


def test_of_two_runs_that_bring_the_same_new_game_one_compares_again(world, monkeypatch):
    world.refresh()
    world.gold("uno", {"c": 1})
    at_point(monkeypatch, "unified_staged", world.refresh)
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}, "uno": {"c": 1}}
