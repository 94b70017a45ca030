"""Gold's commits: each replaces exactly what its plan was made from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from game_events.extending import PLAYER_AGG, GoldAggregate
from game_events.lakehouse.commits.group import commit_games
from game_events.lakehouse.commits.transactions import Txn, restored, silver_app
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.tables import Layer
from game_events.pipeline.gold.plan import COUNT, commit_of, plan_games
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.tables import committed_files, data_files, forget_older, put, rows
from game_events_tests.support.worlds.gold import TIME


def committed(world, plans):
    """Commit plans without a staged file."""
    return commit_rows(world.run(), plans, pa.schema([("gamer_id", pa.string())]).empty_table(), [])


def commit_rows(run, plans, new, files):
    """Commit plans with the files of new rows."""
    commits = {game: partial(commit_of, run, plan, new.schema, files) for game, plan in plans.items()}
    return commit_games(commits, "gold_game_committed", run.pipeline.settings)


@pytest.mark.parametrize("meanwhile", [True, False], ids=["restored meanwhile", "as planned"])
def test_a_plan_without_new_rows_is_made_again_if_gold_was_restored_meanwhile(gold_world, meanwhile):
    lakehouse = gold_world.pipeline.lakehouse
    gold_world.silver("uno", 1)
    gold_world.gold("uno", 1)
    gold_world.gold("uno", 1)
    gold_world.silver("uno", 2)
    planned, _ = gold_world.plans("uno")
    if meanwhile:
        lakehouse.gold("uno").open().restore(0)
    outcome = committed(gold_world, planned)
    handle = lakehouse.gold("uno").open()
    assert (outcome.again, set(outcome.landed)) == (({"uno"}, set()) if meanwhile else (set(), {"uno"}))
    assert restored(handle) is meanwhile, "the next plan is a full one"
    assert handle.to_pyarrow_table().num_rows == (1 if meanwhile else 2), "a game without new rows keeps its files"


def test_a_plan_from_rows_of_silver_that_were_replaced_does_not_come_last(gold_world):
    gold_world.silver("uno", 1)
    gold_world.gold("uno", 1)
    gold_world.silver("uno", 2)
    late, _ = gold_world.plans("uno")
    rows = {"gamer_id": ["b"], "event_timestamp": pa.array([0], TIME), "_batch": [2]}
    silver, app = gold_world.pipeline.lakehouse.silver("uno"), gold_world.bronze.app
    put(silver, rows, set_transactions={app: 2, Txn.INCARNATION: 1}, info={BATCH_INFO: "2"})
    newer, _ = gold_world.plans("uno")
    assert set(committed(gold_world, newer).landed) == {"uno"}
    assert committed(gold_world, late).again == {"uno"}


def test_a_plan_is_committed_although_the_log_has_lost_meanwhile_what_it_was_made_from(gold_world):
    """A job that lasts longer than the log's retention, beside maintenance."""
    gold = gold_world.pipeline.lakehouse.gold("uno")
    gold_world.silver("uno", 1)
    for _ in range(14):
        gold_world.gold("uno", 1)
    gold_world.silver("uno", 2)
    planned, _ = gold_world.plans("uno")
    gold.open().create_checkpoint()
    assert forget_older(gold) > 0
    assert planned["uno"].gold.is_newest()
    outcome = committed(gold_world, planned)
    assert (set(outcome.landed), outcome.failed) == ({"uno"}, {})


def test_a_gold_table_that_is_replaced_is_noted_for_the_unified_table_before_the_job_begins(gold_world):
    gold_world.silver("uno", 1)
    gold_world.gold("uno", 1)
    with pytest.raises(pytest.fail.Exception, match="Spark was started"):
        refresh_gold(gold_world.pipeline, RunReport(), frozenset({"uno"}), full=True)
    assert gold_world.pipeline.progress.read(gold_world.bronze.key).failed_in(Layer.UNIFIED) == {"uno"}


@pytest.mark.parametrize("mode", ["merge", "recompute"])
def test_an_own_aggregate_that_gives_other_types_than_its_table_has_is_refused_and_leaves_no_file(gold_world, mode):
    own = GoldAggregate("visits", mode, keys=("gamer_id",), definition="1f" * 32)
    run, table = replace(gold_world.run(), aggregate=own), gold_world.pipeline.lakehouse.gold("uno", own.name)
    numbers, texts = pa.table({"gamer_id": ["a"], "n": [1]}), pa.table({"gamer_id": ["a"], "n": ["one"]})

    def refresh(batch, new):
        gold_world.silver("uno", batch)
        plans, _ = plan_games(run, ["uno"])
        return commit_rows(run, plans, new, staged(table, new))

    assert set(refresh(1, numbers).landed) == {"uno"}
    refused = refresh(2, texts)
    assert (refused.landed, set(refused.failed)) == ({}, {"uno"})
    assert "gives other types than the table has: n is bigint in the table and string in the rows" in refused.failed["uno"]
    assert (table.open().version(), data_files(table)) == (0, committed_files(table))
    assert set(refresh(3, numbers).landed) == {"uno"}


def test_columns_that_the_settings_have_changed_may_have_other_types(gold_world):
    gold_world.silver("uno", 1)
    table = gold_world.pipeline.lakehouse.gold("uno")
    before = {silver_app(gold_world.pipeline.lakehouse.silver("uno").open()): 1, Txn.AGGREGATE.of(PLAYER_AGG): 5}
    put(table, {"gamer_id": ["a"], COUNT: ["one"]}, before, {BATCH_INFO: "1"})
    plans, _ = gold_world.plans("uno")
    new = pa.table({"gamer_id": ["a"], COUNT: [1]})
    outcome = commit_rows(gold_world.run(), plans, new, staged(table, new))
    assert (set(outcome.landed), outcome.failed) == ({"uno"}, {})
    assert rows(table) == [("a", 1)]
