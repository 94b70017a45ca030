"""Rows that silver takes from bronze, each game's from its own start."""

from types import SimpleNamespace

from game_events.pipeline.silver.stage import GameStart, rows_from


def test_each_games_rows_are_those_above_its_own_start(spark):
    source = SimpleNamespace(pipeline=SimpleNamespace(spark=spark, settings=SimpleNamespace(entity_column="game_name")))
    bronze = [(game, batch) for game in ("uno", "rummy", "chess") for batch in (1, 2)]
    rows = spark.createDataFrame(bronze, "game_name string, _batch bigint")
    starts = {"uno": GameStart(None, 1, 1), "rummy": GameStart(None, None, 0), "chess": GameStart(None, 2, 2)}
    found = rows_from(source, rows, starts).select("game_name", "_batch").collect()
    assert sorted(map(tuple, found)) == [("rummy", 1), ("rummy", 2), ("uno", 2)]
