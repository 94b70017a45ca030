"""What tests put between the code and its tables: at a failpoint, when a table is opened, when it is committed to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest
from deltalake import DeltaTable

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits import commit
from game_events.lakehouse.tables import Table

Open = Callable[[Table], DeltaTable | None]
Write = Callable[..., object]


def handle_failpoints(patch: pytest.MonkeyPatch, handler: Callable[[str, object], object]) -> None:
    """Until `patch` is undone, `handler` is called at each failpoint, with the failpoint's name and detail."""
    patch.setattr(failpoints, "handler", handler)


@contextlib.contextmanager
def at_failpoints(handler: Callable[[str, object], object]) -> Iterator[None]:
    """`handle_failpoints` for the time of a block."""
    with pytest.MonkeyPatch.context() as patch:
        handle_failpoints(patch, handler)
        yield


@contextlib.contextmanager
def at_opening(instead: Callable[[Open, Table], DeltaTable | None]) -> Iterator[None]:
    """Within the block `instead` opens tables, for whatever; it gets the usual `Table.open_to_read`, and the table."""
    usual = Table.open_to_read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "open_to_read", lambda table: instead(usual, table))
        yield


@contextlib.contextmanager
def opened_tables() -> Iterator[list[str]]:
    """The keys of the tables that are opened within the block, in their order."""
    keys: list[str] = []

    def noted(usual: Open, table: Table) -> DeltaTable | None:
        keys.append(table.key)
        return usual(table)

    with at_opening(noted):
        yield keys


@contextlib.contextmanager
def unreadable(key: str, error: Exception) -> Iterator[None]:
    """Within the block, opening the table of that key raises the error."""

    def refused(usual: Open, table: Table) -> DeltaTable | None:
        if table.key == key:
            raise error
        return usual(table)

    with at_opening(refused):
        yield


@contextlib.contextmanager
def at_creation(instead: Callable[..., object]) -> Iterator[None]:
    """Within the block `instead` creates tables and replaces their layout; it gets `make_table`, and the arguments."""
    usual: Write = commit.make_table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "make_table", functools.partial(instead, usual))
        yield


@contextlib.contextmanager
def at_commit(instead: Callable[..., object]) -> Iterator[None]:
    """Within the block `instead` writes the next versions of tables; it gets `write_version`, and the arguments."""
    usual: Write = commit.write_version
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "write_version", functools.partial(instead, usual))
        yield


def wrap_writes(patch: pytest.MonkeyPatch, wrap: Callable[[Write], Write]) -> None:
    """Until `patch` is undone, `wrap` is around the two functions that commit to a table and that create one."""
    for name in ("write_version", "make_table"):
        patch.setattr(commit, name, wrap(getattr(commit, name)))
