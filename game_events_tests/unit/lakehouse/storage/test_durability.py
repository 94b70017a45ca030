"""A power cut, by what it leaves: empty files. What is deleted was replaced by something that is on the disk."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.versions import OldVersions, delete_files
from game_events.lakehouse.storage import WRITTEN_OUT_S
from game_events.lakehouse.table_properties import Retention
from game_events.lakehouse.tables import BRONZE, ERASED_PEOPLE, QUARANTINE, UNIFIED, Lakehouse
from game_events_tests.support.faults import at_failpoints
from game_events_tests.support.model.world import GAMES, World
from game_events_tests.support.tables import data_files, plan


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


@pytest.fixture
def events(monkeypatch):
    """What is written out, and deleted, in its order."""
    happened = []
    monkeypatch.setattr(os, "sync", lambda: happened.append("written out"))
    with at_failpoints(lambda name, _: happened.append("deleted") if name == "file_deleted" else None):
        yield happened


def replaced(table, count=2):
    """Names of files that a commit of a moment ago has replaced."""
    for n in range(count):
        commit(plan(table, [n], n or None, n + 1))
    before = data_files(table)
    commit(plan(table, [7], count, count + 1, replace=True))
    return sorted(before)


def test_an_entry_that_others_delete_while_a_table_cannot_be_opened_does_not_hide_why(lakehouse):
    table = lakehouse.silver("uno")
    commit(plan(table, [1], None, 1))
    log = Path(table.uri, "_delta_log")
    (log / f"{1:020}.json").write_text("no JSON")
    (log / f"{0:020}.checkpoint.parquet").symlink_to("deleted")  # listed, and gone
    with pytest.raises(DataError, match="cannot be opened"):
        table.open()


def test_files_that_were_replaced_a_moment_ago_are_deleted_after_their_replacement_is_on_the_disk(lakehouse, events):
    table = lakehouse.silver("uno")
    assert delete_files(table, replaced(table), 0) == 2
    assert events == ["written out", "deleted", "deleted"]


def test_files_that_were_replaced_long_ago_are_deleted_at_once_and_so_is_nothing(lakehouse, events):
    table = lakehouse.silver("uno")
    assert delete_files(table, replaced(table), WRITTEN_OUT_S) == 2
    assert delete_files(table, [], 0) == 0
    assert events == ["deleted", "deleted"]


@pytest.mark.parametrize(("kept_s", "before"), [(1, ["written out"]), (WRITTEN_OUT_S, [])])
def test_files_and_entries_of_the_log_are_deleted_after_what_is_newer_is_on_the_disk(lakehouse, events, kept_s, before):
    hours = kept_s / 3600
    table = replace(lakehouse.silver("uno"), retention=Retention(hours, hours, hours))
    replaced(table)
    table.open().create_checkpoint()
    for entry in Path(table.uri, "_delta_log").glob("0*"):
        os.utime(entry, (entry.stat().st_mtime - 2 * WRITTEN_OUT_S,) * 2)
    assert OldVersions(table).thin_out(table.open()) == 2
    assert events == [*before, "deleted", "deleted", *before]


@pytest.mark.parametrize(
    ("key", "expected"),
    [(BRONZE, 1), (QUARANTINE, 1), (ERASED_PEOPLE, 1), ("progress", 0), (UNIFIED, 0), ("silver_uno_events", 0)],
)
def test_the_first_entry_of_a_table_that_nothing_makes_again_is_on_the_disk(lakehouse, events, key, expected):
    table = lakehouse.table(key)
    commit(plan(table, [1], None, 1))
    commit(plan(table, [2], 1, 2))
    assert events == ["written out"] * expected


def test_an_object_store_is_not_asked_to_write_out(monkeypatch, lakehouse, events):
    table = lakehouse.silver("uno")
    names = replaced(table)
    monkeypatch.setattr("game_events.lakehouse.storage.is_remote", lambda _: True)
    delete_files(table, names, 0)
    assert events == ["deleted", "deleted"]


# --- after a power cut


def emptied(folder, tables, entries="*"):
    """What these entries of the logs held was not written out; returns how many there are."""
    found = [entry for name in tables for entry in Path(folder).glob(f"{name}/_delta_log/{entries}.json")]
    for entry in found:
        os.truncate(entry, 0)
    return len(found)


@pytest.fixture
def world():
    world = World()
    world.records_come([(game, "a", 1, 1) for game in GAMES])
    world.work()
    yield world
    world.seen.clear()
    world.close()


def settled(world):
    world.seen.clear()
    world.records_come([(game, "b", 3, 1) for game in GAMES])
    for _ in range(2):
        report = world.work()
    assert not report.errors
    world.assert_settled()


@pytest.mark.parametrize(
    "tables", [["silver_rummy*"], ["gold_rummy*"], ["gold_unified*"], ["silver_*", "gold_*", "progress"]], ids=str
)
def test_tables_of_which_nothing_was_written_out_are_made_again(world, tables):
    assert emptied(world.folder, tables)
    settled(world)


def test_a_progress_that_cannot_be_read_is_made_again_whatever_is_left_of_it(world):
    assert emptied(world.folder, ["progress"], f"{0:020}") == 1
    assert DeltaTable.is_deltatable(f"{world.folder}/progress")
    settled(world)


def test_a_progress_of_which_the_file_was_not_written_out_is_made_again(world):
    table = Lakehouse(world.folder).table("progress")
    for name in data_files(table):
        os.truncate(Path(table.uri, name), 0)
    settled(world)


def test_a_bronze_without_a_first_entry_says_what_to_do(world):
    assert emptied(world.folder, [BRONZE], f"{0:020}")
    with pytest.raises(
        DataError, match=f"{BRONZE} cannot be opened.*An entry of its log is empty, as a power cut leaves it: restore"
    ):
        world.work()


def test_the_newest_commits_of_all_tables_are_made_again(world):
    known = set(Path(world.folder).glob("*/_delta_log/*.json"))
    world.records_come([(game, "c", 5, 1) for game in GAMES])
    world.work()
    for entry in set(Path(world.folder).glob("*/_delta_log/*.json")) - known:
        os.truncate(entry, 0)
    settled(world)
