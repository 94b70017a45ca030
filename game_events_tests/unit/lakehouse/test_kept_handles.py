"""A table that was opened once is not opened again while its handle has the newest version."""

import shutil
import time
from dataclasses import replace

import pytest
from deltalake.exceptions import DeltaError

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.log import TableLog
from game_events.lakehouse.open_table import LONGEST_S, MOST_VERSIONS
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.table_properties import Retention
from game_events_tests.support.tables import plan


def next_commit(table, kept, n, opens):
    """Commit the nth number from a kept handle; returns the tables that were opened for it."""
    planned = plan(table, [n], n, n + 1)  # opens the table itself
    opens.clear()
    landed = commit(replace(planned, from_table=kept.open(table)))
    kept.publish(table, landed.handle)
    return list(opens)


def test_the_handle_of_a_commit_is_the_one_to_plan_the_next_commit_from(table, opens):
    kept = TablePool()
    assert [next_commit(table, kept, n, opens) for n in range(1, 4)] == [["t"], [], []]
    assert kept.open(table).version() == 3


def test_a_handle_that_was_overtaken_is_not_given_away(table):
    kept = TablePool()
    kept.publish(table, table.open())
    commit(plan(table, [1], 1, 2))
    assert kept.open(table).version() == 1


def test_the_handle_of_a_table_that_was_deleted_is_not_given_away(table):
    kept = TablePool()
    kept.publish(table, table.open())
    shutil.rmtree(table.uri)
    commit(plan(table, [5], None, 7))
    assert kept.open(table).transaction_version("txn") == 7
    kept.publish(table, table.open())
    shutil.rmtree(table.uri)
    assert kept.open(table) is None


def test_only_so_many_handles_wait_and_those_that_wait_stay(lakehouse, opens):
    """Each cycle takes them in the same order: if the oldest went, none would be there when it is taken."""
    tables = [lakehouse.table(name) for name in "abc"]
    for one in tables:
        commit(plan(one, [0], None, 1))
    kept = TablePool(most=2)
    for one in tables:
        kept.publish(one, one.open())
    opens.clear()
    assert all(kept.open(one) is not None for one in tables)
    assert opens == ["c"]


def test_a_handle_that_would_not_be_given_away_is_not_kept(table):
    """One whose version another writer made in an object store: it is not known whether it is the newest."""
    kept, handle = TablePool(most=1), table.open()
    handle.entry = None
    kept.publish(table, handle)
    handle = table.open()
    kept.publish(table, handle)
    assert kept.open(table) is handle


def test_handles_that_have_grown_old_make_room(lakehouse, table, monkeypatch):
    commit(plan(other := lakehouse.table("other"), [0], None, 1))
    kept = TablePool(most=1)
    kept.publish(table, table.open())
    later = time.monotonic() + LONGEST_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    newer = other.open()
    kept.publish(other, newer)
    assert kept.open(other) is newer


def test_a_handle_that_has_followed_many_commits_is_replaced_as_it_only_grows(table, opens):
    kept = TablePool(summaries=False)
    opened = [bool(next_commit(table, kept, n, opens)) for n in range(1, MOST_VERSIONS + 3)]
    assert [n for n, anew in enumerate(opened, 1) if anew] == [1, MOST_VERSIONS + 1]


def test_a_handle_is_replaced_before_the_log_loses_what_it_was_opened_with(table, monkeypatch):
    """delta-rs reads the checkpoint that a handle was opened with when it is asked for a transaction id."""
    commit(plan(table, [1], 1, 2))
    Retention(kept_h=2 / 3600).apply("t", table.open())
    kept = TablePool()
    old = kept.open(table)
    table.open().create_checkpoint()  # as another writer does
    assert TableLog(table).delete_expired(-1.0) > 0
    assert old.is_newest()
    with pytest.raises(DeltaError):
        old.transaction_version("never read before")
    kept.publish(table, old)
    later = time.monotonic() + 1.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert kept.open(table).transaction_version("never read before") is None


def test_readers_share_one_handle_of_a_version_and_get_the_next_version_after_a_commit(table, opens):
    kept = TablePool()
    first = kept.open(table)
    assert kept.open(table) is first
    assert opens == ["t"]
    commit(plan(table, [1], 1, 2))  # a concurrent run's
    assert kept.open(table).version() == 1
    assert first.version() == 0, "its readers go on with what they have read"


def test_the_handle_of_a_commit_may_be_shared_from_then_on(table, opens):
    kept = TablePool()
    landed = commit(plan(table, [1], 1, 2))
    kept.publish(table, landed.handle)
    opens.clear()
    assert kept.open(table).version() == 1
    assert opens == []


def test_readers_of_a_table_that_is_gone_or_was_made_again_get_what_is_there(table):
    kept = TablePool()
    kept.open(table)
    shutil.rmtree(table.uri)
    assert kept.open(table) is None
    commit(plan(table, [5], None, 7))
    assert kept.open(table).transaction_version("txn") == 7
    shutil.rmtree(table.uri)
    commit(plan(table, [5], None, 9))
    assert kept.open(table).transaction_version("txn") == 9


def test_a_shared_handle_that_has_grown_old_or_may_be_overtaken_unseen_is_opened_again(table, monkeypatch):
    """One whose version another writer made in an object store: it is not known whether it is the newest."""
    kept = TablePool()
    old = kept.open(table)
    later = time.monotonic() + LONGEST_S + 1
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: later)
        assert kept.open(table) is not old
    unknown = table.open()
    unknown.entry = None
    kept.publish(table, unknown)
    assert kept.open(table) is not unknown
