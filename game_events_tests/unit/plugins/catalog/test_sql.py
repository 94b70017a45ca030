"""`game-events sql` and `history` on tables that nothing but delta-rs has written."""

import csv
import io
import json
import os
import signal
import threading
import time
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.decoding.columns import ColumnMap, Field
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.columns import bronze_schema
from game_events.lakehouse.tables import Lakehouse, paths
from game_events.plugins.catalog.sql import TablesSql
from game_events_tests.support.tables import put
from game_events_tests.support.waiting import until

PLACE = pa.struct([pa.field("city", pa.string())])
FIRST = pa.schema([pa.field("game_name", pa.string()), pa.field("place", PLACE), pa.field("_batch", pa.int64())])
WIDER = pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.string())])
SECOND = pa.schema(
    [
        pa.field("game_name", pa.string()),
        pa.field("place", WIDER),
        pa.field("raw", pa.binary()),
        pa.field("happened", pa.timestamp("us", tz="UTC")),
        pa.field("big", pa.decimal128(20, 0)),
        pa.field("_batch", pa.int64()),
    ]
)
ROWS = [
    {"game_name": "a", "place": {"city": "x"}, "_batch": 1},
    {"game_name": "b", "place": None, "_batch": 1},
]
NEWER = {
    "game_name": "a", "place": {"city": "y", "zip": "1"}, "raw": b"\x00\xff", "happened": datetime(2026, 1, 2, tzinfo=UTC),
    "big": 2**64 - 1, "_batch": 2,
}  # fmt: skip


def add(table, schema, rows, number, **more):
    data = pa.Table.from_pylist(rows, schema=schema)
    put(table, data, {"batch": number}, expect_transactions={"batch": number - 1 or None}, **more)


@pytest.fixture
def lakehouse(tmp_path, monkeypatch):
    """A table with two versions of rows, and an empty one, in a folder with an apostrophe."""
    found = Lakehouse(str(tmp_path / "it's here"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", found.root)
    events = found.table("silver_a_events")
    add(events, FIRST, ROWS, 1, info={"bronze_batch": "1", "run_id": "run-1"})
    add(events, SECOND, [NEWER], 2, info={"bronze_batch": "2", "run_id": "run-2"})
    commit(Commit(found.table("gold_a_player_agg"), FIRST, [], expect_transactions={}, set_transactions={}, table_id=None))
    return found


def test_a_table_is_read_whole_whatever_columns_and_nested_fields_its_files_lack(cli, lakehouse):
    found = cli("sql", "SELECT game_name, place, raw, happened, big FROM silver_a_events ORDER BY _batch, 1", "--json").result
    assert found["rows"] == [
        ["a", {"city": "x", "zip": None}, None, None, None],
        ["b", None, None, None, None],
        ["a", {"city": "y", "zip": "1"}, "00ff", "2026-01-02T00:00:00+00:00", str(2**64 - 1)],
    ]
    kinds = {row[0]: row[1] for row in cli("sql", "DESCRIBE silver_a_events", "--json").result["rows"]}
    assert (kinds["big"], kinds["happened"], kinds["raw"]) == ("DECIMAL(20,0)", "TIMESTAMP WITH TIME ZONE", "BLOB")
    assert cli("sql", "SELECT count(*), max(_batch) FROM gold_a_player_agg", "--json").result["rows"] == [[0, None]]
    both = "SELECT count(*) FROM silver_a_events JOIN Silver_A_Events AS other USING (game_name)"
    assert cli("sql", both, "--json").result["rows"] == [[5]]
    assert [row[0] for row in cli("sql", "SHOW TABLES", "--json").result["rows"]] == lakehouse.names()
    assert cli("sql", "WITH t AS (FROM silver_a_events) SELECT count(*) AS n FROM t", "--csv").out == "n\n3\n"
    assert lakehouse.names() == ["gold_a_player_agg", "silver_a_events"]


def test_rows_are_limited_for_people_and_streamed_as_csv(cli, lakehouse):
    assert lakehouse
    many = "SELECT range AS n, NULL AS nothing, 'it''s, \"so\"' AS text FROM range(250)"
    few = cli("sql", many, "--json").result
    assert (len(few["rows"]), few["more"]) == (100, True)
    assert "only 100 rows are shown" in cli("sql", many).out
    lines = cli("sql", "--csv", many).out.splitlines()
    assert (len(lines), lines[0], lines[1]) == (251, "n,nothing,text", '0,,"it\'s, ""so"""')
    assert len(cli("sql", "--csv", "--limit", "3", many).out.splitlines()) == 4
    assert cli("sql", "--csv", "--json", many).code == 2


def test_csv_has_each_value_as_it_is_also_one_that_a_spreadsheet_takes_for_a_formula(cli, lakehouse):
    """It is for programs: a sign put before it would be part of the value for all of them."""
    assert lakehouse
    values = ["=1+1", "+1", "-2", "@SUM(A1)", "\tx", "\rx", '=HYPERLINK("http://x";"y")', "'x"]
    query = "SELECT unnest([{}]) AS name, -3 AS n".format(", ".join("'" + v.replace("'", "''") + "'" for v in values))
    out = cli("sql", "--csv", query).out
    assert list(csv.reader(io.StringIO(out, newline=""))) == [["name", "n"], *([value, "-3"] for value in values)]


def test_a_query_takes_no_more_memory_than_the_setting_has_and_says_so(cli, lakehouse, monkeypatch):
    assert lakehouse
    monkeypatch.setenv("GAME_EVENTS_SQL_MEMORY_BYTES", str(64 * 1024 * 1024))
    said = cli("sql", "SELECT string_agg(range::VARCHAR || repeat('x', 100)) FROM range(3000000)", "--json")
    assert said.code == 1
    assert "GAME_EVENTS_SQL_MEMORY_BYTES" in said.result["error"]
    assert "Traceback" not in said.everything
    # What can be put on the disk is; each of DuckDB's threads needs room of its own for that.
    monkeypatch.setenv("GAME_EVENTS_SQL_MEMORY_BYTES", str(256 * 1024 * 1024))
    sorted_rows = (
        "SELECT count(*) FROM (SELECT n FROM (SELECT md5(range::VARCHAR) AS n FROM range(6000000)) ORDER BY n LIMIT 5000000)"
    )
    assert cli("sql", sorted_rows, "--json").result["rows"] == [[5000000]]


@pytest.fixture
def pythons_own_ctrl_c():
    """In place of PySpark's handler, which cancels all jobs of the JVM that the tests share."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("product", [1_000, 1_000_000_000], ids=["in DuckDB's loops", "while it fills its memory"])
@pytest.mark.usefixtures("pythons_own_ctrl_c")
def test_ctrl_c_ends_a_query_that_would_take_years(lakehouse, product):
    def interrupt(began):
        until(lambda: time.process_time() - began > 0.3, what="the query's work")
        signal.raise_signal(signal.SIGINT)

    # Several times: it depends on luck which of DuckDB's threads has the work, and only some ended at a signal.
    for _ in range(6):
        with TablesSql(lakehouse) as tables, pytest.raises(KeyboardInterrupt):
            asking = threading.Thread(target=interrupt, args=[time.process_time()])
            asking.start()
            tables.query(f"SELECT sum(a.range * b.range) FROM range(1000000000) a, range({product}) b")
        asking.join()


def test_nothing_outside_of_the_root_is_read_and_nothing_is_written(cli, lakehouse, tmp_path):
    outside = tmp_path / "outside.parquet"
    duckdb.sql("SELECT 1 AS secret").write_parquet(str(outside))
    files = sorted(tmp_path.rglob("*"))
    inside = f"{lakehouse.root}/x.parquet".replace("'", "''")
    for query, hint in {
        f"FROM '{outside}'": "Permission Error",
        f"FROM read_parquet('{outside}')": "Permission Error",
        "FROM read_text('/etc/hostname')": "Permission Error",
        "FROM read_csv('https://example.com/x')": "the query failed",
        "FROM glob('/etc/*')": "the query failed",
        f"FROM read_parquet('{lakehouse.root}/../outside.parquet')".replace("it's", "it''s"): "Permission Error",
        f"COPY (SELECT 1) TO '{inside}'": "only one SELECT",
        f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{inside}'": "only one SELECT",
        "SET enable_external_access = true": "only one SELECT",
        "ATTACH 'x.db'": "only one SELECT",
        "INSTALL httpfs": "only one SELECT",
        "CREATE TABLE x AS SELECT 1": "only one SELECT",
        "DROP TABLE silver_a_events": "only one SELECT",
        "SELECT 1; DROP VIEW silver_a_events": "only one SELECT",
        "FROM ROWS": "there is no table 'ROWS'",  # a variable of the program's caller
    }.items():
        said = cli("sql", query, "--json")
        assert (said.code, said.result["success"]) == (1, False), query
        assert hint in said.result["error"], (query, said.result["error"])
        assert "Traceback" not in said.everything
    assert sorted(tmp_path.rglob("*")) == files


def test_a_table_that_nothing_was_put_into_yet_is_told_as_such(cli, lakehouse):
    assert lakehouse
    for name in ("quarantine_events", "Bronze_Events"):
        assert f"there is no table '{name}' yet: nothing was ever put into it" in cli("sql", f"FROM {name}").err


def test_a_row_with_many_columns_is_shown_below_itself_and_nested_values_are_json(cli, lakehouse):
    assert lakehouse
    many = ", ".join(f"{n} AS column_number_{n}" for n in range(60))
    lines = cli(
        "sql", f"SELECT {many}, ['a', 'é'] AS list, {{'a': 1.5::DOUBLE}} AS struct, 'x' || chr(27) || '[2J' AS bad"
    ).out.splitlines()
    assert lines[0] == "row 1"
    assert lines[8].split() == ["column_number_7", "7"]
    assert [line.split(None, 1)[1] for line in lines[-3:]] == ['["a", "é"]', '{"a": 1.5}', "x\\x1b[2J"]
    found = cli("sql", "SELECT 'nan'::DOUBLE, '-inf'::FLOAT, ['inf'::DOUBLE]", "--json").result
    assert found["rows"] == [["NaN", "-Infinity", ["Infinity"]]]
    assert cli("history", "silver_a_events").out.startswith(lakehouse.root)


def test_a_wrong_name_is_answered_with_those_like_it(cli, lakehouse):
    for said in (cli("sql", "FROM silver_b_event"), cli("history", "silver_b_event"), cli("schema", "silver_b_event")):
        assert said.code == 1
        assert f"there is no table 'silver_b_event' below {lakehouse.root}; did you mean silver_a_events" in said.err
    assert "nope" in cli("sql", "SELECT nope FROM silver_a_events").err
    assert "the query cannot be read" in cli("sql", "SELEC 1").err


def test_time_travel_gives_the_table_as_it_was_or_says_why_not(cli, lakehouse):
    events = lakehouse.table("silver_a_events")
    versions = cli("history", "silver_a_events", "--json").result["versions"]
    first = versions[-1]["time"].replace(" ", "T")
    asked = "SELECT count(*) FROM silver_a_events"
    as_of = cli("sql", asked, "--as-of", first, "--json")
    assert (as_of.result["rows"], as_of.result["versions"]) == ([[2]], {"silver_a_events": versions[-1]["version"]})
    assert f"silver_a_events: version {versions[-1]['version']} of 20" in as_of.err
    assert cli("sql", asked, "--json").result["rows"] == [[3]]
    before = cli("sql", asked, "--as-of", "2020-01-01").err
    assert "there is no table 'silver_a_events' as of 2020-01-01T00:00:00+00:00: it was made later" in before
    assert "--as-of: 'soon' is no time" in cli("sql", asked, "--as-of", "soon").err
    # Replaced, and the old files deleted: an error, never a part of the table.
    add(events, SECOND, [NEWER], 3, replace=True)
    removed = [p for p in events.local_path.glob("*.parquet") if p.name not in " ".join(events.open().file_uris())]
    for path in removed:
        path.unlink()
    said = cli("sql", asked, "--as-of", first)
    assert said.code == 1
    assert "are gone: maintenance deletes replaced ones after GAME_EVENTS_REPLACED_FILES_H hours" in said.err


def test_a_time_between_versions_that_are_left_takes_the_one_before_and_one_too_far_back_names_the_oldest(cli, lakehouse):
    events = lakehouse.table("silver_a_events")
    for n in range(3, 9):
        add(events, SECOND, [NEWER], n)
        time.sleep(0.01)
    versions = {
        v["version"]: v["time"] for v in cli("history", "silver_a_events", "--limit", "50", "--json").result["versions"]
    }
    last = max(versions)
    # As maintenance leaves it: two versions with checkpoints, and the newest ones.
    for version in (last - 4, last - 1):
        DeltaTable(events.uri, version).create_checkpoint()
    for entry in (events.local_path / "_delta_log").glob("0*.json"):
        if int(entry.stem) not in (last - 4, last - 1, last):
            entry.unlink()
    shown = cli("history", "silver_a_events", "--json")
    assert [v["version"] for v in shown.result["versions"]] == [last, last - 1, last - 4]
    assert f"{last + 1 - 3} older versions cannot be read any more" in shown.err
    between = versions[last - 2].replace(" ", "T")
    asked = "SELECT count(*) FROM silver_a_events"
    found = cli("sql", asked, "--as-of", between, "--json").result
    assert found["versions"] == {"silver_a_events": last - 4}
    assert found["rows"] == [[DeltaTable(events.uri, last - 4).to_pyarrow_table().num_rows]]
    said = cli("sql", asked, "--as-of", versions[last - 5].replace(" ", "T"))
    assert said.code == 1
    assert f"any more: its oldest version that can be read is {last - 4}, of 20" in said.err


def test_a_file_that_the_newest_version_lists_and_that_is_gone_is_called_lost(cli, lakehouse):
    events = lakehouse.table("silver_a_events")
    lost = next(iter(paths(events.open())))
    (events.local_path / lost).unlink()
    said = cli("sql", "SELECT count(DISTINCT game_name) FROM silver_a_events")
    assert said.code == 1
    assert f"{events.uri}/{lost} is gone, though the table's log lists it" in said.err
    assert "maintenance" not in said.err


def test_a_time_that_history_shows_is_that_version_however_late_its_log_entry_was_written(cli, lakehouse):
    for entry in (lakehouse.table("silver_a_events").local_path / "_delta_log").glob("*.json"):
        written = entry.stat().st_mtime + 5
        os.utime(entry, (written, written))
    versions = cli("history", "silver_a_events", "--json").result["versions"]
    times = [versions[at]["time"].replace(" ", "T") for at in (-1, 0)]
    counts = [cli("sql", "SELECT count(*) FROM silver_a_events", "--as-of", then, "--json").result["rows"] for then in times]
    assert counts == [[[2]], [[3]]]


def test_history_says_what_each_version_was(cli, lakehouse):
    events = lakehouse.table("silver_a_events")
    add(events, SECOND, [NEWER], 3, replace=True, info={"maintenance": "compaction"})
    events.open().restore(0)
    found = cli("history", "silver_a_events", "--json").result["versions"]
    made = [(v["kind"], v["added"], v["removed"], v["batch"], v["run_id"]) for v in reversed(found)]
    assert made[0] == ("rows", 2, 0, 1, "run-1")
    assert made[1][0] == "columns"
    assert ("rows", 1, 0, 2, "run-2") in made
    assert ("maintenance", 1, None, None, None) in made
    assert made[-1][0] == "restore"
    assert json.loads(json.dumps([v["version"] for v in found])) == list(range(len(found) - 1, -1, -1))
    shown = cli("history", "silver_a_events", "--limit", "2")
    assert f"only 2 of {len(found)} versions that can be read are shown" in shown.out
    assert "restore" in shown.out


def test_each_message_type_of_a_game_is_a_view_with_its_own_columns(tmp_path):
    lakehouse = Lakehouse(str(tmp_path))
    owners = [("game_name", "t.Start", "t.Paid"), ("level", "t.Start"), ("amount", "t.Paid")]
    columns = ColumnMap()
    fields = {kind: [] for kind in ("t.Start", "t.Paid")}
    for number, (name, *kinds) in enumerate(owners, 1):
        for kind in kinds:
            fields[kind].append(Field(number, name, pa.string()))
    for kind, of_kind in fields.items():
        columns = columns.with_message(kind, of_kind)
    wanted = ("_message_type", "game_name", "level", "amount", "_batch")
    schema = pa.schema([field for field in bronze_schema(columns) if field.name in wanted])
    rows = [
        {"_message_type": "t.Start", "game_name": "a", "level": "3", "_batch": 1},
        {"_message_type": "t.Paid", "game_name": "a", "amount": "7", "_batch": 1},
        {"_message_type": None, "game_name": "a", "_batch": 1},
    ]
    add(lakehouse.table("silver_a_events"), schema, rows, 1)
    with TablesSql(lakehouse) as tables:
        names, found = tables.query("SELECT * FROM silver_a__start_events")
        assert (names, list(found)) == (["_message_type", "_batch", "game_name", "level"], [("t.Start", 1, "a", "3")])
        _, found = tables.query("SELECT count(*) FROM silver_a__paid_events JOIN silver_a__start_events USING (game_name)")
        assert list(found) == [(1,)]
        for unknown in ("silver_a__other_events", "silver_b__paid_events"):
            with pytest.raises(ConfigurationError, match=f"no table '{unknown}'"):
                tables.query(f"SELECT * FROM {unknown}")
