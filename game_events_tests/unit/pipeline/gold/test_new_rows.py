"""Silver's small files, read by a worker, and which columns it reads."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from game_events.extending import GoldAggregate, count, max_of, sum_of
from game_events.lakehouse.tables import paths
from game_events.pipeline.gold.new_rows import SmallFiles, columns_of_measures

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


def test_a_task_gives_the_rows_of_its_files_with_null_for_what_they_lack(gold_world):
    for game in ("uno", "go", "chess"):
        for batch in (1, 2):
            gold_world.silver(game, batch, **({"level": [batch]} if game == "uno" else {}))
    lakehouse = gold_world.pipeline.lakehouse
    files = {game: [(game, path) for path in paths(lakehouse.silver(game).open())] for game in ("uno", "go", "chess")}
    schema = pa.schema([("gamer_id", pa.string()), ("level", pa.int64()), ("_batch", pa.int64())])
    job = pickle.loads(pickle.dumps(SmallFiles(lakehouse, schema, [[*files["uno"], *files["go"]], files["chess"]])))  # noqa: S301

    def rows(*numbers):
        found = list(job([pa.RecordBatch.from_pydict({"id": list(numbers)})]))
        assert all(part.schema.equals(schema) for part in found)
        return sorted((tuple(row.values()) for part in found for row in part.to_pylist()), key=str)

    assert rows(0) == sorted([("a", 1, 1), ("a", 2, 2), ("a", None, 1), ("a", None, 2)], key=str)
    assert rows(1) == [("a", None, 1), ("a", None, 2)]
    assert rows() == []
