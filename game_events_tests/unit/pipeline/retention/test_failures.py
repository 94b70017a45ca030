"""Removal of rows by age that fails: nothing is counted that was not committed, and one bad file does not keep the others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from game_events.errors import ConflictError, DataError, LostFileError, TransientError
from game_events.lakehouse.data.rewriting import Rewriting
from game_events.lakehouse.tables import PARTITIONED, TABLES, paths
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.retention import expire as expiring
from game_events.pipeline.retention import raw_values
from game_events_tests.support.tables import fails_before
from game_events_tests.unit.pipeline.retention.world import World, events

ERRORS = (ConflictError("another one was first"), TransientError("no answer"), DataError("altered"), OSError("disk full"))


def maintained(world: World, key: str):
    """What maintenance says of one table, failed or not."""
    report = RunReport()
    maintain(world.pipeline, report)
    return report.maintenance[key]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("what", ["rewritten", "commit"])
def test_rows_are_counted_as_gone_only_after_their_commit(what, error, tmp_path, monkeypatch):
    world = World(tmp_path, {"bronze": 30})
    world.load([100, 1])
    monkeypatch.setattr(expiring, what, fails_before(error))
    done = maintained(world, "bronze_events")
    assert str(error) in (done.skipped if isinstance(error, ConflictError) else done.error)
    assert (done.expired, done.expired_bytes, done.expired_games, done.expired_later) == (0, 0, {}, 1)
    assert world.ages(world.pipeline.bronze) == [1, 100]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("what", ["rewritten", "commit"])
def test_raw_values_are_counted_as_gone_only_after_their_commit(what, error, tmp_path, monkeypatch):
    world = World(tmp_path, {"raw": 30})
    world.load([100, 1])
    monkeypatch.setattr(raw_values, what, fails_before(error))
    done = maintained(world, "bronze_events")
    assert str(error) in (done.skipped if isinstance(error, ConflictError) else done.error)
    assert (done.raw_values, world.raw_values()) == (0, 2)


def shared(tmp_path, *games: str) -> World:
    """A table of silver with a file of each game, which has an older row and another one."""
    world = World(tmp_path, {"silver": 30}, silver_layout=PARTITIONED)
    rows = {game: events([100, 1], 1, game) for game in games}
    world.bronze(*rows.values())
    for game in games:
        world.silver(rows[game], game, floor=False)
        world.gold(game)
    return world


@pytest.mark.parametrize("error", ERRORS[1:], ids=lambda error: type(error).__name__)
def test_of_games_that_share_a_table_none_is_counted_and_no_file_is_left_if_one_fails(error, tmp_path, monkeypatch):
    world = shared(tmp_path, "chess", "uno")
    silver = world.pipeline.lakehouse.table("silver_events")
    before = data_files_below(silver)
    usual, calls = expiring.rewritten, []

    def second_fails(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise error
        return usual(*arguments)

    monkeypatch.setattr(expiring, "rewritten", second_fails)
    done = maintained(world, "silver_events")
    assert str(error) in done.error
    assert (done.expired, done.expired_games, done.expired_later) == (0, {}, 2)
    assert data_files_below(silver) == before


def test_of_games_that_share_a_table_those_are_counted_that_were_committed(tmp_path, monkeypatch):
    world = shared(tmp_path, "chess", "rummy", "uno")
    usual = expiring.commit_group

    def one_loses(plans):
        lost = plans.pop("chess"), plans.pop("rummy")
        assert all(lost)
        return usual(plans) | {"chess": DataError("altered"), "rummy": ConflictError("another one was first")}

    monkeypatch.setattr(expiring, "commit_group", one_loses)
    done = maintained(world, "silver_events")
    assert (done.expired, done.expired_games, done.expired_later) == (1, {"uno": 1}, 2)
    assert (done.error, done.skipped) == ("altered", "another one was first")


def data_files_below(table) -> set[str]:
    return {str(file) for file in Path(table.uri).rglob("*.parquet") if "_delta_log" not in file.parts}


@pytest.mark.parametrize("layout", [TABLES, PARTITIONED])
def test_a_damaged_file_is_an_error_of_its_table_and_the_rows_of_other_files_go(layout, tmp_path):
    world = World(tmp_path, {"bronze": 30, "silver": 30, "raw": 10}, silver_layout=layout)
    for game in ("chess", "uno"):
        world.load([100, 20, 1], game)
    world.load([90, 2])
    silver = world.pipeline.lakehouse.silver("chess")
    (in_bronze,) = files_of_batch(world, 1)
    Path(world.pipeline.bronze.uri, in_bronze).write_bytes(b"no Parquet")
    Path(silver.uri, paths(silver.open())[0]).write_bytes(b"no Parquet")
    report = RunReport()
    maintain(world.pipeline, report)
    of_silver = [entry for name, entry in report.maintenance.items() if name.startswith("silver_")]
    of_bronze = report.maintenance["bronze_events"]
    assert "cannot be read" in of_bronze.error
    assert (of_bronze.expired, of_bronze.raw_values) == (2, 1)
    assert "cannot be read" in next(entry.error for entry in of_silver if entry.error)
    assert sum(entry.expired for entry in of_silver) == 2
    assert world.ages(world.pipeline.lakehouse.silver("uno")) == [1, 2, 20] if layout == TABLES else True


@pytest.mark.parametrize("layer", ["bronze", "raw"])
def test_a_file_that_is_lost_when_it_is_written_again_is_left_and_the_others_are_done(layer, tmp_path, monkeypatch):
    world = World(tmp_path, {layer: 30})
    world.load([100, 1])
    world.load([90, 2])
    (lost,) = files_of_batch(world, 1)
    usual = Rewriting.one_by_one

    def first_is_lost(again, paths, change=None):
        if list(paths) == [lost]:
            raise LostFileError(f"{lost} cannot be read")
        return usual(again, paths, change)

    monkeypatch.setattr(Rewriting, "one_by_one", first_is_lost)
    done = maintained(world, "bronze_events")
    assert "cannot be read" in done.error
    assert (done.expired + done.raw_values, done.expired_later) == (1, layer == "bronze")
    monkeypatch.setattr(Rewriting, "one_by_one", usual)
    done = maintained(world, "bronze_events")
    assert (done.error, done.expired + done.raw_values) == (None, 1)


def files_of_batch(world: World, batch: int) -> set[str]:
    """The files of a batch of bronze."""
    actions = pa.table(world.pipeline.bronze.open().get_add_actions(flatten=True))
    of_batch = actions.filter(pa.compute.equal(actions.column("max._batch"), batch))
    return set(of_batch.column("path").to_pylist())
