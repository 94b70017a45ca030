"""In-memory DuckDB connections, for SQL over Arrow tables in this process."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa


def connect(**tables: pa.Table) -> duckdb.DuckDBPyConnection:
    """A connection with Arrow tables as views; times are UTC, and no progress bar is written to stdout."""
    # Names in a query are tables, never variables of this program.
    connection = duckdb.connect(config={"python_enable_replacements": False})
    # Without the progress bar itself, DuckDB would not notice Ctrl-C during a query.
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar_print = false")
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def records(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """A query's rows by column name."""
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def query(events: pa.Table, sql: str, **values: object) -> list[dict[str, Any]]:
    """Rows of a query over the view `events`."""
    with connect(events=events) as connection:
        return records(connection.execute(sql, values))
