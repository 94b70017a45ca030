"""Gold's plans need no Spark: the tables' logs say which rows are new, and what they are merged with."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from game_events.config.settings import load_settings
from game_events.lakehouse.commits.incarnations import BronzeIdentity, silver_app
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.gold.aggregates import player_agg
from game_events.pipeline.gold.plan import GoldRun, plan_games
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")


@pytest.fixture
def world(tmp_path):
    pipeline = Pipeline(load_settings(lakehouse=str(tmp_path)), no_spark)
    put(pipeline.bronze, {"game_name": ["uno"], "_batch": [2]}, advance={"batch": 2})
    return pipeline, BronzeIdentity.of(pipeline.bronze.open())


def silver(world, game, batch, **columns):
    pipeline, bronze = world
    rows = {"gamer_id": ["a"], "event_timestamp": pa.array([0], TIME), **columns, "_batch": [batch]}
    put(pipeline.lakehouse.silver(game), rows, advance={bronze.app: batch}, info={"bronze_batch": str(batch)})


def gold(world, game, batch):
    pipeline, _ = world
    app = silver_app(pipeline.lakehouse.silver(game).open())
    put(pipeline.lakehouse.gold(game), {"gamer_id": ["a"]}, advance={app: batch}, info={"bronze_batch": str(batch)})


def run_of(world, *, full=False):
    pipeline, bronze = world
    return GoldRun(pipeline, player_agg(pipeline.settings), bronze, full)


def plans(world, *games, full=False):
    return plan_games(run_of(world, full=full), games, StructType())


def test_a_game_without_gold_is_aggregated_from_all_rows_and_one_with_gold_from_the_new_ones(world):
    for batch in (1, 2):
        silver(world, "new", batch)
        silver(world, "old", batch)
    gold(world, "old", 1)
    found, failed = plans(world, "new", "old")
    assert failed == {}
    assert [(p.full, p.taken, p.batch, p.above, len(p.new.files), len(p.old.files)) for p in found.values()] == [
        (True, None, 2, 0, 2, 0),
        (False, 1, 2, 1, 1, 1),
    ]


def test_a_game_that_has_all_rows_is_planned_only_for_a_full_refresh_and_one_without_silver_never(world):
    silver(world, "uno", 2)
    gold(world, "uno", 2)
    assert plans(world, "uno", "none") == ({}, {})
    found, _ = plans(world, "uno", "none", full=True)
    assert {game: (plan.full, plan.above, plan.old.files) for game, plan in found.items()} == {"uno": (True, 0, [])}


def test_a_key_that_is_a_struct_is_aggregated_from_all_rows(world):
    for batch in (1, 2):
        silver(world, "uno", batch, gamer_id=pa.array([{"id": "a"}]))
    gold(world, "uno", 1)
    found, _ = plans(world, "uno")
    assert [(plan.full, plan.old.files) for plan in found.values()] == [(True, [])]


def test_a_game_that_cannot_be_aggregated_fails_alone(world):
    pipeline, bronze = world
    put(pipeline.lakehouse.silver("bare"), {"_batch": [2]}, advance={bronze.app: 2}, info={"bronze_batch": "2"})
    silver(world, "uno", 2)
    found, failed = plans(world, "bare", "uno")
    assert list(found) == ["uno"]
    assert failed["bare"].startswith("silver has no column 'gamer_id', 'event_timestamp'")
