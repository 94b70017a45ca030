"""Writes the log entry of a commit: the next version of a table, or an error because another commit has taken it.

delta-rs reads the log before and after each entry that it writes, and lists its folder: 10 of the 12 ms of a small commit. So
the entry of a plain commit to a local table is written here: the first one, or files added and removed, with columns and
properties as before. Everything else, and every table with a property or feature that this module does not know, is delta-rs'
(docs/decisions/0029).

Source: Delta Lake protocol, "Delta Log Entries", "Change Metadata", "Add File and Remove File", "Transaction Identifiers",
"Protocol Evolution", "Commit Provenance Information", "Requirements for Writers".
"""

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from game_events.lakehouse.data.staging import StagedFile, partition_of
from game_events.lakehouse.handle import Handle, of_columns
from game_events.lakehouse.known_table import PLAIN_WRITER, KnownTable
from game_events.lakehouse.log_entries import UNFINISHED, Entry, entry_of, identity_of, path_of
from game_events.lakehouse.retention import KEEP_LOG, PROPERTIES
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


@dataclass(frozen=True)
class Changes:
    """What a commit changes.

    Attributes:
        files: files to add.
        removed: path, below the table's folder, of each file to remove -> its bytes (None: not known).
        same_rows: the added files have the rows of the removed ones, so streaming readers skip the commit.
        advance: transaction id -> value.
        info: the commit's information.
        columns: the table's new columns: all files that it has are removed; None: columns and files stay.
    """

    files: Sequence[StagedFile] = ()
    removed: Mapping[str, int | None] = field(default_factory=dict)
    same_rows: bool = False
    advance: Mapping[str, int] = field(default_factory=dict)
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
            app_transactions=[Transaction(app, to) for app, to in self.advance.items()],
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
    if table.is_local and isinstance(handle, Handle) and of_columns(handle, _is_plain) and _are_plain(changes):
        return _append(table, handle, _actions(changes, _WRITE))
    actions: list[AddAction | RemoveAction] = [*changes.added, *removals(changes.removed, same_rows=changes.same_rows)]
    if changes.columns is None:
        handle.create_write_transaction(actions, "append", handle.schema(), **changes.options)
    else:
        # delta-rs removes the old files itself, and writes the schema, in this mode.
        handle.create_write_transaction(actions, "overwrite", changes.columns, **changes.options)
    return None


def make_table(
    table: Table, columns: Schema, changes: Changes, *, description: str | None, partition_by: Sequence[str], replaces: bool
) -> tuple[KnownTable, Entry] | None:
    """Make a table with these columns and files.

    `replaces`: in place of another table, as the next version of its log; else as version 0.

    Returns the table and the identity of its log entry if it was made here; None: delta-rs has made it.

    Raises:
        CommitFailedError, DeltaError: there is a table already.
        OSError, DeltaError: the storage failed; the table may be there all the same.
    """
    properties = {"delta.dataSkippingNumIndexedCols": "32", **table.retention.properties(table.key)}
    if table.is_local and not replaces and _are_plain(changes) and _are_plain_columns(columns, partition_by):
        metadata = str(uuid.uuid4()), table.name, description, list(partition_by), _now_ms(), properties
        made = KnownTable(table.uri, columns, *metadata, dict(changes.advance))
        commit, *others = _actions(changes, _CREATE)
        return made, _begin(table, [commit, *made.actions(), *others], has_files=bool(changes.files))
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


def removals(files: Mapping[str, int | None], *, same_rows: bool = False) -> list[RemoveAction]:
    """delta-rs' actions that remove files: path below the table's folder -> bytes, which readers of a change feed need."""
    now = _now_ms()
    return [RemoveAction(path, not same_rows, now, size, dict(partition_of(path))) for path, size in files.items()]


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
        and all(type(to) is int and abs(to) < _BEYOND for to in changes.advance.values())
    )


def _actions(changes: Changes, operation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The entry's actions; readers of a version look for its information in the first one."""
    now, rows_change = _now_ms(), not changes.same_rows
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
    for app, to in changes.advance.items():
        yield {"txn": {"appId": app, "version": to}}


def _begin(table: Table, actions: Iterable[dict[str, Any]], *, has_files: bool) -> Entry:
    """Make the actions the first entry of a log; `has_files`: in the table's folder, unless somebody has deleted it since."""
    content, log = _content(actions), Path(table.uri, path_of(0)).parent
    log.mkdir(parents=not has_files, exist_ok=True)

    def require_none() -> None:
        # The first entries of a log may have expired. Names of other forms are no log: of other writers, or file systems.
        if any(file.name == "_last_checkpoint" or _OF_VERSION.match(file.name) for file in log.iterdir()):
            raise CommitFailedError(f"{table.uri} already exists")

    return _linked(table, 0, content, require_none)


def _append(table: Table, handle: Handle, actions: Iterable[dict[str, Any]]) -> Entry:
    """Make the actions the entry after a handle's."""
    version = handle.version()

    def require_same() -> None:
        # In a table that was made again the entry would leave a gap, and no reader could open it.
        if handle.entry is not None and handle.entry != (version, entry_of(table.uri, None, version)):
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
            found = identity_of(os.fstat(file.fileno()))
        require()
        os.link(written, entry)
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} of {table.uri} already exists") from error
    finally:
        written.unlink(missing_ok=True)
    return found


def _now_ms() -> int:
    return int(time.time() * 1000)
