"""In-memory DuckDB connections, for SQL over Arrow tables in this process."""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

T = TypeVar("T")
WAIT_S = 0.1


def connect(**tables: pa.Table) -> duckdb.DuckDBPyConnection:
    """A connection with Arrow tables as views; times are UTC, and no progress bar is written to stdout."""
    # Names in a query are tables, never variables of this program.
    connection = duckdb.connect(config={"python_enable_replacements": False})
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def interruptible(connection: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """The result of a call of the connection, which Ctrl-C ends if this is the main thread.

    The call has its own thread. In the main thread, DuckDB raises for the signal, but then waits until its other threads have
    finished their part of the query, which may take years; only `interrupt` ends these.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    pressed = threading.Event()
    # Not an exception, which could be raised before the thread is known and has begun.
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(call)
            while not running.done():
                wait([running], WAIT_S)
                if pressed.is_set():  # each time: DuckDB forgets an interrupt that precedes the query
                    connection.interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed.is_set():
        raise KeyboardInterrupt
    return running.result()


def identifier(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A text as SQL quotes it."""
    return "'" + value.replace("'", "''") + "'"


def records(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """A query's rows by column name."""
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def query(events: pa.Table, sql: str, **values: object) -> list[dict[str, Any]]:
    """Rows of a query over the view `events`."""
    with connect(events=events) as connection:
        return records(connection.execute(sql, values))
