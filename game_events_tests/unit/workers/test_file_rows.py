"""Rows that a worker reads from tables' files itself: those of its task, each once."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from game_events.config.settings import Settings
from game_events.lakehouse.data.reading import FilePart
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Lakehouse
from game_events.rules import Rule
from game_events.sources.source import dealt
from game_events.workers import rows as module
from game_events.workers.fanout import FanOut, Routing
from game_events.workers.rows import FileRows
from game_events.workers.rules import BITS, DISPOSITION, DROP, KEEP, REJECT, ROW, RuleColumns, RuleOutcome, Violations
from game_events_tests.support.worker_jobs import run

SCHEMA = pa.schema([("game_name", pa.string()), ("level", pa.int64()), ("_batch", pa.int64())])


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse.of(Settings(lakehouse=str(tmp_path)))


def written(lakehouse, key, rows, without=()):
    """The path of a file with row groups of two rows, without some of the columns."""
    schema = pa.schema([f for f in SCHEMA if f.name not in without])
    writer = StagedWriter(lakehouse.table(key), schema, group_rows=2)
    writer.write(pa.Table.from_pylist(rows, schema))
    (file,) = writer.close()
    return file.path


def numbered(game, numbers):
    return [{"game_name": game, "level": n, "_batch": n} for n in numbers]


def levels(parts):
    return sorted((row["game_name"], row["level"]) for part in parts for row in part.to_pylist())


def numbers(*wanted):
    return [pa.RecordBatch.from_pydict({"id": list(wanted)})]


@pytest.mark.parametrize("few", [False, True])
def test_a_task_gives_the_rows_of_its_files_with_null_for_what_they_lack(lakehouse, few):
    uno, go = (FilePart(f"silver_{game}_events", "") for game in ("uno", "go"))
    uno = FilePart(uno.table, written(lakehouse, uno.table, numbered("uno", [1, 2, 3])))
    go = FilePart(go.table, written(lakehouse, go.table, numbered("go", [4]), without=["_batch"]))
    job = pickle.loads(pickle.dumps(FileRows(lakehouse, SCHEMA, dealt([uno, go], 2), few=few)))  # noqa: S301
    assert levels(job(numbers(0))) == [("uno", 1), ("uno", 2), ("uno", 3)]
    assert levels(job(numbers(1))) == [("go", 4)]
    assert levels(job(numbers(0, 1))) == levels([*job(numbers(0)), *job(numbers(1))])
    assert [row["_batch"] for part in job(numbers(1)) for row in part.to_pylist()] == [None]
    assert all(part.schema.equals(SCHEMA) for part in job(numbers(0, 1)))
    assert levels(job([])) == []


def test_shares_of_a_file_are_its_row_groups_each_in_one_share(lakehouse):
    path = written(lakehouse, "bronze_events", numbered("uno", range(9)))
    for of in (1, 2, 3, 7):
        job = FileRows(lakehouse, SCHEMA, [[FilePart("bronze_events", path, n, of)] for n in range(of)])
        shares = [levels(job.of_tasks(numbers(n))) for n in range(of)]
        assert sorted(row for share in shares for row in share) == [("uno", n) for n in range(9)]
    assert shares[0] == [("uno", 0), ("uno", 1)], "the first row group"
    assert shares[6] == [], "more shares than row groups"


@pytest.mark.parametrize("shares", [2, 5])
def test_tasks_that_read_the_same_files_have_each_row_once_and_all_rows_of_a_game_in_one_of_them(lakehouse, shares):
    games = [f"game_{n}" for n in range(20)]
    rows = [{"game_name": game, "level": n, "_batch": n} for n in range(9) for game in (*games, None, "no/gäme")]
    path = written(lakehouse, "bronze_events", rows)
    parts = [[FilePart("bronze_events", path, number, 2)] for number in (0, 1)]
    read = FileRows(lakehouse, SCHEMA, parts, above=2, shares=shares, game_column="game_name")
    of_tasks = [[row for table in read.of_tasks(numbers(n)) for row in table.to_pylist()] for n in range(2 * shares)]
    found = sorted((row["game_name"] or "", row["level"]) for rows in of_tasks for row in rows)
    assert found == sorted((row["game_name"] or "", row["level"]) for row in rows if row["_batch"] > 2)
    tasks = {
        game: {n % shares for n, rows in enumerate(of_tasks) if any(r["game_name"] == game for r in rows)} for game in games
    }
    assert {len(of_game) for of_game in tasks.values()} == {1}
    assert set.union(*tasks.values()) == set(range(shares)), "all tasks have work"


def test_rows_of_earlier_batches_are_left_out(lakehouse):
    path = written(lakehouse, "bronze_events", numbered("uno", range(9)))
    job = FileRows(lakehouse, SCHEMA, [[FilePart("bronze_events", path)]], above=6)
    assert levels(job.of_tasks(numbers(0))) == [("uno", 7), ("uno", 8)]


def test_a_row_group_of_another_engine_is_read_in_parts_no_larger_than_ours(lakehouse):
    path = written(lakehouse, "bronze_events", numbered("uno", [1]))
    ours = lakehouse.sizes.row_group_rows
    count = 2 * ours + 1
    theirs = pa.table({"game_name": ["uno"] * count, "level": range(count), "_batch": [1] * count}, SCHEMA)
    pq.write_table(theirs, f"{lakehouse.table('bronze_events').uri}/{path}", row_group_size=count)
    job = FileRows(lakehouse, SCHEMA, [[FilePart("bronze_events", path)]])
    assert [rows.num_rows for rows in job.of_tasks(numbers(0))] == [ours, ours, 1]


@pytest.mark.parametrize(("parts", "tasks", "expected"), [(5, 2, [3, 2]), (2, 5, [1, 1]), (0, 3, [0]), (3, 1, [3])])
def test_files_are_dealt_evenly_and_no_task_is_without_any(parts, tasks, expected):
    files = [FilePart("t", str(n)) for n in range(parts)]
    found = dealt(files, tasks)
    assert [len(part) for part in found] == expected
    assert sorted(part.path for share in found for part in share) == sorted(part.path for part in files)


def test_a_fan_out_writes_the_rows_of_files_as_it_writes_rows_that_spark_sends(lakehouse):
    path = written(lakehouse, "bronze_events", [*numbered("uno", range(5)), *numbered("go", range(3))])
    read = FileRows(lakehouse, SCHEMA, [[FilePart("bronze_events", path)]])
    result = run(FanOut(lakehouse, "silver", "game_name", SCHEMA, source=read), numbers(0))
    sent = run(FanOut(lakehouse, "silver", "game_name", SCHEMA), list(read(numbers(0))))
    assert {game: result.rows(game) for game in result.games} == {game: sent.rows(game) for game in sent.games}
    assert {game: result.rows(game) for game in result.games} == {"uno": 5, "go": 3}


def test_a_fan_out_that_meets_too_many_names_reads_no_further_files(lakehouse):
    lakehouse.sizes = Sizes(sorted_rows=1)
    path = written(lakehouse, "bronze_events", numbered("uno", range(5)))
    read = FileRows(lakehouse, SCHEMA, [[FilePart("bronze_events", path), FilePart("bronze_events", "not read")]])
    task = FanOut(lakehouse, "silver", "game_name", SCHEMA, Routing(room=0), source=read)
    assert run(task, numbers(0)).crowded


def test_rows_that_violate_rules_get_their_bits_and_rejected_ones_what_only_bronze_has(lakehouse):
    """Also where a file's row groups are shared by tasks, and only rows of later batches are asked for."""
    raw = pa.schema([*SCHEMA, ("_raw_value", pa.binary())])
    writer = StagedWriter(lakehouse.table("bronze_events"), raw, group_rows=2)
    writer.write(pa.Table.from_pylist([row | {"_raw_value": b"%d" % row["level"]} for row in numbered("uno", range(9))], raw))
    (file,) = writer.close()
    rules = tuple(Rule(name=f"r{n}", sql="true", action=("warn", "drop", "quarantine")[n % 3]) for n in range(BITS + 2))
    split = RuleOutcome(RuleColumns(rules, "game_name"), has_disposition=True, quarantine=lakehouse.table("quarantine_events"))
    # Rows 0 and 5 are rejected, by different columns of bits; 3 is dropped, 4 is kept.
    found = of(split, file.path, {0: (4, 0), 3: (2, 0), 4: (1, 0), 5: (2, 1), 8: (0, 1)})
    parts = [[FilePart("bronze_events", file.path, n, 2)] for n in (0, 1)]
    read = FileRows(lakehouse, SCHEMA, parts, above=0, violations=pickle.loads(pickle.dumps(found)))  # noqa: S301
    rows = [row for n in (0, 1) for table in read.of_tasks(numbers(n)) for row in table.to_pylist()]
    said = {row["level"]: (row["_violated_0"], row["_violated_1"], row[DISPOSITION], row["_raw_value"]) for row in rows}
    passed = (0, 0, KEEP, None)
    assert said == {
        **dict.fromkeys((1, 2, 6, 7), passed),
        3: (2, 0, DROP, None),
        4: (1, 0, KEEP, None),
        5: (2, 1, REJECT, b"5"),
        8: (0, 1, REJECT, b"8"),
    }
    assert list(rows[0]) == [*SCHEMA.names, *split.columns]


def test_of_a_file_without_rejected_rows_nothing_is_read_that_only_bronze_has(lakehouse, monkeypatch):
    path, asked, parts = written(lakehouse, "bronze_events", numbered("uno", range(3))), [], module.numbered_parts
    monkeypatch.setattr(
        module, "numbered_parts", lambda table, schema, *more: asked.append(schema) or parts(table, schema, *more)
    )
    rules = (Rule(name="small", sql="true", action="drop"), Rule(name="sound", sql="true", action="quarantine"))
    split = RuleOutcome(RuleColumns(rules, "game_name"), has_disposition=True, quarantine=lakehouse.table("quarantine_events"))
    for bits in (1, 2, 3):
        read = FileRows(lakehouse, SCHEMA, [[FilePart("bronze_events", path)]], violations=of(split, path, {1: (bits,)}))
        nulls = [table.column("_raw_value").null_count for table in read.of_tasks(numbers(0))]
        assert nulls == [2, 1], "the file lacks it"
    assert [schema.names == SCHEMA.names for schema in asked] == [True, False, False]


def of(split, path, bits):
    """Rows of a file that violate rules: place -> bits."""
    columns = dict(zip(split.rules.names, zip(*bits.values(), strict=True), strict=True))
    rows = pa.table({ROW: list(bits), **columns}, pa.schema([(name, pa.int64()) for name in (ROW, *columns)]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return Violations(split, {path: bytes(sink.getvalue())})
