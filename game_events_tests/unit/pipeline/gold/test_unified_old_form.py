"""A unified table of earlier versions of this project, one file without partitions, is replaced. No Spark."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from game_events.lakehouse.tables import Layer
from game_events.pipeline.gold.unified import gold_app
from game_events_tests.support.faults import at_creation
from game_events_tests.support.worlds.waves import PowerCut, at_point


def test_a_table_of_the_old_form_is_replaced_in_one_version_when_there_is_news(world):
    world.write_old_form({"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}})
    assert (world.refresh().tables, world.handle().version()) == ([], 0), "nothing is new, nothing is rebuilt"
    world.gold("rummy", {"a": 7, "b": 7})
    assert world.refresh().errors == []
    assert world.handle().metadata().partition_columns == ["game_name"]
    new = {"rummy": {"a": 7, "b": 7}, "0123": {"a": 3}}
    assert world.shown() == new
    # Each version is the old table or the new one.
    for version in range(world.handle().version() + 1):
        rows = pl.scan_delta(world.table.uri, version=version).select("game_name", "gamer_id", "session_count").collect().rows()
        expected = {"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}} if version == 0 else new
        assert sorted(rows) == sorted((g, gamer, n) for g, gamers in expected.items() for gamer, n in gamers.items())
    held = {world.handle().transaction_version(gold_app(world.pipeline.lakehouse.gold(g).open())) for g in new}
    assert held == {world.pipeline.lakehouse.gold(g).open().version() for g in new}
    assert world.refresh().tables == []


def test_a_run_that_partitions_the_table_after_another_one_did_brings_nothing_old_back(world, monkeypatch):
    world.write_old_form({"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}})
    world.gold("rummy", {"a": 7, "b": 7})

    def overtaken():
        # After the comparison of versions, right before the new table is written.
        world.gold("0123", {"a": 8})
        world.refresh()
        assert world.shown()["0123"] == {"a": 8}

    happened = at_point(monkeypatch, f"before_create:{world.table.name}", overtaken)
    assert world.refresh().errors == []
    assert happened
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}


def test_a_crash_after_the_table_was_partitioned_leaves_a_table_that_the_next_run_compares(world):
    world.write_old_form({"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}})
    world.gold("rummy", {"a": 7, "b": 7})

    def crashed(create, *given, **options):
        create(*given, **options)
        raise PowerCut

    with at_creation(crashed), pytest.raises(PowerCut):
        world.refresh()
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 3}}
    state = world.pipeline.progress.read(world.key)
    # A run that saw newer gold was overwritten, and has noted that it was done.
    world.gold("0123", {"a": 8})
    world.pipeline.progress.update(world.key, lambda now: replace(now, floors=now.floors | {Layer.UNIFIED: world.batch}))
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}
    assert state.floor(Layer.UNIFIED) < world.batch
