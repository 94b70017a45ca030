"""Older versions in logs that other engines have written to: change data, checkpoints of several parts, gaps."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.commits.log import SOURCES
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.commits.versions import HOUR_S, OldVersions
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.maintenance import orphans
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table
from game_events.plugins.governance.commits import replaced_files
from game_events_tests.support.tables import data_files, numbers, plan
from game_events_tests.unit.lakehouse.commits.versions.world import World, assert_kept, busy


@pytest.fixture
def changed(world: World) -> World:
    """Another engine has changed a row of a table with Delta's change data feed, which keeps it in a file of its own."""
    world.table = replace(world.table, features=("changeDataFeed",))
    world.put(3)
    world.dated()
    if not DeltaTable(world.table.uri).metadata().configuration.get("delta.enableChangeDataFeed"):
        enable(world.table, world.table.open())
    change(world, "n = 1001")
    return world


def change(world: World, which: str) -> None:
    DeltaTable(world.table.uri).update(updates={"s": "'changed'"}, predicate=which)
    world.dated()


def changes(table: Table) -> set[str]:
    """Files of changed rows on disk."""
    return {str(file.relative_to(table.uri)) for file in Path(table.uri).rglob("_change_data/**/*.parquet")}


def feed(table: Table, version: int) -> list[int]:
    """The numbers of the rows that a version has changed, as the feed has them."""
    read = DeltaTable(table.uri).load_cdf(starting_version=version, ending_version=version).read_all()
    return sorted(set(pa.table(read).column("n").to_pylist()))


def grown_old(table: Table) -> None:
    """All files of rows are from long ago."""
    for file in Path(table.uri).rglob("*.parquet"):
        if "_delta_log" not in str(file):
            os.utime(file, (0, 0))


def test_changed_rows_stay_as_long_as_their_entry_and_go_with_it(changed: World) -> None:
    table = changed.table
    (first,) = changes(table)
    version = DeltaTable(table.uri).version()
    changed.passes(60)
    busy_without_checks(changed, 1)
    assert changes(table) == {first}
    assert feed(table, version) == [1001]
    for _ in range(3):
        busy_without_checks(changed, 3)
    assert not Path(table.uri, "_delta_log", f"{version:020}.json").exists()
    assert changes(table) == set()


def busy_without_checks(world: World, hours: int) -> None:
    for _ in range(hours * 6):
        world.commits += 1
        info = {BATCH_INFO: "1"}
        commit(plan(world.table, [world.commits], world.commits - 1, world.commits, info=info))
        world.dated()
        world.passes(600)
    world.tidy(few=3)


def test_changed_rows_that_an_entry_names_are_no_orphans_and_others_are(changed: World) -> None:
    table = changed.table
    (named,) = changes(table)
    left = Path(table.uri, "_change_data", "part-of-a-killed-update.parquet")
    left.write_bytes(b"rows")
    grown_old(table)
    assert set(orphans(table, 60, OldVersions(table))) == {str(left.relative_to(table.uri))}
    assert named in OldVersions(table).named(table.open())
    assert named in replaced_files(table, table.open()), "an erasure deletes it at once"


def test_in_a_table_of_all_games_they_are_no_orphans_either(tmp_path: Path) -> None:
    lakehouse = Lakehouse(str(tmp_path))
    lakehouse.entity = "game_name"
    table = replace(lakehouse.table("silver_events"), by="game_name")
    rows = pa.table({"n": [1, 2], "game_name": ["uno", "rummy"]})
    Path(table.uri).mkdir()
    write_deltalake(table.uri, rows, partition_by=["game_name"], configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(table.uri).update(updates={"n": "3"}, predicate="n = 1")
    (named,) = changes(table)
    grown_old(table)
    assert orphans(table, 60, OldVersions(table)) == {}
    assert named in OldVersions(table).named(DeltaTable(table.uri))


def test_changed_rows_of_the_newest_version_do_not_keep_a_table_due(changed: World) -> None:
    versions = OldVersions(changed.table)
    todo = versions.plan(changed.table.open())
    assert todo.waiting == 1, "the file with the row as it was; the change itself goes with the newest version's entry alone"


# --- checkpoints


def test_a_checkpoint_of_several_parts_says_how_often_people_were_erased_as_well(world: World) -> None:
    world.put(2)
    world.erase()
    busy(world, 6, every_s=450.0)
    kept = [version for version in world.readable if version - 1 not in world.readable]
    assert len(kept) > 2
    # As other engines make those of large tables.
    last = Path(world.table.uri, "_delta_log", f"{kept[-1]:020}.checkpoint.parquet")
    last.rename(last.with_name(f"{kept[-1]:020}.checkpoint.{1:010}.{1:010}.parquet"))
    world.passes(3 * HOUR_S)
    world.put()
    world.tidy(few=3)
    assert_kept(world)


def test_a_checkpoint_without_its_entry_is_from_before_an_erasure_too(world: World) -> None:
    world.put(2)
    for _ in range(3):
        world.passes(HOUR_S)
        world.put(2)
    version = max(world.rows)
    DeltaTable(world.table.uri).create_checkpoint()
    world.dated()
    for entry in Path(world.table.uri, "_delta_log").glob("*.json"):
        if int(entry.name[:20]) <= version:
            entry.unlink()
    world.passes(HOUR_S)
    world.erase()
    for _ in range(3):
        world.tidy()
        world.passes(2 * HOUR_S + 60)
    assert not any(n % 2 for path in data_files(world.table) for n in world.content(path))


# --- the note of bronze's topics


def test_a_version_of_which_only_a_note_is_left_gets_no_checkpoint(world: World) -> None:
    """Its files are not known any more: a checkpoint would be made of another version's."""
    table = Lakehouse(str(Path(world.table.uri).parent)).table(BRONZE)
    for n in range(1, 9):
        info = {BATCH_INFO: "1"} | ({SOURCES: '["t"]'} if n == 4 else {})
        commit(plan(table, [n], n - 1 or None, n, info=info))
        if n in (2, 7):
            DeltaTable(table.uri).create_checkpoint()
    log = Path(table.uri, "_delta_log")
    for gone in (0, 2, 4, 5):
        (log / f"{gone:020}.json").unlink()
    kept_s = table.retention.seconds(table.key)
    for version, age_s in {1: 1.2 * kept_s, 3: 1.15 * kept_s, 6: HOUR_S, 7: 60}.items():
        for file in log.glob(f"{version:020}.*"):
            os.utime(file, (world.now - age_s, world.now - age_s))
    versions = OldVersions(table)
    assert versions.plan(table.open()).checkpoints == ()
    versions.thin_out(table.open())
    assert (log / f"{3:020}.json").exists()
    assert numbers(table) == list(range(1, 9))


def test_no_version_gets_its_checkpoint_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    keep = OldVersions._keep
    monkeypatch.setattr(OldVersions, "_keep", lambda versions, version: made.append(version) or keep(versions, version))
    world.put(3)
    for n in range(60):
        world.passes(3 * HOUR_S)
        if n % 10 == 5:
            world.erase()
        world.put(2)
        world.tidy(few=3)
    assert made
    assert len(made) == len(set(made))
    assert DeltaTable(world.table.uri).transaction_version(Txn.ERASURES) == 6


def test_a_version_that_other_maintenance_has_deleted_meanwhile_is_a_conflict_and_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(2)
    busy(world, 5, every_s=450.0, tidy_s=100 * HOUR_S, replace=True)
    keep = OldVersions._keep

    def after_others(versions: OldVersions, version: int) -> None:
        for file in Path(world.table.uri, "_delta_log").glob(f"{version:020}.*"):
            file.unlink()
        keep(versions, version)

    monkeypatch.setattr(OldVersions, "_keep", after_others)
    with pytest.raises(ConflictError, match="other maintenance is at work"):
        world.tidy(few=3)
