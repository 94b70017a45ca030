"""Gold's commits: each replaces exactly what its plan was made from."""

from __future__ import annotations

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.restores import restored
from game_events.pipeline.fanout.worker import FanOutResult
from game_events.pipeline.gold.commit import commit_plans
from game_events.pipeline.gold.execute import GAME, Staged
from game_events.pipeline.quality.expressions import RuleColumns
from game_events_tests.unit.pipeline.gold.test_plan import gold, plans, run_of, silver, world

__all__ = ["world"]


def nothing_staged(columns):
    return Staged(FanOutResult(), pa.schema(columns), RuleColumns.of((), "gold", GAME))


@pytest.mark.parametrize("meanwhile", [True, False], ids=["restored meanwhile", "as planned"])
def test_a_plan_without_new_rows_is_made_again_if_gold_was_restored_meanwhile(world, meanwhile):
    pipeline, _ = world
    silver(world, "uno", 1)
    gold(world, "uno", 1)
    gold(world, "uno", 1)
    silver(world, "uno", 2)
    planned, _ = plans(world, "uno")
    if meanwhile:
        pipeline.lakehouse.gold("uno").open().restore(0)
    outcome = commit_plans(run_of(world), planned, nothing_staged([("gamer_id", pa.string())]))
    handle = pipeline.lakehouse.gold("uno").open()
    assert (outcome.again, set(outcome.landed)) == (({"uno"}, set()) if meanwhile else (set(), {"uno"}))
    assert restored(handle) is meanwhile, "the next plan is a full one"
    assert handle.to_pyarrow_table().num_rows == (1 if meanwhile else 2), "a game without new rows keeps its files"
