"""A table that was opened once is not opened again while its handle has the newest version."""

import shutil
from dataclasses import replace

import pytest

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.handle import LONGEST_USE, KeptHandles
from game_events.lakehouse.tables import Lakehouse, Table
from game_events_tests.support.tables import plan


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


@pytest.fixture
def table(lakehouse):
    table = lakehouse.table("t")
    commit(plan(table, [0], None, 1))
    return table


@pytest.fixture
def opens(monkeypatch):
    """The tables that are opened from now on."""
    found, real = [], Table.open
    monkeypatch.setattr(Table, "open", lambda self: found.append(self.name) or real(self))
    return found


def next_commit(table, kept, n, opens):
    """Commit the nth number from a kept handle; returns the tables that were opened for it."""
    planned = plan(table, [n], n, n + 1)  # opens the table itself
    opens.clear()
    landed = commit(replace(planned, follows=kept.take(table)))
    kept.keep(table, landed.handle)
    return list(opens)


def test_a_kept_handle_is_given_to_one_user_without_opening_the_table(table, opens):
    kept = KeptHandles()
    first = kept.take(table)
    kept.keep(table, first)
    assert kept.take(table) is first
    assert opens == ["t"]
    assert kept.take(table) is not first, "its user has it"


def test_the_handle_of_a_commit_is_the_one_to_plan_the_next_commit_from(table, opens):
    kept = KeptHandles()
    assert [next_commit(table, kept, n, opens) for n in range(1, 4)] == [["t"], [], []]
    assert kept.take(table).version() == 3


def test_a_handle_that_was_overtaken_is_not_given_away(table):
    kept = KeptHandles()
    kept.keep(table, table.open())
    commit(plan(table, [1], 1, 2))
    assert kept.take(table).version() == 1


def test_the_handle_of_a_table_that_was_deleted_is_not_given_away(table):
    kept = KeptHandles()
    kept.keep(table, table.open())
    shutil.rmtree(table.uri)
    commit(plan(table, [5], None, 7))
    assert kept.take(table).transaction_version("txn") == 7
    kept.keep(table, table.open())
    shutil.rmtree(table.uri)
    assert kept.take(table) is None


def test_only_so_many_handles_wait_and_the_oldest_go_first(lakehouse, opens):
    tables = [lakehouse.table(name) for name in "abc"]
    for one in tables:
        commit(plan(one, [0], None, 1))
    kept = KeptHandles(most=2)
    for one in tables:
        kept.keep(one, one.open())
    opens.clear()
    assert all(kept.take(one) is not None for one in tables)
    assert opens == ["a"]


def test_a_handle_that_has_followed_many_commits_is_replaced_as_it_only_grows(table, opens):
    kept = KeptHandles()
    opened = [bool(next_commit(table, kept, n, opens)) for n in range(1, LONGEST_USE + 3)]
    assert [n for n, anew in enumerate(opened, 1) if anew] == [1, LONGEST_USE + 1]


def test_a_transaction_id_is_read_once_for_each_version(table, monkeypatch):
    handle = table.open()
    read, real = [], type(handle).__mro__[1].transaction_version
    monkeypatch.setattr(type(handle).__mro__[1], "transaction_version", lambda self, app: read.append(app) or real(self, app))
    assert [handle.transaction_version("txn"), handle.transaction_version("txn")] == [1, 1]
    assert handle.transaction_version("other") is None
    assert handle.transaction_version("other") is None
    commit(plan(table, [1], 1, 2))
    table.advance(handle)
    assert handle.transaction_version("txn") == 2
    assert read == ["txn", "other", "txn", "txn"], "by this handle twice, and once by the commit's own"
