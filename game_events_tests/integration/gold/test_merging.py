"""Gold made of partial rows is the gold that Spark's aggregate makes of the same rows, for every type that is taken."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.data.reading import BATCH_INFO, read_parts
from game_events.pipeline.gold.execute import Staged, execute, merge_partials
from game_events.pipeline.gold.plan import GamePlan, GoldRun, commit_of, plan_games, player_agg
from game_events.workers.rows import COUNT, FIRST, GAME, KEY, KEYS, LAST, TIMES, PartialAggregate, PartialRows
from game_events_tests.conftest import MakePipeline
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.gold import GoldWorld

OF = PartialAggregate("game_name", "gamer_id", "event_timestamp")
LOW, HIGH = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): [None, "", "a", "A", " a", "\u00e4", "a\u0308", "\U0001f3b2", "a\0b"],
    pa.bool_(): [None, True, False],
    pa.int64(): [None, 0, -1, 2**63 - 1, -(2**63), 7],
    TIMES[0]: [None, LOW, HIGH, datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)],
}


def events(key: pa.DataType, time: pa.DataType, batch: int) -> dict[str, Any]:
    """Every key with some of the times; other ones in the second batch, and fewer keys."""
    pairs = [(k, t) for n, k in enumerate(VALUES[key][batch - 1 :]) for t in VALUES[time][(n + batch) % 3 :: 2]]
    return {"gamer_id": pa.array([k for k, _ in pairs], key), "event_timestamp": pa.array([t for _, t in pairs], time)}


def partials_of(run: GoldRun, plans: Mapping[str, GamePlan]) -> dict[str, pa.Table]:
    """The partial rows of the plans' new rows, of two tasks."""
    found = {}
    for game, plan in plans.items():
        silver, tasks = pa.schema(plan.silver.schema()), (PartialRows(OF), PartialRows(OF))
        for number, rows in enumerate(read_parts(run.pipeline.lakehouse.silver(game), silver, plan.new.paths, 4)):
            tasks[number % 2].add(rows)
        together = pa.concat_tables([table for task in tasks for table in task.tables()])
        found[game] = together.filter(pc.equal(together.column(GAME), game)).select([KEY, COUNT, FIRST, LAST])
    return found


def rows(run: GoldRun, staged: Staged) -> dict[str, list[str]]:
    """Game -> the rows of its files."""
    lakehouse = run.pipeline.lakehouse
    return {
        game: sorted(
            repr(row) for file in files for row in pq.read_table(f"{lakehouse.gold(game).uri}/{file.path}").to_pylist()
        )
        for game, files in staged.result.files.items()
    }


@pytest.mark.parametrize("time", TIMES, ids=str)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_partial_rows_give_the_gold_that_spark_gives(
    tmp_path: Path, make_pipeline: MakePipeline, key: pa.DataType, time: pa.DataType
) -> None:
    world = GoldWorld(tmp_path)
    pipeline = make_pipeline(world.pipeline.settings)
    run = GoldRun(pipeline, player_agg(pipeline.settings), world.bronze, full=False)
    for batch in (1, 2):
        for game in ("uno", "go")[batch - 1 :]:
            columns = events(key, time, batch)
            count = len(columns["gamer_id"])
            columns |= {"game_name": [game] * count, "_batch": [batch] * count}
            put(pipeline.lakehouse.silver(game), columns, {world.bronze.app: batch}, {BATCH_INFO: str(batch)})
        plans, failed = plan_games(run, ["uno", "go"])
        assert not failed
        by_spark = execute(run, plans)
        by_arrow = merge_partials(run, plans, partials_of(run, plans))
        assert by_arrow is not None
        assert rows(run, by_arrow) == rows(run, by_spark)
        assert by_arrow.schema.equals(by_spark.schema, check_metadata=True)
        assert by_arrow.games == by_spark.games == plans.keys()
        for game, plan in plans.items():
            commit(commit_of(run, plan, by_arrow.schema, by_arrow.result.files[game]))
    assert plan_games(run, ["uno", "go"]) == ({}, {})
