"""Rows for Spark: many small tables come in a few batches, of bounded size, in the schema that Spark was told."""

from __future__ import annotations

import pyarrow as pa

from game_events.workers import rows
from game_events.workers.rows import in_batches

MOST = 10_000
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def tables(count, text="x"):
    return [pa.table({"n": [n], "s": [text]}, schema=SCHEMA) for n in range(count)]


def test_small_tables_come_together_in_their_order():
    (found,) = in_batches(tables(100), SCHEMA, MOST)
    assert found.column("n").to_pylist() == list(range(100))


def test_a_batch_has_a_bounded_number_of_rows_and_bytes(monkeypatch):
    assert [b.num_rows for b in in_batches(tables(100), SCHEMA, 40)] == [40, 40, 20]
    monkeypatch.setattr(rows, "BATCH_BYTES", 1_000)
    found = list(in_batches(tables(20, "x" * 200), SCHEMA, MOST))
    assert sum(b.num_rows for b in found) == 20
    assert max(b.nbytes for b in found) < 1_500


def test_without_rows_there_is_no_batch():
    assert list(in_batches([], SCHEMA, MOST)) == list(in_batches([SCHEMA.empty_table()], SCHEMA, MOST)) == []


def test_a_batch_has_the_types_and_nullability_of_the_schema():
    wanted = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("s", pa.large_string())])
    (found,) = in_batches(tables(3), wanted, MOST)
    assert found.schema.equals(wanted)
