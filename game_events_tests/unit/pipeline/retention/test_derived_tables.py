"""What is made from rows that are gone by age: gold keeps its history, and full refreshes that would lose some are refused."""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa
import pytest

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.transactions import Txn, expired_rows
from game_events.lakehouse.system_tables import Mark
from game_events.pipeline.bronze.full_refresh import refuse_without_expired
from game_events.pipeline.checks.audits import gold_equals_recompute
from game_events.pipeline.gold.plan import GoldRun, commit_of, due, plan_games, player_agg, scope
from game_events.pipeline.quality import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.refresh import SilverRun, starts_of
from game_events.pipeline.silver.stage import SilverInput
from game_events_tests.support.tables import put
from game_events_tests.unit.pipeline.retention.world import World, events

ACCEPTED = {"allow_refresh_without_expired": True}


@pytest.fixture
def silver_lost(tmp_path):
    """Silver has lost two of three rows, and gold has aggregated all."""
    world = World(tmp_path, {"silver": 30})
    world.load([90, 80])
    world.load([1])
    world.maintained()
    return world


@pytest.fixture
def bronze_lost(tmp_path):
    """Bronze has lost two of three rows, and silver has all."""
    world = World(tmp_path, {"bronze": 30})
    world.load([90, 80])
    world.load([1])
    world.maintained()
    return world


def accepting(world):
    return replace(world.pipeline, settings=world.pipeline.settings.model_copy(update=ACCEPTED))


def gold_plans(world, pipeline=None, *, full=False):
    pipeline = pipeline or world.pipeline
    return plan_games(GoldRun(pipeline, player_agg(pipeline.settings), world.identity, full), ["uno"])


def test_rows_that_go_from_silver_make_gold_neither_due_nor_planned(tmp_path):
    world = World(tmp_path, {"silver": 30})
    hourly = replace(player_agg(world.pipeline.settings), interval_s=3_600.0)
    world.load([90, 1])
    committed = Mark(committed_at=time.time(), definition=scope(hourly))
    world.pipeline.progress.update(world.identity.key, lambda now: now.marked(hourly.layer, committed).done(hourly.layer, 1))
    before = world.pipeline.progress.read(world.identity.key)
    assert world.maintained()["silver_uno_events"].expired == 1
    after = world.pipeline.progress.read(world.identity.key)
    assert (after, due(hourly, after)) == (before, False)
    assert gold_plans(world) == ({}, {})


def test_gold_keeps_the_history_that_silver_has_lost(silver_lost):
    silver_lost.load([2])
    rows = events([3], silver_lost.batch + 1)
    silver_lost.bronze(rows)
    silver_lost.silver(rows)
    plans, failed = gold_plans(silver_lost)
    assert failed == {}
    assert (plans["uno"].full, plans["uno"].above, plans["uno"].new.rows) == (False, 3, 1)


def test_a_full_refresh_of_gold_from_less_silver_is_refused_unless_it_is_accepted(silver_lost):
    plans, failed = gold_plans(silver_lost, full=True)
    assert plans == {}
    assert "lacks 2 rows by age" in failed["uno"]
    assert "GAME_EVENTS_ALLOW_REFRESH_WITHOUT_EXPIRED=true" in failed["uno"]
    pipeline = accepting(silver_lost)
    plans, failed = gold_plans(silver_lost, pipeline, full=True)
    assert failed == {}
    run = GoldRun(pipeline, player_agg(pipeline.settings), silver_lost.identity, full=True)
    schema = silver_lost.pipeline.lakehouse.gold("uno").open().schema()
    commit(commit_of(run, plans["uno"], pa.schema(schema), []))
    assert expired_rows(silver_lost.pipeline.lakehouse.gold("uno").open()) == 2
    # What is not there any more cannot be lost again.
    plans, failed = gold_plans(silver_lost, full=True)
    assert (list(plans), failed) == (["uno"], {})


def test_an_erasure_does_not_make_gold_again_from_less_silver(silver_lost):
    silver = silver_lost.pipeline.lakehouse.silver("uno")
    put(silver, events([], 1), {Txn.ERASURES: 1})
    plans, failed = gold_plans(silver_lost)
    assert failed == {}
    assert (plans["uno"].full, plans["uno"].taken, plans["uno"].above) == (False, None, 2)
    # With all its rows, silver is aggregated again.
    other = silver_lost.pipeline.lakehouse.silver("uno")
    put(other, events([], 1), {Txn.ERASURES: 2, Txn.ROWS_EXPIRED: 0})
    assert gold_plans(silver_lost)[0]["uno"].full


def test_the_audit_leaves_out_games_whose_gold_has_more_than_silver_and_says_so(silver_lost):
    found = gold_equals_recompute(silver_lost.pipeline)
    assert (found.passed, found.summary) == (True, "1 games left out: gold has rows that are gone from silver by age")


def test_a_new_aggregate_is_made_from_the_rows_that_there_are(silver_lost):
    aggregate = replace(player_agg(silver_lost.pipeline.settings), name="other")
    plans, failed = plan_games(GoldRun(silver_lost.pipeline, aggregate, silver_lost.identity, full=False), ["uno"])
    assert (plans["uno"].full, plans["uno"].expired, failed) == (True, 2, {})


def starts(pipeline, *, full):
    bronze = pipeline.bronze.open()
    source = SilverInput.of(pipeline, bronze)
    run = SilverRun(pipeline, source, pipeline.progress.read(source.bronze.key), RunReport(), frozenset({"uno"}), full)
    decisions = Decisions.read(pipeline, source.bronze.key)
    return starts_of(run, decisions, ["uno"], redecide=False)["uno"]


def test_a_full_refresh_of_silver_from_less_bronze_is_refused_unless_it_is_accepted(bronze_lost):
    assert not starts(bronze_lost.pipeline, full=False).replace
    refused = starts(bronze_lost.pipeline, full=True)
    assert "silver of uno would be made again from a bronze that lacks 2 rows by age" in refused
    assert starts(accepting(bronze_lost), full=True).replace


def test_a_silver_that_was_restored_is_not_made_again_from_less_bronze(bronze_lost):
    bronze_lost.pipeline.lakehouse.silver("uno").open().restore(0)
    assert "lacks 2 rows by age" in starts(bronze_lost.pipeline, full=False)


def test_a_silver_that_has_lost_the_same_rows_may_be_refreshed(bronze_lost):
    bronze_lost.pipeline = replace(
        bronze_lost.pipeline, settings=bronze_lost.pipeline.settings.model_copy(update={"retention_days": {"silver": 30}})
    )
    bronze_lost.maintained()
    assert starts(bronze_lost.pipeline, full=True).replace
    refuse_without_expired(bronze_lost.pipeline)


def test_a_full_refresh_of_bronze_is_refused_where_silver_would_lose_rows_with_it(bronze_lost):
    with pytest.raises(DataError, match="silver would be made again without 2 rows that bronze_events has lost by age"):
        refuse_without_expired(bronze_lost.pipeline)
    refuse_without_expired(accepting(bronze_lost))
