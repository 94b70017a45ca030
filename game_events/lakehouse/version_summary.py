"""Summaries of tables' newest versions: a run writes them beside the logs, so that the next run need not read these.

Opening a small table takes 2 to 10 ms of processor time, the more the longer ago its last checkpoint is, and listing its files
another one; a summary takes a fifth of a millisecond. It is only a copy of what the log says, of local tables without features
and with few files: one that is missing, damaged or outdated costs opening the table.

Guarantee: a handle made by a summary has the newest version. The summary names the content of that version's entry, which is
compared, and there must be no later entry, as for a handle that was kept (`Table.is_newest`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from deltalake import DeltaTable, Schema

from game_events.lakehouse.handle import DataFile, Handle, of_columns
from game_events.lakehouse.known_table import PLAIN_READER, PLAIN_WRITER, KnownTable
from game_events.lakehouse.log_entries import entry_of, path_of
from game_events.lakehouse.storage.options import is_remote

log = logging.getLogger(__name__)
#: Name of the file in the folder of the log. Readers skip names that are no version's.
NAME = "_game_events_summary"
#: Increased when the content changes: others are not read.
FORMAT = 1
#: Beginnings of the keys of games' tables, which have descriptions of their own only when they are made.
_OF_GAMES = ("silver", "gold")
#: Schemas that are remembered by their texts: the tables of most games have the same.
SCHEMAS = 256


class Summarised(Protocol):
    """What a summary needs of a table (`tables.Table`)."""

    @property
    def uri(self) -> str:
        """Where the table is."""
        ...

    @property
    def key(self) -> str:
        """Its name with the default settings."""
        ...

    @property
    def options(self) -> dict[str, str]:
        """Options of its storage."""
        ...

    def is_newest(self, handle: DeltaTable) -> bool:
        """Whether a handle has the newest version still."""
        ...

    def readable(self, handle: Handle) -> Handle:
        """The handle; an error if the table cannot be read."""
        ...


@dataclass(frozen=True)
class _Content:
    """What the file has after its first line, which is the digest of this.

    Attributes:
        format: `FORMAT`.
        entry: digest of the version's log entry.
        version: the version.
        schema: JSON of its columns.
        metadata: of the table, the other arguments of `KnownTable`.
        transactions: the transaction ids that are known of the version.
        has_all: no other was ever set.
        info: information of the version's commit.
        files: arguments of `DataFile` for each file.
    """

    format: int
    entry: str
    version: int
    schema: str
    metadata: Mapping[str, Any]
    transactions: Mapping[str, int | None]
    has_all: bool
    info: Mapping[str, Any]
    files: list[list[Any]]


class SharedColumns:
    """What is known of the columns of tables by their summaries (`Handle.known_of_columns`): most games have the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[Any, Any]] = {}

    def of(self, table: Summarised, content: _Content) -> dict[Any, Any]:
        """What is known of the columns and properties of such a table."""
        layer, about = table.key.partition("_")[0], content.metadata
        if layer not in _OF_GAMES:
            return {}
        properties = json.dumps([about["partition_columns"], about["configuration"]], sort_keys=True)
        return self._known.setdefault((layer, content.schema, properties), {})


def by_summary(table: Summarised, columns: SharedColumns) -> Handle | None:
    """A handle on the newest version; None: there is no summary of that.

    Raises DataError or ConfigurationError as `Table.open_to_read`.
    """
    if is_remote(table.uri):
        return None
    try:
        content = _read(_path(table.uri))
        if content is None:
            return None
        # Before its content: if the table is made again meanwhile, another one is found below.
        identity = entry_of(table.uri, None, content.version)
        if identity is None or _digest_of_entry(table.uri, content.version) != content.entry:
            return None
    except OSError:
        return None
    known = KnownTable(
        table.uri,
        _schema(content.schema),
        **content.metadata,
        transactions=content.transactions,
        at=content.version,
        has_all=content.has_all,
    )
    handle = Handle(table.uri, table.options, known)
    handle.entry = content.version, identity
    handle.share_columns(columns.of(table, content))
    handle.summarised = content.version
    handle.note_commit(content.info, tuple(DataFile(*file) for file in content.files))
    return table.readable(handle) if table.is_newest(handle) else None


def summarise(handle: Handle) -> None:
    """Write the summary of a handle's version, if it has one and it is not the one that was written last.

    A file that cannot be written, as of a table that was deleted, is left out.
    """
    if handle.summarised == handle.version() or handle.store is not None:
        return
    try:
        content = _content(handle)
        if content is None:
            return
        text = json.dumps(vars(content), ensure_ascii=False, separators=(",", ":")).encode()
        _write(_path(handle.uri), _digest(text).encode() + b"\n" + text)
    except (OSError, ValueError) as error:
        log.debug("table=%s not_summarised=%r", handle.uri, str(error))
        return
    handle.summarised = content.version


def _write(path: Path, content: bytes) -> None:
    """Write the file, in its place: half of it is none, by its digest, and to delete the one before takes longer."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
        file.write(content)
        file.truncate()


def _content(handle: Handle) -> _Content | None:
    """The summary of a version; None: it has none, as the table has features, or too many files, or is not known enough."""
    version, known = handle.version(), handle.known()
    protocol = handle.protocol()
    plain = (protocol.min_reader_version, protocol.min_writer_version) == (PLAIN_READER, PLAIN_WRITER)
    if known is None or not plain or handle.entry is None or handle.entry[0] != version:
        return None
    # The entry that the handle knows, not that of another table in its place.
    digest = _digest_of_entry(handle.uri, version)
    if entry_of(handle.uri, None, version) != handle.entry[1]:
        return None
    metadata = handle.metadata()
    about = {
        name: getattr(metadata, name)
        for name in ("id", "name", "description", "partition_columns", "created_time", "configuration")
    }
    files = [[f.path, f.size, f.rows, f.lowest_batch, f.highest_batch] for f in known.files]
    schema = of_columns(handle, _schema_text)
    return _Content(FORMAT, digest, version, schema, about, known.transactions, known.has_all, known.info, files)


def _schema_text(handle: DeltaTable) -> str:
    return str(handle.schema().to_json())


@lru_cache(SCHEMAS)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)


def _read(path: Path) -> _Content | None:
    """The content of a file; None: it is of another format, or damaged, as after a power cut."""
    digest, _, text = path.read_bytes().partition(b"\n")
    if digest != _digest(text).encode():
        return None
    found = json.loads(text)
    return _Content(**found) if found["format"] == FORMAT else None


def _digest_of_entry(uri: str, version: int) -> str:
    return _digest(Path(uri, path_of(version)).read_bytes())


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _path(uri: str) -> Path:
    return Path(uri, "_delta_log", NAME)
