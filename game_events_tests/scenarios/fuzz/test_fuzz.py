"""Random steps from fixed seeds, over files and over Kafka. `make fuzz SEEDS=1-20` has any number of them."""

from __future__ import annotations

import re
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.scenarios.fuzz.__main__ import seeds
from game_events_tests.scenarios.fuzz.running import FILES, KAFKA, Fuzz
from game_events_tests.scenarios.fuzz.steps import STEPS, Step, sequence
from game_events_tests.scenarios.fuzz.world import World
from game_events_tests.support.edge_values import Predicate
from game_events_tests.support.everywhere import holds, tried_of
from game_events_tests.support.readers import Polars

#: What fits into a minute or two.
STEPS_EACH, STEPS_LONG = 25, 40


@pytest.mark.parametrize(("seed", "steps"), [(1, STEPS_EACH), (2, STEPS_LONG)])
def test_every_row_is_in_its_place_after_any_steps_over_files(spark: SparkSession, seed: int, steps: int) -> None:
    """And all readers of Delta's tables and of Iceberg's have the same ones."""
    failure = Fuzz(spark, FILES, None, print).failure(sequence(seed, steps))
    assert failure is None, str(failure)


@pytest.mark.parametrize("seed", [3])
def test_every_row_is_in_its_place_after_any_steps_over_kafka(spark: SparkSession, stack: StackState, seed: int) -> None:
    failure = Fuzz(spark, KAFKA, stack, print).failure(sequence(seed, STEPS_EACH))
    assert failure is None, str(failure)


def test_a_table_that_is_wrong_is_found_and_the_steps_that_lead_to_it_are_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a step writes a row that was never sent."""

    def smuggle(world: World, draw: Random) -> None:
        STEPS["produce"][1](world, draw)
        world.truth.fates.popitem()

    monkeypatch.setitem(STEPS, "smuggle", (0, smuggle))
    steps = [Step("produce", 1), Step("smuggle", 7), Step("look", 1)]
    fuzz = Fuzz(spark, FILES, None)
    failure = fuzz.failure(steps)
    assert failure is not None
    assert "that must not be there" in failure.difference
    assert "--replay 'produce:1 smuggle:7 look:1'" in str(failure)
    assert [step.name for step in fuzz.shorter(failure, float("inf")).steps] == ["smuggle", "look"]


def test_a_reader_that_finds_other_rows_is_told_with_the_table_and_the_query(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here Polars finds nothing by predicates."""
    monkeypatch.setattr(Polars, "found", lambda _, wanted: [[] for _ in wanted])
    failure = Fuzz(spark, FILES, None).failure([Step("produce", 3), Step("run", 1), Step("read", 1)])
    assert failure is not None
    assert re.search(
        r"bronze_events by Polars: Predicate\(column='\w+', op='.*\) finds 0 rows, must find \d+", failure.difference
    )
    assert "--replay 'produce:3 run:1 read:1'" in str(failure)
    assert "by DuckDB: " not in failure.difference


def test_a_predicate_holds_as_in_sql() -> None:
    nan = float("nan")
    assert holds(Predicate("f", ">", 1.5), nan)
    assert holds(Predicate("f", "=", nan), nan)
    assert not holds(Predicate("f", ">", nan), float("inf"))
    assert holds(Predicate("f", "in", (1.0, 0.0)), -0.0)
    assert holds(Predicate("s", ">", "\uffff"), "\U00010000"), "texts are compared by their code points"
    assert not holds(Predicate("s", "<>", "a"), None)
    assert holds(Predicate("s", "null"), None)


def test_a_column_of_32_bits_is_compared_with_numbers_of_32_bits_as_some_readers_round_others() -> None:
    assert 5e-324 in tried_of(pa.float64())
    narrow = tried_of(pa.float32())
    assert 5e-324 not in narrow
    assert {repr(value) for value in narrow} >= {"nan", "inf", "-inf", "-0.0", "0.0"}


def test_a_seed_has_the_same_steps_each_time_and_each_kind_of_step_comes() -> None:
    assert sequence(5, 40) == sequence(5, 40)
    assert sequence(5, 40)[:10] != sequence(6, 40)[:10]
    assert {step.name for step in sequence(7, 2_000)} == set(STEPS)
    assert Step.parse(str(Step("run", 12))) == Step("run", 12)


def test_seeds_are_ranges_and_single_numbers() -> None:
    assert seeds("3,5-7,9") == [3, 5, 6, 7, 9]
