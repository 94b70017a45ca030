"""Rows of silver that the export still has to send are not removed by age (`RETENTION_DAYS`); nothing is sent, no service."""

from __future__ import annotations

import pytest

from game_events.config.type_names import of_type
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.tables import PARTITIONED, TABLES
from game_events.plugins.export.rows import OnReplaced, find_changes
from game_events.plugins.export.run import commit_slice
from game_events.plugins.export.tables import ExportTables
from game_events_tests.unit.pipeline.retention.world import World, events

RECEIVER = {"rest_url": "http://127.0.0.1:1/"}


def world_of(folder, **settings) -> World:
    return World(folder, {"silver": 30}, **RECEIVER | settings)


def plan_all(world: World) -> None:
    """All new rows are in planned calls."""
    tables = ExportTables.of(world.pipeline.lakehouse, "gamer_id")
    planned = tables.planned.open()
    steps, held = find_changes(world.pipeline, planned, OnReplaced())
    assert not held
    for step in steps:
        commit_slice(tables, tables.planned.open(), [], step.expected, step.advance)


def gone_and_waiting(world: World) -> tuple[int, int]:
    """Rows that maintenance has removed from silver, and older ones that stay."""
    done = [entry for name, entry in world.maintained().items() if name.startswith("silver_")]
    return sum(entry.expired for entry in done), sum(entry.expired_later for entry in done)


@pytest.mark.parametrize("layout", [TABLES, PARTITIONED])
def test_rows_that_are_not_planned_to_be_sent_stay_and_are_counted_as_waiting(layout, tmp_path):
    world = world_of(tmp_path, silver_layout=layout)
    world.load([100, 90, 1])
    assert gone_and_waiting(world) == (0, 2)
    plan_all(world)
    world.load([80, 1])
    assert gone_and_waiting(world) == (2, 1)
    plan_all(world)
    assert gone_and_waiting(world) == (1, 0)


def test_without_a_receiver_no_row_stays(tmp_path):
    world = World(tmp_path, {"silver": 30})
    world.load([100, 1])
    assert gone_and_waiting(world) == (1, 0)


@pytest.mark.parametrize(("on_replaced", "found"), [("hold", (0, 1)), ("resend", (0, 1)), ("go_on", (1, 0))])
def test_rows_of_a_replaced_table_stay_while_they_may_be_sent_again(on_replaced, found, tmp_path):
    world = world_of(tmp_path, rest_on_replaced=on_replaced)
    world.load([100, 1])
    plan_all(world)
    world.silver(events([100, 1], 1), replace=True, **{Txn.INCARNATION: 1})
    world.gold()
    assert gone_and_waiting(world) == found


def test_of_gold_the_rows_stay_by_which_changed_players_are_found(tmp_path):
    world = world_of(tmp_path, rest_source="gold")
    # Of a game that was never exported all of gold is sent.
    world.load([100, 1])
    assert gone_and_waiting(world) == (1, 0)
    plan_all(world)
    world.load([90, 1])
    assert gone_and_waiting(world) == (0, 1)
    plan_all(world)
    assert gone_and_waiting(world) == (1, 0)


@pytest.mark.parametrize("source", ["silver", "gold"])
def test_rows_of_a_message_types_own_table_stay_likewise(source, tmp_path):
    world = world_of(tmp_path, rest_source=source, silver_per="entity_and_type")
    for ages in ([1], [100, 1]):
        rows = events(ages, world.batch + 1)
        world.bronze(rows)
        world.silver(rows, of_type("uno", "start"), floor=False)
        world.silver(rows.slice(0, 0))
        world.gold()
        if ages == [1]:
            plan_all(world)
    assert gone_and_waiting(world) == (0, 1)
    plan_all(world)
    assert gone_and_waiting(world) == (1, 0)
