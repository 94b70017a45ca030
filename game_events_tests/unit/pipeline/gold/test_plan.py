"""Gold's plans need no Spark: the tables' logs say which rows are new, and what they are merged with."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from game_events.extending import PLAYER_AGG, GoldAggregate
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.pipeline.gold.plan import plan_games
from game_events_tests.support.tables import put


def test_a_game_without_gold_is_aggregated_from_all_rows_and_one_with_gold_from_the_new_ones(gold_world):
    for batch in (1, 2):
        gold_world.silver("new", batch)
        gold_world.silver("old", batch)
    gold_world.gold("old", 1)
    found, failed = gold_world.plans("new", "old")
    assert failed == {}
    assert [(p.full, p.taken, p.batch, p.above, len(p.new.files), len(p.old.files)) for p in found.values()] == [
        (True, None, 2, 0, 2, 0),
        (False, 1, 2, 1, 1, 1),
    ]


def test_a_game_that_has_all_rows_is_planned_only_for_a_full_refresh_and_one_without_silver_never(gold_world):
    gold_world.silver("uno", 2)
    gold_world.gold("uno", 2)
    assert gold_world.plans("uno", "none") == ({}, {})
    found, _ = gold_world.plans("uno", "none", full=True)
    assert {game: (plan.full, plan.above, plan.old.files) for game, plan in found.items()} == {"uno": (True, 0, [])}


def test_columns_that_cannot_be_merged_are_made_of_all_rows_of_the_keys_with_new_rows_and_other_keys_are_kept(gold_world):
    for batch in (1, 2):
        gold_world.silver("new", batch)
        gold_world.silver("old", batch)
    by_key = GoldAggregate(PLAYER_AGG, "by_key", keys=("gamer_id",))
    gold_world.gold("old", 1)
    found, _ = plan_games(replace(gold_world.run(), aggregate=by_key), ["new", "old"])
    assert {game: (p.full, len(p.new.files), len(p.old.files)) for game, p in found.items()} == {
        "new": (True, 2, 0),
        "old": (False, 1, 1),
    }
    assert found["new"].same_keys is None
    assert len(found["old"].same_keys.files) == 2


def test_a_key_that_is_a_struct_is_aggregated_from_all_rows(gold_world):
    for batch in (1, 2):
        gold_world.silver("uno", batch, gamer_id=pa.array([{"id": "a"}]))
    gold_world.gold("uno", 1)
    found, _ = gold_world.plans("uno")
    assert [(plan.full, plan.old.files) for plan in found.values()] == [(True, [])]


def test_a_game_that_cannot_be_aggregated_fails_alone(gold_world):
    put(gold_world.pipeline.lakehouse.silver("bare"), {"_batch": [2]}, {gold_world.bronze.app: 2}, {BATCH_INFO: "2"})
    gold_world.silver("uno", 2)
    found, failed = gold_world.plans("bare", "uno")
    assert list(found) == ["uno"]
    assert failed["bare"].startswith("silver has no column 'gamer_id', 'event_timestamp'")


def test_a_restored_gold_table_is_aggregated_from_all_rows(gold_world):
    for batch in (1, 2):
        gold_world.silver("uno", batch)
        gold_world.gold("uno", batch)
    assert gold_world.plans("uno") == ({}, {})
    gold_world.pipeline.lakehouse.gold("uno").open().restore(0)
    found, _ = gold_world.plans("uno")
    assert [(plan.full, plan.above, plan.old.files) for plan in found.values()] == [(True, 0, [])]
