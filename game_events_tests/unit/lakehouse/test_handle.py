"""A table that was opened once is not opened again while its handle has the newest version."""

import shutil
import time
from dataclasses import replace
from functools import partialmethod

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import CommitProperties, Transaction

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.data.snapshot import BATCH_INFO, row_count
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.handle import LONGEST_S, MOST_FILES, MOST_NOTED, MOST_VERSIONS, NOTED, KeptHandles
from game_events.lakehouse.retention import Retention
from game_events.lakehouse.tables import Lakehouse, paths
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.tables import plan, staged_numbers


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


@pytest.fixture
def table(lakehouse):
    table = lakehouse.table("t")
    commit(plan(table, [0], None, 1))
    return table


@pytest.fixture
def opens():
    """The tables that are opened from now on."""
    with opened_tables() as keys:
        yield keys


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


def test_only_so_many_handles_wait_and_those_that_wait_stay(lakehouse, opens):
    """Each cycle takes them in the same order: if the oldest went, none would be there when it is taken."""
    tables = [lakehouse.table(name) for name in "abc"]
    for one in tables:
        commit(plan(one, [0], None, 1))
    kept = KeptHandles(most=2)
    for one in tables:
        kept.keep(one, one.open())
    opens.clear()
    assert all(kept.take(one) is not None for one in tables)
    assert opens == ["c"]


def test_a_handle_that_would_not_be_given_away_is_not_kept(table):
    """One whose version another writer made in an object store: it is not known whether it is the newest."""
    kept, handle = KeptHandles(most=1), table.open()
    handle.entry = None
    kept.keep(table, handle)
    handle = table.open()
    kept.keep(table, handle)
    assert kept.take(table) is handle


def test_handles_that_have_grown_old_make_room(lakehouse, table, monkeypatch):
    commit(plan(other := lakehouse.table("other"), [0], None, 1))
    kept = KeptHandles(most=1)
    kept.keep(table, table.open())
    later = time.monotonic() + LONGEST_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    newer = other.open()
    kept.keep(other, newer)
    assert kept.take(other) is newer


def test_a_handle_that_has_followed_many_commits_is_replaced_as_it_only_grows(table, opens):
    kept = KeptHandles()
    opened = [bool(next_commit(table, kept, n, opens)) for n in range(1, MOST_VERSIONS + 3)]
    assert [n for n, anew in enumerate(opened, 1) if anew] == [1, MOST_VERSIONS + 1]


def test_a_handle_is_replaced_before_the_log_loses_what_it_was_opened_with(table, monkeypatch):
    """delta-rs reads the checkpoint that a handle was opened with when it is asked for a transaction id."""
    commit(plan(table, [1], 1, 2))
    Retention(kept_h=2 / 3600).apply("t", table.open())
    kept = KeptHandles()
    old = kept.take(table)
    table.open().create_checkpoint()  # as another writer does
    assert TableLog(table).delete_expired(-1.0) > 0
    assert table.is_newest(old)
    with pytest.raises(DeltaError):
        old.transaction_version("never read before")
    kept.keep(table, old)
    later = time.monotonic() + 1.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert kept.take(table).transaction_version("never read before") is None


def test_readers_share_one_handle_of_a_version_and_get_the_next_version_after_a_commit(table, opens):
    kept = KeptHandles()
    first = kept.shared(table)
    assert kept.shared(table) is first
    assert opens == ["t"]
    commit(plan(table, [1], 1, 2))  # a concurrent run's
    assert kept.shared(table).version() == 1
    assert first.version() == 0, "its readers go on with what they have read"


def test_the_handle_of_a_commit_may_be_shared_from_then_on(table, opens):
    kept = KeptHandles()
    landed = commit(plan(table, [1], 1, 2))
    kept.share(table, landed.handle)
    opens.clear()
    assert kept.shared(table).version() == 1
    assert opens == []


def test_readers_of_a_table_that_is_gone_or_was_made_again_get_what_is_there(table):
    kept = KeptHandles()
    kept.shared(table)
    shutil.rmtree(table.uri)
    assert kept.shared(table) is None
    commit(plan(table, [5], None, 7))
    assert kept.shared(table).transaction_version("txn") == 7
    shutil.rmtree(table.uri)
    commit(plan(table, [5], None, 9))
    assert kept.shared(table).transaction_version("txn") == 9


def test_a_shared_handle_that_has_grown_old_or_may_be_overtaken_unseen_is_opened_again(table, monkeypatch):
    """One whose version another writer made in an object store: it is not known whether it is the newest."""
    kept = KeptHandles()
    old = kept.shared(table)
    later = time.monotonic() + LONGEST_S + 1
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: later)
        assert kept.shared(table) is not old
    unknown = table.open()
    unknown.entry = None
    kept.share(table, unknown)
    assert kept.shared(table) is not unknown


@pytest.fixture
def reads(monkeypatch):
    """The transaction ids that are read from a log from now on."""
    found, real = [], DeltaTable.transaction_version
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda self, app: found.append(app) or real(self, app))
    return found


def sets(table, **transactions):
    """What another writer's commit sets, which notes nothing."""
    properties = CommitProperties(app_transactions=[Transaction(app, to) for app, to in transactions.items()])
    handle = DeltaTable(table.uri)
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)


def test_a_transaction_id_is_read_once_for_each_version(table, reads):
    sets(table, txn=1)
    handle = table.open()
    assert [handle.transaction_version("txn"), handle.transaction_version("txn")] == [1, 1]
    assert [handle.transaction_version("other"), handle.transaction_version("other")] == [None, None]
    assert reads == ["txn", "other"]
    sets(table, txn=2)
    table.advance(handle)
    reads.clear()
    assert [handle.transaction_version("txn"), handle.transaction_version("txn")] == [2, 2]
    assert reads == ["txn"]


def test_a_commit_notes_the_transaction_ids_that_are_known_for_whoever_opens_its_version(table, reads):
    """delta-rs replays the log for each id: with six of them, a sixth of what a game's silver table costs a run."""
    assert table.open().transaction_version("other") is None
    first = table.open()
    sets(table, other=7)
    handle = table.open()
    assert (handle.transaction_version("txn"), handle.transaction_version("other")) == (1, 7)
    commit(plan(table, [1], 1, 2, follows=handle))
    reads.clear()
    newest = table.open()
    assert (newest.transaction_version("txn"), newest.transaction_version("other")) == (2, 7)
    assert reads == []
    assert newest.transaction_version("third") is None
    assert reads == ["third"], "an id that is not noted is read from the log"
    assert first.transaction_version("other") is None, "a version goes on having its own values"


def test_a_commit_that_came_after_a_concurrent_writers_notes_nothing_that_is_believed(table, monkeypatch):
    """delta-rs makes a commit that adds rows the version after the other one; its note was made for the version before."""
    handle = table.open()
    assert handle.transaction_version("other") is None
    write = DeltaTable.create_write_transaction

    def overtaken(*arguments, **options):
        monkeypatch.undo()
        sets(table, other=7)
        write(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    assert commit(plan(table, [1], 1, 2, follows=handle)).version == 2
    newest = table.open()
    assert (newest.transaction_version("txn"), newest.transaction_version("other")) == (2, 7)


def test_a_table_with_many_transaction_ids_notes_none(table):
    """Bronze has one for each partition: each commit would repeat them all."""
    more = {f"kafka:{n}": n for n in range(MOST_NOTED)}
    commit(replace(plan(table, [1], 1, 2), advance={"txn": 2} | more))
    assert NOTED not in next(iter(table.open().history(1)))
    assert table.open().transaction_version("kafka:3") == 3


def test_after_a_commit_its_transaction_ids_are_known_and_the_others_as_before(table, reads):
    planned = plan(table, [1], 1, 2, follows=table.open())
    assert planned.follows.transaction_version("other") is None
    landed = commit(planned)
    reads.clear()
    assert (landed.handle.transaction_version("txn"), landed.handle.transaction_version("other")) == (2, None)
    assert reads == []
    assert table.open().transaction_version("txn") == 2


def test_beside_the_commits_of_others_transaction_ids_are_read_again(table):
    handle = table.open()
    assert handle.transaction_version("txn") == 1
    commit(plan(table, [1], 1, 2))
    commit(plan(table, [2], 2, 3))
    table.advance(handle, {"txn": 2})
    assert handle.transaction_version("txn") == 3


@pytest.fixture
def log_reads(monkeypatch):
    """Names of the methods of delta-rs's table that read a log from now on."""
    found = []
    for name in ("get_add_actions", "history"):
        real = getattr(DeltaTable, name)

        def noted(self, *args, of, do, **options):
            found.append(of)
            return do(self, *args, **options)

        monkeypatch.setattr(DeltaTable, name, partialmethod(noted, of=name, do=real))
    return found


def test_files_and_the_newest_commit_are_read_once_for_each_version(table, log_reads):
    commit(replace(plan(table, [1], 1, 2), info={BATCH_INFO: "1"}))
    log_reads.clear()
    handle = table.open()
    for _ in range(2):
        assert (len(paths(handle)), row_count(handle), restored(handle)) == (2, 2, False)
    assert sorted(log_reads) == ["get_add_actions", "history"]
    sets(table, other=1)
    table.advance(handle)
    log_reads.clear()
    assert not restored(handle)
    assert "history" in log_reads, "another writer's commit"


def test_after_a_commit_of_a_handle_its_files_are_read_once_and_the_commit_is_known(table, log_reads):
    planned = replace(plan(table, [1], 1, 2, follows=table.open()), info={BATCH_INFO: "1"})
    assert (row_count(planned.follows), restored(planned.follows)) == (1, False)
    log_reads.clear()
    handle = commit(planned).handle
    assert (len(paths(handle)), row_count(handle), restored(handle)) == (2, 2, False)
    assert log_reads == ["get_add_actions"]


def test_statistics_of_many_files_are_not_kept(table, log_reads):
    for before, after, reads in ((1, MOST_FILES, 1), (MOST_FILES, MOST_FILES + 1, 2)):
        commit(plan(table, [], before, after, files=[f for n in range(before, after) for f in staged_numbers(table, [n])]))
        handle = table.open()
        log_reads.clear()
        assert [row_count(handle), row_count(handle)] == [after] * 2
        assert log_reads == ["get_add_actions"] * reads


def test_a_restore_is_found_on_a_handle_that_was_moved_over_it(table):
    handle = commit(replace(plan(table, [1], 1, 2, follows=table.open()), info={BATCH_INFO: "1"})).handle
    assert not restored(handle)
    table.open().restore(0)
    table.advance(handle)
    assert restored(handle)


@pytest.mark.parametrize("columns", [["n"], ["n", "later"]])
def test_a_reader_of_the_version_between_never_gets_transaction_ids_of_the_next_one(table, monkeypatch, columns):
    """The version between: another writer's, over which the commit is tried again, or the one that adds its columns."""
    handle, between = table.open(), []
    rows = pa.table({name: [1] for name in columns})
    planned = replace(plan(table, [1], 1, 2, follows=handle), schema=rows.schema, files=staged(table, rows))
    write = DeltaTable.create_write_transaction

    def overtaken(*arguments, **options):
        monkeypatch.undo()
        if columns == ["n"]:
            sets(table, other=7)
        between.append(table.open())
        write(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    assert commit(planned).version == 2
    assert between[0].version() == 1
    assert between[0].transaction_version("txn") == 1
