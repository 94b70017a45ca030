"""SQL over the event log, by DuckDB in this process."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa


def query(events: pa.Table, sql: str, **values: object) -> list[dict[str, Any]]:
    """Rows of a query over some events, which are called `events` in it; times are UTC."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("events", events)
        return records(connection.execute(sql, values))


def records(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """A query's rows by column name."""
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
