"""What all readings share: the columns of records, their sizes, and tasks."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from game_events.lakehouse.data.columns import RAW_COLUMNS
from game_events.sources.source import RAW_SCHEMA, RECORD_SCHEMA, byte_lengths, columns_of, dealt, header_bytes

BYTES = st.none() | st.binary(max_size=9)
HEADERS = st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": BYTES}), max_size=3)
RECORDS = st.lists(st.fixed_dictionaries({"value": BYTES, "key": BYTES, "headers": HEADERS}), max_size=9)


@given(parts=st.lists(st.integers()), tasks=st.integers(1, 20))
def test_each_part_is_in_one_task_and_no_task_is_empty(parts, tasks):
    found = dealt(parts, tasks)
    assert sorted(part for task in found for part in task) == sorted(parts)
    assert len(found) == max(1, min(tasks, len(parts)))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_columns_that_a_reader_does_not_have_are_null():
    batch = columns_of({"value": pa.array([b"a", None], pa.binary())}, 2)
    assert batch.schema.equals(RECORD_SCHEMA)
    assert [name for name in batch.schema.names if batch.column(name).null_count < 2] == ["value"]
    assert RAW_SCHEMA.names == list(RAW_COLUMNS)


@given(records=RECORDS, start=st.integers(0, 9), size=st.integers(0, 9))
def test_sizes_are_those_of_value_key_and_headers_of_a_part_of_a_batch_too(records, start, size):
    schema = pa.schema([RAW_SCHEMA.field(name) for name in ("value", "key", "headers")])
    batch = pa.RecordBatch.from_pylist(records, schema).slice(start, size)
    some = records[start : start + size]
    headers = [[(h["key"].encode(), h["value"] or b"") for h in record["headers"] or ()] for record in some]
    of_headers = [sum(len(name) + len(value) for name, value in of) for of in headers]
    whole = [len(r["value"] or b"") + len(r["key"] or b"") + h for r, h in zip(some, of_headers, strict=True)]
    found = header_bytes(batch.column("headers"))
    assert found.tolist() == of_headers
    assert (byte_lengths(batch.column("value")) + byte_lengths(batch.column("key")) + found).tolist() == whole
