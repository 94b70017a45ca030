"""Which rows come into one file: days of times of every kind, and ranges of values. No service."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.config.file_layout import FileLayout
from game_events.lakehouse.data.layout import NO_DAY, ODD_DAY, DayWriter, by_day, cut, days_of, has_days, writer_of
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Lakehouse

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("n", pa.int64()), ("at", TIME)])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = st.none() | st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))


def table_of(root, **sizes):
    lakehouse = Lakehouse(str(root))
    lakehouse.file_layouts = {"silver": FileLayout("at")}
    lakehouse.sizes = Sizes(**sizes)
    return lakehouse.silver("uno")


@given(moments=st.lists(MOMENTS, min_size=1))
def test_the_day_of_a_time_is_that_of_the_calendar(moments):
    known = [NO_DAY if moment is None else (moment.date() - date(1970, 1, 1)).days for moment in moments]
    assert days_of(pa.chunked_array([pa.array(moments, TIME)])).tolist() == known
    dates = pa.array([moment and moment.date() for moment in moments], pa.date32())
    assert days_of(pa.chunked_array([dates])).tolist() == known


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_outside_the_calendar_have_no_day_of_it(unit):
    far = np.iinfo(np.int64).max if unit != "s" else 10**14
    column = pa.chunked_array([pa.array([0, -1, far, -far], pa.int64()).cast(pa.timestamp(unit))])
    assert days_of(column).tolist() == [0, -1, ODD_DAY, ODD_DAY]


@given(days=st.lists(st.integers(-3, 3) | st.sampled_from([NO_DAY, ODD_DAY, -700_000, 2_900_000]), min_size=1))
def test_the_order_by_day_keeps_the_order_within_a_day(days):
    order = by_day(np.array(days, np.int64)).tolist()
    assert order == sorted(range(len(days)), key=lambda row: days[row])


@given(
    waves=st.lists(st.lists(st.none() | st.integers(-2, 4), max_size=30), min_size=1, max_size=5),
    day_rows=st.sampled_from([1, 3, 40]),
    flushes=st.booleans(),
    most_open=st.sampled_from([1, 8]),
)
def test_each_row_is_in_one_file_and_no_file_but_one_has_rows_of_several_days(
    waves, day_rows, flushes, most_open, tmp_path_factory
):
    table = table_of(tmp_path_factory.mktemp("days"), day_rows=day_rows, row_group_rows=7)
    writer = DayWriter(table, SCHEMA, "uno")
    writer._most_open = most_open
    wanted = []
    for number, wave in enumerate(waves):
        times = [None if day is None else EPOCH + timedelta(days=day, seconds=number) for day in wave]
        rows = [{"n": len(wanted) + place, "at": at} for place, at in enumerate(times)]
        wanted += rows
        writer.write(pa.Table.from_pylist(rows, schema=SCHEMA))
        if flushes:
            writer.flush()
    files = writer.close()
    assert files == writer.files
    read = [pq.read_table(Path(table.uri, file.path)).to_pylist() for file in files]
    assert sorted((row for rows in read for row in rows), key=lambda row: row["n"]) == wanted
    assert {file.game for file in files} <= {"uno"}
    spread = [rows for rows in read if len({row["at"] and row["at"].date() for row in rows}) > 1]
    assert len(spread) <= 1
    assert day_rows > 1 or not spread
    if not flushes:
        for rows in spread:
            known = [row["at"] for row in rows if row["at"] is not None]
            assert known == sorted(known)


def test_an_aborted_writer_leaves_nothing(tmp_path):
    table = table_of(tmp_path, day_rows=2, row_group_rows=2)
    writer = DayWriter(table, SCHEMA)
    writer._most_open = 1
    for day in (1, 2, 3):
        writer.write(pa.table({"n": range(5), "at": [EPOCH + timedelta(days=day)] * 4 + [None]}, schema=SCHEMA))
    assert list(Path(table.uri).glob("*.parquet"))
    writer.abort()
    assert writer.close() == []
    assert not list(Path(table.uri).glob("*.parquet"))


def test_only_tables_with_times_and_a_layout_by_days_are_written_by_day(tmp_path):
    table = table_of(tmp_path)
    assert isinstance(writer_of(table, SCHEMA), DayWriter)
    for schema in (SCHEMA.remove(1), SCHEMA.set(1, pa.field("at", pa.string())), SCHEMA.set(1, pa.field("at", pa.int64()))):
        assert isinstance(writer_of(table, schema), StagedWriter)
    assert isinstance(writer_of(Lakehouse(str(tmp_path)).silver("uno"), SCHEMA), StagedWriter)
    assert not has_days(SCHEMA, None)


def test_values_are_cut_where_parts_are_about_equal_and_never_within_one_value():
    assert cut(pa.array(range(100)), 4).to_pylist() == [25, 50, 75]
    assert cut(pa.array([None, 1, 1, 1, 1, 2]), 5).to_pylist() == [1, 2]
    assert cut(pa.array([], pa.string()), 3).to_pylist() == []
    assert cut(pa.array(["b", "a"]), 1).to_pylist() == []
