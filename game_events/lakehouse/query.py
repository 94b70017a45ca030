"""SQL over the tables without Spark: each table of a root is a view, by its name, in an in-memory DuckDB.

A view reads exactly the files of one Delta version, with the table's columns and types; columns that a file lacks are NULL. A
table is opened when a query first names it: opening all of some thousands takes longer than most queries.

Guarantee: nothing is written, and nothing but the tables' files is read. Queries may come from others: DuckDB has no file
system but `ConnectionFiles`, which opens the files of named tables for reading, and settings are locked. That one SELECT at a
time is run is only for the message: a statement inside of a SELECT may change what this connection holds in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.errors import ConfigurationError, GameEventsError, LostFileError
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.duckdb_connection import connect, identifier, interruptible, text
from game_events.lakehouse.duckdb_files import ConnectionFiles
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.tables import Lakehouse, Table, no_table, paths

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Rows that are fetched at once.
FETCH_ROWS = 10_000
_MISSING = re.compile(r"Table with name \"?(.+?)\"? does not exist")
#: After the name of a lost file.
REPAIR = "put it back from a copy, or refresh the table fully (docs/operations.md)"
#: What lists tables instead of naming one.
_LISTS = re.compile(r"\b(show|information_schema|duckdb_(tables|views|columns)|pg_\w+|sqlite_master)\b", re.IGNORECASE)
_GONE = re.compile(r"No such file|does not exist|cannot open file|No files found|NoSuchKey|not found", re.IGNORECASE)


class TablesSql:
    """A connection in which the tables of a lakehouse can be queried."""

    def __init__(
        self,
        lakehouse: Lakehouse,
        as_of: datetime | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        """Lists the root; opens no table.

        `as_of`: the time of the versions; None: the newest. `memory_bytes`: memory of a query, past which it uses the disk.
        `disk_bytes`: of its temporary files. None: DuckDB's own bounds.
        """
        self._lakehouse, self._as_of = lakehouse, as_of
        self._tables = {table.name: table for table in map(lakehouse.table, lakehouse.names())}
        self._opened: set[str] = set()
        self._connection = connect()
        if memory_bytes is not None:
            self._connection.execute(f"SET memory_limit = '{memory_bytes}B'")
        self._connection.execute("CREATE SCHEMA _columns")
        self._files = ConnectionFiles(disk_bytes)
        self._files.restrict(self._connection)

    def __enter__(self) -> TablesSql:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._files.close()

    def query(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Names of a query's columns, and its rows, read as they are asked for.

        Raises:
            ConfigurationError: it is no single SELECT, it names what there is not, or it cannot be computed.
            LostFileError: a file that the newest version of a table lists is gone.
        """
        self._refuse_others(sql)
        self._files.failed = None
        if _LISTS.search(sql):
            for name in self._tables:
                self._open(name)
        while True:
            try:
                self._execute(sql)
                break
            except duckdb.CatalogException as error:
                found = _MISSING.search(str(error))
                if found is None:
                    raise self._failed(error) from None
                named = found[1].lower()  # SQL's names know no upper case
                if named not in self._tables or named in self._opened:
                    raise self._unknown(found[1]) from None
                self._open(named)
            except (duckdb.Error, OSError) as error:
                raise self._failed(error) from None
        names = [column[0] for column in self._connection.description or []]
        return names, self._rows()

    def _execute(self, sql: str) -> None:
        """Run a statement that may read files, which Ctrl-C ends."""
        interruptible(self._connection, lambda: self._connection.execute(sql))

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        try:
            while rows := interruptible(self._connection, lambda: self._connection.fetchmany(FETCH_ROWS)):
                yield from rows
        except (duckdb.Error, OSError) as error:
            raise self._failed(error) from None

    def _refuse_others(self, sql: str) -> None:
        try:
            kinds = [statement.type for statement in duckdb.extract_statements(sql)]
        except duckdb.Error as error:
            raise ConfigurationError(f"the query cannot be read: {error}") from None
        except ValueError:  # a kind that its Python has no name for
            kinds = []
        if kinds != [duckdb.StatementType.SELECT]:
            raise ConfigurationError("only one SELECT (or DESCRIBE, SHOW TABLES) is run: the tables are only read here")

    def _unknown(self, name: str) -> ConfigurationError:
        if name.lower() in self._tables:
            when = f"as of {self._as_of.isoformat()}: it was made later" if self._as_of is not None else "yet"
            return ConfigurationError(f"there is no table {name!r} {when}")
        return no_table(self._lakehouse, name, self._tables)

    def _failed(self, error: Exception) -> GameEventsError:
        """What to raise for an error of DuckDB."""
        error = self._files.failed or error
        first = str(error).strip()
        if isinstance(error, duckdb.OutOfMemoryException):
            return ConfigurationError(
                f"the query needs more memory, or room for temporary files, than it may have: {first.splitlines()[0]}. "
                "Select less, or set GAME_EVENTS_SQL_MEMORY_BYTES or GAME_EVENTS_SQL_DISK_BYTES higher"
            )
        if isinstance(error, duckdb.IOException | OSError) and _GONE.search(first):
            lost = _lost_file([self._tables[name] for name in sorted(self._opened)], first)
            if lost is not None:
                return LostFileError(f"{lost} is gone, though the table's log lists it: {REPAIR}")
            when = f" of {self._as_of.isoformat()}" if self._as_of is not None else ""
            return ConfigurationError(
                f"files of the tables{when} are gone: maintenance deletes replaced ones after GAME_EVENTS_RETENTION_H hours "
                f"(docs/maintenance.md). Ask for a later time, or run the query again: {first.splitlines()[0]}"
            )
        if isinstance(error, duckdb.PermissionException):
            first += " (a query reads tables, by their names; it reaches no file and changes nothing)"
        return ConfigurationError(f"the query failed: {first}")

    def _open(self, name: str) -> None:
        """Make the view of a table; a table that was not there at the time is none."""
        if name in self._opened:
            return
        self._opened.add(name)
        table = self._tables[name]
        handle = table.open_to_read()
        if handle is None or (self._as_of is not None and not _travel(table, handle, self._as_of)):
            return
        schema = pa.schema(handle.schema())
        # In another schema, so that it is not listed among the tables.
        empty, view = f"_columns.{identifier(name)}", identifier(name)
        self._connection.register("_empty", schema.empty_table())
        self._connection.execute(f"CREATE TABLE {empty} AS FROM _empty")
        self._connection.unregister("_empty")
        files = paths(handle)
        partition = pa.schema([schema.field(name) for name in handle.metadata().partition_columns])
        try:
            if not files:
                self._connection.execute(f"CREATE VIEW {view} AS FROM {empty}")
            elif table.local_path is not None:
                listed = ", ".join(map(text, self._files.readable(f"{table.uri}/{path}" for path in files)))
                folders = "hive_types_autocast = false, hive_partitioning = " + str(bool(partition)).lower()
                read = f"read_parquet([{listed}], union_by_name = true, {folders})"
                # The empty table brings columns that no file has, and every column's type.
                self._execute(f"CREATE VIEW {view} AS (FROM {empty}) UNION ALL BY NAME (FROM {read})")
            else:
                self._connection.register(name, _dataset(table, files, schema, partition))
        except (duckdb.Error, OSError) as error:
            raise self._failed(error) from None


def _lost_file(tables: Iterable[Table], said: str) -> str | None:
    """Of the files that an error names, one that the newest version of a table lists; None: versions before it have them."""
    for table in tables:
        handle = table.open_to_read()
        found = paths(handle) if handle is not None else []
        lost = next((path for path in found if PurePosixPath(path).name in said), None)
        if lost is not None:
            return f"{table.uri}/{lost}"
    return None


def _travel(table: Table, handle: DeltaTable, then: datetime) -> bool:
    """Bring a handle to the version of a time; False: there was no table yet. ConfigurationError: its log begins later."""
    # The commits' own times, as `history` shows them; delta-rs takes those of the log's files, which are a little later.
    history, moment = handle.history(), (then - EPOCH) // timedelta(milliseconds=1)
    reached = [int(commit["version"]) for commit in history if int(commit.get("timestamp", 0)) <= moment]
    if not reached:
        if int(history[-1]["version"]) == 0:
            return False
        raise ConfigurationError(f"{table.name}: its log does not reach back to {then.isoformat()} any more")
    try:
        handle.load_as_version(max(reached))
    except DeltaError as error:
        raise ConfigurationError(f"{table.name} cannot be read as of {then.isoformat()}: {error}") from None
    return True


def _dataset(table: Table, files: list[str], schema: pa.Schema, partition: pa.Schema) -> pads.Dataset:
    """A table in an object store, read by delta-rs' own client: it has the credentials."""
    system, prefix = file_system(table)
    with store_errors_named(table.uri):
        return pads.dataset(
            [prefix + path for path in files],
            schema=schema,
            format="parquet",
            filesystem=system,
            partitioning=pads.partitioning(partition, flavor="hive") if partition else None,
        )


def plain(row: Sequence[object]) -> list[object]:
    """A row for JSON and CSV: bytes as hexadecimal digits, times in ISO's form, everything else as it is."""
    return [_plain(value) for value in row]


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
