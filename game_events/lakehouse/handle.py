"""Open tables: one version of a table's log, what was read of it, and what this process's own commits have changed since.

What is known of a table without opening it: as much as delta-rs would read of its columns and properties from the log.

Identity of a version's entry in a table's log: whether it is the same table still, and whether a version is the newest.

Source: Delta Lake protocol, "Delta Log Entries", "Commit Provenance Information".
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, Metadata, Schema
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.table import ProtocolVersions

from game_events.lakehouse.storage import is_remote, store_errors_named, unopenable

if TYPE_CHECKING:
    from deltalake._internal import RawDeltaTable

#: Versions of the protocol, for readers and for writers, of a table without features.
PLAIN_READER, PLAIN_WRITER = 1, 2

#: Beside letters, digits and `_.-~`.
_UNQUOTED = "/!$&'()*+,:;=@[]|^"


@dataclass(frozen=True)
class KnownTable:
    """A version of a table without features: this process has just made the table, or a run before has noted it.

    It has the methods of delta-rs' table that need the columns and properties alone, by the same names: opening a table just to
    ask these takes 2 ms and more, and runs have thousands of tables.

    Attributes:
        uri: the table's folder.
        schema: its columns.
        id, name, description, partition_columns, created_time, configuration: its metadata; time: milliseconds since 1970.
        transactions: its transaction ids (None: it was never set).
        at: the version.
        has_all: no other transaction id was ever set.
    """

    uri: str
    schema: Schema
    id: str
    name: str
    description: str | None
    partition_columns: list[str]
    created_time: int
    configuration: dict[str, str]
    transactions: Mapping[str, int | None]
    at: int = 0
    has_all: bool = True

    def version(self) -> int:
        """The version."""
        return self.at

    def table_uri(self) -> str:
        """Where the table is, as an address. Source: URL standard, "path percent-encode set"."""
        return f"file://{quote(self.uri, safe=_UNQUOTED)}/"

    def metadata(self) -> KnownTable:
        """The metadata."""
        return self

    def protocol_versions(self) -> tuple[int, int, None, None]:
        """Versions for readers and writers, and features of each."""
        return PLAIN_READER, PLAIN_WRITER, None, None

    def actions(self) -> list[dict[str, Any]]:
        """The actions of the log's first entry that say this (Delta Lake protocol, "Change Metadata", "Protocol Evolution")."""
        metadata = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema.to_json(),
            "partitionColumns": self.partition_columns,
            "createdTime": self.created_time,
            "configuration": self.configuration,
        }
        return [{"protocol": {"minReaderVersion": PLAIN_READER, "minWriterVersion": PLAIN_WRITER}}, {"metaData": metadata}]


T = TypeVar("T")

#: Keys of `Handle.schema` and `Handle.note_columns` in `Handle.known_of_columns`.
_SCHEMA, _COLUMNS = "schema", "columns"

#: Versions, and seconds, after which a table is opened again. A handle that is moved forward keeps what it has read of each
#: entry. And it goes on reading the checkpoint that it was opened with, which others delete after the log's retention.
MOST_VERSIONS, LONGEST_S = 50, 300.0

#: Files of a version that a handle remembers at most; more are read from the log each time.
MOST_FILES = 64

#: Files without a number of rows in the log, (table, path) -> the number in the file, and how many are remembered at most.
_COUNTED: dict[tuple[str, str], int] = {}

MOST_COUNTED = 100_000

#: Retention of a log without the property (Delta Lake protocol: 30 days).
_DEFAULT_S = 30 * 86_400.0

_SECONDS = re.compile(r"interval (\d+) seconds")

#: Key in a commit's information: JSON of the version that the commit was made for, and the transaction ids that are known of
#: it. delta-rs replays the log for each id; a commit's information is one entry of the log.
NOTED = "game_events_transactions"

#: Transaction ids that a commit notes at most: bronze and quarantine have thousands.
MOST_NOTED = 16


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a version.

    Attributes:
        path: as the log has it, encoded for URIs, below the table's folder.
        size: bytes.
        rows: None: neither the log nor the file says, as the file is gone or damaged.
        lowest_batch, highest_batch: of `_batch` in its rows; None: the log does not say.
    """

    path: str
    size: int
    rows: int | None
    lowest_batch: int | None
    highest_batch: int | None


class Known(NamedTuple):
    """What a handle knows of its version without reading: files, transaction ids (all of them, or some), its commit's."""

    files: tuple[DataFile, ...]
    transactions: Mapping[str, int | None]
    has_all: bool
    info: Mapping[str, Any]


def log_retention_s(handle: DeltaTable) -> float:
    """Seconds that a table's log entries stay, by its properties."""
    found = _SECONDS.fullmatch(handle.metadata().configuration.get("delta.logRetentionDuration") or "")
    return float(found[1]) if found else _DEFAULT_S


def read_add_actions(handle: DeltaTable) -> pa.Table:
    """The files of a version with all statistics, read from the log: see `tables.add_actions`.

    `num_records` of files without statistics (another engine's, with these switched off) is read from the files themselves.
    """
    # `pa.table` would import pandas: a third of a second of every start.
    actions = pa.RecordBatchReader.from_stream(handle.get_add_actions(flatten=True)).read_all()
    rows = actions.column("num_records")
    if not rows.null_count:
        return actions
    counts = [
        _rows_in(handle, path) if known is None else known
        for path, known in zip(actions.column("path").to_pylist(), rows.to_pylist(), strict=True)
    ]
    return actions.set_column(actions.column_names.index("num_records"), "num_records", pa.array(counts, pa.int64()))


def _rows_in(handle: DeltaTable, path: str) -> int | None:
    """Rows of a file, by its footer, which is read once; None: it is gone or damaged, as whoever reads the file will say."""
    # Parquet's reader is slow to load, and hardly any table needs it here.
    import pyarrow.parquet as pq

    key = handle.table_uri, path
    if key not in _COUNTED:
        system = pafs.PyFileSystem(DeltaStorageHandler.from_table(handle._table, handle._storage_options))
        try:
            with store_errors_named(handle.table_uri), system.open_input_file(unquote(path)) as source:
                count = int(pq.read_metadata(source).num_rows)
        except (FileNotFoundError, pa.ArrowInvalid):
            return None
        if len(_COUNTED) >= MOST_COUNTED:
            _COUNTED.clear()
        _COUNTED[key] = count
    return _COUNTED[key]


def read_data_files(handle: DeltaTable) -> tuple[DataFile, ...]:
    """The files of a version, read from the log."""
    actions = read_add_actions(handle)
    unknown = [None] * actions.num_rows
    columns = (
        actions.column(name).to_pylist() if name in actions.column_names else unknown
        for name in ("path", "size_bytes", "num_records", "min._batch", "max._batch")
    )
    return tuple(map(DataFile, *columns))


class Handle(DeltaTable):
    """A version of a table; what was read of it is read once.

    After a commit of this process (`moved`) the handle has the next version, without reading it from the log: columns and
    properties are as before, transaction ids and files are known. delta-rs reads the entries when it is asked for more; a table
    that this process has made is opened only then.

    Attributes:
        first: the version that was opened; `version()` is later once a commit has moved it.
        good_until_s: by `time.monotonic`: until then the log has all that the handle may read.
        entry: a version, and the identity of its entry in the log (`log_entries`); None: it is not known. `Table` notes it of a
            local table; in an object store it is the mark of the version's commit, if that was read, or made by this process.
        store: the table's folder in an object store, by the connections and credentials of this handle; None: a local table.
        uri: where the table is, as it was given.
        was_opened: delta-rs has read the log for it; else the table was made here, or known by its summary.
        summarised: the version whose summary (`version_summary`) is beside the log, as far as this handle knows; -1: none.
    """

    _read: RawDeltaTable | KnownTable

    def __init__(self, uri: str, options: dict[str, str], known: KnownTable | None = None) -> None:
        """`known`: a local table that need not be opened; None: it is opened."""
        #: After own commits: the version that delta-rs has read, and the one that this handle has.
        self._moved = -1, -1
        self._made: tuple[int, dict[Any, Any]] = -1, {}
        self.uri = uri
        self.summarised = -1
        self.was_opened = known is None
        if known is None:
            super().__init__(uri, storage_options=options)
        else:
            self._read, self._storage_options = known, options
        self.first = self.version()
        self.good_until_s = time.monotonic() + min(LONGEST_S, log_retention_s(self) / 2)
        self.entry: tuple[int, Entry | None] | None = None
        remote = is_remote(uri)
        self.store = pafs.PyFileSystem(DeltaStorageHandler.from_table(self._table, options)) if remote else None
        self._transactions: tuple[int, dict[str, int | None]] = (-1, {})
        if known is not None:
            self._transactions = known.at, dict(known.transactions)
        self._newest: tuple[int, Mapping[str, Any]] = -1, {}
        self._files: tuple[int, tuple[DataFile, ...] | None] = -1, None

    @property
    def _table(self) -> RawDeltaTable:
        """delta-rs' table, through which all methods of `DeltaTable` go; it has read this handle's version afterwards.

        Raises:
            DeltaError: another commit has that version now, as the table was deleted and made again. Its entries after those of
                the old table would be neither of the two.
            DataError: it was not opened yet, and cannot be opened.
        """
        table, known = self._read, self._read.version()
        if isinstance(table, KnownTable) or known == self._moved[0]:
            version, noted = self.version(), self.entry
            if noted is not None and noted[0] == version and entry_of(self.uri, self.store, version) != noted[1]:
                raise DeltaError(f"version {version} of {self.uri} is gone: was the table deleted, or made again?")
            if isinstance(table, KnownTable):
                try:
                    table = self._read = DeltaTable(self.uri, version, self._storage_options)._table
                except DeltaError as error:  # of a table that was known by its summary, older entries may be lost
                    raise unopenable(self.uri, error) from error
            else:
                table.load_version(version)
            if self._made[0] == known:  # columns and properties are as they were
                self._made = version, self._made[1]
            # delta-rs may go back to the version that it had read (`load_as_version`).
            self._moved = -1, -1
        return table

    @_table.setter
    def _table(self, table: RawDeltaTable) -> None:
        self._read = table

    def version(self) -> int:
        """This handle's version."""
        read, version = self._moved
        found = self._read.version()
        return version if found == read else found

    def schema(self) -> Schema:
        """Columns, which `moved` leaves as they are."""
        known = self.known_of_columns
        if _SCHEMA not in known:
            known[_SCHEMA] = self._read.schema
        found: Schema = known[_SCHEMA]
        return found

    def metadata(self) -> Metadata:
        """Metadata, which `moved` leaves as they are."""
        return Metadata(cast("RawDeltaTable", self._read))

    def protocol(self) -> ProtocolVersions:
        """Protocol, which `moved` leaves as it is."""
        return ProtocolVersions(*self._read.protocol_versions())

    @property
    def known_of_columns(self) -> dict[Any, Any]:
        """What is known of the table until its columns or properties may have changed (`of_columns`)."""
        read = self._read.version()
        if self._made[0] != read:
            self._made = read, {}
        return self._made[1]

    def share_columns(self, known: dict[Any, Any]) -> None:
        """Know of the columns what is known of another table with the same columns and properties, and add to that."""
        self._made = self._read.version(), known

    @property
    def table_uri(self) -> str:
        """Where the table is."""
        return self._read.table_uri()

    @property
    def is_young(self) -> bool:
        """Whether it may still be kept."""
        return self.version() - self.first < MOST_VERSIONS and time.monotonic() < self.good_until_s

    def moved(
        self, sets: Mapping[str, int], info: Mapping[str, str], added: Sequence[DataFile], removed: Collection[str]
    ) -> None:
        """Move to the next version: a commit that this process has made after this one, with the same columns.

        `sets`, `info`: its transaction ids, and its information. `added`; `removed`: paths below the table's folder.
        """
        old, known = self.version(), self._known()
        if self._files[0] != old:
            self.files()
        files = self._files[1]
        if files is not None:
            files = (*(file for file in files if unquote(file.path) not in removed), *added)
        self._moved = self._read.version(), old + 1
        self._transactions = old + 1, known | dict(sets)
        self.note_commit(info, files)

    def note_commit(self, info: Mapping[str, str], files: tuple[DataFile, ...] | None) -> None:
        """Note what this process knows of this version, as it has made it: its commit's information, and its files."""
        version = self.version()
        self._newest = version, info
        self._files = version, files if files is not None and len(files) <= MOST_FILES else None
        self._note_mark(info.get(COMMIT_ID))

    def has_columns(self, schema: pa.Schema, about: str | None) -> bool:
        """Whether these columns and this description were noted for the table's present ones."""
        known, described = self.known_of_columns.get(_COLUMNS, (None, None))
        return known is not None and described == about and known.equals(schema, check_metadata=True)

    def note_columns(self, schema: pa.Schema, about: str | None) -> None:
        """Note that the table has these columns with their metadata, and this description (None: any)."""
        self.known_of_columns[_COLUMNS] = schema, about

    def newest_commit(self) -> Mapping[str, Any]:
        """Information of the newest commit, of this version or (beside concurrent writers) a later one; {}: of none."""
        version = self.version()
        if self._newest[0] != version:
            with store_errors_named(self.table_uri):
                self._newest = version, next(iter(self.history(1)), {})
        return self._newest[1]

    def files(self) -> tuple[DataFile, ...]:
        """The files of this version."""
        version, (of, kept) = self.version(), self._files
        if of == version and kept is not None:
            return kept
        files = read_data_files(self)
        self._files = version, files if len(files) <= MOST_FILES else None
        return files

    @property
    def _has_all(self) -> bool:
        """Whether a transaction id that is not known was never set."""
        return isinstance(self._read, KnownTable) and self._read.has_all

    def known(self) -> Known | None:
        """What is known of this version; None: its files, or its commit, are not."""
        version, (of, files), (newest, info) = self.version(), self._files, self._newest
        if version != of or files is None or version != newest:
            return None
        return Known(files, self._known(), self._has_all, info)

    def identify(self) -> None:
        """Find out the identity of this version's entry, if it is not known; one request (object stores)."""
        if self.entry is None or self.entry[0] != self.version():
            self._known()

    def transaction_version(self, app_id: str) -> int | None:
        """Value of a transaction id; read once for a version, as delta-rs reads the log for each, in half a millisecond."""
        known = self._known()
        if app_id not in known:
            known[app_id] = None if self._has_all else super().transaction_version(app_id)
        return known[app_id]

    def note_after(self, sets: Mapping[str, int]) -> dict[str, str]:
        """Commit information (`NOTED`) for the next version, which sets these transaction ids."""
        return note_of(self.version() + 1, self._known() | dict(sets))

    def _known(self) -> dict[str, int | None]:
        """The transaction ids of this version that were read, or that its commit has noted."""
        version = self.version()
        if self._transactions[0] != version:
            newest = self.newest_commit()
            # Not the note of another version: the history may have a later one's commit, and commits of older releases of this
            # project may have become a later version than they noted.
            of, noted = json.loads(newest.get(NOTED, "[-1, {}]"))
            self._transactions = version, dict(noted) if of == version else {}
            self._note_mark(newest.get(COMMIT_ID))
        return self._transactions[1]

    def _note_mark(self, mark: str | None) -> None:
        """Note the mark of this version's commit, which identifies its entry in an object store."""
        if mark is not None and self.store is not None:
            self.entry = self.version(), mark


def of_columns(handle: DeltaTable, make: Callable[[DeltaTable], T]) -> T:
    """What a function makes of a table's columns, properties and protocol alone; a `Handle` calls it once for these."""
    if not isinstance(handle, Handle):
        return make(handle)
    known = handle.known_of_columns
    if make not in known:
        known[make] = make(handle)
    found: T = known[make]
    return found


def note_of(version: int, transactions: Mapping[str, int | None]) -> dict[str, str]:
    """Commit information with the transaction ids of a version; nothing if they are many."""
    return {NOTED: json.dumps([version, transactions])} if len(transactions) <= MOST_NOTED else {}


#: Key in the information of every commit, with a value of its own for each (the commit's mark).
COMMIT_ID = "game_events_commit"

#: Beginning of the name of a file that becomes an entry when it is complete.
UNFINISHED = "_commit_"

#: Identity of an entry: of a local table inode, bytes and time of its file; in an object store the mark of its commit.
Entry = tuple[int, int, int] | str

#: Bytes of an entry that are searched for its commit's information, its first line by Spark and delta-rs.
_HEAD = 64 * 1024


def entry_of(uri: str, store: pafs.FileSystem | None, version: int) -> Entry | None:
    """Identity of a version's entry; None: there is none, or (object store) its commit has no mark.

    `store`: the folder of a table in an object store; None: it is on a local disk, at `uri`.

    Cost: a call of the operating system, or two requests. Raises OSError if the storage fails.
    """
    try:
        if store is None:
            # A `Path` for each entry takes longer than the call, of which a run makes thousands.
            return identity_of(os.stat(f"{uri}/{path_of(version)}"))  # noqa: PTH116
        with store.open_input_file(path_of(version)) as source:
            first = source.read(_HEAD).partition(b"\n")[0]
    except FileNotFoundError:
        return None
    try:
        mark = json.loads(first).get("commitInfo", {}).get(COMMIT_ID)
    except ValueError:  # longer than what was read
        return None
    return mark if isinstance(mark, str) else None


def has_entry(uri: str, store: pafs.FileSystem | None, version: int) -> bool:
    """Whether a version has an entry; a call of the operating system, or a request. `store`, errors: as for `entry_of`."""
    if store is None:
        return entry_of(uri, None, version) is not None
    try:
        # `get_file_info` would list the folder of that name, too.
        store.open_input_file(path_of(version)).close()
    except FileNotFoundError:
        return False
    return True


def identity_of(entry: os.stat_result) -> tuple[int, int, int]:
    """Identity of a local entry."""
    return entry.st_ino, entry.st_size, entry.st_mtime_ns


def path_of(version: int) -> str:
    """Path of a version's entry, below the table's folder."""
    return f"_delta_log/{version:020}.json"
