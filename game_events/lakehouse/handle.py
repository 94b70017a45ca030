"""Open tables: one version of a table's log, with what was read of it, and where handles wait for their next use."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from game_events.lakehouse.log_entries import COMMIT_ID, Entry
from game_events.lakehouse.storage.errors import store_errors_named
from game_events.lakehouse.storage.options import is_remote

#: Handles that wait at most. One takes some 0.3 MiB, more with many files.
MOST_KEPT = 2_000
#: Versions, and seconds, after which a table is opened again. A handle that is moved forward keeps what it has read of each
#: entry. And it goes on reading the checkpoint that it was opened with, which others delete after the log's retention.
MOST_VERSIONS, LONGEST_S = 50, 300.0
#: Files of a version that a handle remembers at most; of more their statistics are read each time.
MOST_FILES = 64
#: Retention of a log without the property (Delta Lake protocol: 30 days).
_DEFAULT_S = 30 * 86_400.0
_SECONDS = re.compile(r"interval (\d+) seconds")

#: Key in a commit's information: JSON of the version that the commit was made for, and the transaction ids that are known of
#: it. delta-rs replays the log for each id; a commit's information is one entry of the log.
NOTED = "game_events_transactions"
#: Transaction ids that a commit notes at most: bronze and quarantine have thousands.
MOST_NOTED = 16


def log_retention_s(handle: DeltaTable) -> float:
    """Seconds that a table's log entries stay, by its properties."""
    found = _SECONDS.fullmatch(handle.metadata().configuration.get("delta.logRetentionDuration") or "")
    return float(found[1]) if found else _DEFAULT_S


def read_add_actions(handle: DeltaTable) -> pa.Table:
    """As `tables.add_actions`, read from the log."""
    # `pa.table` would import pandas: a third of a second of every start.
    return pa.RecordBatchReader.from_stream(handle.get_add_actions(flatten=True)).read_all()


def _as_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


class Handle(DeltaTable):
    """A version of a table; what was read of it is read once.

    Attributes:
        first: the version that was opened; `version()` is later once a commit or `Table.advance` has moved it.
        good_until_s: by `time.monotonic`: until then the log has all that the handle may read.
        entry: a version, and the identity of its entry in the log (`log_entries`); None: it is not known. `Table` notes it of a
            local table; in an object store it is the mark of the version's commit, if that was read, or made by this process.
        store: the table's folder in an object store, by the connections and credentials of this handle; None: a local table.
    """

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        super().__init__(uri, storage_options=options)
        self.first = self.version()
        self.good_until_s = time.monotonic() + min(LONGEST_S, log_retention_s(self) / 2)
        self.entry: tuple[int, Entry | None] | None = None
        remote = is_remote(uri)
        self.store = pafs.PyFileSystem(DeltaStorageHandler.from_table(self._table, options)) if remote else None
        self._transactions: tuple[int, dict[str, int | None]] = -1, {}
        self._newest: tuple[int, Mapping[str, Any]] = -1, {}
        self._files: tuple[int, bytes | None] = -1, None

    @property
    def is_young(self) -> bool:
        """Whether it may still be kept."""
        return self.version() - self.first < MOST_VERSIONS and time.monotonic() < self.good_until_s

    def update_incremental(self, sets: Mapping[str, int] | None = None, info: Mapping[str, str] | None = None) -> None:
        """Move to the newest version.

        `sets`, `info`: of a commit that this process has made after this version: transaction ids, and information.
        """
        before, known = self._transactions
        old = self.version()
        super().update_incremental()
        if self.version() != old + 1:
            return
        # The only commit since is that one: all other ids are as they were.
        if sets is not None and before == old:
            self._transactions = old + 1, known | dict(sets)
        if info is not None:
            self._newest = old + 1, info
            self._note_mark(info.get(COMMIT_ID))

    def newest_commit(self) -> Mapping[str, Any]:
        """Information of the newest commit, of this version or (beside concurrent writers) a later one; {}: of none."""
        version = self.version()
        if self._newest[0] != version:
            with store_errors_named(self.table_uri):
                self._newest = version, next(iter(self.history(1)), {})
        return self._newest[1]

    def add_actions(self) -> pa.Table:
        """See `tables.add_actions`."""
        version, (of, kept) = self.version(), self._files
        if of == version and kept is not None:
            return pa.ipc.open_stream(kept).read_all()
        files = read_add_actions(self)
        # As bytes: delta-rs's columns keep buffers of half a MiB, however few files there are.
        self._files = version, _as_bytes(files) if files.num_rows <= MOST_FILES else None
        return files

    def identify(self) -> None:
        """Find out the identity of this version's entry, if it is not known; one request (object stores)."""
        if self.entry is None or self.entry[0] != self.version():
            self._known()

    def transaction_version(self, app_id: str) -> int | None:
        """Value of a transaction id; read once for a version, as delta-rs reads the log for each, in half a millisecond."""
        known = self._known()
        if app_id not in known:
            known[app_id] = super().transaction_version(app_id)
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


def note_of(version: int, transactions: Mapping[str, int | None]) -> dict[str, str]:
    """Commit information with the transaction ids of a version; nothing if they are many."""
    return {NOTED: json.dumps([version, transactions])} if len(transactions) <= MOST_NOTED else {}


class Openable(Protocol):
    """What `KeptHandles` needs of a table (`tables.Table`)."""

    @property
    def uri(self) -> str:
        """Where the table is."""
        ...

    def open(self) -> DeltaTable | None:
        """A handle on the newest version."""
        ...

    def is_newest(self, handle: DeltaTable) -> bool:
        """Whether a handle has the newest version still."""
        ...


class KeptHandles:
    """Handles between the steps of a run and between the cycles of a loop, as opening a table reads its log.

    Guarantee: a handle has one user at a time, or readers only; what `take` and `shared` return has the newest version.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept: dict[str, Handle] = {}
        self._shared: dict[str, Handle] = {}
        self._lock = threading.Lock()

    def take(self, table: Openable) -> DeltaTable | None:
        """A handle for the caller alone; None: there is no table. Raises as `Table.open`."""
        with self._lock:
            handle = self._kept.pop(table.uri, None)
        if handle is None or not handle.is_young or not table.is_newest(handle):
            return _opened(table)
        return handle

    def shared(self, table: Openable) -> DeltaTable | None:
        """A handle that all who ask for it share, until the table has a newer version: none of them may move it.

        For tables that many steps read (bronze, quarantine). Raises as `Table.open`.
        """
        handle = self._shared.get(table.uri)
        if handle is not None and handle.is_young and table.is_newest(handle):
            return handle
        opened = _opened(table)
        self.share(table, opened)
        return opened

    def share(self, table: Openable, handle: DeltaTable | None) -> None:
        """Let `shared` return a handle, which its user moves no more."""
        if isinstance(handle, Handle) and handle.entry is not None:
            self._shared[table.uri] = handle
        else:
            self._shared.pop(table.uri, None)

    def keep(self, table: Openable, handle: DeltaTable | None) -> None:
        """Take back a handle, which its user uses no more; one that `take` would not return, or has no room, is dropped.

        The others stay where there is no room: each cycle takes the handles in the same order, so those that have waited the
        longest are the next ones that it takes.
        """
        if not isinstance(handle, Handle) or handle.entry is None or not handle.is_young:
            return
        with self._lock:
            if len(self._kept) >= self._most:
                self._kept = {uri: held for uri, held in self._kept.items() if held.is_young}
            if len(self._kept) < self._most:
                self._kept[table.uri] = handle


def _opened(table: Openable) -> DeltaTable | None:
    """A new handle whose version may be compared with the log later."""
    handle = table.open()
    if isinstance(handle, Handle):
        handle.identify()
    return handle
