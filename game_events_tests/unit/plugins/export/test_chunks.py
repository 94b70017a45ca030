"""Rows cut into chunks: limits, neighbours, keys."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.lakehouse.tables import EXPORT_CALLS, Table
from game_events.plugins.export.tables import ChunkOrigin
from game_events.plugins.export.worker import CutChunks

SCHEMA = pa.schema(
    [
        ("_group", pa.string()),
        ("_batch", pa.int64()),
        ("_place", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_person", pa.string()),
        ("json", pa.string()),
    ]
)
ORIGINS = {g: ChunkOrigin(f"silver_{g}_events", g, "era", 0, 9) for g in ("chess", "uno")}


def rows(*sizes, group="chess", begin=0):
    made = [
        {
            "_group": group,
            "_batch": 1,
            "_place": "t",
            "_kafka_partition": 0,
            "_kafka_offset": begin + n,
            "_person": f"p{n}",
            "json": '"' + "x" * (size - 2) + '"',
        }
        for n, size in enumerate(sizes)
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


def cut(parts, rows_per_call=3, bytes_per_call=100, origins=ORIGINS):
    task = CutChunks(Table(EXPORT_CALLS, "/nowhere"), "gamer_id", 5, rows_per_call, bytes_per_call, origins)
    return pa.concat_tables(task.cut(parts, 2))


def counts(table):
    chunks: dict[int, list[int]] = {}
    for chunk, offset in zip(table.column("chunk").to_pylist(), table.column("_kafka_offset").to_pylist(), strict=True):
        chunks.setdefault(chunk, []).append(offset)
    return list(chunks.values())


def test_a_chunk_ends_with_its_rows_its_bytes_its_game_whichever_comes_first():
    found = cut([pa.concat_tables([rows(10, 10, 10, 10, 60, 60, 10), rows(10, group="uno", begin=7)])])
    assert counts(found) == [[0, 1, 2], [3, 4], [5, 6], [7]]
    assert found.column("chunk")[0].as_py() == 2 << 32
    assert set(found.column("slice").to_pylist()) == {5}


def test_a_row_with_more_bytes_than_a_call_may_have_is_a_call_of_its_own():
    assert counts(cut([rows(10, 500, 10)])) == [[0], [1], [2]]


@given(st.lists(st.integers(2, 60), min_size=1, max_size=60), st.integers(1, 7), st.integers(1, 9))
def test_where_spark_cuts_its_batches_changes_no_chunk(sizes, rows_per_call, batch):
    whole = rows(*sizes)
    parts = [whole.slice(at, batch) for at in range(0, whole.num_rows, batch)]
    one, many = (cut(p, rows_per_call, 100) for p in ([whole], parts))
    assert one.equals(many)
    assert one.column("json").to_pylist() == whole.column("json").to_pylist()
    for chunk in counts(one):
        size = sum(sizes[n] + 1 for n in chunk)
        assert len(chunk) <= rows_per_call
        assert size <= 100 or len(chunk) == 1


def test_keys_are_the_same_each_time_and_others_for_another_content():
    same, again = (cut([rows(10, 10, 10, 10)]) for _ in range(2))
    assert same.equals(again)
    assert len(set(same.column("key").to_pylist())) == 2
    other = cut([rows(10, 10, 10, 10)], origins={"chess": ChunkOrigin("silver_chess_events", "chess", "another era", 0, 9)})
    assert not set(other.column("key").to_pylist()) & set(same.column("key").to_pylist())


def test_rows_without_coordinates_are_named_by_their_place_among_the_changed_ones():
    bare = rows(10, 10, 10, 10).drop_columns(["_kafka_offset"])
    bare = bare.add_column(4, SCHEMA.field("_kafka_offset"), pa.nulls(4, pa.int64()))
    found = cut([bare])
    assert list(zip(found.column("first").to_pylist(), found.column("last").to_pylist(), strict=True)) == [
        ("#0", "#2"),
        ("#0", "#2"),
        ("#0", "#2"),
        ("#3", "#3"),
    ]


@pytest.mark.parametrize("parts", [[], [rows()]])
def test_no_rows_are_no_chunks(parts):
    task = CutChunks(Table(EXPORT_CALLS, "/nowhere"), "gamer_id", 5, 3, 100, ORIGINS)
    assert list(task.cut(parts, 0)) == []
