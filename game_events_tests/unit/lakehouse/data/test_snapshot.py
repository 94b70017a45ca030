"""Files of a version: which there are, and their rows with Arrow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from game_events.errors import LostFileError
from game_events.lakehouse.data import reading
from game_events.lakehouse.data.reading import read_parts, row_count, selection
from game_events.lakehouse.data.staging import StagedWriter, discard
from game_events.lakehouse.open_table import DataFile
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Lakehouse, add_actions
from game_events_tests.support.altered_tables import without_statistics
from game_events_tests.support.tables import data_files, put

SCHEMA = pa.schema(
    [("n", pa.int64()), ("best", pa.struct([("score", pa.int64()), ("mode", pa.string())])), ("more", pa.int32())]
)

MOST_BYTES = 1024 * 1024


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).table("t")


@pytest.mark.parametrize("whole_bytes", [0, 1024 * 1024])
def test_a_file_that_is_read_as_a_whole_has_the_rows_of_one_that_is_not(table, whole_bytes):
    table = replace(table, sizes=Sizes(read_whole_bytes=whole_bytes))
    narrow = pa.schema([("n", pa.int32()), ("best", pa.struct([("score", pa.int64())]))])
    writer = StagedWriter(table, narrow, group_rows=3)
    writer.write(pa.Table.from_pylist([{"n": n, "best": {"score": -n} if n else None} for n in range(8)], narrow))
    parts = list(read_parts(table, SCHEMA, [file.path for file in writer.close()]))
    assert [part.num_rows for part in parts] == [3, 3, 2]
    assert all(part.schema.equals(SCHEMA) for part in parts)
    expected = [{"n": n, "best": {"score": -n, "mode": None} if n else None, "more": None} for n in range(8)]
    assert [row for part in parts for row in part.to_pylist()] == expected


def test_small_files_are_told_from_large_ones_by_rows_and_bytes(table):
    handle = put(table, {"n": [1, 2], "_batch": [1, 1]})
    handle = put(table, {"n": [3], "_batch": [2]})
    whole = selection(handle)
    (one,), (two,) = (sorted(part.paths) for part in whole.split(1, MOST_BYTES))
    assert {one, two} == set(whole.paths)
    assert [part.rows for part in whole.split(1, MOST_BYTES)] == [1, 2]
    assert [part.rows for part in whole.split(2, MOST_BYTES)] == [3, 0]
    unknown = DataFile("a", 10, None, None, None)
    large = DataFile("b", MOST_BYTES + 1, 1, None, None)
    small, others = reading.FileSelection("", (unknown, large)).split(5, MOST_BYTES)
    assert (small.data, others.data) == ((), (unknown, large))


def test_reading_and_discarding_files_of_a_table_that_is_gone_does_not_make_its_folder(table):
    writer = StagedWriter(table, pa.schema([("n", pa.int64())]))
    writer.write(pa.table({"n": [1]}))
    files = writer.close()
    assert Path(table.uri, files[0].path).is_file()
    Path(table.uri, files[0].path).unlink()
    Path(table.uri).rmdir()
    discard(table, files)
    with pytest.raises(LostFileError, match=f"{files[0].path} is gone, though the table's log lists it"):
        list(read_parts(table, SCHEMA, [files[0].path]))
    assert not Path(table.uri).exists()


def test_times_of_any_year_are_read_as_another_engine_writes_them(table):
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    micros = [0, 1_700_000_000_123_456, 253_402_300_799_999_999, -62_135_596_800_000_000, None]
    (path,) = selection(put(table, {"at": pa.array(micros, schema.field(0).type)})).paths
    theirs = pq.read_table(f"{table.uri}/{path}")
    pq.write_table(theirs, f"{table.uri}/{path}", use_deprecated_int96_timestamps=True, store_schema=False)
    (rows,) = read_parts(table, schema, [path])
    assert rows.schema.equals(schema)
    assert rows.column("at").cast(pa.int64()).to_pylist() == micros


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def garbled(path):
    """The metadata at the end of the file is none."""
    data = path.read_bytes()
    path.write_bytes(data[:-40] + b"\xff" * 32 + data[-8:])


def of_another_type(path):
    pq.write_table(pa.table({"n": ["no number"]}), path)


@pytest.mark.parametrize("damage", [cut, garbled, of_another_type])
@pytest.mark.parametrize("whole_bytes", [0, 1024 * 1024])
def test_a_file_that_cannot_be_read_is_named(table, damage, whole_bytes):
    table = replace(table, sizes=Sizes(read_whole_bytes=whole_bytes))
    (path,) = selection(put(table, {"n": [1, 2]})).paths
    damage(Path(table.uri, path))
    with pytest.raises(LostFileError, match=rf"{path} cannot be read: \S"):
        list(read_parts(table, SCHEMA, [path]))


def test_rows_that_the_log_does_not_count_are_counted_in_the_files(table):
    for batch in (1, 2):
        put(table, {"n": [1, 2, 3], "_batch": [batch] * 3})
    without_statistics(table)
    put(table, {"n": [1], "_batch": [3]})
    handle = table.open()
    assert row_count(handle) == 7
    assert sorted(add_actions(handle)["num_records"].to_pylist()) == [1, 3, 3]
    found = selection(handle, 2)
    assert (found.rows, found.rows_known, found.exact) == (7, True, False), "without bounds no file is left out"


def test_a_file_of_which_nothing_says_how_many_rows_it_has_is_not_counted_as_empty(table):
    put(table, {"n": [1, 2, 3], "_batch": [1] * 3})
    without_statistics(table)
    (name,) = data_files(table)
    Path(table.uri, name).unlink()
    handle = table.open()
    with pytest.raises(LostFileError, match=f"{name} is gone or damaged, though the table's log lists it"):
        row_count(handle)
    assert not selection(handle).rows_known
