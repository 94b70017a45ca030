"""Files that nobody sees yet: complete, of bounded size, with statistics that are true."""

import json
import math
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data import staging
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.staging import (
    ROW_GROUP_BYTES,
    ROW_GROUP_CELLS,
    SAMPLE_ROWS,
    SMALL_FILE_BYTES,
    STATISTICS_CHARS,
    StagedFile,
    StagedWriter,
    discard,
    repeated_columns,
    staged,
)
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.jvm_arrow import NESTED, as_the_jvm_sends_it
from game_events_tests.support.reconciliation import database
from game_events_tests.support.tables import SCHEMA, data_files

TIME = pa.timestamp("us", tz="UTC")


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).table("t")


def numbers(values):
    return pa.table({"n": pa.array(values, pa.int64()), "s": [str(v) for v in values]}, schema=SCHEMA)


def test_a_row_group_has_a_bounded_number_of_bytes(table):
    large = pa.table({"n": pa.array(range(12), pa.int64()), "s": ["x" * (ROW_GROUP_BYTES // 12)] * 12}, schema=SCHEMA)
    writer = StagedWriter(table, SCHEMA)
    for first in range(0, 12, 3):
        writer.write(large.slice(first, 3))  # each keeps all of it in memory
    (file,) = writer.close()
    metadata = pq.ParquetFile(Path(table.uri) / file.path).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [3, 3, 3, 3]


def groups(table, file):
    """Rows of each row group."""
    metadata = pq.ParquetFile(Path(table.uri) / file.path).metadata
    return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]


def test_rows_that_come_as_one_large_table_are_several_row_groups(table):
    (file,) = staged(table, pa.table({"n": range(10), "s": ["x" * (ROW_GROUP_BYTES // 4)] * 10}, schema=SCHEMA))
    assert groups(table, file) == [6, 4]  # parts of three rows


def test_a_row_group_has_a_bounded_number_of_values_in_lists(table):
    """Bits here, but Spark holds some ten bytes for each."""
    kind = pa.struct([(f"b{n}", pa.bool_()) for n in range(1_000)])
    lists = pa.array([[None] * (ROW_GROUP_CELLS // 4_020)] * 10, pa.list_(kind))
    rows = pa.table({"n": pa.array(range(10)), "l": lists})
    writer = StagedWriter(table, rows.schema)
    for begin in range(0, 10, 5):
        writer.write(rows.slice(begin, 5))
    (file,) = writer.close()
    assert groups(table, file) == [4, 1, 4, 1]
    assert pq.read_table(Path(table.uri) / file.path).column("n").to_pylist() == list(range(10))
    # Compaction reads no more than a row group at a time.
    assert [part.num_rows for part in read_parts(table, rows.schema, [file.path])] == [4, 1, 4, 1]


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_nested_lists_that_the_jvm_sent_without_any_offset_are_written(table, kind):
    rows = pa.table({"n": pa.array([1, 2], pa.int64()), "nested": as_the_jvm_sends_it(kind, 2)})
    (file,) = staged(table, rows)
    written = pq.read_table(Path(table.uri) / file.path)
    assert written.column("nested").to_pylist() == [[], []]


# --- statistics

TYPES = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "p": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "s": (pa.string(), st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=STATISTICS_CHARS)),
    "t": (
        TIME,
        st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)).map(lambda t: t.replace(tzinfo=UTC)),
    ),
    "d": (pa.date32(), st.dates()),
    "b": (pa.bool_(), st.booleans()),
}
rows_of_all = st.lists(
    st.fixed_dictionaries({n: st.none() | values for n, (_, values) in TYPES.items()}), min_size=1, max_size=9
)


def as_json(value):
    """A value of DuckDB as Delta's statistics write it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value.isoformat() if isinstance(value, date) else value


def duckdb_statistics(path, names):
    """Rows, lowest, highest and NULLs of a file, recounted by DuckDB."""
    low, high, nulls = {}, {}, {}
    wanted = ", ".join(f'min("{name}"), max("{name}"), count(*) - count("{name}")' for name in names)
    with database().cursor() as cursor:
        (count, *found) = cursor.execute(f"SELECT count(*), {wanted} FROM read_parquet(?)", [str(path)]).fetchone()
    for at, name in enumerate(names):
        lowest, highest, nulls[name] = found[3 * at : 3 * at + 3]
        if lowest is not None:
            low[name], high[name] = as_json(lowest), as_json(highest)
    return {"numRecords": count, "minValues": low, "maxValues": high, "nullCount": nulls}


@settings(max_examples=40)
@given(rows=rows_of_all, split=st.integers(1, 4))
def test_statistics_are_what_duckdb_counts(rows, split, tmp_path_factory):
    table = Lakehouse(str(tmp_path_factory.mktemp("staging"))).table("t")
    schema = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
    writer = StagedWriter(table, schema)
    for at in range(0, len(rows), split):
        writer.write(pa.Table.from_pylist(rows[at : at + split], schema=schema))
        writer.flush()  # a row group for each
    (file,) = writer.close()
    assert json.loads(file.stats) == duckdb_statistics(Path(table.uri) / file.path, TYPES)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, math.nan], pa.float64()),  # NaN is the greatest of all for Spark, and Parquet's bounds leave it out
        ([math.nan], pa.float32()),
        ([math.inf, 1.0], pa.float64()),
        (["short", "x" * (STATISTICS_CHARS + 1)], pa.string()),
        (["x" * 5_000], pa.string()),
        ([b"bytes"], pa.binary()),
        ([Decimal(2**64 - 1)], pa.decimal128(20, 0)),
    ],
)
def test_values_without_a_safe_bound_have_only_their_nulls_counted(table, values, kind):
    (file,) = staged(table, pa.table({"v": pa.array([*values, None], kind), "n": pa.array(range(len(values) + 1))}))
    stats = json.loads(file.stats)
    assert stats["nullCount"] == {"v": 1, "n": 0}
    assert stats["minValues"] == {"n": 0}


@pytest.mark.parametrize("micros", [2**63 - 1, -(2**63) + 1, 253_402_300_800_000_000, -62_135_596_800_000_001])
def test_a_time_that_python_cannot_read_is_written_without_bounds(table, micros):
    times = pa.array([0, micros], pa.int64()).cast(TIME)
    (file,) = staged(table, pa.table({"t": times, "n": pa.array([1, 2])}))
    assert json.loads(file.stats)["minValues"] == {"n": 1}
    assert json.loads(file.stats)["nullCount"] == {"t": 0, "n": 0}


def test_one_row_group_without_bounds_leaves_the_file_without_them(table):
    writer = StagedWriter(table, pa.schema([("s", pa.string())]))
    for text in ("a", "x" * 5_000, "b"):
        writer.write(pa.table({"s": [text]}))
        writer.flush()
    assert json.loads(writer.close()[0].stats) == {"numRecords": 3, "minValues": {}, "maxValues": {}, "nullCount": {"s": 0}}


def test_columns_of_nothing_but_null_and_nested_ones_have_no_bounds(table):
    schema = pa.schema([("a", pa.int64()), ("p", pa.struct([("x", pa.int64())])), ("l", pa.list_(pa.int64()))])
    (file,) = staged(table, pa.Table.from_pylist([{"p": {"x": 1}, "l": [1]}] * 3, schema=schema))
    assert json.loads(file.stats) == {"numRecords": 3, "minValues": {}, "maxValues": {}, "nullCount": {"a": 3}}


def test_only_the_first_flat_columns_have_statistics(table):
    (file,) = staged(table, pa.table({f"c{i}": [i] for i in range(40)}))
    assert list(json.loads(file.stats)["minValues"]) == [f"c{i}" for i in range(32)]


def test_delta_reads_the_statistics(table):
    day = datetime(1, 1, 1, tzinfo=UTC)
    rows = pa.table({"t": pa.array([day, day + timedelta(microseconds=1)], TIME), "d": [date(5, 1, 1)] * 2, "b": [True, False]})
    commit(Commit(table, rows.schema, staged(table, rows), {}, {}, None))
    (action,) = pa.table(table.open().get_add_actions(flatten=True)).to_pylist()
    assert (action["min.d"], action["min.b"], action["max.b"]) == (date(5, 1, 1), False, True)
    assert action["min.t"].replace(tzinfo=UTC) == day
    assert action["max.t"].replace(tzinfo=UTC) <= day + timedelta(milliseconds=1)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_a_time_without_a_zone_has_the_same_bounds_whatever_the_zone_of_the_machine(zone, table, monkeypatch):
    """With bounds of another time Delta's readers leave out files that have the rows."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    at = datetime(2024, 3, 10, 2, 30)  # in New York the clock skips this time
    rows = pa.table({"local": pa.array([at], pa.timestamp("us")), "utc": pa.array([at.replace(tzinfo=UTC)], TIME)})
    try:
        commit(Commit(table, rows.schema, staged(table, rows), {}, {}, None))
    finally:
        monkeypatch.undo()
        time.tzset()
    (action,) = pa.table(table.open().get_add_actions(flatten=True)).to_pylist()
    assert action["min.local"] == action["max.local"] == action["min.utc"].replace(tzinfo=None) == at
    found = table.open().to_pyarrow_dataset().to_table(filter=pc.field("local") == pa.scalar(at, pa.timestamp("us")))
    assert found.num_rows == 1


# --- files


def test_a_reported_file_is_complete_and_says_what_it_is(table):
    writer = StagedWriter(table, SCHEMA, "uno")
    writer.write(numbers(range(10)))
    (file,) = writer.close()
    path = Path(table.uri) / file.path
    assert (file.table, file.game, file.rows, file.size) == ("t", "uno", 10, path.stat().st_size)
    assert pq.read_table(path).equals(numbers(range(10)))
    assert StagedFile.from_json(file.to_json()) == file


NESTED_TYPES = pa.schema(
    [
        ("n", pa.int64()),
        (
            "s",
            pa.struct(
                [("x", pa.int64()), ("l", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.struct([("y", pa.date32())])))]
            ),
        ),
        ("ll", pa.list_(pa.list_(pa.int32()))),
    ]
)


def test_large_files_have_dictionaries_for_columns_whose_values_repeat_and_for_nested_ones(table):
    count = SAMPLE_ROWS
    rows = {
        "key": [f"player {n}" for n in range(count)],
        "game": ["uno", None] * (count // 2),
        "nested": [{"words": ["a", "b"], "by": [("k", n)]} for n in range(count)],
    }
    nested = pa.struct([("words", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.int64()))])
    schema = pa.schema([("key", pa.string()), ("game", pa.string()), ("nested", nested)])
    encoded = []
    for length in (count, count - 1):
        (file,) = staged(table, pa.Table.from_pydict(rows, schema).slice(0, length))
        found = pq.ParquetFile(Path(table.uri) / file.path)
        columns = [found.metadata.row_group(0).column(n) for n in range(found.metadata.num_columns)]
        encoded.append({c.path_in_schema for c in columns if c.has_dictionary_page})
        assert found.read().to_pydict() == pa.Table.from_pydict(rows, schema).slice(0, length).to_pydict()
    others = {"game", "nested.words.list.element", "nested.by.key_value.key", "nested.by.key_value.value"}
    assert encoded == [others, others | {"key"}]


@pytest.mark.parametrize(
    ("different", "has_dictionary"), [(1, True), (400, True), (700, True), (4_900, True), (7_000, False), (10_000, False)]
)
def test_a_dictionary_needs_each_value_twice_on_average_in_the_rows_that_decide(different, has_dictionary):
    drawn = np.random.default_rng(1).integers(0, different, SAMPLE_ROWS) if different < SAMPLE_ROWS else np.arange(SAMPLE_ROWS)
    assert repeated_columns(pa.table({"x": drawn})) == ["x"] * has_dictionary


def test_nested_columns_are_named_as_parquet_names_them(tmp_path):
    pq.write_table(NESTED_TYPES.empty_table(), tmp_path / "x.parquet")
    schema = pq.ParquetFile(tmp_path / "x.parquet").metadata.schema
    named = repeated_columns(NESTED_TYPES.empty_table())
    assert sorted(named) == sorted(schema.column(n).path for n in range(len(schema)))


@pytest.mark.parametrize(("short_lived", "codec"), [(False, "ZSTD"), (True, "SNAPPY")])
def test_large_files_are_packed_small_unless_the_next_refresh_replaces_them(table, short_lived, codec):
    rows = numbers(range(2 * SMALL_FILE_BYTES // 8))
    writer = StagedWriter(table, rows.schema, short_lived=short_lived)
    writer.write(rows)
    (file,) = writer.close()
    assert pq.ParquetFile(Path(table.uri) / file.path).metadata.row_group(0).column(0).compression == codec


def test_closing_twice_reports_each_file_once(table):
    writer = StagedWriter(table, SCHEMA)
    writer.write(numbers([1]))
    assert writer.close() == writer.close()
    assert len(writer.files) == 1


@pytest.mark.parametrize("rows", [[], [numbers([])]])
def test_no_rows_make_no_file(table, rows):
    writer = StagedWriter(table, SCHEMA)
    for part in rows:
        writer.write(part)
    assert writer.close() == []
    assert data_files(table) == set()


def test_files_roll_past_their_size_and_keep_every_row(table, monkeypatch):
    monkeypatch.setattr(staging, "MAX_FILE_BYTES", 2_000)
    writer = StagedWriter(table, SCHEMA)
    last, step = 4 * table.sizes.row_group_rows, table.sizes.row_group_rows // 3
    for start in range(0, last, step):
        writer.write(numbers(range(start, min(start + step, last))))
    files = writer.close()
    assert len(files) > 3
    assert data_files(table) == {f.path for f in files}
    read = [pq.read_table(Path(table.uri) / f.path).column("n").to_pylist() for f in files]
    assert [n for part in read for n in part] == list(range(last))
    assert [f.rows for f in files] == [len(part) for part in read]
    assert all(json.loads(f.stats)["minValues"]["n"] == part[0] for f, part in zip(files, read, strict=True))


@pytest.mark.parametrize("flushed", [False, True])
def test_an_aborted_writer_leaves_no_file(table, flushed, monkeypatch):
    monkeypatch.setattr(staging, "MAX_FILE_BYTES", 500)
    writer = StagedWriter(table, SCHEMA)
    for start in range(0, 300, 100):
        writer.write(numbers(range(start, start + 100)))
        if flushed:
            writer.flush()
    writer.abort()
    assert writer.close() == []
    assert data_files(table) == set()


def test_discarding_a_file_that_is_gone_is_no_fault(table):
    files = staged(table, numbers([1]))
    discard(table, files)
    discard(table, files)
    assert data_files(table) == set()


def test_a_file_that_was_never_committed_is_in_no_version(table):
    commit(Commit(table, SCHEMA, staged(table, numbers([1])), {}, {}, None))
    staged(table, numbers([2]))
    assert len(data_files(table)) == 2
    assert len(table.open().file_uris()) == 1
