"""Gold's commits: each replaces exactly what its plan was made from."""

from __future__ import annotations

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.restores import restored
from game_events.pipeline.fanout.worker import FanOutResult
from game_events.pipeline.gold.commit import commit_plans
from game_events.pipeline.gold.execute import GAME, Staged
from game_events.pipeline.quality.expressions import RuleColumns


def nothing_staged(columns):
    return Staged(FanOutResult(), pa.schema(columns), RuleColumns.of((), "gold", GAME))


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
    outcome = commit_plans(gold_world.run(), planned, nothing_staged([("gamer_id", pa.string())]))
    handle = lakehouse.gold("uno").open()
    assert (outcome.again, set(outcome.landed)) == (({"uno"}, set()) if meanwhile else (set(), {"uno"}))
    assert restored(handle) is meanwhile, "the next plan is a full one"
    assert handle.to_pyarrow_table().num_rows == (1 if meanwhile else 2), "a game without new rows keeps its files"
