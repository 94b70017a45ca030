"""Handles that wait for their next use: between the steps of a run, the cycles of a loop, and (by summaries) two runs.

Summaries of tables' newest versions: a run writes them beside the logs, so that the next run need not read these.

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
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from deltalake import DeltaTable, Schema

from game_events.lakehouse.handle import PLAIN_READER, PLAIN_WRITER, DataFile, Handle, KnownTable, entry_of, of_columns, path_of
from game_events.lakehouse.parts import Part, PartedHandle
from game_events.lakehouse.storage import is_remote

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


#: Handles that wait at most. One takes some 0.3 MiB, more with many files.
MOST_KEPT = 2_000


class Openable(Summarised, Protocol):
    """What `KeptHandles` needs of a table (`tables.Table`)."""

    @property
    def read_only(self) -> bool:
        """Whether nothing may be written for it."""
        ...

    @property
    def by(self) -> str | None:
        """The column of its parts, if it is a part of a table, or has parts."""
        ...

    @property
    def part(self) -> str | None:
        """The game, if it is a part of a table."""
        ...

    @property
    def whole(self) -> Openable:
        """The table that it is a part of."""
        ...

    def open(self) -> Handle | None:
        """A handle on the newest version."""
        ...

    def open_to_read(self) -> Handle | None:
        """The same, also of a table to which no commit can be made."""
        ...

    def writable(self, handle: Handle) -> Handle:
        """The handle; an error if no commit to its table can be made."""
        ...


class KeptHandles:
    """Handles between the steps of a run and between the cycles of a loop, as opening a table reads its log.

    Guarantee: a handle has one user at a time, or readers only; what `take` and `shared` return has the newest version. Parts
    of one table share the table's handle, and stay as they are when it moves.
    """

    def __init__(self, most: int = MOST_KEPT, *, summaries: bool = True) -> None:
        """`most`: handles that wait at most. `summaries`: write them for the next run; a loop would do it in each cycle."""
        self._most, self._summaries = most, summaries
        self._kept: dict[str, Handle] = {}
        self._shared: dict[str, Handle] = {}
        self._parted: dict[str, PartedHandle] = {}
        self._columns = SharedColumns()
        self._lock = threading.Lock()

    def take(self, table: Openable) -> Handle | None:
        """A handle for the caller alone; None: there is no table. Raises as `Table.open`."""
        handle = self.take_to_read(table)
        return None if handle is None else table.writable(handle)

    def take_to_read(self, table: Openable) -> Handle | None:
        """The same for a caller that plans no commit. Raises as `Table.open_to_read`."""
        if table.by is not None:
            with self._lock:  # the first caller opens the table for all
                whole = self._whole(table.whole)
            return whole.part(table.part) if whole is not None and table.part is not None else whole
        with self._lock:
            handle = self._kept.pop(table.uri, None)
        if handle is None or not handle.is_young or not table.is_newest(handle):
            return by_summary(table, self._columns) or _identified(table.open_to_read())
        return handle

    def look(self, table: Openable) -> Handle | None:
        """A handle for a reader that keeps nothing: of a part that of its table. Raises as `Table.open_to_read`."""
        return table.open_to_read() if table.by is None else self.take_to_read(table)

    def shared(self, table: Openable) -> Handle | None:
        """A handle that all who ask for it share, until the table has a newer version: none of them may move it.

        For tables that many steps read (bronze, quarantine). Raises as `Table.open`.
        """
        handle = self._shared.get(table.uri)
        if handle is not None and handle.is_young and table.is_newest(handle):
            return table.writable(handle)
        known = by_summary(table, self._columns)
        opened = table.writable(known) if known is not None else _identified(table.open())
        self.share(table, opened)
        return opened

    def _whole(self, table: Openable) -> PartedHandle | None:
        known = self._parted.get(table.uri)
        if known is not None and known.is_young and table.is_newest(known):
            return known
        opened = _identified(table.open_to_read())
        if isinstance(opened, PartedHandle):
            self._parted[table.uri] = opened
            return opened
        self._parted.pop(table.uri, None)
        return None

    def withdraw(self, table: Openable) -> None:
        """Let `shared` return another handle: the caller moves the present one, which no other step uses any more."""
        self._shared.pop(table.uri, None)

    def share(self, table: Openable, handle: Handle | None) -> None:
        """Let `shared` return a handle, which its user moves no more."""
        if handle is not None and handle.entry is not None:
            self._shared[table.uri] = handle
            self._summarise(table, handle)
        else:
            self._shared.pop(table.uri, None)

    def keep(self, table: Openable, handle: DeltaTable | None) -> None:
        """Take back a handle, which its user uses no more; one that `take` would not return, or has no room, is dropped.

        The others stay where there is no room: each cycle takes the handles in the same order, so those that have waited the
        longest are the next ones that it takes.
        """
        if isinstance(handle, Part):  # a commit may have opened the table anew
            with self._lock:
                self._parted[table.uri] = handle.whole
            return
        if not isinstance(handle, Handle) or handle.entry is None or not handle.is_young:
            return
        self._summarise(table, handle)
        with self._lock:
            if len(self._kept) >= self._most:
                self._kept = {uri: held for uri, held in self._kept.items() if held.is_young}
            if len(self._kept) < self._most:
                self._kept[table.uri] = handle

    def _summarise(self, table: Openable, handle: Handle) -> None:
        if self._summaries and not table.read_only:
            summarise(handle)


def _identified(handle: Handle | None) -> Handle | None:
    """A new handle; its version can be compared with the log later."""
    if handle is not None:
        handle.identify()
    return handle
