"""Gold's plans need no Spark: the tables' logs say which rows are new, and what they are merged with."""

from __future__ import annotations

import pyarrow as pa

from game_events.lakehouse.data.snapshot import BATCH_INFO
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
