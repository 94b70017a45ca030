"""How many values rows hold, and how batches of payloads that could become many are cut."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.decoding.projection import (
    MAX_BATCH_CELLS,
    MAX_RECORD_CELLS,
    MAX_SHORT_TEXT,
    Shape,
    cells_of,
    cuts,
    pieces,
)

PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
INNER = pa.struct([("x", pa.int64()), ("pairs", pa.list_(PAIR)), ("y", pa.bool_())])
KINDS = (
    pa.int64(),
    PAIR,
    pa.list_(pa.int64()),
    pa.list_(INNER),
    pa.map_(pa.string(), PAIR),
    pa.list_(pa.list_(PAIR)),
    pa.map_(pa.string(), pa.list_(pa.int64())),
    pa.struct([("deep", pa.struct([("l", pa.list_(INNER)), ("n", pa.int64())]))]),
)


def in_lists(kind, value):
    """The same count, value by value of Python."""
    if value is None:
        return 0
    if pa.types.is_struct(kind):
        return sum(in_lists(f.type, value[f.name]) for f in kind)
    if pa.types.is_map(kind):
        return sum(cells_of(kind.key_type) + cells_of(kind.item_type) + in_lists(kind.item_type, item) for _, item in value)
    if pa.types.is_list(kind):
        return sum(cells_of(kind.value_type) + in_lists(kind.value_type, item) for item in value)
    return 0


def values(kind):
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({f.name: values(f.type) for f in kind})
    if pa.types.is_map(kind):
        return st.none() | st.lists(st.tuples(st.sampled_from("abc"), values(kind.item_type)), max_size=3)
    if pa.types.is_list(kind):
        return st.none() | st.lists(values(kind.value_type), max_size=3)
    return st.none()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_values_in_lists_are_counted_row_by_row(kind, data):
    rows = data.draw(st.lists(values(kind), max_size=6))
    batch = pa.record_batch({"n": pa.nulls(len(rows), pa.int64()), "v": pa.array(rows, kind)})
    first = data.draw(st.integers(0, len(rows)))
    found = Shape.of(batch.schema.types).in_lists(batch.slice(first))
    assert found.tolist() == [in_lists(kind, value) for value in rows[first:]]


def test_cells_are_the_fixed_parts_of_rows_of_spark():
    """Of a struct its place and its mask of NULLs, of a list in an element its place and its length."""
    assert [cells_of(kind) for kind in (pa.int64(), pa.string(), pa.decimal128(20, 0), PAIR, INNER)] == [1, 2, 3, 5, 6]
    shape = Shape.of([pa.int64(), PAIR, pa.list_(INNER), pa.map_(pa.string(), pa.int64())])
    assert (shape.cells, shape.widest) == (12, 6)
    assert Shape.of([pa.int64()]).widest == 0
    assert Shape.of([pa.list_(pa.list_(PAIR))]).widest == 5


@given(loads=st.lists(st.integers(0, 20), max_size=30))
def test_parts_are_as_large_as_they_may_be(loads):
    found = list(cuts(np.array(loads, np.int64), 20))
    assert [at for part in found for at in range(*part)] == list(range(len(loads)))
    for begin, end in found:
        assert sum(loads[begin:end]) <= 20
        assert end == len(loads) or sum(loads[begin : end + 1]) > 20
    assert list(cuts(np.array([1, 50, 1], np.int64), 20)) == [(0, 1), (1, 2), (2, 3)]


def test_only_payloads_that_could_become_too_much_are_parted():
    narrow, wide = Shape.of([pa.int64()] * 10), Shape.of([pa.list_(pa.struct([(str(n), pa.int64()) for n in range(1_000)]))])
    lengths = np.full(50_000, 1_000, np.int32)
    assert list(pieces(narrow, lengths, 2)) == [(0, 50_000)]
    assert list(pieces(narrow, lengths[:0], 2)) == [(0, 0)]
    # 500 elements of 1,000 values each.
    found = list(pieces(wide, lengths[:200], 2))
    assert {end - begin for begin, end in found[:-1]} == {MAX_BATCH_CELLS // 501_002}
    assert len(list(pieces(wide, lengths[:200], 1))) > len(found)
    flat = Shape.of([pa.int64()] * 10_000)
    assert {end - begin for begin, end in list(pieces(flat, np.zeros(50_000, np.int32), 2))[:-1]} == {MAX_BATCH_CELLS // 10_000}
    # Of numbers that are packed, each has a byte.
    assert len(list(pieces(Shape.of([pa.list_(pa.int64())]), np.array([MAX_BATCH_CELLS] * 2), 2))) == 2


@pytest.mark.parametrize("octets", [1, 2])
def test_texts_that_one_byte_stands_for_fit_into_one_array_of_a_batch(octets):
    parts = pieces(Shape.of([pa.list_(pa.string())]), np.full(200, 2**20), octets)
    assert max(end - begin for begin, end in parts) * 2**20 * MAX_SHORT_TEXT < 2**31
    assert MAX_RECORD_CELLS // cells_of(pa.string()) * MAX_SHORT_TEXT < 2**31
