"""Readers that skip files and row groups by statistics find what they find when they read everything; Spark's test is
game_events_tests/integration/lakehouse/test_spark_reads.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.lakehouse.data.staging import SAMPLE_ROWS, StagedWriter
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.catalog.sql import TablesSql
from game_events_tests.support.edge_values import (
    Predicate,
    compacted,
    copied,
    merged,
    predicates,
    written,
)
from game_events_tests.support.readers import DeltaRs, DuckDb, Polars, PyArrow
from game_events_tests.support.reconciliation import database
from game_events_tests.support.tables import put

#: Reader -> predicates for which it contradicts itself, whatever the statistics say, and why.
KNOWN_FAULTS: dict[type, tuple[Callable[[Predicate], bool], str]] = {
    DeltaRs: (
        lambda p: p.op == "in" and any(isinstance(v, float) and v == 0 for v in p.value),
        "DataFusion compares -0.0 and 0.0 as equal by `=`, and in some plans as different by `IN`",
    )
}


@pytest.fixture(scope="module", params=[*enumerate([written, compacted, merged, copied])], ids=lambda made: made[1].__name__)
def numbered(request, tmp_path_factory):
    """A form of the table, and its number."""
    number, make = request.param
    return number, make(Lakehouse(str(tmp_path_factory.mktemp("edges"))))


@pytest.mark.parametrize("reader", [DeltaRs, DuckDb, Polars, PyArrow], ids=lambda reader: reader.__name__)
def test_a_predicate_finds_the_rows_that_it_is_true_for(reader, numbered):
    """Of each form of the table each reader is asked a part of the predicates."""
    number, table = numbered
    is_faulty, _ = KNOWN_FAULTS.get(reader, (lambda _: False, ""))
    # Those that open every file for each predicate are asked fewer.
    wanted = [p for p in predicates()[number :: 4 if reader in {DeltaRs, Polars} else 15] if not is_faulty(p)]
    asked = reader(table)
    whole, found = asked.read(wanted), asked.found(wanted)
    assert dict(zip(wanted, found, strict=True)) == dict(zip(wanted, whole, strict=True))


@pytest.mark.parametrize("name", ["吉野", "\U0001f600", "\U00020bb7\u91ce", "\U0002f800", "\U0010ffff"], ids=ascii)
def test_a_text_of_any_characters_is_found_by_pyarrow_and_deleted_by_delta_rs(name, tmp_path):
    """And after a checkpoint, which has the same statistics."""
    table = Lakehouse(str(tmp_path)).silver("uno")
    for n, text in enumerate(["anna", "zoe", name]):
        put(table, {"_batch": [n], "player_name": [text]})
    for _ in range(2):
        found = DeltaTable(table.uri).to_pyarrow_dataset().to_table(filter=pc.field("player_name") == name)
        assert found.column("player_name").to_pylist() == [name]
        DeltaTable(table.uri).create_checkpoint()
    same = name.replace("'", "''")
    assert DeltaTable(table.uri).delete(f"player_name = '{same}'")["num_deleted_rows"] == 1


NESTED = pa.struct([("f", pa.float32()), ("n", pa.int64())])
FLOATING = pa.schema(
    [
        ("f", pa.float64()),
        ("s", NESTED),
        ("l", pa.list_(NESTED)),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("n", pa.int64()),
    ]
)


@pytest.mark.parametrize("count", [3, SAMPLE_ROWS])
def test_floating_point_columns_have_neither_bounds_nor_a_dictionary_and_their_nulls_are_counted(count, tmp_path):
    table = Lakehouse(str(tmp_path)).silver("uno")
    row = {"f": 1.0, "s": {"f": 1.0, "n": 1}, "l": [{"f": 1.0, "n": 1}], "m": [("a", 1.0)], "n": 1}
    rows = [row] * (count - 1) + [dict.fromkeys(row)]
    writer = StagedWriter(table, FLOATING, group_rows=2 * count // 3)
    writer.write(pa.Table.from_pylist(rows, schema=FLOATING))
    (file,) = writer.close()
    metadata = pq.read_metadata(f"{table.uri}/{file.path}")
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(number) for number in range(group.num_columns)]
        exact = {c.path_in_schema for c in columns if c.statistics is not None and c.statistics.has_null_count}
        assert {c.path_in_schema for c in columns if c.has_dictionary_page} == exact
        assert exact == {"s.n", "l.list.element.n", "m.key_value.key", "n"}
    assert json.loads(file.stats) == {
        "numRecords": count,
        "minValues": {"n": 1},
        "maxValues": {"n": 1},
        "nullCount": {"f": 1, "n": 1},
    }


@pytest.mark.parametrize("make", [written, compacted], ids=lambda make: make.__name__)
def test_game_events_sql_counts_nan_and_zeros_as_duckdb_does_in_memory(make, tmp_path):
    table = make(Lakehouse(str(tmp_path)))
    files = [unquote(uri.removeprefix("file://")) for uri in DeltaTable(table.uri).file_uris()]
    with TablesSql(Lakehouse(str(tmp_path))) as tables, database().cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE held AS FROM read_parquet({files})")
        for condition in ("f > 5", "f <> 1", "f = 'NaN'::DOUBLE", "f = 0.0", "f >= 0.0", "f < 0.0", "st.f > 5", "f32 <> 1"):
            expected = cursor.execute(f"SELECT count(*) FROM held WHERE {condition}").fetchall()
            assert list(tables.query(f"SELECT count(*) FROM {table.name} WHERE {condition}")[1]) == expected, condition


def test_deltalakes_pyarrow_dataset_misses_rows_of_columns_without_bounds_in_its_own_tables_too(tmp_path):
    """A fault of deltalake 1.6.6, which docs/reading.md names: once it is gone, so may be that line.

    Its filter of a file without bounds of a column is that the column is greater than NULL.
    """
    write_deltalake(tmp_path, pa.table({"n": [1], "f": [float("nan")]}))
    dataset = DeltaTable(tmp_path).to_pyarrow_dataset()
    assert dataset.to_table().num_rows == 1
    assert dataset.to_table(filter=pc.field("f") != 1).num_rows == 0


@pytest.mark.parametrize("reader", [DeltaRs, DuckDb], ids=lambda reader: reader.__name__)
def test_counts_and_ends_by_statistics_are_those_of_the_rows(reader, numbered):
    _, table = numbered
    asked = reader(table)
    rows = asked.whole()
    columns = ["s", "t", "local", "d", "i", "i32", "u", "price"]
    held = [[value for value in rows.column(column).to_pylist() if value is not None] for column in columns]
    assert asked.count() == rows.num_rows
    assert asked.ends(columns) == [end(values) for values in held for end in (min, max)]
