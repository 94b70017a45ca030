"""`game-events sql`: queries over the tables, by an in-memory DuckDB in this process, without Spark.

Each table of a root is a view, by its name, which reads exactly the files of one Delta version, with the table's columns and
types; columns that a file lacks are NULL. So is each message type of a game (`type_views`). A table is opened when a query
first names it: opening all of some thousands takes longer than most queries.

Guarantee: nothing is written, and nothing but the tables' files is read. Queries may come from others: DuckDB's own file system
reaches a folder of temporary files and nothing else, files of named tables are opened for reading by `TableFiles`, and settings
are locked. So nothing can create, change or delete any other file, whatever a statement asks for. That one SELECT at a time is
run, without a statement that writes inside of it, bounds the temporary files.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import typer
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from fsspec import AbstractFileSystem

from game_events.cli.output import Json, Output, nested_as_json
from game_events.cli.output import since as time_of
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, GameEventsError, LostFileError
from game_events.lakehouse.commits.transactions import Version, versions
from game_events.lakehouse.commits.versions import readable_versions
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.duckdb_connection import connect, identifier, interruptible, text
from game_events.lakehouse.storage import store_errors_named
from game_events.lakehouse.tables import Lakehouse, Table, names_of, no_table, paths
from game_events.plugins.catalog.type_views import TypeView

#: Rows that are shown unless somebody wants more.
ROWS = 100

#: Longer values are cut in the table for people; `--csv` and `--json` have all of them.
SHOWN_CHARS = 80

#: Rows that are fetched at once.
FETCH_ROWS = 10_000

#: Of a statement's parts: one that writes.
_WRITES = re.compile(r'"type":"\w+_QUERY_NODE"')

_MISSING = re.compile(r"Table with name \"?(.+?)\"? does not exist")

#: After the name of a lost file.
REPAIR = "put it back from a copy, or refresh the table fully (docs/operations.md)"

#: What lists tables instead of naming one.
_LISTS = re.compile(r"\b(show|information_schema|duckdb_(tables|views|columns)|pg_\w+|sqlite_master)\b", re.IGNORECASE)

_GONE = re.compile(r"No such file|does not exist|cannot open file|No files found|NoSuchKey|not found", re.IGNORECASE)


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT; `-` reads it from stdin.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="All rows as CSV on stdout, as they come.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help=f"So many rows; default: {ROWS}, with --csv all.")] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="The tables as they were then: 30m, 12h (ago), or a date or time.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Query the tables, each by its name: nothing is written, and no Spark is started."""
    if as_csv and as_json:
        raise typer.BadParameter("either --csv or --json", param_hint="--csv")
    output = Output(as_json=as_json)
    text = _text(query)
    settings = load_settings()
    then = time_of(as_of, option="--as-of")
    with TablesSql(Lakehouse.of(settings), then, settings.sql_memory_bytes, settings.sql_disk_bytes) as tables:
        columns, rows = tables.query(text)
        for name, version in tables.versions.items():
            output.say(f"{name}: version {version.version} of {version.time:%Y-%m-%d %H:%M:%S} UTC")
        if as_csv:
            output.csv(columns, map(plain, islice(rows, limit)))
            return
        wanted = limit or ROWS
        shown = list(islice(rows, wanted + 1))
        more = len(shown) > wanted
        shown = shown[:wanted]
    output.table("", columns, [[_shown(value) for value in row] for row in shown], wide=True)
    if more:
        output.say(f"only {wanted:,} rows are shown: --limit shows more, --csv all of them")
    result = {"columns": columns, "rows": [plain(row) for row in shown], "more": more}
    output.result(result | {"versions": {name: v.version for name, v in tables.versions.items()}} if then else result)


def _text(query: str) -> str:
    try:
        return sys.stdin.read() if query == "-" else query
    except UnicodeDecodeError:
        raise ConfigurationError("the query is not UTF-8") from None


def _shown(value: object) -> object:
    if value is None or isinstance(value, bool | float):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return value
    text = str(nested_as_json(*plain([value])))
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


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
        self._lakehouse = lakehouse
        self._as_of = as_of
        self._tables = {table.name: table for table in map(lakehouse.table, lakehouse.names())}
        self._opened: set[str] = set()
        #: Table -> the version that is read, where it is not the newest one.
        self.versions: dict[str, Version] = {}
        self._connection = connect()
        if memory_bytes is not None:
            self._connection.execute(f"SET memory_limit = '{memory_bytes}B'")
        self._connection.execute("CREATE SCHEMA _columns")
        self._temporary = tempfile.TemporaryDirectory(prefix="game_events_sql")
        self._connection.execute(f"SET temp_directory = {text(self._temporary.name)}")
        if disk_bytes is not None:
            self._connection.execute(f"SET max_temp_directory_size = '{disk_bytes}B'")
        self._files = TableFiles()
        self._connection.register_filesystem(self._files)
        self._connection.execute(f"SET allowed_directories = [{text(_PREFIX)}]")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def __enter__(self) -> TablesSql:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._temporary.cleanup()

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
        while not self._is_executed(sql):
            pass
        names = [column[0] for column in self._connection.description or []]
        return names, self._rows()

    def _is_executed(self, sql: str) -> bool:
        """Run a query; False: a table that it names had to be opened first."""
        try:
            self._execute(sql)
        except duckdb.CatalogException as error:
            missing = _MISSING.search(str(error))
            if missing is None:
                raise self._failed(error) from None
            named = missing[1].lower()  # SQL's names know no upper case
            if named in self._opened or not (named in self._tables or self._opened_view(named)):
                raise self._unknown(missing[1]) from None
            self._open(named)
            return False
        except (duckdb.Error, OSError) as error:
            raise self._failed(error) from None
        return True

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
        is_select = kinds == [duckdb.StatementType.SELECT]
        if is_select:
            # DuckDB runs such a statement in a common table expression of the outermost query only, which this text shows.
            ((tree,),) = self._connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
            is_select = _WRITES.search(tree) is None
        if not is_select:
            raise ConfigurationError("only one SELECT (or DESCRIBE, SHOW TABLES) is run: the tables are only read here")

    def _unknown(self, name: str) -> ConfigurationError:
        if name.lower() in self._tables:
            when = f"as of {self._as_of.isoformat()}: it was made later" if self._as_of is not None else "yet"
            return ConfigurationError(f"there is no table {name!r} {when}")
        return no_table(self._lakehouse, name, self._tables)

    def _failed(self, error: Exception) -> GameEventsError:
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
                f"files of the tables{when} are gone: maintenance deletes replaced ones after GAME_EVENTS_REPLACED_FILES_H "
                f"hours (docs/maintenance.md). Ask for a later time, or run the query again: {first.splitlines()[0]}"
            )
        if isinstance(error, duckdb.PermissionException):
            first += " (a query reads tables, by their names; it reaches no file and changes nothing)"
        return ConfigurationError(f"the query failed: {first}")

    def _opened_view(self, name: str) -> bool:
        """Make the view of a message type over its game's table; False: there is no such type, or game."""
        view = TypeView.named(self._lakehouse, name)
        table = self._tables.get(view.table.name) if view is not None else None
        handle = table.open_to_read() if table is not None else None
        if view is None or handle is None or MESSAGE_TYPE not in names_of(handle):
            return False
        self._opened.add(name)
        self._open(view.table.name)
        try:
            self._execute(view.types_query)
            query = view.query(handle, [full for (full,) in self._connection.fetchall() if full is not None])
            if query is not None:
                self._execute(f"CREATE VIEW {identifier(name)} AS {query}")
        except (duckdb.Error, OSError) as error:
            raise self._failed(error) from None
        return query is not None

    def _open(self, name: str) -> None:
        """Make the view of a table; a table that was not there at the time is none."""
        if name in self._opened or name not in self._tables:
            return
        self._opened.add(name)
        table = self._tables[name]
        handle: DeltaTable | None = table.open_to_read()
        if handle is not None and self._as_of is not None:
            chosen = _as_of(table, handle, self._as_of)
            handle = None
            if chosen is not None:
                self.versions[name], handle = chosen
        if handle is None:
            return
        schema = pa.schema(handle.schema())
        # In another schema, so that it is not listed among the tables.
        empty = f"_columns.{identifier(name)}"
        view = identifier(name)
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
        files = paths(handle) if handle is not None else []
        lost = next((path for path in files if PurePosixPath(path).name in said), None)
        if lost is not None:
            return f"{table.uri}/{lost}"
    return None


def _as_of(table: Table, handle: DeltaTable, then: datetime) -> tuple[Version, DeltaTable] | None:
    """The newest version up to a time that can be read; None: there was no table yet.

    By the commits' own times, as `history` shows them; those of the log's files are a little later.

    Raises:
        ConfigurationError: no version that is so old can be read any more; the message has the oldest one.
    """
    readable = [version for version in readable_versions(table) if version <= handle.version()]
    oldest: Version | None = None
    for version in versions(table, reversed(readable)):
        if version.time <= then:
            try:
                return version, DeltaTable(table.uri, version.version, table.options)
            except DeltaError as error:
                raise ConfigurationError(f"{table.name} cannot be read as of {then.isoformat()}: {error}") from None
        oldest = version
    if oldest is None or oldest.version == 0:
        return None
    raise ConfigurationError(
        f"{table.name} cannot be read as of {then.isoformat()} any more: its oldest version that can be read is "
        f"{oldest.version}, of {oldest.time.isoformat(timespec='seconds')} (`game-events history {table.name}`; "
        "docs/maintenance.md)"
    )


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


PROTOCOL = "lake"

_PREFIX = f"{PROTOCOL}://"


class TableFiles(AbstractFileSystem):  # type: ignore[misc]
    """The file system of one connection, which reads the files of its tables."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self) -> None:
        """No file can be read yet."""
        super().__init__()
        self._readable = set[str]()
        #: The last error of a file: DuckDB's own text repeats it as a traceback.
        self.failed: OSError | None = None

    def readable(self, paths: Iterable[str]) -> list[str]:
        """Let local files be read; gives their addresses for the connection."""
        addresses = [_PREFIX + path for path in paths]
        self._readable.update(addresses)
        return addresses

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the last error of a file."""
        try:
            yield
        except OSError as error:
            self.failed = error
            raise

    # --- What DuckDB calls. Every other method of the class raises, or does nothing.

    def open(self, path: str, mode: str = "rb", **_: object) -> _File:
        """A file to be read; PermissionError for any other."""
        with self.noted():
            if path in self._readable and mode == "rb":
                return _File(path.removeprefix(_PREFIX), self)
            raise PermissionError(f"{path} is no file of a table that can be read: the tables are only read here")

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """Size and time of a file."""
        status = self._status(path)
        return {"name": path, "size": status.st_size, "type": "file", "mtime": status.st_mtime}

    def modified(self, path: str) -> datetime:
        """When a file was changed last."""
        return datetime.fromtimestamp(self._status(path).st_mtime, UTC)

    def glob(self, path: str, **_: object) -> list[str]:
        """The file of that very name: its characters are no pattern."""
        return [path.removeprefix(_PREFIX)] if path in self._readable else []

    def _status(self, path: str) -> os.stat_result:
        if path not in self._readable:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return Path(path.removeprefix(_PREFIX)).stat()


class _File(io.FileIO):
    """A file that DuckDB's threads share: each has a position of its own, as each seeks before it reads."""

    def __init__(self, path: str, files: TableFiles) -> None:
        super().__init__(path, "rb")
        self._files = files
        self._position = threading.local()

    def __del__(self) -> None:
        # DuckDB closes files by forgetting them.
        self.close()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set this thread's position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: os.fstat(self.fileno()).st_size}[whence]
        self._position.at = start + offset
        return self.tell()

    def tell(self) -> int:
        """This thread's position."""
        return int(getattr(self._position, "at", 0))

    def read(self, size: int | None = -1, /) -> bytes:
        """Exactly so many bytes; OSError if the file has fewer, which DuckDB would not notice."""
        wanted = size if size is not None and size >= 0 else max(0, os.fstat(self.fileno()).st_size - self.tell())
        parts = list[bytes]()
        while wanted > 0 and (part := os.pread(self.fileno(), wanted, self.tell())):
            parts.append(part)
            wanted -= len(part)
            self.seek(len(part), os.SEEK_CUR)
        if wanted > 0:
            with self._files.noted():
                raise OSError(errno.EIO, f"the file ends {wanted:,} bytes too early", str(self.name))
        return parts[0] if len(parts) == 1 else b"".join(parts)
