"""Files of one day, or of a range of values: rows stay the same whatever happens, and readers leave out files. No service."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from game_events.config.file_layout import FileLayout
from game_events.errors import ConflictError
from game_events.lakehouse import failpoints, laying_out
from game_events.lakehouse import maintenance as maintenance_module
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.enabling import enable
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.data.layout import NO_DAY, days_of_files, writer_of
from game_events.lakehouse.data.reading import BATCH_INFO, read_arrow
from game_events.lakehouse.data.rewriting import row_ids
from game_events.lakehouse.data.staging import has_mark
from game_events.lakehouse.laying_out import count, lay_out, not_laid_out, without_statistics
from game_events.lakehouse.maintenance import FULL_GOAL, LOOP_GOAL, join_files, small_files
from game_events.lakehouse.tables import add_actions, paths, table_id
from game_events.pipeline.maintenance import IncrementalMaintenance, maintain
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.faults import at_commit
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import committed_files, data_files, put

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
DAY = timedelta(days=1)
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("n", pa.int64()), ("at", TIME), ("level", pa.int64()), ("_batch", pa.int64())])
#: The first and the last time of a day, and the bounds of what Python and Delta's log can say.
EDGES = (NOON.replace(hour=0), NOON.replace(hour=0) - timedelta(microseconds=1), datetime.min.replace(tzinfo=UTC))


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch):
    """A few bytes are worth to be divided."""
    for module in (laying_out, maintenance_module):
        monkeypatch.setattr(module, "SPREAD_BYTES", 1)


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(point):
    """A crash at the first failpoint of that name."""

    def handler(name, _):
        if name == point:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "handler", handler)
        yield


def events(first, times, batch=1):
    """Rows with these times, numbered."""
    numbers = range(first, first + len(times))
    columns = [list(numbers), times, [n * 7 % 13 for n in numbers], [batch] * len(times)]
    return pa.table([pa.array(values, f.type) for values, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def laid_out(root, layout=None, **sizes):
    """A pipeline whose silver is laid out, with its table of a game."""
    pipeline = without_spark(
        root, layout=layout or {"silver": "day"}, time_column="at", every_version_h=1e-6, replaced_files_h=1e-6
    )
    lakehouse = pipeline.lakehouse
    lakehouse.sizes = dataclasses.replace(lakehouse.sizes, **sizes)
    return pipeline, lakehouse.silver("uno")


def append(table, rows):
    """Commit rows, written as a run writes them; the number of files."""
    writer = writer_of(table, rows.schema)
    writer.write(rows)
    files = writer.close()
    known = table_id(table.open())
    commit(Commit(table, rows.schema, files, {}, {}, table_id=known, info={BATCH_INFO: "1"}))
    return len(files)


def content(table):
    """How often each row is there."""
    return Counter(map(str, read_arrow(table, table.open()).to_pylist()))


def days(table):
    """The day of each file, by its bounds in the log."""
    return days_of_files(add_actions(table.open()), "at")


def done_by(pipeline, *, loops=1, **options):
    report = RunReport()
    for _ in range(loops):
        maintain(pipeline, report, **options)
    done = report.maintenance["silver_uno_events"]
    assert done.error is None
    return done


def read_by_bounds(table, condition):
    """Rows that DuckDB finds in the table by Delta's log and by the files' own bounds."""
    with duckdb.connect() as connection:
        connection.register("t", DeltaTable(table.uri).to_pyarrow_dataset())
        return connection.execute(f"SELECT n FROM t WHERE {condition} ORDER BY n").fetchall()


def test_an_increment_with_late_rows_is_one_file_or_two_and_each_large_day_gets_its_own(tmp_path):
    _, table = laid_out(tmp_path, day_rows=500)
    late = [NOON - (n % 30) * DAY for n in range(50)]
    assert append(table, events(0, [NOON] * 950 + late)) == 2
    assert sorted(map(str, days(table))) == [str((NOON.date() - date(1970, 1, 1)).days), "None"]
    assert append(table, events(0, [NOON] * 100 + late)) == 1
    assert append(table, events(0, [NOON + n % 3 * DAY for n in range(3_000)])) == 3


def test_the_file_that_days_with_few_rows_share_is_sorted_by_time_and_has_rows_without_one_at_its_end(tmp_path):
    _, table = laid_out(tmp_path)
    append(table, events(0, [NOON, None, NOON - DAY, NOON + DAY, None]))
    (name,) = committed_files(table)
    assert pq.read_table(Path(table.uri, name)).column("at").to_pylist() == [NOON - DAY, NOON, NOON + DAY, None, None]


def test_maintenance_puts_each_row_into_a_file_of_its_day_and_moves_it_once(tmp_path):
    pipeline, table = laid_out(tmp_path)
    for n in range(4):
        append(table, events(100 * n, [NOON - k % 9 * DAY for k in range(99)] + [None], n))
    before = content(table)
    done = done_by(pipeline)
    assert (done.laid_out, done.spread, done.files) == (4, 0, 10)
    assert None not in days(table)
    assert Counter(days(table))[NO_DAY] == 1
    assert content(table) == before
    version = table.open().version()
    assert not done_by(pipeline).laid_out
    assert table.open().version() == version
    for number in range(version + 1):
        is_append = any(action.get("commitInfo", {}).get(BATCH_INFO) for action in TableLog(table).actions(number))
        for action in TableLog(table).actions(number):
            if "add" in action:
                assert action["add"]["dataChange"] is is_append, "a streaming reader would see the rows again"


def test_few_bytes_of_several_days_are_merged_until_they_are_worth_it_or_all_files_are_to_be_laid_out(tmp_path, monkeypatch):
    pipeline, table = laid_out(tmp_path)
    for module in (laying_out, maintenance_module):
        monkeypatch.setattr(module, "SPREAD_BYTES", 1024 * 1024)
    for n in range(3):
        append(table, events(10 * n, [NOON - k * DAY for k in range(9)], n))
    done = done_by(pipeline)
    assert (done.joined, done.into, done.laid_out, done.spread) == (3, 1, 0, 0)
    assert days(table) == [None]
    assert done_by(pipeline, layout=True).laid_out == 1
    assert len(days(table)) == 9
    assert None not in days(table)


def test_late_rows_do_not_have_the_large_file_of_their_day_written_again(tmp_path):
    pipeline, table = laid_out(tmp_path, day_rows=1)
    numbers = [n * 7_919**3 % 10**12 for n in range(40_000)]
    append(table, events(0, [NOON] * 40_000).set_column(2, "level", pa.array(numbers)))
    (large,) = committed_files(table)
    for n in range(5):
        append(table, events(n, [NOON], n))
    done = done_by(pipeline)
    assert (done.joined, done.files) == (5, 2)
    assert large in committed_files(table)


def test_an_old_table_is_changed_in_bounded_steps_beside_rivals_and_by_one_command_to_the_end(tmp_path, monkeypatch):
    plain = without_spark(tmp_path).lakehouse.silver("uno")
    for n in range(6):
        append(plain, events(10 * n, [NOON - k * DAY for k in range(10)], n))
    pipeline, table = laid_out(tmp_path)
    before = content(table)
    size = max(add_actions(table.open()).column("size_bytes").to_pylist())
    monkeypatch.setattr("game_events.pipeline.maintenance.MOST_BYTES", 2 * size)
    monkeypatch.setattr("game_events.lakehouse.maintenance.GROUP_FILES", 1)
    assert (done_by(pipeline, dry_run=True).laid_out, done_by(pipeline, dry_run=True).spread) == (2, 4)
    assert (done_by(pipeline, dry_run=True, layout=True).laid_out, table.open().version()) == (6, 5)
    first = done_by(pipeline)
    assert (first.laid_out, first.spread) == (2, 4)
    assert content(table) == before
    last = done_by(pipeline, layout=True)
    assert (last.laid_out, last.spread, last.files) == (4, 0, 10)
    assert content(table) == before


def test_a_rival_append_stays_and_a_rival_compaction_makes_the_step_fail_whole(tmp_path):
    _, table = laid_out(tmp_path)
    for n in range(2):
        append(table, events(10 * n, [NOON, NOON - DAY]))
    handle = table.open()
    (group,) = not_laid_out(table, handle)
    added = []

    def appended(write, *given, **options):
        if not added:
            added.append(True)
            append(table, events(90, [NOON, NOON - 5 * DAY]))
        return write(*given, **options)

    with at_commit(appended):
        lay_out(table, handle, group)
    assert {str(n) for n in (0, 1, 10, 11, 90, 91)} == {str(row["n"]) for row in read_arrow(table, table.open()).to_pylist()}
    stale = table.open()
    (rest,) = not_laid_out(table, stale)
    join_files(table, table.open(), sorted(committed_files(table)))
    before = data_files(table)
    with pytest.raises(ConflictError, match="rewrote them first"):
        lay_out(table, stale, rest)
    assert data_files(table) == before


def test_times_that_no_bound_can_say_are_in_a_file_of_their_own_and_stay_there(tmp_path):
    pipeline, table = laid_out(tmp_path)
    rows = events(0, [NOON, NOON, NOON - DAY])
    beyond = pa.array([NOON.timestamp() * 10**6, 9 * 10**17, (NOON - DAY).timestamp() * 10**6], pa.int64()).cast(TIME)
    append(table, rows.set_column(1, "at", beyond))
    assert len(committed_files(table)) == 2
    assert done_by(pipeline).spread == 0
    assert None not in days(table)
    version = table.open().version()
    assert not done_by(pipeline).laid_out
    assert table.open().version() == version
    assert read_by_bounds(table, "n = 1") == [(1,)]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), TIME])
def test_days_are_those_of_utc_at_their_first_and_last_microsecond(tmp_path, kind):
    _, table = laid_out(tmp_path, day_rows=1)
    moments = [NOON, *EDGES, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), NOON.replace(hour=23, minute=59)]
    times = pa.array([m.replace(tzinfo=None) for m in moments], pa.timestamp("us")).cast(kind)
    append(table, pa.table({"n": range(len(moments)), "at": times}))
    expected = Counter((moment.date() - date(1970, 1, 1)).days for moment in moments)
    assert sorted(days(table)) == sorted(expected)


def test_a_loop_merges_files_of_several_days_and_divides_them_when_they_are_worth_it(tmp_path, monkeypatch):
    pipeline, table = laid_out(tmp_path)
    maintenance = IncrementalMaintenance(pipeline.lakehouse, share=1e9, most_saved_s=1e9)
    for n in range(LOOP_GOAL.files):
        append(table, events(10 * n, [NOON - k * DAY for k in range(10)], n))
    before = content(table)
    maintenance.note([table.name] * LOOP_GOAL.files)
    (done,) = (entry for entry in maintenance.work() if entry.table == table.name)
    assert (done.laid_out, done.into) == (0, 1)
    assert days(table) == [None]
    monkeypatch.setattr(laying_out, "LOOP_BYTES", 1)
    monkeypatch.setattr(laying_out, "LOOP_LEAST_BYTES", 1)
    maintenance.note([table.name] * LOOP_GOAL.files)
    (done,) = (entry for entry in maintenance.work() if entry.table == table.name)
    assert (done.laid_out, len(days(table))) == (1, 10)
    assert None not in days(table)
    assert content(table) == before


def test_a_table_whose_rows_have_no_times_is_written_and_merged_as_without_a_layout(tmp_path):
    pipeline, table = laid_out(tmp_path)
    for n in range(3):
        put(table, {"n": [n], "at": [f"text {n}"]}, info={BATCH_INFO: "1"})
    done = done_by(pipeline, layout=True)
    assert (done.joined, done.into, done.laid_out, done.spread) == (3, 1, 0, 0)


def test_a_table_of_which_somebody_else_chose_the_statistics_is_not_written_again_for_ever(tmp_path):
    pipeline, table = laid_out(tmp_path)
    for n in range(2):
        append(table, events(10 * n, [NOON, NOON - DAY], n))
    table.open().alter.set_table_properties({"delta.dataSkippingStatsColumns": "n,level"})
    done = done_by(pipeline, layout=True)
    assert (done.laid_out, done.spread, done.renewed, done.joined) == (0, 0, 0, 2)
    append(table, events(90, [NOON, NOON - DAY], 9))
    table.open().alter.set_table_properties({"delta.dataSkippingStatsColumns": "n,`at`"})
    assert done_by(pipeline, layout=True).laid_out == 2
    assert None not in days(table)


POINTS = ("laid_out_staged", "laid_out_committed", "joined_staged", "joined_committed", "file_open", "file_deleted")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_rows_stay_and_at_the_end_each_file_has_one_day(tmp_path, seed, monkeypatch):
    """Appends with late rows and rows without a time, kills at every point, loops, compactions, dry runs, rivals."""
    draw = random.Random(seed)  # noqa: S311
    pipeline, table = laid_out(tmp_path, day_rows=draw.choice([1, 5, 40]), row_group_rows=draw.choice([7, 100]))
    loop = IncrementalMaintenance(pipeline.lakehouse, share=1e9, most_saved_s=1e9)
    if seed % 2:
        monkeypatch.setattr(laying_out, "LOOP_BYTES", 1)
        monkeypatch.setattr(laying_out, "LOOP_LEAST_BYTES", 1)
    expected, first = Counter(), 0

    def appended():
        nonlocal first, expected
        late = [NOON - draw.randrange(60) * DAY + timedelta(seconds=draw.randrange(86_400)) for _ in range(draw.randrange(9))]
        times = [*draw.sample([None, *EDGES], 2), *late, *[NOON] * draw.randrange(60)]
        draw.shuffle(times)
        rows = events(first, times, first)
        first += len(times)
        with killed_at(draw.choice([*POINTS, "", "", ""])):
            try:
                append(table, rows)
            except Killed:
                return
        expected += Counter(map(str, rows.to_pylist()))

    def looped():
        loop.note([table.name] * LOOP_GOAL.files)
        loop.work()

    steps = [appended] * 6 + [looped] * 2 + [lambda: done_by(pipeline), lambda: done_by(pipeline, dry_run=True)]
    appended()
    while table.open() is None:
        appended()
    for _ in range(30):
        with killed_at(draw.choice([*POINTS, ""])), suppress(Killed):
            draw.choice(steps)()
        assert content(table) == expected
    done_by(pipeline, layout=True)
    assert None not in days(table)
    assert content(table) == expected
    for moment in (NOON, *EDGES[:2], NOON - 7 * DAY):
        begin = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        for low, high in ((begin, begin + DAY), (moment, moment + timedelta(microseconds=1))):
            wanted = read_arrow(table, table.open()).to_pylist()
            numbers = sorted(row["n"] for row in wanted if row["at"] is not None and low <= row["at"] < high)
            assert read_by_bounds(table, f"\"at\" >= '{low.isoformat()}' AND \"at\" < '{high.isoformat()}'") == [
                (n,) for n in numbers
            ]


def test_rows_are_cut_into_files_of_disjoint_ranges_of_values_once(tmp_path, monkeypatch):
    pipeline, table = laid_out(tmp_path, {"silver": ["level", "n"]})
    monkeypatch.setattr(laying_out, "CLUSTERED_BYTES", 5_000)
    for n in range(5):
        append(table, events(1_000 * n, [NOON] * 1_000, n))
    before = content(table)
    sizes = add_actions(table.open()).column("size_bytes").to_pylist()
    monkeypatch.setattr(laying_out, "RANGE_BYTES", sum(sizes) // 4)
    done = done_by(pipeline)
    assert (done.laid_out, done.joined, done.files) == (5, 0, 4)
    assert content(table) == before
    actions = add_actions(table.open()).sort_by("min.level")
    assert all(has_mark(path, table.file_layout.mark) for path in actions.column("path").to_pylist())
    bounds = list(zip(actions.column("min.level").to_pylist(), actions.column("max.level").to_pylist(), strict=True))
    assert all(before[1] < after[0] for before, after in pairwise(bounds))
    for path in actions.column("path").to_pylist():
        rows = pq.read_table(Path(table.uri, path), columns=["level", "n"]).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["level"], row["n"]))
    append(table, events(9_000, [NOON], 9))
    again = done_by(pipeline, layout=True)
    assert (again.laid_out, again.files) == (0, 5), "what has its place stays, a little more waits"
    other, table = laid_out(tmp_path, {"silver": ["n"]})
    assert done_by(other, layout=True).laid_out == 5, "with other columns all files are cut anew"
    assert sum(content(table).values()) == 5_001


def test_values_that_are_null_or_nearly_all_the_same_are_in_some_file(tmp_path, monkeypatch):
    pipeline, table = laid_out(tmp_path, {"silver": ["level"]})
    monkeypatch.setattr(laying_out, "CLUSTERED_BYTES", 1)
    monkeypatch.setattr(laying_out, "RANGE_BYTES", 100)
    rows = events(0, [NOON] * 500)
    for level in ([None] * 500, [3] * 499 + [None], [None, 5] * 250):
        append(table, rows.set_column(2, "level", pa.array(level, pa.int64())))
    before = content(table)
    assert done_by(pipeline).laid_out == 3
    assert content(table) == before


def test_statistics_of_chosen_columns_are_in_new_files_and_by_the_command_in_old_ones_whatever_their_place(tmp_path):
    columns = {f"c{n:02}": pa.array([n, n + 1]) for n in range(40)} | {"f": pa.array([0.5, float("nan")]), "t": ["a", "b" * 80]}
    plain = without_spark(tmp_path).lakehouse.silver("uno")
    put(plain, columns, info={BATCH_INFO: "1"})
    pipeline = without_spark(tmp_path, statistics_columns="c38, f, t")
    table = pipeline.lakehouse.silver("uno")
    assert table.file_layout == FileLayout(statistics=("c38", "f", "t"))
    assert count([without_statistics(table, table.open())]) == 1
    before = content(table)
    for done in (done_by(pipeline, dry_run=True, layout=True), done_by(pipeline, layout=True)):
        assert done.renewed == 1
    assert content(table) == before
    put(table, columns, info={BATCH_INFO: "1"})
    actions = add_actions(table.open())
    assert actions.column("min.c38").to_pylist() == [38] * actions.num_rows
    assert actions.column("null_count.f").to_pylist() == [0] * actions.num_rows
    assert not any(value is not None for name in ("min.f", "max.f", "max.t") if name in actions.column_names
                   for value in actions.column(name).to_pylist())  # fmt: skip
    assert "min.c39" not in actions.column_names or actions.column("min.c39").null_count == actions.num_rows
    assert not done_by(pipeline, layout=True).renewed


def test_without_a_layout_files_are_merged_across_days_and_no_property_is_set(tmp_path):
    pipeline = without_spark(tmp_path)
    table = pipeline.lakehouse.silver("uno")
    for n in range(2):
        append(table, events(10 * n, [NOON - k * DAY for k in range(10)], n))
    assert len(small_files(table, table.open(), FULL_GOAL)) == 1
    assert not_laid_out(table, table.open()) == []
    done = done_by(pipeline, layout=True)
    assert (done.files, done.laid_out, done.renewed) == (1, 0, 0)
    assert table.open().metadata().configuration["delta.dataSkippingNumIndexedCols"] == "32"


@pytest.mark.parametrize("layout", [{"silver": "day"}, {"silver": "cluster(level)"}], ids=["day", "cluster"])
def test_rows_keep_the_numbers_of_row_tracking(tmp_path, layout):
    pipeline, table = laid_out(tmp_path, layout, day_rows=10)
    append(table, events(0, [NOON + n % 5 * DAY for n in range(40)]))
    enable(dataclasses.replace(table, features=("rowTracking",)), table.open())
    append(table, events(40, [NOON + n % 5 * DAY for n in range(40)]))
    before = numbers_of(table)
    done_by(pipeline)
    assert numbers_of(table) == before
    assert len(set(before.values())) == 80


def numbers_of(table):
    """Row -> the number that row tracking gives it."""
    handle = table.open()
    ids = row_ids(table, handle)
    numbers = {}
    for path in paths(handle):
        rows = ids.kept(path, 0, pq.read_table(f"{table.uri}/{path}", partitioning=None))
        numbers.update(zip(rows.column("n").to_pylist(), rows.column(ids.columns[0]).to_pylist(), strict=True))
    return numbers
