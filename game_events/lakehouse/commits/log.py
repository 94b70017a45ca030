"""A table's log: its entries are written, read and cleaned up.

delta-rs reads the log before and after each entry that it writes, and lists its folder: 10 of the 12 ms of a small commit. So
the entry of a plain commit to a local table is written here: the first one, or files added and removed, with columns and
properties as before. Everything else, and every table with a property or feature that this module does not know, is delta-rs'
(docs/decisions/0029).

Entries are read from their files: opening 2,000 small tables took 11 s with any number of threads, as delta-rs replays each
log; listing the logs and reading the newest commit of each took 1.2 s on the same machine. And delta-rs does not return when a
file was removed.

Source: Delta Lake protocol, "Delta Log Entries", "Change Metadata", "Add File and Remove File", "Transaction Identifiers",
"Protocol Evolution", "Commit Provenance Information", "Requirements for Writers", "Checkpoints".
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction, create_table_with_add_actions

from game_events.errors import DataError
from game_events.lakehouse.data.staging import StagedFile, file_system, partition_of
from game_events.lakehouse.entries import OwnAlterer, asked_of, completed, content_of, linked, now_ms, path_of
from game_events.lakehouse.open_table import PLAIN_WRITER, Entry, KnownVersion, OpenTable, TableMetadata, of_columns
from game_events.lakehouse.parts import read_transactions
from game_events.lakehouse.table_properties import INDEXED, INDEXED_COLUMNS, KEEP_LOG, PROPERTIES, indexed_up_to
from game_events.lakehouse.tables import Table

#: Features that ask nothing of a writer, or nothing without a property or a column's metadata, which are looked at.
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})

#: Version of the protocol for writers that lists features.
_LISTED_VERSION = 7

#: Types of columns, and of what is in them, that take no feature. Source: Delta Lake protocol, "Schema Serialization Format".
_TYPE = re.compile(r'"(?:type|elementType|keyType|valueType)":"([^"]*)"')
_PLAIN_TYPE = re.compile(
    r"struct|array|map|string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|decimal\(\d+,\s*\d+\)"
)

#: Beginning of the name of a file of the log that is of one version.
_OF_VERSION = re.compile(r"\d{20}\.")

#: What an entry says of its commit, as delta-rs names it.
_WRITE = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}}
_CREATE = {"operation": "CREATE TABLE", "operationParameters": {"mode": "ErrorIfExists"}}

#: The log's numbers have 64 bits.
_BEYOND = 2**63

#: A path that is the same encoded for URIs and not.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.=/-]+")
FOLDER = "_delta_log"
CHECKPOINT = ".checkpoint.parquet"

#: Key in the information of bronze's commits: all topics of the source. By the newest one a deleted topic is found.
SOURCES = "sources"

#: Digits of a version in the name of its entry and its checkpoint.
_DIGITS = 20


@dataclass(frozen=True)
class Changes:
    """What a commit changes.

    Attributes:
        removed: path, below the table's folder, of each file to remove -> its bytes (None: not known).
        same_rows: the added files have the rows of the removed ones, so streaming readers skip the commit.
        columns: the table's new columns: all files that it has are removed; None: columns and files stay.
    """

    files: Sequence[StagedFile] = ()
    removed: Mapping[str, int | None] = field(default_factory=dict)
    same_rows: bool = False
    set_transactions: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    columns: Schema | None = None

    @property
    def added(self) -> list[AddAction]:
        """The added files as delta-rs takes them."""
        return [file.add_action(same_rows=self.same_rows) for file in self.files]

    @property
    def options(self) -> dict[str, Any]:
        """Options of delta-rs' functions that commit: transaction ids, information, and what they do afterwards."""
        properties = CommitProperties(
            # 0 retries: the commit becomes the next version after the one that was compared, or fails. With retries, the second
            # of two creators would become version 1; a commit that removes files would succeed after a compaction (of ours or
            # of another engine) that has moved the same rows, as delta-rs 1.6.6 finds no conflict with commits of
            # `dataChange=false`: the table would have these rows twice; and a reader of the version between would believe what
            # is noted of a later one.
            max_commit_retries=0,
            custom_metadata=dict(self.info),
            app_transactions=[Transaction(app, to) for app, to in self.set_transactions.items()],
        )
        return {"commit_properties": properties, "post_commithook_properties": KEEP_LOG}


def write_version(table: Table, handle: DeltaTable, changes: Changes) -> Entry | None:
    """Make the changes the version after a handle's. The handle stays as it is.

    Returns the identity of the log entry if it was written here; None: delta-rs has written it, and a checkpoint if one was
    due.

    Raises:
        CommitFailedError: another commit has taken the version.
        OSError, DeltaError: the storage failed; the commit may be visible all the same.
    """
    if table.is_local and isinstance(handle, OpenTable) and of_columns(handle, _is_plain) and _are_plain(changes):
        return _append(table, handle, _actions(changes, _WRITE))
    if table.is_local and isinstance(handle, OpenTable) and (asked := of_columns(handle, asked_of)) is not None:
        return _append(table, handle, completed(table.uri, handle.version(), asked, _all_actions(handle, changes)))
    actions: list[AddAction | RemoveAction] = [*changes.added]
    for path, size in changes.removed.items():  # readers of a change feed need the bytes; the time: as in `_actions`
        actions.append(RemoveAction(path, not changes.same_rows, 0, size, dict(partition_of(path))))
    if changes.columns is None:
        handle.create_write_transaction(actions, "append", handle.schema(), **changes.options)
    else:
        # delta-rs removes the old files itself, and writes the schema, in this mode.
        handle.create_write_transaction(actions, "overwrite", changes.columns, **changes.options)
    return None


def make_table(
    table: Table, columns: Schema, changes: Changes, *, description: str | None, partition_by: Sequence[str], replaces: bool
) -> KnownVersion | None:
    """Make a table with these columns and files.

    `replaces`: in place of another table, as the next version of its log; else as version 0.

    Returns its first version if it was made here; None: delta-rs has made it.

    Raises:
        CommitFailedError, DeltaError: there is a table already.
        OSError, DeltaError: the storage failed; the table may be there all the same.
    """
    wanted = table.file_layout.with_statistics
    more = indexed_up_to(pa.schema(columns), wanted) if wanted else {}
    properties = {INDEXED: str(INDEXED_COLUMNS), **table.retention.properties(table.key), **more}
    if table.is_local and not replaces and _are_plain(changes) and _are_plain_columns(columns, partition_by):
        text = columns.to_json()
        metadata = TableMetadata(text, str(uuid.uuid4()), table.name, description, list(partition_by), now_ms(), properties)
        commit, *others = _actions(changes, _CREATE)
        entry = _begin(table, [commit, *metadata.actions(), *others], has_files=bool(changes.files))
        files = tuple(file.data_file() for file in changes.files)
        return KnownVersion(0, entry, metadata, dict(changes.set_transactions), True, dict(changes.info), files)
    create_table_with_add_actions(
        table.uri,
        columns,
        changes.added,
        mode="overwrite" if replaces else "error",
        partition_by=list(partition_by),
        name=table.name,
        description=description,
        configuration=properties,
        storage_options=table.options,
        **changes.options,
    )
    return None


def _is_plain(table: DeltaTable) -> bool:
    """Whether the protocol asks nothing of a writer but the actions of its commit."""
    protocol = table.protocol()
    if protocol.min_writer_version == _LISTED_VERSION:
        known = _PLAIN_FEATURES.issuperset(protocol.writer_features or ())
    else:
        known = protocol.min_writer_version <= PLAIN_WRITER
    # Invariants, generated columns, identities: in the metadata of columns, nested ones, too.
    return known and table.metadata().configuration.keys() <= PROPERTIES and '"delta.' not in table.schema().to_json()


def _are_plain_columns(columns: Schema, partition_by: Sequence[str]) -> bool:
    """Whether the protocol has these columns without features."""
    text = columns.to_json()
    known = {field.name for field in columns.fields}.issuperset(partition_by)
    return known and '"delta.' not in text and all(map(_PLAIN_TYPE.fullmatch, _TYPE.findall(text)))


def _are_plain(changes: Changes) -> bool:
    """Whether columns stay, and delta-rs would write paths and numbers as they are."""
    paths = (*changes.removed, *(file.path for file in changes.files))
    return (
        changes.columns is None
        and all(map(_PLAIN_PATH.fullmatch, paths))
        and all(type(to) is int and abs(to) < _BEYOND for to in changes.set_transactions.values())
    )


def _actions(changes: Changes, operation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The entry's actions; readers of a version look for its information in the first one."""
    now = now_ms()
    rows_change = not changes.same_rows
    info = {"timestamp": now, **operation, "engineInfo": "game_events"}
    yield {"commitInfo": info | dict(changes.info)}
    for file in changes.files:
        yield {
            "add": {
                "path": file.path,
                "partitionValues": partition_of(file.path),
                "size": file.size,
                "modificationTime": file.modified_ms,
                "dataChange": rows_change,
                "stats": file.stats,
            }
        }
    for path, size in changes.removed.items():
        # Without the time: no checkpoint repeats it then. Maintenance knows by other means which files are needed.
        removed = {"path": path, "dataChange": rows_change, "extendedFileMetadata": size is not None}
        more = {} if size is None else {"partitionValues": partition_of(path), "size": size}
        yield {"remove": removed | more}
    for app, to in changes.set_transactions.items():
        yield {"txn": {"appId": app, "version": to}}


def _all_actions(handle: OpenTable, changes: Changes) -> list[dict[str, Any]]:
    """The same for a table that delta-rs does not write, with new columns if there are any."""
    if not _are_plain(replace(changes, columns=None)):
        raise CommitFailedError(f"{handle.uri} has table features that delta-rs does not write, and odd paths, or numbers")
    if changes.columns is None:
        return list(_actions(changes, _WRITE))
    everything = {file.plain_path: file.size for file in handle.files()}
    commit, *others = _actions(replace(changes, removed=everything, columns=None), _WRITE)
    alter = handle.alter
    if not isinstance(alter, OwnAlterer):
        raise TypeError(f"{handle.uri} is altered by delta-rs")
    return [commit, alter.with_columns(changes.columns.to_json()).metadata_action(), *others]


def _begin(table: Table, actions: Iterable[dict[str, Any]], *, has_files: bool) -> Entry:
    """Make the actions the first entry of a log; `has_files`: in the table's folder, unless somebody has deleted it since."""
    content = content_of(actions)
    log = Path(table.uri, path_of(0)).parent
    log.mkdir(parents=not has_files, exist_ok=True)

    def require_none() -> None:
        # The first entries of a log may have expired. Names of other forms are no log: of other writers, or file systems.
        if any(file.name == "_last_checkpoint" or _OF_VERSION.match(file.name) for file in log.iterdir()):
            raise CommitFailedError(f"{table.uri} already exists")

    return linked(table.uri, 0, content, require_none)


def _append(table: Table, handle: OpenTable, actions: Iterable[dict[str, Any]]) -> Entry:
    """Make the actions the entry after a handle's."""
    return linked(table.uri, handle.version() + 1, content_of(actions), handle.require_same)


class TableLog:
    """The log of one existing table. Entries that were cleaned up are missing."""

    def __init__(self, table: Table) -> None:
        self._uri = table.uri
        self._system, prefix = file_system(table)
        self._prefix = f"{prefix}{FOLDER}/"

    def versions(self) -> list[int]:
        """Versions with an entry, sorted; one listing."""
        names = (str(info.base_name) for info in self.files())
        return sorted(int(name[:_DIGITS]) for name in names if name[:_DIGITS].isdigit() and name[_DIGITS:] == ".json")

    def has(self, version: int) -> bool:
        """Whether a version has an entry; one small request."""
        return bool(self._system.get_file_info(f"{self._prefix}{version:020}.json").type == pafs.FileType.File)

    def actions(self, version: int) -> list[dict[str, Any]]:
        """Actions of one version; none if its entry is missing."""
        return [json.loads(line) for line in self._lines(version) or () if line.strip()]

    def transactions(self, version: int) -> dict[str, int]:
        """Transaction id -> value, of all ids of a version; DataError if entries are missing."""
        try:
            return read_transactions(self._system, self._prefix, version)
        except FileNotFoundError as error:
            raise DataError(f"the log of {self._uri} lacks entries, and has no checkpoint from then on: {error}") from error

    def infos(self, newest: int, above: int) -> Iterator[dict[str, Any]]:
        """Commit information of a version and those before it, down to another one (excluded) or the first missing entry."""
        for version in range(newest, max(-1, above), -1):
            lines = self._lines(version)
            if lines is None:
                return
            # Spark and delta-rs write it first, the protocol leaves the order open.
            infos = (json.loads(line).get("commitInfo") for line in lines if b'"commitInfo"' in line)
            yield next((dict(info) for info in infos if info is not None), {})

    def newest_infos(self, newest: int, limit: int | None) -> list[dict[str, Any]]:
        """As `infos`, of so many versions; None: of all.

        delta-rs' history goes on behind a gap, where older versions stay (`commits.versions`), and numbers them wrongly.
        """
        return list(self.infos(newest, -1 if limit is None else newest - limit))

    def files(self) -> list[pafs.FileInfo]:
        """Everything in the folder of the log; one listing."""
        selector = pafs.FileSelector(self._prefix.rstrip("/"), recursive=False, allow_not_found=True)
        return list(self._system.get_file_info(selector))

    def opened(self, name: str) -> pa.NativeFile:
        """A file of the log; FileNotFoundError if it is gone."""
        return self._system.open_input_file(self._prefix + name)

    def delete(self, file: pafs.FileInfo) -> None:
        """Delete a file of the log, unless others have."""
        with suppress(FileNotFoundError):
            self._system.delete_file(file.path)

    def _lines(self, version: int) -> list[bytes] | None:
        try:
            with self._system.open_input_file(f"{self._prefix}{version:020}.json") as source:
                return bytes(source.read()).splitlines()
        except FileNotFoundError:
            return None


def version_of(file: pafs.FileInfo) -> int:
    """The version whose entry, checkpoint or other file of the log this is."""
    return int(file.base_name[:_DIGITS])
