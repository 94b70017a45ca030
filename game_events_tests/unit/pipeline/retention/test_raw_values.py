"""Raw values of older rows go, and nothing else of them; a file is not written again each time."""

from __future__ import annotations

import pyarrow as pa

from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.tables import paths
from game_events.pipeline.retention import raw_values
from game_events_tests.support.tables import fails_before
from game_events_tests.unit.pipeline.retention.world import TYPES, World, days_ago, events


def test_raw_values_that_are_older_than_their_limit_go_and_the_rows_stay(tmp_path):
    world = World(tmp_path, {"raw": 14})
    world.load([100, 20, 1])
    world.load([2])
    found = world.maintained(dry_run=True)["bronze_events"]
    assert (found.raw_values, found.expired, world.raw_values()) == (2, 0, 4)
    done = world.maintained()["bronze_events"]
    assert (done.raw_values, done.expired, world.raw_values()) == (2, 0, 2)
    bronze = world.pipeline.bronze.open()
    assert world.ages(world.pipeline.bronze) == [1, 2, 20, 100]
    assert abs(counter(bronze, Txn.RAW_EXPIRED) - days_ago(14).timestamp() * 1_000) < 60_000
    assert world.reconcile().summary() == "bronze 4 = silver 4 + unrouted 0 + pending 0"


def test_a_file_without_older_raw_values_is_not_written_again(tmp_path, monkeypatch):
    world = World(tmp_path, {"raw": 14})
    world.load([100, 14.5, 1])
    world.maintained()
    assert world.raw_values() == 1
    files = paths(world.pipeline.bronze.open())
    assert world.maintained()["bronze_events"].raw_values == 0
    assert paths(world.pipeline.bronze.open()) == files
    # Of files in which all values are gone nothing is read.
    world = World(tmp_path / "other", {"raw": 14})
    world.load([100, 99])
    world.maintained()
    monkeypatch.setattr(raw_values, "read_parts", fails_before(AssertionError("a file is read")))
    assert world.maintained()["bronze_events"].raw_values == 0


def test_games_and_types_may_have_limits_of_their_own(tmp_path):
    world = World(tmp_path, {"raw": 14, "raw:uno": 200, f"raw:*:{TYPES[1]}": 50})
    rows = [events([100, 30], 1, game, of=of) for game in ("uno", "chess") for of in TYPES]
    world.bronze(pa.concat_tables(rows))
    world.maintained()
    left = world.pipeline.bronze.open().to_pyarrow_table().filter(pa.compute.field("_raw_value").is_valid())
    kept = sorted(zip(left["game_name"].to_pylist(), left["_message_type"].to_pylist(), strict=True))
    assert kept == [("chess", TYPES[1]), ("uno", TYPES[1]), ("uno", TYPES[0]), ("uno", TYPES[0])]


def test_values_go_however_many_rows_came_without_one(tmp_path):
    world = World(tmp_path, {"raw": 300, "raw:uno": 30})
    kept = events([60, 50], 1, "chess")  # as with `KEEP_RAW=failures`
    without = kept.set_column(kept.column_names.index("_raw_value"), "_raw_value", pa.nulls(2, pa.binary()))
    world.bronze(without, events([60, 50], 1, "uno"))
    assert world.maintained()["bronze_events"].raw_values == 2
    assert world.raw_values() == 0
