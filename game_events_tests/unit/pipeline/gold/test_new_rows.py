"""Which columns of silver the workers read."""

from __future__ import annotations

import pytest

from game_events.extending import GoldAggregate, count, max_of, sum_of
from game_events.pipeline.gold.execute import columns_of_measures

COLUMNS = ("gamer_id", "score", "Level", "a.b", "über", "best", "score_2")


@pytest.mark.parametrize(
    ("expression", "used"),
    [
        ("score", {"score"}),
        ("SCORE + level", {"score", "Level"}),
        ("`a.b`", {"a.b"}),
        ("best.score", {"best", "score"}),
        ("length(ÜBER)", {"über"}),
        ("CASE WHEN score_2>1 THEN 1 END", {"score_2"}),
        ("1", set()),
        ("DISTINCT struct(*)", set(COLUMNS)),
        ("score * 2", set(COLUMNS)),
    ],
)
def test_the_columns_that_a_measure_may_use_are_those_whose_names_its_sql_has(expression, used):
    aggregate = GoldAggregate("a", "merge", keys=("gamer_id",), measures={"one": count(), "two": max_of(expression)})
    assert columns_of_measures(aggregate, COLUMNS) == {"gamer_id", *used}


def test_columns_of_all_measures_are_used():
    aggregate = GoldAggregate("a", "merge", measures={"one": sum_of("score"), "two": max_of("level")})
    assert columns_of_measures(aggregate, COLUMNS) == {"score", "Level"}


def test_of_a_measure_about_rows_files_no_columns_are_known_so_spark_reads_them():
    aggregate = GoldAggregate("a", "merge", measures={"one": count(), "two": max_of("_Metadata.file_path")})
    assert columns_of_measures(aggregate, COLUMNS) is None
