"""Opened tables for their next use: by another step of a run, the next cycle of a loop, and (by summaries) the next run.

Opening a small table takes 2 to 10 ms of processor time, the more the longer ago its last checkpoint is, and listing its files
another one. A summary, which a run writes beside the log, takes a fifth of a millisecond. It is only a copy of what the log
says, of local tables without features and with few files: one that is missing, damaged or outdated costs opening the table.

Guarantee: what the pool gives has the newest version. A summary names the content of that version's entry, which is compared,
and there must be no later entry, as for a table that was kept (`OpenTable.is_newest`).
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable

from game_events.lakehouse.entries import identity_of, path_of
from game_events.lakehouse.open_table import KnownVersion, OpenTable, TableMetadata, entry_of
from game_events.lakehouse.parts import Part, PartedTable
from game_events.lakehouse.tables import OWN_TABLES, Table

log = logging.getLogger(__name__)

#: Tables of games that are kept at most. One takes some 0.3 MiB, more with many files.
MOST_KEPT = 2_000

#: Name of the summary in the folder of the log. Readers skip names that are no version's.
NAME = "_game_events_summary"

#: Increased when the content changes: others are not read.
FORMAT = 2


@dataclass(frozen=True)
class Summary:
    """The content of a summary; `entry`: digest of the version's log entry."""

    format: int
    entry: str
    known: KnownVersion


_DECODER = msgspec.json.Decoder(Summary)


class TablePool:
    """The newest versions of the tables that this process has opened or made; threads share them.

    It opens a table, or gives the version that it has if that is the newest one still. A step that has made the next version,
    or has read what a summary needs, publishes it: who opens the table afterwards need not read the log.
    """

    def __init__(self, *, summaries: bool = True) -> None:
        """`summaries`: write them for the next run; a loop would do it in each cycle."""
        self._summaries = summaries
        self._kept: dict[str, OpenTable] = {}
        #: What is known of the columns of games' tables by their summaries: most games have the same.
        self._columns: dict[tuple[object, ...], dict[Any, Any]] = {}
        self._lock = threading.Lock()

    def open(self, table: Table) -> OpenTable | None:
        """The newest version, from which commits may be planned; None: there is no table. Raises as `Table.open`."""
        opened = self.open_to_read(table)
        return None if opened is None else table.writable(opened)

    def open_to_read(self, table: Table) -> OpenTable | None:
        """The same for a caller that plans no commit. Raises as `Table.open_to_read`."""
        if table.by is None:
            return self._newest(table)
        with self._lock:  # the first caller opens the table for all games
            whole = self._newest(table.whole)
        return whole.part(table.part) if table.part is not None and isinstance(whole, PartedTable) else whole

    def peek(self, table: Table) -> OpenTable | None:
        """The same, of a game's own table without keeping it: for looks at many games. Raises as `Table.open_to_read`."""
        if table.by is not None:
            return self.open_to_read(table)
        return self._kept_newest(table) or table.open_to_read()

    def publish(self, table: Table, opened: DeltaTable | None) -> None:
        """Give this version to all who open the table, while it is the newest, and write its summary.

        Otherwise opened tables are left out, and those that would not be given.
        """
        if isinstance(opened, Part):
            opened = opened.whole
        if not isinstance(opened, OpenTable):
            return
        if self._summaries and table.by is None and not table.read_only:
            summarise(opened)
        self._keep(table, opened)

    def _newest(self, table: Table) -> OpenTable | None:
        kept = self._kept_newest(table)
        if kept is not None:
            return kept
        opened = self._by_summary(table) or table.open_to_read()
        if opened is None:
            self._kept.pop(table.uri, None)
            return None
        opened.identify()
        self._keep(table, opened)
        return opened

    def _kept_newest(self, table: Table) -> OpenTable | None:
        kept = self._kept.get(table.uri)
        return kept if kept is not None and kept.is_young and kept.is_newest() else None

    def _keep(self, table: Table, opened: OpenTable) -> None:
        """Keep a table if there is room.

        The others stay where there is none: each cycle opens the tables in the same order, so those that have waited the
        longest are the next ones that it opens.
        """
        if opened.entry is None or not opened.is_young:
            return
        if table.key not in OWN_TABLES and table.uri not in self._kept and len(self._kept) >= MOST_KEPT:
            self._kept = {uri: held for uri, held in list(self._kept.items()) if held.is_young}
            if len(self._kept) >= MOST_KEPT:
                return
        self._kept[table.uri] = opened

    def _by_summary(self, table: Table) -> OpenTable | None:
        """The newest version; None: there is no summary of that."""
        if table.by is not None or not table.is_local:
            return None
        summary = _identity_of_summary(table.uri)
        known = _read_summary(table.uri)
        if known is None:
            return None
        opened = table.opened(known, self._shared_columns(table, known.metadata))
        opened.summarised = opened.version()
        # Whoever deletes the entries after an older version deletes its summary first.
        is_newest = opened.is_newest() and summary == _identity_of_summary(table.uri)
        return table.readable(opened) if is_newest else None

    def _shared_columns(self, table: Table, metadata: TableMetadata) -> dict[Any, Any]:
        """What is known of columns and properties of such a table, which has descriptions of its own only when it is made."""
        if table.key in OWN_TABLES or not table.key.startswith(("silver_", "gold_")):
            return {}
        properties = (*metadata.partition_columns, *sorted(metadata.configuration.items()))
        layer = table.key.partition("_")[0]
        return self._columns.setdefault((layer, metadata.schema, properties), {})


def summarise(opened: OpenTable) -> None:
    """Write the summary of a version, if it has one and it is not the one that was written last.

    It has none if the table has features, or too many files, or is not known enough. A file that cannot be written, as of a
    table that was deleted, is left out.
    """
    if opened.summarised == opened.version() or opened.store is not None:
        return
    try:
        known = opened.known()
        if known is None:
            return
        digest = _digest_of_entry(opened.uri, known.version)
        if entry_of(opened.uri, None, known.version) != known.entry:  # of another table in its place
            return
        text = msgspec.json.encode(Summary(FORMAT, digest, known))
        # In its place: half of it is none, by its digest, and to delete the one before takes longer.
        with os.fdopen(os.open(_path(opened.uri), os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.write(_digest(text).encode() + b"\n" + text)
            file.truncate()
    except (OSError, ValueError) as error:
        log.debug("table=%s not_summarised=%r", opened.uri, str(error))
        return
    opened.summarised = opened.version()


def forget_summary(table: Table, version: int) -> None:
    """Delete the summary beside a table's log if it is one of this version or an older one."""
    if not table.is_local:
        return
    known = _read_summary(table.uri)
    if known is None or known.version <= version:
        _path(table.uri).unlink(missing_ok=True)


def _identity_of_summary(uri: str) -> tuple[int, int, int] | None:
    try:
        return identity_of(_path(uri).stat())
    except (FileNotFoundError, NotADirectoryError):  # something else has the table's place
        return None


def _read_summary(uri: str) -> KnownVersion | None:
    """The version of the summary beside a log; None: there is none, the log has that version no more, or it is damaged."""
    try:
        digest, _, text = _path(uri).read_bytes().partition(b"\n")
        if digest != _digest(text).encode():  # as after a power cut
            return None
        summary = _DECODER.decode(text)
        version = summary.known.version
        # Before its content: if the table is made again meanwhile, `is_newest` finds another one.
        entry = entry_of(uri, None, version)
        if summary.format != FORMAT or entry is None or _digest_of_entry(uri, version) != summary.entry:
            return None
    except (OSError, msgspec.ValidationError):
        return None
    return replace(summary.known, entry=entry)


def _digest_of_entry(uri: str, version: int) -> str:
    return _digest(Path(uri, path_of(version)).read_bytes())


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _path(uri: str) -> Path:
    return Path(uri, "_delta_log", NAME)
