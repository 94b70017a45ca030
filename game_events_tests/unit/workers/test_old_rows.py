"""Rows of the tables that a job replaces: those with the key of a new row are merged, all others are copied."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.config.settings import Settings
from game_events.errors import LostFileError
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Lakehouse
from game_events.workers.fanout import FanOut
from game_events.workers.rows import OldRows, has_key
from game_events_tests.support.worker_jobs import run

SCHEMA = pa.schema([("player", pa.string()), ("level", pa.int64()), ("n", pa.int64())])
NEW = pa.schema([("_game", pa.string()), *SCHEMA])

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
players, levels = st.none() | st.sampled_from(["ann", "bob", ""]), st.none() | st.integers(0, 2)
keys = st.lists(st.tuples(players, levels, players), max_size=12)


@given(keys, keys, st.integers(0, 3))
def test_a_row_is_found_by_its_key_as_spark_groups_it_with_nulls_equal(wanted, rows, width):
    names = ["a", "b", "c"]
    types = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.string())])
    tables = [pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in part], types) for part in (wanted, rows)]
    found = has_key(tables[1], tables[0].select(names[:width]))
    assert found.to_pylist() == [row[:width] in {key[:width] for key in wanted} or width == 0 for row in rows]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [1.5, float("nan"), None]),
        (pa.bool_(), [True, None]),
        (pa.timestamp("us", tz="UTC"), [EPOCH, None]),
        (pa.date32(), [EPOCH.date(), None]),
        (pa.decimal128(9, 2), [Decimal("1.50"), None]),
        (pa.binary(), [b"a", None, b"\0"]),
    ],
)
def test_keys_of_every_flat_type_are_found(kind, values):
    column = pa.array(values, kind)
    table = pa.table({"a": column, "b": column})
    assert all(has_key(table, table.select(["a"])).to_pylist())
    assert all(has_key(table, table).to_pylist())
    assert not any(has_key(table.slice(1), table.select(["a"]).slice(0, 1)).to_pylist())


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse.of(Settings(lakehouse=str(tmp_path)))


def written(lakehouse, game, rows, schema=SCHEMA) -> list[str]:
    """The rows as two files of the game's gold table."""
    found = []
    for part in (rows[::2], rows[1::2]):
        writer = StagedWriter(lakehouse.gold(game), schema, game)
        writer.write(pa.Table.from_pylist(part, schema))
        found += [file.path for file in writer.close()]
    return found


def old_rows(lakehouse, files, keys=("player",)):
    return OldRows(lakehouse, "player_agg", "_game", keys, SCHEMA, files)


def player(name, n, level=0):
    return {"player": name, "level": level, "n": n}


def batch(**games):
    """New rows of each game."""
    rows = [{"_game": game, **row} for game, found in games.items() for row in found]
    return pa.RecordBatch.from_pylist(rows, NEW)


def files_of(lakehouse, result, game):
    parts = [pq.read_table(Path(lakehouse.gold(game).uri) / file.path).to_pylist() for file in result.files[game]]
    return [tuple(row.values()) for part in parts for row in part]


def test_new_rows_come_with_the_old_rows_of_their_keys_and_no_others(lakehouse):
    files = {"uno": written(lakehouse, "uno", [player("ann", 1), player("bob", 2), player(None, 3)])}
    old = old_rows(lakehouse, files | {"chess": ["not read: no new row is of chess"]})
    new = [batch(uno=[player("ann", 10)], go=[player("ann", 20)]), batch(uno=[player(None, 30), player("eve", 40)])]
    found = Counter((row["_game"], row["player"], row["n"]) for part in old.with_old(new) for row in part.to_pylist())
    expected = [
        ("uno", "ann", 10),
        ("go", "ann", 20),
        ("uno", None, 30),
        ("uno", "eve", 40),
        ("uno", "ann", 1),
        ("uno", None, 3),
    ]
    assert found == Counter(expected)


def test_of_a_game_with_few_old_rows_all_come_along_and_none_is_copied(lakehouse):
    games = ("uno", "chess", "go")
    files = {game: written(lakehouse, game, [player("ann", 1), player("bob", 2)]) for game in games}
    old = replace(old_rows(lakehouse, files), small=frozenset({"uno", "go"}))
    new = [batch(uno=[player("ann", 10)], chess=[player("ann", 20)])]
    found = Counter((row["_game"], row["player"], row["n"]) for part in old.with_old(new) for row in part.to_pylist())
    old_of_uno = [("uno", "ann", 1), ("uno", "bob", 2)]
    assert found == Counter([("uno", "ann", 10), ("chess", "ann", 20), *old_of_uno, ("chess", "ann", 1)])
    task = FanOut(lakehouse, "gold", "_game", SCHEMA, old=old.without_small())
    merged = [batch(uno=[player("ann", 11), player("bob", 2)], chess=[player("ann", 21)])]
    result = run(task, merged)
    assert Counter(files_of(lakehouse, result, "uno")) == Counter([("ann", 0, 11), ("bob", 0, 2)])
    assert Counter(files_of(lakehouse, result, "chess")) == Counter([("ann", 0, 21), ("bob", 0, 2)])


def test_old_rows_of_many_games_come_in_a_few_batches(lakehouse):
    games = [f"game_{n}" for n in range(50)]
    files = {game: written(lakehouse, game, [player("ann", 1), player("bob", 2)]) for game in games}
    new = [batch(**{game: [player("ann", 10)] for game in games})]
    for small in (frozenset(), frozenset(games)):
        found = list(replace(old_rows(lakehouse, files), small=small).with_old(new))
        assert len(found) == 2, "the new rows, and the old ones"
        assert found[1].num_rows == 50 * (1 + bool(small))


def sent_by_spark(rows):
    """The batch as Spark sends it: all its columns share one buffer."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@pytest.mark.parametrize("game", ["uno", "a game without old rows"])
def test_of_new_rows_that_were_passed_on_only_the_keys_stay_in_memory(lakehouse, game):
    wide = pa.schema([*NEW, ("text", pa.string())])
    old = old_rows(lakehouse, {"uno": written(lakehouse, "uno", [player("ann", 1), player("bob", 1)])})
    rows = pa.RecordBatch.from_pylist([{"_game": game, **player(f"p{n}", n), "text": "x" * 10_000} for n in range(100)], wide)
    before = pa.total_allocated_bytes()
    passing = old.with_old(sent_by_spark(rows) for _ in range(20))
    for _ in range(20):
        next(passing)
    assert pa.total_allocated_bytes() - before < 3 * rows.nbytes


def test_a_tables_new_file_has_the_new_rows_and_the_old_rows_of_other_keys(lakehouse):
    files = {game: written(lakehouse, game, [player("ann", 1), player("bob", 2), player(None, 3)]) for game in ("uno", "chess")}
    task = FanOut(lakehouse, "gold", "_game", SCHEMA, old=old_rows(lakehouse, files))
    result = run(task, [batch(uno=[player("ann", 11)]), batch(uno=[player("eve", 4)], go=[player("ann", 5)])])
    assert Counter(files_of(lakehouse, result, "uno")) == Counter([("ann", 0, 11), ("eve", 0, 4), ("bob", 0, 2), (None, 0, 3)])
    assert files_of(lakehouse, result, "go") == [("ann", 0, 5)]
    assert result.files.keys() == {"uno", "go"}, "a game without new rows keeps its files"


def test_a_column_that_the_old_files_lack_is_null_and_a_struct_gets_its_new_fields(lakehouse):
    narrow = pa.schema([("player", pa.string()), ("best", pa.struct([("score", pa.int64())]))])
    wide = pa.schema(
        [("player", pa.string()), ("best", pa.struct([("score", pa.int64()), ("mode", pa.string())])), ("n", pa.int64())]
    )
    files = {
        "uno": written(lakehouse, "uno", [{"player": "ann", "best": {"score": 1}}, {"player": "bob", "best": None}], narrow)
    }
    old = OldRows(lakehouse, "player_agg", "_game", ("player",), wide, files)
    (ann, bob) = [row for part in old.others("uno", pa.table({"player": pa.array(["eve"])})) for row in part.to_pylist()]
    assert (ann, bob) == (
        {"player": "ann", "best": {"score": 1, "mode": None}, "n": None},
        {"player": "bob", "best": None, "n": None},
    )


def test_an_aggregate_without_keys_replaces_its_only_row(lakehouse):
    files = {"uno": written(lakehouse, "uno", [player("ann", 1)])}
    old = old_rows(lakehouse, files, keys=())
    assert sum(part.num_rows for part in old.others("uno", pa.table({"n": [1]}).select([]))) == 0
    found = [row["n"] for part in old.with_old([batch(uno=[player("x", 7)])]) for row in part.to_pylist()]
    assert found == [7, 1]


def test_old_files_that_cannot_be_read_fail_their_game_only(lakehouse):
    files = {game: written(lakehouse, game, [player("ann", 1), player("bob", 2)]) for game in ("uno", "chess")}
    (Path(lakehouse.gold("uno").uri) / files["uno"][1]).unlink()
    task = FanOut(lakehouse, "gold", "_game", SCHEMA, old=old_rows(lakehouse, files))
    result = run(task, [batch(uno=[player("eve", 1)], chess=[player("eve", 1)])])
    assert result.failed.keys() == {"uno"}
    assert len(files_of(lakehouse, result, "chess")) == 3
    with pytest.raises(LostFileError, match=files["uno"][1]):
        list(old_rows(lakehouse, files).with_old([batch(uno=[player("bob", 1)])]))
