"""What removal of rows by age reads, opens and writes: nothing where nothing is older, and a bounded amount where much is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from game_events.config.retention import RetentionDays
from game_events.lakehouse.data import reading
from game_events.lakehouse.tables import PARTITIONED, Table, files_of
from game_events.pipeline.reporting.result import TableMaintenance
from game_events.pipeline.retention import expire as expiring
from game_events.pipeline.retention import files, raw_values
from game_events_tests.support.tables import put
from game_events_tests.unit.pipeline.retention.world import TYPES, World, days_ago, events


def expire(world: World, table: Table, **options: bool) -> TableMaintenance:
    """Removal by age from one table."""
    done = TableMaintenance(table.name)
    days = RetentionDays(world.pipeline.settings.retention_days)
    expiring.expire(world.pipeline, days, table, table.open(), done, **options)
    return done


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """Keys of the tables that are opened without the pool."""
    keys: list[str] = []
    usual = Table.open_of_any_format
    monkeypatch.setattr(Table, "open_of_any_format", lambda table: keys.append(table.key) or usual(table))
    return keys


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Paths of the files that are read to find older rows, or raw values."""
    paths: list[str] = []

    def noted(table, schema, wanted, *more):
        wanted = list(wanted)
        paths.extend(wanted)
        return reading.read_parts(table, schema, wanted, *more)

    for module in (expiring, raw_values):
        monkeypatch.setattr(module, "read_parts", noted)
    return paths


def test_where_no_row_is_older_no_other_table_is_opened(tmp_path, opened):
    world = World(tmp_path, {"bronze": 30, "silver": 30, "quarantine": 30})
    world.load([20, 1])
    rejected = {
        "layer": ["silver"],
        "game": ["uno"],
        "replayed_batch": pa.array([None], pa.int64()),
        "_batch": [1],
        "_kafka_timestamp": pa.array([days_ago(20)], pa.timestamp("us", tz="UTC")),
    }
    put(world.pipeline.quarantine, rejected)
    for table in (world.pipeline.bronze, world.pipeline.lakehouse.silver("uno"), world.pipeline.quarantine):
        handle = table.open()
        opened.clear()
        expiring.expire(world.pipeline, world.pipeline.settings.row_retention, table, handle, TableMaintenance(table.name))
        assert opened == [], table.name


def test_a_games_own_limit_reads_no_file_that_has_no_row_of_the_game(tmp_path, read):
    world = World(tmp_path, {"bronze": 300, "bronze:uno": 30, f"bronze:*:{TYPES[1]}": 40})
    for game in ("chess", "uno", "zed"):
        world.bronze(events([60, 50], world.batch + 1, game))
    world.bronze(events([60, 50], world.batch + 1, "chess", of=TYPES[1]))
    expire(world, world.pipeline.bronze)
    batches = {file.path: file.highest_batch for file in files_of(world.pipeline.bronze.open())}
    assert sorted(batches[path] for path in read) == [2, 4]


def test_a_longer_limit_of_another_game_or_type_does_not_make_files_be_read(tmp_path, read):
    world = World(tmp_path, {"silver": 30, "silver:chess": 300, f"silver:*:{TYPES[1]}": 0})
    for of in TYPES:
        rows = events([60, 50], world.batch + 1, of=of)
        world.bronze(rows)
        world.silver(rows)
    world.gold()
    done = expire(world, world.pipeline.lakehouse.silver("uno"))
    assert (done.expired, read) == (2, [])


def test_raw_values_of_files_of_games_that_keep_theirs_are_not_looked_at(tmp_path, read):
    world = World(tmp_path, {"raw": 300, "raw:uno": 30})
    for game in ("chess", "uno"):
        world.bronze(events([60, 50], world.batch + 1, game))
    assert expire(world, world.pipeline.bronze).raw_values == 2
    batches = {file.highest_batch for file in files_of(world.pipeline.bronze.open())}
    assert (len(read), batches) == (1, {1, 2})


def test_games_that_share_a_table_share_what_is_written_again_in_one_maintenance(tmp_path, monkeypatch):
    world = World(tmp_path, {"silver": 30}, silver_layout=PARTITIONED)
    games = ("chess", "rummy", "uno")
    rows = {game: events([100, 1], 1, game) for game in games}
    world.bronze(*rows.values())
    for game in games:
        world.silver(rows[game], game, floor=False)
        world.gold(game)
    silver = world.pipeline.lakehouse.table("silver_events")
    monkeypatch.setattr(files, "MOST_BYTES", 1.5 * max(file.size for file in files_of(silver.open())))
    for left in (2, 1, 0):
        done = expire(world, silver)
        assert (done.expired, done.expired_later) == (1, left)


def test_rows_and_raw_values_share_what_is_written_again_in_one_maintenance(tmp_path, monkeypatch):
    world = World(tmp_path, {"bronze": 60, "raw": 30})
    world.load([100, 40, 1])
    world.load([45, 2])
    monkeypatch.setattr(files, "MOST_BYTES", 1)
    done = [expire(world, world.pipeline.bronze) for _ in range(4)]
    assert [(entry.expired, entry.raw_values) for entry in done] == [(1, 0), (0, 1), (0, 1), (0, 0)]


def test_of_raw_values_a_few_rows_are_in_memory_at_a_time(tmp_path, monkeypatch):
    world = World(tmp_path, {"raw": 30})
    world.load([100, 90, 1, 1, 1])
    expire(world, world.pipeline.bronze)
    world.load([100, 90, 80, 70, 1])
    seen: list[int] = []

    def noted(table, schema, *more):
        for rows in reading.read_parts(table, schema, *more):
            if "_raw_value" in rows.column_names:
                seen.append(rows.num_rows)
            yield rows

    monkeypatch.setattr(raw_values, "read_parts", noted)
    monkeypatch.setattr(raw_values, "BATCH_ROWS", 2, raising=False)
    assert expire(world, world.pipeline.bronze).raw_values == 4
    assert seen == [2, 2, 1]
