"""Silver has the same rows whether its workers read bronze's files or Spark sends them the rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.tables import paths
from game_events.pipeline import fanout
from game_events.pipeline.quality import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver import stage
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.pipeline.silver.stage import SilverInput, Staging
from game_events.workers.fanout import Routing
from game_events_tests.integration.gold.test_new_rows import VALUES
from game_events_tests.support.tables import put

GAMES = ("uno", "go", "chess")


def batch(number, count, *, wide):
    """Rows of a batch; the later file has columns that the earlier one lacks, and a struct with another field."""
    rows = {
        "game_name": [(*GAMES, "no/game", None)[n % 5] for n in range(count)],
        "gamer_id": [f"p{n % 7}" for n in range(count)],
        "event_timestamp": pa.array(range(count), pa.timestamp("us", tz="UTC")),
        "_kafka_topic": ["events"] * count,
        "_kafka_partition": pa.array([n % 2 for n in range(count)], pa.int32()),
        "_kafka_offset": pa.array(range(number * count, (number + 1) * count), pa.int64()),
        "_batch": pa.array([number] * count, pa.int64()),
    }
    if not wide:
        inner = pa.struct([("s", pa.string())])
        return rows | {"text": ["a", None] * (count // 2), "nested": pa.array([{"s": "old"}] * count, inner)}
    return rows | {name: pa.array([value, None] * (count // 2), kind) for name, (kind, value) in VALUES.items()}


def contents(lakehouse, games):
    """Game -> columns of its silver table, and its rows as another reader finds them."""
    found = {}
    for game in games:
        table = DeltaTable(f"{lakehouse}/silver_{game}_events")
        rows = table.to_pyarrow_table()
        found[game] = (rows.schema.names, sorted(map(repr, rows.to_pylist())))
    return found


@pytest.mark.parametrize("how_many", ["one task", "several tasks of a file", "tasks that share the games"])
def test_rows_of_every_type_are_the_same_by_spark_and_by_workers(make_settings, make_pipeline, monkeypatch, tmp_path, how_many):
    many, shared = how_many != "one task", how_many == "tasks that share the games"
    if shared:
        monkeypatch.setattr(fanout, "MOST_OF_ONE_GAME", 100)
    if many:
        for part in (fanout, stage):
            monkeypatch.setattr(part, "TASK_ROWS", 100)
        monkeypatch.setattr(fanout, "MIN_ROWS_UNSHUFFLED", 1)
        monkeypatch.setattr(fanout, "FILE_ROWS", 1)
    by_workers, asked = [], Staging.file_rows
    monkeypatch.setattr(Staging, "file_rows", lambda *given: by_workers.append(asked(*given)) or by_workers[-1])
    found = {}
    for how in ("workers", "Spark"):
        if how == "Spark":
            monkeypatch.setattr(Staging, "_is_plain", False)
        pipeline = make_pipeline(make_settings(lakehouse=str(tmp_path / how)))
        put(pipeline.bronze, batch(1, 200, wide=False), {Txn.BATCH: 1})
        report = RunReport()
        refresh_silver(pipeline, report)
        # The second batch comes in one file with the first: its rows alone are new.
        parts = [pa.table(batch(1, 200, wide=False)), pa.table(batch(2, 300, wide=True))]
        both = pa.concat_tables(parts, promote_options="permissive")
        put(pipeline.bronze, both, {Txn.BATCH: 2}, rewritten=frozenset(paths(pipeline.bronze.open())))
        refresh_silver(make_pipeline(pipeline.settings), report)
        assert report.success, report.errors
        assert report.rows("silver") == 3 * (40 + 60)
        found[how] = contents(pipeline.settings.lakehouse, GAMES)
    assert len(by_workers) == 2
    assert [len(read.tasks) * read.shares > 1 for read in by_workers] == [many] * 2
    assert [read.shares > 1 for read in by_workers] == [shared] * 2
    assert found["workers"] == found["Spark"]
    assert {len(rows) for _, rows in found["workers"].values()} == {100}


def test_a_part_of_the_games_is_staged_without_the_others(make_settings, make_pipeline):
    pipeline = make_pipeline(make_settings())
    source = SilverInput.of(pipeline, put(pipeline.bronze, batch(1, 200, wide=True), {Txn.BATCH: 1}))
    decisions = Decisions.read(pipeline, source.bronze.key)
    work = Staging(source, 0, Routing(), 0, None, decisions)
    result = work.stage({"uno", "go"})
    assert {game: result.rows(game) for game in result.games} == {"uno": 40, "go": 40}
    assert result.refused == {}, "rows of no game are counted by the pass over all games"
