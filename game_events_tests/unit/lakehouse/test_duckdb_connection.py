"""DuckDB connections: no progress bar on stdout, UTC times, no variables of this program."""

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import game_events
from game_events.lakehouse.duckdb_connection import connect, query


def test_no_connection_writes_a_progress_bar_to_stdout():
    with connect() as connection:
        assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]


def test_every_connection_is_made_in_one_place_but_that_of_expressions_which_reaches_nothing():
    folder = Path(game_events.__file__).parent
    makers = [str(f.relative_to(folder)) for f in folder.rglob("*.py") if re.search(r"duckdb\.connect\(", f.read_text("utf-8"))]
    assert sorted(makers) == ["config/definitions/expressions.py", "lakehouse/duckdb_connection.py"]


def test_names_in_a_query_are_its_tables_and_no_variables():
    events = pa.table({"n": [1, 2]})
    assert query(events, "SELECT sum(n) AS total FROM events WHERE n > $above", above=1) == [{"total": 2}]
    with connect() as connection, pytest.raises(duckdb.CatalogException):
        connection.execute("FROM events")
