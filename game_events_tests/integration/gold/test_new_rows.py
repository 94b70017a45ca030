"""Silver's new rows are the same whether Spark or its workers read the files."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from game_events.lakehouse.data.reading import FileSelection
from game_events.lakehouse.data.spark_files import spark_schema
from game_events.lakehouse.tables import paths
from game_events.pipeline.gold import execute as module
from game_events.pipeline.gold.execute import new_rows
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.gold import GoldWorld

INNER = pa.struct([("n", pa.int32())])
#: A value of each type that a column of silver may have, and NULL.
VALUES = {
    "flag": (pa.bool_(), True),
    "small": (pa.int32(), -7),
    "long": (pa.int64(), 2**62),
    "real": (pa.float32(), 1.5),
    "double": (pa.float64(), float("inf")),
    "money": (pa.decimal128(20, 2), Decimal("12.34")),
    "text": (pa.string(), "Zoë"),
    "bytes": (pa.binary(), b"\x00\xff"),
    "day": (pa.date32(), date(1969, 12, 31)),
    "at": (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)),
    "local": (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5)),
    "list": (pa.list_(pa.int64()), [1, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
    "nested": (
        pa.struct([("s", pa.string()), ("l", pa.list_(pa.struct([("n", pa.int32())])))]),
        {"s": "x", "l": [{"n": 1}, None]},
    ),
}


def silver_of_every_type(world):
    """Three games with rows of two batches; only one of them has all columns."""
    wide = {name: pa.array([value], kind) for name, (kind, value) in VALUES.items()}
    empty = {name: pa.array([None], kind) for name, (kind, _) in VALUES.items()}
    for game, columns in (("wide", [wide, empty]), ("uno", [{}, {}]), ("go", [{}, {}])):
        for batch, more in enumerate(columns, 1):
            world.silver(game, batch, game_name=[game], **more)
    world.gold("go", 1)


@pytest.mark.parametrize("few", [True, False])
def test_rows_of_every_type_are_the_same_by_spark_by_workers_and_by_both(tmp_path, make_pipeline, monkeypatch, few):
    world = GoldWorld(tmp_path)
    silver_of_every_type(world)
    plans, failed = world.plans("wide", "uno", "go")
    assert not failed
    assert {game: plan.new.rows for game, plan in plans.items()} == {"wide": 2, "uno": 2, "go": 1}
    pipeline = make_pipeline(world.pipeline.settings)
    columns = spark_schema(plans["wide"].silver.schema())

    def rows():
        found = new_rows(pipeline, plans, columns, few=few, needed=columns.names)
        return sorted(found.select("_game", *columns.names).collect(), key=lambda row: (row["_game"], row["_batch"]))

    monkeypatch.setattr(module, "TASK_ROWS", 2)
    by_workers = rows()
    expected = [("go", 2), ("uno", 1), ("uno", 2), ("wide", 1), ("wide", 2)]
    assert [(row["_game"], row["_batch"]) for row in by_workers] == expected
    (full,) = (row for row in by_workers if row["text"] == "Zoë")
    assert (full["money"], full["nested"]["l"][0]["n"], full["map"]) == (Decimal("12.34"), 1, {"a": 1, "b": None})
    monkeypatch.setattr(module, "SMALL_FILE_ROWS", -1)
    assert rows() == by_workers
    monkeypatch.setattr(module, "BOTH_S", 0)
    split = FileSelection.split
    monkeypatch.setattr(module, "SMALL_FILE_ROWS", 5_000)
    monkeypatch.setattr(FileSelection, "split", lambda s, n, size: split(s, n if "uno" in s.root else -1, size))
    assert rows() == by_workers


def test_rows_of_batches_that_gold_has_are_left_out_of_a_file_with_rows_of_later_ones(tmp_path, make_pipeline):
    world = GoldWorld(tmp_path)
    world.silver("uno", 1, game_name=["uno"])
    world.gold("uno", 1)
    times = pa.array([0, 1], pa.timestamp("us", tz="UTC"))
    joined = {"gamer_id": ["a", "b"], "event_timestamp": times, "game_name": ["uno"] * 2, "_batch": [1, 2]}
    silver = world.pipeline.lakehouse.silver("uno")
    put(silver, joined, {world.bronze.app: 2}, rewritten=frozenset(paths(silver.open())))
    plans, _ = world.plans("uno")
    assert not plans["uno"].new.exact
    columns = spark_schema(plans["uno"].silver.schema())
    found = new_rows(make_pipeline(world.pipeline.settings), plans, columns, few=True, needed=["gamer_id"])
    assert [tuple(row) for row in found.select("_game", "gamer_id").collect()] == [("uno", "b")]
