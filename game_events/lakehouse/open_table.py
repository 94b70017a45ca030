"""An opened table: one version of a Delta table, what was read of it, and the next version after a commit of this process.

An `OpenTable` never becomes another version, so any number of threads may use it; whether the table has a newer one is asked
of the log (`is_newest`), by the identity of the version's entry.

Source: Delta Lake protocol, "Delta Log Entries", "Commit Provenance Information".
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, Metadata, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.table import ProtocolVersions, TableAlterer

from game_events.errors import ConfigurationError
from game_events.lakehouse.entries import OwnAlterer, asked_of, identity_of, path_of
from game_events.lakehouse.storage import is_remote, store_errors_named, unopenable

if TYPE_CHECKING:
    from deltalake._internal import RawDeltaTable

P = ParamSpec("P")
T = TypeVar("T")

#: Versions of the protocol, for readers and for writers, of a table without features.
PLAIN_READER, PLAIN_WRITER = 1, 2

#: Versions, and seconds, after which a table is opened again: one that goes on by its own commits keeps what delta-rs has read
#: of each entry, and reads the checkpoint that it was opened with, which others delete after the log's retention.
MOST_VERSIONS, LONGEST_S = 50, 300.0

#: Files of a version that an opened table remembers at most; more are read from the log each time.
MOST_FILES = 64

#: Key in a commit's information: JSON of the version that the commit was made for, and the transaction ids that are known of
#: it. delta-rs replays the log for each id; a commit's information is one entry of the log.
NOTED = "game_events_transactions"

#: Transaction ids that a commit notes at most: bronze and quarantine have thousands.
MOST_NOTED = 16

#: Key in the information of every commit, with a value of its own for each (the commit's mark).
COMMIT_ID = "game_events_commit"

#: Identity of an entry: of a local table inode, bytes and time of its file; in an object store the mark of its commit.
Entry = tuple[int, int, int] | str

#: Bytes of an entry that are searched for its commit's information, its first line by Spark and delta-rs.
_HEAD = 64 * 1024

#: What a path of an address has beside letters, digits and `_.-~`. Source: URL standard, "path percent-encode set".
_UNQUOTED = "/!$&'()*+,:;=@[]|^"

#: Retention of a log without the property (Delta Lake protocol: 30 days).
_DEFAULT_S = 30 * 86_400.0
_SECONDS = re.compile(r"interval (\d+) seconds")

#: Files without a number of rows in the log, (table, path) -> the number in the file, and how many are remembered at most.
_COUNTED: dict[tuple[str, str], int] = {}
MOST_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a version.

    Attributes:
        path: as the log has it, encoded for URIs, below the table's folder.
        rows: None: neither the log nor the file says, as the file is gone or damaged.
        lowest_batch, highest_batch: of `_batch` in its rows; None: the log does not say.
    """

    path: str
    size: int
    rows: int | None
    lowest_batch: int | None
    highest_batch: int | None

    @property
    def plain_path(self) -> str:
        """The path as the file system has it."""
        return unquote(self.path)


@dataclass(frozen=True)
class TableMetadata:
    """Columns and metadata of a table without features, by the names of delta-rs' `Metadata`.

    `schema`: JSON of the columns. `created_time`: ms since 1970.
    """

    schema: str
    id: str
    name: str
    description: str | None
    partition_columns: list[str]
    created_time: int
    configuration: dict[str, str]

    def actions(self) -> list[dict[str, Any]]:
        """The actions of the log's first entry that say this (Delta Lake protocol, "Change Metadata", "Protocol Evolution")."""
        metadata = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema,
            "partitionColumns": self.partition_columns,
            "createdTime": self.created_time,
            "configuration": self.configuration,
        }
        return [{"protocol": {"minReaderVersion": PLAIN_READER, "minWriterVersion": PLAIN_WRITER}}, {"metaData": metadata}]


@dataclass(frozen=True)
class KnownVersion:
    """A version that need not be opened, as this process has made the table, or a run before has noted it.

    Attributes:
        entry: identity of its entry in the log.
        transactions: its transaction ids (None: it was never set).
        has_all: no other transaction id was ever set.
        info: its commit's information.
    """

    version: int
    entry: Entry
    metadata: TableMetadata
    transactions: Mapping[str, int | None]
    has_all: bool
    info: Mapping[str, Any]
    files: tuple[DataFile, ...]


def _one_at_a_time(method: Callable[Concatenate[DeltaTable, P], T]) -> Callable[Concatenate[DeltaTable, P], T]:
    """A method of delta-rs' table, in one thread at a time, from its look at the version of that table on.

    The version after this one reads on with the same table, and a commit must not follow another version than the one that was
    compared.
    """

    @wraps(method)
    def called(table: DeltaTable, /, *args: P.args, **options: P.kwargs) -> T:
        with cast("OpenTable", table)._alone:
            return method(table, *args, **options)

    return called


class OpenTable(DeltaTable):
    """One version of a table; what is asked of it is read once.

    `after` makes the next version of it, as this process has just committed it, without reading the log. That one takes over
    what delta-rs has read. This one stays as it is, and is opened again at its version if delta-rs is asked for more.

    Attributes:
        uri: where the table is, as it was given.
        store: the table's folder in an object store, by the connections and credentials of this table; None: a local table.
        entry: identity of this version's entry in the log; None: not known. In an object store it is the mark of the version's
            commit, if that was read (`identify`), or made by this process.
        columns: what is known of columns, properties and protocol (`of_columns`); versions with the same ones share it.
        opened_version: the one that was opened, of which this one was made by commits; `was_read`: by delta-rs, from the log.
        good_until_s: by `time.monotonic`: until then the log has all that delta-rs may read.
        summarised: the version whose summary is beside the log, as far as is known (`table_pool`); -1: none.
    """

    _raw: RawDeltaTable | None

    def __init__(
        self, uri: str, options: dict[str, str], known: KnownVersion | None = None, columns: dict[Any, Any] | None = None
    ) -> None:
        """Opens the newest version; or a `known` one of a local table, of which nothing is read, with these `columns`."""
        self.uri = uri
        self._storage_options = options
        self._alone = threading.RLock()
        self.columns: dict[Any, Any] = {} if columns is None else columns
        self._transactions: dict[str, int | None] | None = None
        self._info: Mapping[str, Any] | None = None
        self._files: tuple[DataFile, ...] | None = None
        self._has_all = self._has_many_files = False
        self.store: pafs.FileSystem | None = None
        self.entry: Entry | None = None
        self.was_read = known is None
        self.summarised = -1
        if known is None:
            self._open()
        else:
            self._know(known)
        self.opened_version = self._version
        self.good_until_s = time.monotonic() + min(LONGEST_S, log_retention_s(self) / 2)

    def _open(self) -> None:
        super().__init__(self.uri, storage_options=self._storage_options)
        raw = cast("RawDeltaTable", self._raw)
        self._version = raw.version()
        self._address = raw.table_uri()
        self._metadata = Metadata(raw)
        if is_remote(self.uri):
            self.store = pafs.PyFileSystem(DeltaStorageHandler.from_table(raw, self._storage_options))
        else:
            self.entry = entry_of(self.uri, None, self._version)

    def _know(self, known: KnownVersion) -> None:
        self._raw = None
        self._version = known.version
        self._address = f"file://{quote(self.uri, safe=_UNQUOTED)}/"
        self._metadata = cast("Metadata", known.metadata)
        self._once("schema", lambda: _schema_of(known.metadata.schema))
        self._once("json", lambda: known.metadata.schema)
        self._once("protocol", lambda: ProtocolVersions(PLAIN_READER, PLAIN_WRITER, None, None))
        self.entry = known.entry
        self._transactions = dict(known.transactions)
        self._has_all = known.has_all
        self._info = known.info
        self._remember_files(known.files)

    @property
    def _table(self) -> RawDeltaTable:
        """delta-rs' table at this version, through which all methods of `DeltaTable` go; it reads what it has not read yet.

        Raises:
            DeltaError: another commit has this version now, as the table was deleted and made again. Its entries after those of
                the old table would be neither of the two.
            DataError: it was not opened yet, and cannot be opened.
        """
        with self._alone:
            raw = self._raw
            if raw is not None and raw.version() == self._version:
                return raw
            if self.entry is not None and entry_of(self.uri, self.store, self._version) != self.entry:
                raise DeltaError(f"version {self._version} of {self.uri} is gone: was the table deleted, or made again?")
            if raw is not None and raw.version() < self._version:
                raw.load_version(self._version)
                return raw
            try:
                raw = DeltaTable(self.uri, self._version, self._storage_options)._table
            except DeltaError as error:  # of a table that was known by its summary, older entries may be lost
                raise unopenable(self.uri, error) from error
            self._raw = raw
            return raw

    @_table.setter
    def _table(self, table: RawDeltaTable) -> None:
        self._raw = table

    @property
    def alter(self) -> TableAlterer:
        """Changes of the table, each after the one before; this object stays at its version.

        By delta-rs, or by this project where delta-rs writes nothing (`entries`).
        """
        if self.store is None and of_columns(self, asked_of) is not None:
            return OwnAlterer(self.uri, self, self.require_same)
        changed = DeltaTable.__new__(DeltaTable)
        with self._alone:
            changed._table = self._table
            self._raw = None
        changed._storage_options = self._storage_options
        return changed.alter

    def load_as_version(self, version: object = "the newest version") -> NoReturn:
        """Refused: whoever needs another version opens it."""
        raise NotImplementedError(f"an opened table stays at its version: open {version} of {self.uri}")

    update_incremental = load_as_version

    def version(self) -> int:
        """The version."""
        return self._version

    def schema(self) -> Schema:
        """The columns."""
        return self._once("schema", super().schema)

    def protocol(self) -> ProtocolVersions:
        """The protocol."""
        return self._once("protocol", super().protocol)

    def _once(self, key: object, read: Callable[[], T]) -> T:
        if key not in self.columns:
            self.columns[key] = read()
        return cast("T", self.columns[key])

    def metadata(self) -> Metadata:
        """The metadata."""
        return self._metadata

    @property
    def table_uri(self) -> str:
        """Where the table is, as an address."""
        return self._address

    file_uris = _one_at_a_time(DeltaTable.file_uris)
    get_add_actions = _one_at_a_time(DeltaTable.get_add_actions)
    #: Beside concurrent writers it has commits of later versions, too.
    history = _one_at_a_time(DeltaTable.history)
    create_write_transaction = _one_at_a_time(DeltaTable.create_write_transaction)
    create_checkpoint = _one_at_a_time(DeltaTable.create_checkpoint)

    @property
    def is_young(self) -> bool:
        """Whether it may still be kept."""
        return self._version - self.opened_version < MOST_VERSIONS and time.monotonic() < self.good_until_s

    def is_newest(self) -> bool:
        """Whether the table has no newer version, and is the same one: another in its place has another entry, or none.

        False, too, if its entry is not known, or if the store refuses its credentials: opening reads them again. And if it was
        opened long ago: an older version may stay while those after it are deleted.

        Raises:
            TransientError: the object store does not answer.
        """
        if self.entry is None or time.monotonic() >= self.good_until_s:
            return False
        try:
            with store_errors_named(self.uri):
                # The next one first: if the version is made again meanwhile, it has another entry.
                if has_entry(self.uri, self.store, self._version + 1):
                    return False
                return entry_of(self.uri, self.store, self._version) == self.entry
        except ConfigurationError:
            return False

    def require_same(self) -> None:
        """Raise CommitFailedError if a local table has this version no more: an entry after it would leave a gap in its log."""
        if self.entry is not None and self.entry != entry_of(self.uri, None, self._version):
            raise CommitFailedError(f"version {self._version} of {self.uri} is gone: was the table deleted, or made again?")

    def identify(self) -> None:
        """Find out the identity of this version's entry, if it is not known; one request (object stores)."""
        if self.entry is None:
            self._known_transactions()

    def has_entries(self, first: int) -> bool:
        """Whether the log has all entries from a version up to this one; a request for each (object stores)."""
        return all(has_entry(self.uri, self.store, version) for version in range(first, self._version))

    def newest_commit(self) -> Mapping[str, Any]:
        """Information of the newest commit, of this version or (beside concurrent writers) a later one; {}: of none."""
        if self._info is None:
            with store_errors_named(self.table_uri):
                self._info = next(iter(self.history(1)), {})
        return self._info

    def files(self) -> tuple[DataFile, ...]:
        """The files."""
        if self._files is not None:
            return self._files
        files = data_files(read_add_actions(self))
        self._remember_files(files)
        return files

    def _remember_files(self, files: tuple[DataFile, ...]) -> None:
        self._has_many_files = len(files) > MOST_FILES
        self._files = None if self._has_many_files else files

    def transaction_version(self, app_id: str) -> int | None:
        """Value of a transaction id; read once for a version, as delta-rs reads the log for each, in half a millisecond."""
        known = self._known_transactions()
        if app_id not in known:
            with self._alone:
                known[app_id] = None if self._has_all else super().transaction_version(app_id)
        return known[app_id]

    def _known_transactions(self) -> dict[str, int | None]:
        """The transaction ids that were read, or that this version's commit has noted."""
        if self._transactions is None:
            newest = self.newest_commit()
            # Not the note of another version: the history may have a later one's commit, and a commit may have become a later
            # version than it has noted.
            version, noted = json.loads(newest.get(NOTED, "[-1, {}]"))
            if self.entry is None and self.store is not None:
                self.entry = newest.get(COMMIT_ID)
            self._transactions = dict(noted) if version == self._version else {}
        return self._transactions

    def noted_after(self, transactions: Mapping[str, int]) -> dict[str, str]:
        """Commit information (`NOTED`) for the next version, which sets these transaction ids."""
        return note_of(self._version + 1, self._known_transactions() | dict(transactions))

    def known(self) -> KnownVersion | None:
        """All that is known of this version; None: its files, its commit or its entry are not, or the table has features."""
        protocol = self.protocol()
        if (protocol.min_reader_version, protocol.min_writer_version) != (PLAIN_READER, PLAIN_WRITER):
            return None
        if self._files is None or self._info is None or self.entry is None:
            return None
        schema = self._once("json", lambda: str(self.schema().to_json()))
        names = ("id", "name", "description", "partition_columns", "created_time", "configuration")
        metadata = TableMetadata(schema, *(getattr(self._metadata, name) for name in names))
        transactions = self._known_transactions()
        return KnownVersion(self._version, self.entry, metadata, transactions, self._has_all, self._info, self._files)

    def after(
        self,
        transactions: Mapping[str, int],
        info: Mapping[str, str],
        added: Sequence[DataFile],
        removed: Collection[str],
        entry: Entry | None,
    ) -> OpenTable:
        """The next version: a commit that this process has made after this one, with the same columns and properties.

        `removed`: paths below the table's folder. `entry`: of the commit, if this process has written that itself.
        """
        following = copy(self)
        following._version = self._version + 1
        following._info = info
        if self.store is not None:
            following.entry = info.get(COMMIT_ID)
        else:
            following.entry = entry or entry_of(self.uri, None, following._version)
        following._follow(self, transactions, added, removed)
        with self._alone:
            following._raw = self._raw
            self._raw = None
        return following

    def _follow(
        self, before: OpenTable, transactions: Mapping[str, int], added: Sequence[DataFile], removed: Collection[str]
    ) -> None:
        """Know transaction ids and files by those of the version before."""
        self._transactions = before._known_transactions() | dict(transactions)
        if not before._has_many_files:
            self._remember_files((*(f for f in before.files() if f.plain_path not in removed), *added))


@lru_cache(256)
def _schema_of(text: str) -> Schema:  # the tables of most games have the same
    return Schema.from_json(text)


def of_columns(handle: DeltaTable, make: Callable[[DeltaTable], T]) -> T:
    """What a function makes of a table's columns, properties and protocol alone; an `OpenTable` calls it once for these."""
    return handle._once(make, lambda: make(handle)) if isinstance(handle, OpenTable) else make(handle)


def note_of(version: int, transactions: Mapping[str, int | None]) -> dict[str, str]:
    """Commit information with the transaction ids of a version; nothing if they are many."""
    return {NOTED: json.dumps([version, transactions])} if len(transactions) <= MOST_NOTED else {}


def log_retention_s(handle: DeltaTable) -> float:
    """Seconds that a table's log entries stay, by its properties."""
    seconds = _SECONDS.fullmatch(handle.metadata().configuration.get("delta.logRetentionDuration") or "")
    return float(seconds[1]) if seconds else _DEFAULT_S


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


def data_files(actions: pa.Table) -> tuple[DataFile, ...]:
    """The files of `read_add_actions`."""
    unknown = [None] * actions.num_rows
    columns = (
        actions.column(name).to_pylist() if name in actions.column_names else unknown
        for name in ("path", "size_bytes", "num_records", "min._batch", "max._batch")
    )
    return tuple(map(DataFile, *columns))


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
    except (FileNotFoundError, NotADirectoryError):  # a file may be in the table's place
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
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
