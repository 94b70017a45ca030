"""Handles that wait for their next use: between the steps of a run, the cycles of a loop, and (by summaries) two runs."""

from __future__ import annotations

import threading
from typing import Protocol

from deltalake import DeltaTable

from game_events.lakehouse.handle import Handle
from game_events.lakehouse.parts import Part, PartedHandle
from game_events.lakehouse.version_summary import SharedColumns, Summarised, by_summary, summarise

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
