"""Entries of data files: by them alone a reader leaves files out, and answers counts and bounds."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from game_events.plugins.iceberg.files import address_of, data_files
from game_events.plugins.iceberg.schema import iceberg_schema, partition_of
from game_events_tests.support.tables import put

ROWS = pa.table(
    {
        "gamer_id": ["anna", "zoe"],
        "gamer_id__int64": pa.array([1, 2], pa.int64()),
        "n": pa.array([1, None], pa.int32()),
        "f": [0.5, 1.5],
        "at": pa.array([datetime(2026, 1, 1, 0, 0, 0, 1, UTC)] * 2, pa.timestamp("us", "UTC")),
        "day": [date(1970, 1, 2), date(1970, 1, 3)],
        "nested": [{"a": 1}, None],
    }
)


def entries(table):
    handle = table.open()
    schema = iceberg_schema(handle)
    files = [file.path for file in handle.files()]
    made = list(data_files(table, handle, files, schema, partition_of(schema, [])))
    return made, {field.name: field.field_id for field in schema.fields}


def test_an_entry_says_rows_nulls_and_exact_bounds(silver):
    put(silver, ROWS)
    (entry,), ids = entries(silver)
    assert entry.record_count == 2
    assert entry.file_path == f"file://{silver.uri}/{silver.open().files()[0].path}"
    assert (entry.value_counts[ids["n"]], entry.null_value_counts[ids["n"]]) == (2, 1)
    assert entry.lower_bounds[ids["n"]] == (1).to_bytes(4, "little")
    assert entry.upper_bounds[ids["day"]] == (2).to_bytes(4, "little")
    micros = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000) + 1
    assert entry.upper_bounds[ids["at"]] == micros.to_bytes(8, "little")


def test_no_entry_has_a_value_of_the_persons_columns(silver):
    put(silver, ROWS)
    (entry,), ids = entries(silver)
    for column in ("gamer_id", "gamer_id__int64", "f", "nested"):
        assert ids[column] not in {**entry.lower_bounds, **entry.upper_bounds}
    assert b"anna" not in entry.lower_bounds.values()


def test_files_of_other_engines_have_no_bounds_as_theirs_may_be_rounded(silver):
    put(silver, ROWS)
    write_deltalake(silver.uri, ROWS, mode="append")
    made, ids = entries(silver)
    others = [entry for entry in made if ".v2." not in entry.file_path]
    assert [(entry.lower_bounds, entry.upper_bounds) for entry in others] == [({}, {})]
    assert others[0].null_value_counts[ids["n"]] == 1


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("part-1.parquet", "file:///lake/t/part-1.parquet"),
        ("game_name=a%20b/part-1.parquet", "file:///lake/t/game_name=a b/part-1.parquet"),
        ("s3://bucket/elsewhere/part-1.parquet", "s3://bucket/elsewhere/part-1.parquet"),
    ],
)
def test_an_address_is_not_encoded(path, address):
    table = type("Table", (), {"uri": "/lake/t", "is_local": True})
    assert address_of(table, path) == address
