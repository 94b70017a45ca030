"""Older versions of a table are thinned out as backups are: what is promised can be read, and nothing else is kept."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from game_events.lakehouse.commits import versions as module
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.transactions import restored
from game_events.lakehouse.commits.versions import DAY_S, HOUR_S, OldVersions, promised
from game_events.lakehouse.maintenance import orphans
from game_events.lakehouse.table_pool import TablePool, summarise
from game_events.lakehouse.table_properties import Retention
from game_events.lakehouse.tables import Lakehouse, paths
from game_events_tests.support.faults import at_failpoints
from game_events_tests.support.tables import committed_files, data_files, numbers, plan, staged_numbers
from game_events_tests.unit.lakehouse.commits.versions.world import BEGIN, Killed, World, assert_kept, busy


def test_a_version_an_hour_and_then_one_a_day_are_promised_besides_all_of_the_last_hours() -> None:
    times = {n: BEGIN + 900 * n for n in range(4 * 24 * 10)}
    now = max(times.values())
    kept = promised(times, now, 2 * HOUR_S, 7 * DAY_S)
    hours = sorted(v for v in kept if times[v] > now - DAY_S)
    assert len(hours) == 22, "of the last two hours all stay"
    assert {times[v] % HOUR_S for v in hours} == {0.0}
    days = kept - set(hours)
    assert {times[v] % DAY_S for v in days} == {0.0}
    assert len(days) in (6, 7)
    assert promised({0: BEGIN - 90 * DAY_S}, now, 2 * HOUR_S, 7 * DAY_S) == {0}, "it was the newest all the time"
    assert promised(times, now, 2 * HOUR_S, HOUR_S) == set()


def test_versions_of_a_week_are_thinned_out_and_each_that_stays_has_its_rows(world: World) -> None:
    busy(world, 8 * 24, every_s=4800.0, tidy_s=9600.0)
    world.join()
    busy(world, 6, every_s=600.0)
    assert_kept(world)
    gaps = [v for v in world.readable if v - 1 not in world.readable]
    assert len(gaps) >= 10, "versions without the one before"
    log = list(Path(world.table.uri, "_delta_log").glob("*.json"))
    assert len(log) < 70, f"{len(log)} entries of {len(world.rows)} versions"


def test_gold_that_is_always_replaced_has_a_file_for_each_version_that_stays(tmp_path: Path, clock: list[World]) -> None:
    clock.append(World(Lakehouse(str(tmp_path)).table("gold_uno_player_agg")))
    gold = clock[0]
    gold.put()
    busy(gold, 28, every_s=900.0, replace=True)
    assert_kept(gold)
    assert len(data_files(gold.table)) < 24 + 8 + 13, len(data_files(gold.table))
    gold.passes(3 * DAY_S)
    gold.tidy()
    gold.passes(3 * HOUR_S)
    gold.tidy()
    assert data_files(gold.table) == committed_files(gold.table), "nobody has changed it for days"


def test_nothing_happens_to_a_table_that_seldom_changes_until_its_versions_are_too_old(world: World) -> None:
    for _ in range(6):
        world.put(replace=world.commits > 0)
        world.passes(DAY_S)
        assert world.tidy() == 0
    log = sorted(file.name for file in Path(world.table.uri, "_delta_log").glob("0*"))
    assert log == [f"{version:020}.json" for version in range(6)], "not even a checkpoint"
    for _ in range(6):
        world.put(replace=True)
        world.passes(DAY_S)
        world.tidy()
    assert set(world.readable) >= world.promised()
    assert len(data_files(world.table)) < 11, "the oldest ones are gone"
    assert data_files(world.table) == {path for v in world.readable for path in paths(DeltaTable(world.table.uri, v))}


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["version_kept", "file_deleted", "entry_deleted"])
def test_killed_anywhere_it_keeps_what_is_promised_and_the_next_one_completes_it(world: World, point: str, nth: int) -> None:
    world.put(3)
    busy(world, 5, every_s=450.0, tidy_s=100 * HOUR_S, replace=True)
    reached: list[str] = []

    def die(name: str, _: str) -> None:
        reached.append(name)
        if reached.count(point) == nth:
            raise Killed

    with at_failpoints(die), pytest.raises(Killed):
        world.tidy(few=3)
    wanted = world.promised()
    assert {v: world.read(v) for v in wanted} == {v: world.rows[v] for v in wanted}
    assert numbers(world.table) == world.rows[max(world.rows)]
    world.tidy(few=3)
    assert_kept(world)


def test_who_has_opened_a_version_that_stays_does_not_take_it_for_the_newest_one(world: World, monkeypatch) -> None:
    """The entries after it are gone: a commit would become a version between, which nobody reads."""
    world.put()
    for _ in range(5):
        world.put()
    opened = world.table.open()
    assert opened is not None
    opened.files()
    opened.newest_commit()
    summarise(opened)
    assert TablePool().open(world.table).version() == opened.version()
    world.passes(HOUR_S)
    busy(world, 5, every_s=300.0)
    assert opened.version() in world.readable
    assert opened.version() + 1 not in world.readable
    assert TablePool().open(world.table).version() == max(world.rows)
    later = time.monotonic() + 301.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not opened.is_newest()
    world.commits += 1
    commit(plan(world.table, [7], world.commits - 1, world.commits, from_table=opened))
    assert 7 in numbers(world.table)
    assert len(numbers(world.table)) == world.commits


def test_a_version_that_stays_can_be_restored_and_its_files_are_live_again(world: World) -> None:
    world.put(2)
    busy(world, 6, every_s=450.0, replace=True)
    chosen = next(v for v in world.readable if v - 1 not in world.readable)
    world.restore(chosen)
    assert numbers(world.table) == world.rows[chosen]
    busy(world, 26, every_s=1800.0)
    assert numbers(world.table)[:1] == world.rows[chosen][:1]
    assert_kept(world)


def test_rows_of_erased_people_are_in_no_version_once_readers_of_the_last_hours_are_done(world: World) -> None:
    world.put(4)
    busy(world, 6, every_s=450.0, count=2)
    assert any(v - 1 not in world.readable for v in world.readable)
    world.erase()
    world.tidy()
    recent = world.now - 2 * HOUR_S
    assert all(world.made[v + 1] > recent - HOUR_S for v in world.readable if v < max(world.rows)), (
        "older ones are gone at once"
    )
    world.passes(2 * HOUR_S + 60)
    world.tidy()
    assert {world.erased[v] for v in world.readable} == {1}
    assert data_files(world.table) == committed_files(world.table)
    assert not any(n % 2 for path in data_files(world.table) for n in world.content(path))


def test_a_quiet_table_gives_up_its_versions_from_before_an_erasure_too(world: World) -> None:
    for _ in range(4):
        world.put(2)
        world.passes(DAY_S)
    world.erase()
    for _ in range(2):
        world.tidy()
        world.passes(2 * HOUR_S + 60)
    world.tidy()
    assert world.readable == [4]
    assert not any(n % 2 for path in data_files(world.table) for n in world.content(path))


def test_versions_of_gold_from_before_an_erasure_of_its_silver_go(tmp_path: Path, clock: list[World]) -> None:
    clock.append(World(Lakehouse(str(tmp_path)).table("gold_uno_player_agg")))
    gold = clock[0]
    commit(plan(gold.table, [1], None, 1, app="silver:an-id:0"))
    gold.noted()
    for n in range(3):
        gold.passes(HOUR_S)
        commit(plan(gold.table, [n], n + 1, n + 2, app="silver:an-id:0", replace=True))
        gold.noted()
    commit(plan(gold.table, [7], None, 4, app="silver:an-id:0:1", replace=True))
    gold.noted()
    for _ in range(2):
        gold.tidy()
        gold.passes(2 * HOUR_S + 60)
    gold.tidy()
    assert data_files(gold.table) == committed_files(gold.table)


def test_files_of_versions_that_stay_are_no_orphans_and_staged_ones_are_left(world: World) -> None:
    world.put(2)
    busy(world, 6, every_s=450.0, replace=True)
    staged = staged_numbers(world.table, [7])[0].path
    for name in data_files(world.table):
        os.utime(Path(world.table.uri, name), (0, 0))
    before = data_files(world.table)
    assert list(orphans(world.table, 60, OldVersions(world.table))) == [staged]
    assert orphans(world.table, 60, OldVersions(world.table), keep={staged}) == {}
    world.tidy()
    assert staged in data_files(world.table)
    assert before - data_files(world.table) == set()


def test_what_could_not_be_deleted_is_tried_again(world: World) -> None:
    world.put(2)
    busy(world, 5, every_s=300.0, tidy_s=100 * HOUR_S, replace=True)
    first = OldVersions(world.table, few=3).plan(world.table.open()).files[0]
    file = Path(world.table.uri, first)
    content = file.read_bytes()
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match=file.name):
        world.tidy(few=3)
    file.rmdir()
    file.write_bytes(content)
    world.tidy(few=3)
    assert_kept(world)


def test_a_commit_thins_out_a_log_that_no_maintenance_looks_after(world: World, monkeypatch) -> None:
    monkeypatch.setattr(module, "FEW_FOR_COMMITS", 20)
    world.put()
    busy(world, 6, every_s=450.0, tidy_s=100 * HOUR_S, replace=True)
    assert_kept(world, few=20)
    assert len(world.readable) < 60


def test_tombstones_do_not_fill_checkpoints(world: World) -> None:
    world.put()
    for _ in range(12):
        world.put(replace=True)
    handle = DeltaTable(world.table.uri)
    handle.create_checkpoint()
    newest = max(Path(world.table.uri, "_delta_log").glob("*.checkpoint.parquet"))
    removed = pq.read_table(newest, columns=["remove"]).column("remove").to_pylist()
    assert [row for row in removed if row is not None and row["path"] is not None] == []


def test_time_travel_by_spark_and_its_vacuum_go_by_a_month_not_by_what_checkpoints_hold() -> None:
    """Spark refuses versions that are older than this property says, and its VACUUM deletes no younger file."""
    for retention, days in ((Retention(), 30), (Retention(kept_h=24 * 60), 120)):
        properties = retention.properties("silver_uno_events")
        assert properties["delta.deletedFileRetentionDuration"] == f"interval {days * 86_400} seconds"
        assert properties["delta.enableExpiredLogCleanup"] == "false"


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_keep_what_is_promised_and_nothing_else(world: World, monkeypatch, seed: int) -> None:
    monkeypatch.setattr(module, "FEW", 3)
    draw = Random(f"versions {seed}")  # noqa: S311 - no secret
    world.put(3)
    for step in range(90):
        match draw.choices(("put", "replace", "join", "restore", "erase", "kill", "tidy"), (40, 6, 4, 2, 1, 4, 12))[0]:
            case "put":
                world.put(draw.randint(1, 3))
            case "replace":
                world.put(draw.randint(1, 3), replace=True)
            case "join":
                world.join()
            case "restore":
                same = [v for v in world.promised() if v < max(world.rows) and world.erased[v] == world.erased[max(world.rows)]]
                if same:
                    world.restore(draw.choice(same))
            case "erase":
                world.erase()
            case "kill":
                die = draw.randint(1, 12)
                reached: list[str] = []

                def killed(name: str, _: str, reached: list[str] = reached, die: int = die) -> None:
                    reached.append(name)
                    if len(reached) == die:
                        raise Killed

                with at_failpoints(killed), suppress(Killed):
                    world.tidy(few=3)
            case "tidy":
                world.tidy(few=3)
        world.passes(draw.choice((20, 60, 600, 1800, HOUR_S, 5 * HOUR_S)))
        wanted = world.promised()
        for version in draw.sample(sorted(wanted), min(4, len(wanted))):
            assert world.read(version) == world.rows[version], (step, version)
    world.tidy(few=3)
    for version in world.promised():
        assert world.read(version) == world.rows[version], version
    assert pa.table({"n": numbers(world.table)}).num_rows == len(world.rows[max(world.rows)])
    needed = {path for version in world.readable for path in paths(DeltaTable(world.table.uri, version))}
    assert data_files(world.table) == needed


def test_a_restore_behind_a_gap_of_the_log_is_no_unchecked_one(world: World) -> None:
    """Commits that were made after a check may have been there."""
    world.put()
    world.put(replace=True)
    world.restore(0)
    restored_at = max(world.rows)
    assert restored(world.table.open())
    for _ in range(3):
        world.put()
    DeltaTable(world.table.uri, restored_at).create_checkpoint()
    world.join()
    world.table.open().create_checkpoint()
    for entry in Path(world.table.uri, "_delta_log").glob("0*"):
        if int(entry.name[:20]) not in (restored_at, max(world.rows)):
            entry.unlink()
    assert [info.get("operation") for info in DeltaTable(world.table.uri).history()][1] == "RESTORE"
    assert not restored(world.table.open())
