"""Maintenance removes rows by age, and no others: files of other days stay as they are. No service."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from game_events.lakehouse.commits.transactions import Txn, counter, expired_rows
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import files_of, paths
from game_events.pipeline.reporting.result import TableMaintenance
from game_events.pipeline.retention import expire as expiring
from game_events_tests.support.tables import fails_before, put
from game_events_tests.unit.pipeline.retention.world import TYPES, World, days_ago, events


def test_rows_that_are_older_than_their_layers_limit_are_removed_and_the_books_balance(tmp_path):
    world = World(tmp_path, {"bronze": 30, "silver": 60})
    for ages in ([100, 99], [50, 49], [1, 2]):
        world.load(ages)
    assert world.reconcile().summary() == "bronze 6 = silver 6 + unrouted 0 + pending 0"
    done = world.maintained()
    assert world.ages(world.pipeline.bronze) == [1, 2]
    assert world.ages(world.pipeline.lakehouse.silver("uno")) == [1, 2, 49, 50]
    assert (done["bronze_events"].expired, done["silver_uno_events"].expired) == (4, 2)
    for changed in (None, ["uno"], []):
        found = world.reconcile(changed)
        assert found.summary() == "bronze 2 + gone by age 4 = silver 4 + unrouted 0 + pending 0 + gone by age 2"
    # Again there is nothing to do.
    assert not any(table.expired for table in world.maintained().values())


def test_without_the_setting_no_row_is_removed(tmp_path):
    world = World(tmp_path, {})
    world.load([5_000])
    assert not any(table.expired for table in world.maintained().values())
    assert len(world.ages(world.pipeline.bronze)) == 1


def test_a_dry_run_says_how_many_rows_and_bytes_would_go_and_removes_none(tmp_path):
    world = World(tmp_path, {"bronze": 30})
    world.load([100, 99, 1])
    found = world.maintained(dry_run=True)["bronze_events"]
    size = sum(file.size for file in files_of(world.pipeline.bronze.open()))
    assert (found.expired, found.expired_bytes) == (2, size * 2 // 3)
    assert len(world.ages(world.pipeline.bronze)) == 3


def test_of_365_days_of_files_only_that_of_the_old_day_is_touched_and_none_is_read_or_written(tmp_path, monkeypatch):
    world = World(tmp_path, {"silver": 364.5})
    days = [events([age], 1) for age in range(365, 0, -1)]
    world.bronze(*days)
    silver = world.pipeline.lakehouse.silver("uno")
    world.silver(days[0])
    put(silver, days[1], files=[file for day in days[1:] for file in staged(silver, day)])
    world.gold()
    before = paths(silver.open())
    monkeypatch.setattr(expiring, "read_parts", fails_before(AssertionError("a file is read")))
    done = TableMaintenance(silver.name)
    expiring.expire(world.pipeline, world.pipeline.settings.row_retention, silver, silver.open(), done)
    gone = set(before) - set(paths(silver.open()))
    assert (done.expired, len(gone), len(paths(silver.open()))) == (1, 1, 364)
    assert set(paths(silver.open())) <= set(before)


def test_a_file_with_some_older_rows_is_rewritten_once_its_oldest_row_is_older_by_a_day(tmp_path):
    world = World(tmp_path, {"bronze": 30})
    world.load([30.3, 1])
    before = paths(world.pipeline.bronze.open())
    assert world.maintained()["bronze_events"].expired == 0
    assert paths(world.pipeline.bronze.open()) == before
    world.load([32, 30.3, 1])
    assert world.maintained()["bronze_events"].expired == 2
    assert world.ages(world.pipeline.bronze) == [1, 1, 30]


def test_rows_that_silver_has_not_taken_stay_in_bronze(tmp_path):
    world = World(tmp_path, {"bronze": 30})
    world.load([100])
    rows = events([90], 2)
    world.bronze(rows, events([90], 2, "chess"), events([90], 2, None))
    done = world.maintained()["bronze_events"]
    # Pending ones of uno, and those of chess, which is no game yet; no run over everything has seen the others either.
    assert (done.expired, done.expired_later) == (1, 3)
    world.silver(rows)
    done = world.maintained()["bronze_events"]
    assert (done.expired, done.expired_later) == (2, 1)
    assert world.reconcile().unrouted == 2  # of chess; and the one without a game, which is gone
    assert world.pipeline.bronze.open().to_pyarrow_table().column("game_name").to_pylist() == ["chess"]


def test_rows_that_gold_has_not_taken_stay_in_silver(tmp_path):
    world = World(tmp_path, {"silver": 30})
    rows = events([90], 1)
    world.bronze(rows)
    world.silver(rows)
    assert world.maintained()["silver_uno_events"].expired_later == 1
    world.gold()
    assert world.maintained()["silver_uno_events"].expired == 1
    assert world.reconcile().silver == 0


def test_silver_goes_by_the_time_of_the_event_and_without_one_by_its_arrival(tmp_path):
    world = World(tmp_path, {"silver": 30})
    world.load([1, 40, 40, 1], event_ages=[40, 1, None, None])
    assert world.maintained()["silver_uno_events"].expired == 2
    assert world.ages(world.pipeline.lakehouse.silver("uno")) == [1, 40]


def test_rows_with_times_in_the_future_are_never_older(tmp_path):
    world = World(tmp_path, {"silver": 30, "bronze": 30})
    world.load([40], event_ages=[-4_000])
    done = world.maintained()
    assert (done["bronze_events"].expired, done["silver_uno_events"].expired) == (1, 0)
    world.reconcile()


@pytest.mark.parametrize("layout", ["tables", "partitioned"])
def test_a_game_and_a_message_type_may_have_limits_of_their_own(tmp_path, layout):
    limits = {"silver": 50, "silver:chess": 20, f"silver:uno:{TYPES[1]}": 10, f"silver:*:{TYPES[1]}": 0}
    world = World(tmp_path, limits, silver_layout=layout)
    for game in ("uno", "chess"):
        both = pa.concat_tables([events([60, 30, 15], world.batch + 1, game, of=of) for of in TYPES])
        world.bronze(both)
        world.silver(both, game)
        world.gold(game)
    done = world.maintained()
    left = {game: kept(world, game) for game in ("uno", "chess")}
    assert left == {
        "uno": [(TYPES[0], 15), (TYPES[0], 30)],
        "chess": [(TYPES[1], 15), (TYPES[1], 30), (TYPES[1], 60), (TYPES[0], 15)],
    }
    assert sum(table.expired for table in done.values()) == 6
    assert world.reconcile().expired == 6


def kept(world, game):
    handle = world.pipeline.lakehouse.silver(game).open()
    rows = pa.concat_tables(
        [pq.read_table(f"{handle.table_uri.rstrip('/')}/{path}", partitioning=None) for path in paths(handle)]
    )
    now = days_ago(0)
    return sorted((row["_message_type"], (now - row["_kafka_timestamp"]).days) for row in rows.to_pylist())


def test_the_tables_say_up_to_when_and_how_many_rows_are_gone(tmp_path):
    world = World(tmp_path, {"bronze": 30, "silver": 60})
    world.load([100])
    world.maintained()
    bronze, silver = world.pipeline.bronze.open(), world.pipeline.lakehouse.silver("uno").open()
    assert abs(counter(bronze, Txn.EXPIRED) - days_ago(30).timestamp() * 1_000) < 60_000
    assert abs(counter(silver, Txn.EXPIRED) - days_ago(60).timestamp() * 1_000) < 60_000
    assert (expired_rows(bronze), expired_rows(bronze, "uno"), expired_rows(silver)) == (1, 1, 1)


def test_undecodable_rows_and_events_of_runs_go_by_their_age(tmp_path):
    world = World(tmp_path, {"quarantine": 30, "event_log": 30})
    world.load([1])
    rows = {
        "layer": ["bronze", "bronze"],
        "game": pa.array([None, None], pa.string()),
        "replayed_batch": pa.array([None, None], pa.int64()),
        "_batch": [1, 1],
        "_kafka_timestamp": pa.array([days_ago(40), days_ago(1)], pa.timestamp("us", tz="UTC")),
    }
    put(world.pipeline.quarantine, rows)
    put(world.pipeline.lakehouse.table("event_log"), {"time": rows["_kafka_timestamp"]}, {Txn.COMMITS: 1})
    done = world.maintained()
    assert (done["quarantine_events"].expired, done["event_log"].expired) == (1, 1)
    assert world.ages(world.pipeline.quarantine) == [1]
    assert counter(world.pipeline.lakehouse.table("event_log").open(), Txn.COMMITS) == 2
