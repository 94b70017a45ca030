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
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction, create_table_with_add_actions

from game_events.errors import DataError
from game_events.lakehouse.data.staging import StagedFile, file_system, partition_of
from game_events.lakehouse.open_table import (
    PLAIN_WRITER,
    UNFINISHED,
    Entry,
    KnownVersion,
    OpenTable,
    TableMetadata,
    entry_of,
    identity_of,
    of_columns,
    path_of,
)
from game_events.lakehouse.parts import read_transactions
from game_events.lakehouse.storage import WRITTEN_OUT_S, write_out
from game_events.lakehouse.table_properties import INDEXED, INDEXED_COLUMNS, KEEP_LOG, PROPERTIES, indexed_up_to
from game_events.lakehouse.tables import BRONZE, Table

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
    now = _now_ms()
    actions: list[AddAction | RemoveAction] = [*changes.added]
    for path, size in changes.removed.items():  # readers of a change feed need the bytes
        actions.append(RemoveAction(path, not changes.same_rows, now, size, dict(partition_of(path))))
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
        metadata = TableMetadata(text, str(uuid.uuid4()), table.name, description, list(partition_by), _now_ms(), properties)
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
    now = _now_ms()
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
        removed = {"path": path, "deletionTimestamp": now, "dataChange": rows_change, "extendedFileMetadata": size is not None}
        more = {} if size is None else {"partitionValues": partition_of(path), "size": size}
        yield {"remove": removed | more}
    for app, to in changes.set_transactions.items():
        yield {"txn": {"appId": app, "version": to}}


def _begin(table: Table, actions: Iterable[dict[str, Any]], *, has_files: bool) -> Entry:
    """Make the actions the first entry of a log; `has_files`: in the table's folder, unless somebody has deleted it since."""
    content = _content(actions)
    log = Path(table.uri, path_of(0)).parent
    log.mkdir(parents=not has_files, exist_ok=True)

    def require_none() -> None:
        # The first entries of a log may have expired. Names of other forms are no log: of other writers, or file systems.
        if any(file.name == "_last_checkpoint" or _OF_VERSION.match(file.name) for file in log.iterdir()):
            raise CommitFailedError(f"{table.uri} already exists")

    return _linked(table, 0, content, require_none)


def _append(table: Table, handle: OpenTable, actions: Iterable[dict[str, Any]]) -> Entry:
    """Make the actions the entry after a handle's."""
    version = handle.version()

    def require_same() -> None:
        # In a table that was made again the entry would leave a gap, and no reader could open it.
        if handle.entry is not None and handle.entry != entry_of(table.uri, None, version):
            raise CommitFailedError(f"version {version} of {table.uri} is gone: was the table deleted, or made again?")

    return _linked(table, version + 1, _content(actions), require_same)


def _content(actions: Iterable[dict[str, Any]]) -> bytes:
    """An entry.

    Unescaped: a text that is none in UTF-8 (a broken file name) is refused here. As an escape it would end in the log, which no
    reader could read from then on.
    """
    return "".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) + "\n" for action in actions).encode()


def _linked(table: Table, version: int, content: bytes, require: Callable[[], None]) -> Entry:
    """Make a text a version's entry, whole or not at all: a hard link fails if the name is there.

    `require`: raises if the entry must not be made. Asked once the file to be linked is there: whoever deletes the table from
    then on deletes it, too, and the link fails.

    A crash may leave the file that is linked: readers skip its name, and `TableLog.delete_expired` deletes it.
    """
    entry = Path(table.uri, path_of(version))
    written = entry.with_name(f"{UNFINISHED}{uuid.uuid4().hex}.json.tmp")
    try:
        with written.open("xb") as file:
            file.write(content)
            file.flush()
            identity = identity_of(os.fstat(file.fileno()))
        require()
        os.link(written, entry)
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} of {table.uri} already exists") from error
    finally:
        written.unlink(missing_ok=True)
    return identity


def _now_ms() -> int:
    return int(time.time() * 1000)


class TableLog:
    """The log of one existing table. Entries that were cleaned up are missing."""

    def __init__(self, table: Table) -> None:
        self._uri = table.uri
        self._system, prefix = file_system(table)
        self._prefix = f"{prefix}{FOLDER}/"
        self._is_bronze = table.key == BRONZE

    def versions(self) -> list[int]:
        """Versions with an entry, sorted; one listing."""
        return sorted(int(name[:_DIGITS]) for name in self._names() if name[_DIGITS:] == ".json")

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

    def removed_by(self, version: int) -> dict[str, int]:
        """Path of each file that one version removed -> when, in milliseconds since 1970; {} if its entry is missing."""
        return _below_the_table([action["remove"] for action in self.actions(version) if "remove" in action])

    def removed_before_checkpoint(self) -> dict[str, int]:
        """As `removed_by`, in the newest checkpoint (`delta.deletedFileRetentionDuration`); their entries may be missing."""
        # By the listing: `_last_checkpoint` may name an older one. One in several parts is another writer's, and is left out.
        newest = max((name for name in self._names() if name[_DIGITS:] == CHECKPOINT), default=None)
        if newest is None:
            return {}
        try:
            with self._system.open_input_file(self._prefix + newest) as source:
                rows = pq.ParquetFile(source).read(columns=["remove"]).column("remove")
        except FileNotFoundError:  # another run has deleted it, and made a newer one
            return {}
        return _below_the_table([row for row in rows.to_pylist() if row is not None and row["path"] is not None])

    def delete_expired(self, kept_s: float) -> int:
        """Delete the entries before the newest checkpoint that is older than `kept_s` seconds; returns how many.

        Versions that were the newest one at some time since then stay readable, also by whoever has opened them. So does
        bronze's newest version that names the topics. The checkpoint is on the disk first.
        """
        before = time.time() - kept_s
        files = self._files()
        for info in files:
            if info.base_name.startswith(UNFINISHED) and _is_older(info, before):
                self._delete(info)  # a crash has left it
        expired = self._expired([info for info in files if info.base_name[:_DIGITS].isdigit()], before)
        if expired and kept_s < WRITTEN_OUT_S:
            write_out(self._uri)
        for info in expired:
            self._delete(info)
        return len(expired)

    def _expired(self, files: list[pafs.FileInfo], before: float) -> list[pafs.FileInfo]:
        """Entries and checkpoints that may go, the oldest first: if this process is killed, no gap is left."""
        checkpoints = [f for f in files if f.base_name[_DIGITS:] == CHECKPOINT and _is_older(f, before)]
        if checkpoints and self._is_bronze:
            needed = self._naming_topics(max(map(_version_of, files)))
            checkpoints = [file for file in checkpoints if _version_of(file) <= needed]
        kept_from = max(map(_version_of, checkpoints), default=0)
        return sorted((file for file in files if _version_of(file) < kept_from), key=lambda file: str(file.base_name))

    def _naming_topics(self, newest: int) -> int:
        """The last version whose entry names the topics; the newest one if no entry that is left does: none is needed then."""
        named = (newest - number for number, info in enumerate(self.infos(newest, -1)) if SOURCES in info)
        return next(named, newest)

    def _delete(self, file: pafs.FileInfo) -> None:
        with suppress(FileNotFoundError):  # another run has deleted it
            self._system.delete_file(file.path)

    def _names(self) -> list[str]:
        """Names of entries and checkpoints."""
        return [info.base_name for info in self._files() if info.base_name[:_DIGITS].isdigit()]

    def _files(self) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self._prefix.rstrip("/"), recursive=False, allow_not_found=True)
        return list(self._system.get_file_info(selector))

    def _lines(self, version: int) -> list[bytes] | None:
        try:
            with self._system.open_input_file(f"{self._prefix}{version:020}.json") as source:
                return bytes(source.read()).splitlines()
        except FileNotFoundError:
            return None


def _is_older(file: pafs.FileInfo, than: float) -> bool:
    return file.mtime is not None and file.mtime.timestamp() < than


def _version_of(file: pafs.FileInfo) -> int:
    return int(file.base_name[:_DIGITS])


def _below_the_table(removes: list[dict[str, Any]]) -> dict[str, int]:
    """Path -> time of removals, without files that are elsewhere, as those of a clone are."""
    removals = {unquote(str(r["path"])): int(r.get("deletionTimestamp") or 0) for r in removes}
    return {path: at_ms for path, at_ms in removals.items() if "://" not in path and not path.startswith("/")}
