"""What is said of rows that are gone by age: checks, the event log, `doctor`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from game_events.extending import GoldAggregate
from game_events.lakehouse.system_tables import read_events
from game_events.lakehouse.tables import PARTITIONED, Table
from game_events.pipeline.checks.table_checks import offsets_continuous
from game_events.pipeline.event_log import recorded
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.offsets import ERASED_BY_BATCH
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.preflight import Hint, rows_by_age, state_checks
from game_events.rules import Deduplicate
from game_events_tests.support.tables import put
from game_events_tests.unit.pipeline.retention.world import World, events


def test_the_check_of_offsets_knows_which_rows_are_gone(tmp_path):
    world = World(tmp_path, {"bronze": 30})
    world.load([100, 1])
    world.load([90, 80, 2])
    world.maintained()
    found = offsets_continuous(world.pipeline)
    assert found.passed, found.summary


def without_entries(world: World, versions: range) -> None:
    """Bronze's log begins with a checkpoint of its newest version; these older entries are deleted."""
    world.pipeline.bronze.open().create_checkpoint()
    for version in versions:
        Path(world.pipeline.bronze.uri, "_delta_log", f"{version:020}.json").unlink()


@pytest.mark.parametrize(
    ("deleted", "said"),
    [
        (range(3), {"4": 1, "5": 1}),
        (range(1, 3), {"4": 1, "5": 1}),  # the first entry stays behind a gap
        (range(5), {}),  # no entry is of a batch
    ],
)
def test_of_batches_whose_commit_no_check_can_read_the_commit_does_not_say_what_went(deleted, said, tmp_path):
    world = World(tmp_path, {"bronze": 30})
    for _ in range(5):
        world.load([100, 1])
    put(world.pipeline.bronze, events([], 6))
    without_entries(world, deleted)
    world.maintained()
    infos = world.pipeline.bronze.open().history()
    assert [json.loads(info[ERASED_BY_BATCH]) for info in infos if ERASED_BY_BATCH in info] == [said]
    found = offsets_continuous(world.pipeline)
    assert found.passed, found.summary


def test_the_event_log_says_how_many_rows_went_from_each_table_of_silver_by_game(tmp_path):
    world = World(tmp_path, {"bronze": 30, "silver": 30})
    world.load([100, 99, 1])
    report = RunReport()
    with recorded(world.pipeline, report, "maintain", observed=False):
        maintain(world.pipeline, report)
    rows = read_events(world.pipeline.lakehouse, kind="gone_by_age").to_pylist()
    assert {(row["layer"], row["table"], row["game"], row["rows"]) for row in rows} == {
        (None, "bronze_events", None, 2),
        ("silver", "silver_uno_events", "uno", 2),
    }


def test_doctor_says_each_limit_and_the_age_of_the_oldest_row(tmp_path):
    world = World(tmp_path, {"bronze": 30, "quarantine": 30, "silver:uno": 0})
    assert "rows by age" in state_checks(world.pipeline)
    world.load([10, 1])
    said = rows_by_age(world.pipeline)
    assert said == "bronze 30 days (the oldest row 10.0), quarantine 30 days, silver:uno never"
    assert not isinstance(said, Hint)
    assert "rows by age" not in state_checks(World(tmp_path, {}).pipeline)


def test_doctor_names_settings_that_do_not_fit_the_limits(tmp_path):
    duplicates = (Deduplicate(key=("gamer_id",), window_h=24 * 40),)
    world = World(tmp_path, {"bronze": 90, "silver": 30}, deduplicate=duplicates)
    by_key = GoldAggregate("daily", "by_key", keys=("gamer_id",))
    world.pipeline.__dict__["extensions"] = replace(world.pipeline.extensions, aggregates=(by_key,))
    said = rows_by_age(world.pipeline)
    assert isinstance(said, Hint)
    for part in (
        "DEDUPLICATE looks back 40 days, and silver has rows of 30",
        "quarantine keeps rows longer",
        "cannot be merged",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"bronze": 90}, True),
        ({"bronze": 90, "quarantine": 90}, False),
        ({"bronze": 90, "bronze:uno": 365, "quarantine": 90}, False),
        ({"bronze": 365, "bronze:uno": 90, "quarantine": 365}, True),
        ({"bronze:uno": 90}, True),
        ({"quarantine": 90}, False),
    ],
)
def test_doctor_says_where_quarantine_keeps_rows_longer_than_the_shortest_limit_of_bronze(limits, said, tmp_path):
    assert ("quarantine keeps rows longer" in rows_by_age(World(tmp_path, limits).pipeline)) == said


def test_doctor_opens_a_table_that_games_share_once(tmp_path, monkeypatch):
    world = World(tmp_path, {"silver": 30}, silver_layout=PARTITIONED)
    for game in ("chess", "rummy", "uno"):
        world.load([10], game)
    opened: list[str] = []
    usual = Table.open_of_any_format
    monkeypatch.setattr(Table, "open_of_any_format", lambda table: opened.append(table.name) or usual(table))
    pipeline = replace(world.pipeline)
    assert rows_by_age(pipeline) == "silver 30 days (the oldest row 10.0)"
    # Once for the names of the games.
    assert opened.count("silver_events") <= 2
