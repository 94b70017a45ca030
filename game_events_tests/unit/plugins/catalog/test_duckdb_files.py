"""Whatever a query asks DuckDB for, no file is created, changed or deleted but its own temporary ones."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from game_events.errors import ConfigurationError, LostFileError
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.catalog.sql import TablesSql
from game_events_tests.support.tables import put

#: Every kind of statement that DuckDB has, with the places that it may be pointed at.
STATEMENTS = [
    "COPY (SELECT 1 AS a) TO '{place}/x.csv'",
    "COPY (SELECT 1 AS a) TO '{place}/x.json' (FORMAT json)",
    "COPY (SELECT 1 AS a) TO '{place}/x.parquet' (FORMAT parquet)",
    "COPY silver_a_events TO '{place}/x.parquet'",
    "COPY (SELECT 1 AS a, 2 AS b) TO '{place}' (FORMAT parquet, PARTITION_BY (a), OVERWRITE)",
    "COPY (SELECT 1 AS a, 2 AS b) TO '{place}/new' (FORMAT parquet, PARTITION_BY (a))",
    "COPY (SELECT 1 AS a) TO '{place}' (FORMAT parquet, PER_THREAD_OUTPUT, OVERWRITE)",
    "COPY (SELECT 1 AS a) TO '{place}/_delta_log/00000000000000000000.json' (FORMAT csv)",
    "COPY _columns.silver_a_events FROM '{place}/x.csv'",
    "COPY FROM DATABASE memory TO memory",
    "INSERT INTO _columns.silver_a_events VALUES ('x') RETURNING *",
    "UPDATE _columns.silver_a_events SET gamer_id = 'x' RETURNING *",
    "DELETE FROM _columns.silver_a_events RETURNING *",
    "TRUNCATE _columns.silver_a_events",
    "MERGE INTO _columns.silver_a_events t USING (SELECT 'x' AS gamer_id) s ON t.gamer_id = s.gamer_id "
    "WHEN NOT MATCHED THEN INSERT VALUES ('x')",
    "CREATE TABLE made AS SELECT 1 AS a",
    "CREATE VIEW made AS FROM silver_a_events",
    "CREATE MACRO made(x) AS x",
    "CREATE SECRET made (TYPE s3)",
    "CREATE PERSISTENT SECRET made (TYPE s3)",
    "DROP VIEW silver_a_events",
    "ALTER VIEW silver_a_events RENAME TO other",
    "COMMENT ON VIEW silver_a_events IS 'x'",
    "ATTACH '{place}/x.db'",
    "ATTACH '{place}/x.db' AS x (TYPE duckdb)",
    "DETACH memory",
    "USE memory",
    "EXPORT DATABASE '{place}/exported'",
    "IMPORT DATABASE '{place}'",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs FROM '{place}'",
    "LOAD httpfs",
    "LOAD '{place}/x.duckdb_extension'",
    "UPDATE EXTENSIONS",
    "SET temp_directory = '{place}'",
    "SET GLOBAL enable_external_access = true",
    "SET disabled_filesystems = ''",
    "RESET disabled_filesystems",
    "SET profiling_output = '{place}/x.json'",
    "SET log_query_path = '{place}/x.log'",
    "SET home_directory = '{place}'",
    "SET VARIABLE x = 1",
    "PRAGMA enable_profiling = 'json'",
    "PRAGMA profiling_output = '{place}/x.json'",
    "PRAGMA enable_logging",
    "CALL enable_logging('FileSystem', storage = 'file', storage_path = '{place}')",
    "CALL force_checkpoint()",
    "CALL pragma_version()",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "VACUUM ANALYZE",
    "ANALYZE",
    "BEGIN TRANSACTION",
    "COMMIT",
    "PREPARE p AS COPY (SELECT 1) TO '{place}/x.csv'",
    "EXECUTE p",
    "DEALLOCATE p",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{place}/x.csv'",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{place}')",
    "SELECT * FROM force_checkpoint()",
    "SELECT write_log('x')",
    "SELECT * FROM read_csv('{place}/x.csv', store_rejects = true)",
    "SELECT * FROM read_text('{place}/kept.txt')",
    "SELECT * FROM read_blob('{place}/*')",
    "SELECT * FROM glob('{place}/*')",
    "FROM '{place}/kept.txt'",
]
#: Where a statement is put; `{quoted}` is it as a text.
NESTED = {
    "alone": "{statement}",
    "in a common table expression": "WITH t AS ({statement}) SELECT * FROM t",
    "in a materialised one": "WITH t AS MATERIALIZED ({statement}) SELECT * FROM t",
    "in one that is not named": "WITH t AS ({statement}) SELECT 1",
    "in a subquery's": "SELECT * FROM (WITH t AS ({statement}) SELECT * FROM t)",
    "in a scalar subquery": "SELECT (WITH t AS ({statement}) SELECT 1 FROM t)",
    "as a subquery": "SELECT * FROM ({statement})",
    "as a text that is run": "SELECT * FROM query('{quoted}')",
    "in a text that is run": "SELECT * FROM query('WITH t AS ({quoted}) SELECT * FROM t')",
    "after another one": "SELECT 1; {statement}",
    "described": "DESCRIBE {statement}",
    "summarised": "SUMMARIZE WITH t AS ({statement}) SELECT * FROM t",
    "pivoted": "WITH t AS ({statement}) PIVOT t ON a",
}


def everything(folder: Path) -> dict[str, tuple[bytes | None, int]]:
    """Path -> content and time of each file and folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    """A lakehouse and a folder beside it; the working, home and temporary folders are in the sandbox, too."""
    for name in ("home", "tmp", "work", "beside", "lake"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path / "work")
    for name in ("beside", "lake"):
        (tmp_path / name / "kept.txt").write_text("kept")
    lakehouse = Lakehouse(str(tmp_path / "lake"))
    for name in ("silver_a_events", "bronze_events"):
        put(lakehouse.table(name), pa.table({"gamer_id": ["a", "b"]}), {"batch": 1}, expect_transactions={"batch": None})
    return tmp_path


def places(sandbox: Path) -> list[str]:
    lake = sandbox / "lake"
    found = [lake, lake / "silver_a_events", lake / "silver_a_events" / "..", sandbox / "beside", sandbox / "tmp", "."]
    addresses = [f"lake://{lake}", "lake://", f"lake://{lake}/../lake", f"file://{lake}"]
    return [*map(str, found), *addresses]


@pytest.mark.parametrize("where", NESTED)
def test_no_statement_creates_changes_or_deletes_a_file_wherever_it_stands(sandbox, where):
    before = everything(sandbox)
    for place in places(sandbox):
        # The tables are opened first: a view's files are what a query may reach.
        with TablesSql(Lakehouse(str(sandbox / "lake")), None, 2**28, 2**28) as tables:
            assert list(tables.query("SELECT count(*) FROM silver_a_events")[1]) == [(2,)]
            for statement in STATEMENTS:
                filled = statement.format(place=place)
                asked = NESTED[where].format(statement=filled, quoted=filled.replace("'", "''"))
                try:
                    rows = list(tables.query(asked)[1])
                except ConfigurationError as error:
                    assert "Traceback" not in str(error), asked
                else:
                    assert "kept" not in str(rows).replace(f"{place}/kept.txt", ""), asked
        # What its temporary folder's coming and going changed.
        changed = everything(sandbox)
        assert {name for name in before | changed if before.get(name) != changed.get(name)} <= {"tmp"}, place


WRITES = (
    "COPY (SELECT 1) TO '{place}/x.csv'",
    "DELETE FROM _columns.silver_a_events RETURNING *",
    "UPDATE _columns.silver_a_events SET gamer_id = 'x' RETURNING *",
    "INSERT INTO _columns.silver_a_events VALUES ('x') RETURNING *",
)


@pytest.mark.parametrize("statement", WRITES)
def test_a_statement_that_writes_inside_of_a_select_is_told_that_tables_are_only_read(sandbox, statement):
    lake = sandbox / "lake"
    with TablesSql(Lakehouse(str(lake))) as tables:
        (((temporary,),),) = (list(tables.query("SELECT current_setting('temp_directory')")[1]),)
        for place in (f"lake://{lake}", lake, temporary):
            written = statement.format(place=place)
            with pytest.raises(ConfigurationError, match="the tables are only read here"):
                list(tables.query(f"WITH t AS ({written}) SELECT * FROM t")[1])
            with pytest.raises(ConfigurationError, match=r"must be at the top level|the tables are only read here"):
                list(tables.query(f"SELECT * FROM query('WITH t AS ({written.replace(chr(39), chr(39) * 2)}) FROM t')")[1])
        assert list(Path(temporary).iterdir()) == []


@pytest.mark.parametrize("statement", STATEMENTS)
def test_duckdb_itself_reaches_nothing_but_its_temporary_files(sandbox, statement):
    """Also without the look at what a query asks for."""
    before = everything(sandbox)
    with TablesSql(Lakehouse(str(sandbox / "lake")), None, 2**28, 2**28) as tables:
        list(tables.query("SELECT count(*) FROM silver_a_events")[1])
        (((temporary,),),) = (list(tables.query("SELECT current_setting('temp_directory')")[1]),)
        for place in (*places(sandbox), f"{temporary}/..", f"{temporary}/a/../.."):
            for asked in (statement.format(place=place), f"WITH t AS ({statement.format(place=place)}) SELECT * FROM t"):
                with suppress(duckdb.Error):
                    tables._connection.execute(asked)
    changed = everything(sandbox)
    assert {name for name in before | changed if before.get(name) != changed.get(name)} <= {"tmp"}


def test_temporary_files_have_a_bound_and_none_is_left(sandbox):
    lakehouse, most = Lakehouse(str(sandbox / "lake")), 64 * 1024**2
    spilled = "SELECT count(*) FROM (SELECT md5(range::VARCHAR) AS n FROM range(6000000) ORDER BY n LIMIT 5000000)"
    with TablesSql(lakehouse, None, 128 * 1024**2, most) as tables:
        with pytest.raises(ConfigurationError, match="GAME_EVENTS_SQL_DISK_BYTES"):
            list(tables.query(spilled)[1])
        assert sum(path.stat().st_size for path in (sandbox / "tmp").rglob("*") if path.is_file()) <= most
    assert list((sandbox / "tmp").iterdir()) == []


def test_what_went_to_temporary_files_comes_back_as_it_was(sandbox):
    """They are written by many threads at once, in places, and shortened in between."""
    rows = "SELECT range AS n, md5(range::VARCHAR) AS text FROM range(400000)"
    asked = f"""
        WITH sorted AS MATERIALIZED (SELECT *, row_number() OVER (ORDER BY text) AS place FROM ({rows})),
        joined AS (SELECT a.n, a.text, a.place, b.place AS other FROM sorted a JOIN sorted b ON b.n = 399999 - a.n)
        SELECT count(*), count(DISTINCT text), sum(n), sum(place), sum(other), bit_xor(hash(text, n)), count(lower) FROM (
            SELECT *, CASE WHEN lag(text) OVER (ORDER BY place) < text THEN 1 END AS lower FROM joined)
    """
    lakehouse = Lakehouse(str(sandbox / "lake"))
    with TablesSql(lakehouse, None, 2**33) as tables:
        expected = list(tables.query(asked)[1])
    with TablesSql(lakehouse, None, 64 * 1024**2) as tables:
        assert list(tables.query(asked)[1]) == expected
    assert expected[0][:2] == (400_000, 400_000)


def test_files_are_read_by_many_threads_at_once_and_where_names_have_characters_of_patterns(tmp_path):
    lakehouse = Lakehouse(str(tmp_path / "it's [a] *? root"))
    rows = pa.table({"n": range(200_000), "text": [f"{n:>50}" for n in range(200_000)]})
    for number in range(3):
        put(
            lakehouse.table("silver_a_events"),
            rows,
            {"batch": number},
            expect_transactions={"batch": number - 1 if number else None},
        )
    with TablesSql(lakehouse) as tables:
        for _ in range(3):
            asked = "SELECT count(*), sum(n), count(DISTINCT text) FROM silver_a_events WHERE text::BIGINT = n"
            assert list(tables.query(asked)[1]) == [(600_000, 3 * sum(range(200_000)), 200_000)]


def test_a_file_that_became_shorter_is_an_error_and_never_other_rows(tmp_path):
    lakehouse = Lakehouse(str(tmp_path / "lake"))
    table = lakehouse.table("silver_a_events")
    put(table, pa.table({"n": range(100_000)}), {"batch": 1}, expect_transactions={"batch": None})
    (path,) = table.local_path.glob("*.parquet")
    whole = path.read_bytes()
    with TablesSql(lakehouse) as tables:
        assert list(tables.query("SELECT count(*) FROM silver_a_events")[1]) == [(100_000,)]
        for left in (len(whole) // 2, 100, 1, 0):
            path.write_bytes(whole[:left])
            with pytest.raises(ConfigurationError, match="the query failed"):
                list(tables.query(f"SELECT sum(n + {left}) FROM silver_a_events")[1])
        path.unlink()
        with pytest.raises(LostFileError, match="is gone, though the table's log lists it"):
            list(tables.query("SELECT sum(n) FROM silver_a_events")[1])


def test_a_query_whose_rows_are_not_all_read_is_closed_at_once(tmp_path):
    lakehouse = Lakehouse(str(tmp_path / "lake"))
    rows = pa.table({"text": [f"{n:>200}" for n in range(300_000)]})
    put(lakehouse.table("silver_a_events"), rows, {"batch": 1}, expect_transactions={"batch": None})
    for _ in range(20):
        with TablesSql(lakehouse) as tables:
            _, found = tables.query("FROM silver_a_events")
            assert next(found)
