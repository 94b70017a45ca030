"""A table that was opened once is not opened again while its version is the newest; a later run knows it by its summary."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import DeltaError
from deltalake.transaction import CommitProperties, Transaction

from game_events.errors import ConflictError, DataError
from game_events.lakehouse import table_pool
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.transactions import restored
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.entries import path_of
from game_events.lakehouse.open_table import LONGEST_S, MOST_FILES, MOST_VERSIONS
from game_events.lakehouse.table_pool import NAME, TablePool
from game_events.lakehouse.table_properties import KEPT_CHECKPOINT_COMMITS, Retention
from game_events.lakehouse.tables import BRONZE, Lakehouse, files_of
from game_events_tests.support.tables import forget_older, numbers, plan, staged_numbers


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


def test_only_so_many_handles_wait_and_those_that_wait_stay(lakehouse, opens, monkeypatch):
    """Each cycle takes them in the same order: if the oldest went, none would be there when it is taken."""
    tables = [lakehouse.table(name) for name in "abc"]
    for one in tables:
        commit(plan(one, [0], None, 1))
    monkeypatch.setattr(table_pool, "MOST_KEPT", 2)
    kept = TablePool()
    for one in tables:
        kept.publish(one, one.open())
    opens.clear()
    assert all(kept.open(one) is not None for one in tables)
    assert opens == ["c"]


def test_a_handle_that_would_not_be_given_away_is_not_kept(table, monkeypatch):
    """One whose version another writer made in an object store: it is not known whether it is the newest."""
    monkeypatch.setattr(table_pool, "MOST_KEPT", 1)
    kept, handle = TablePool(), table.open()
    handle.entry = None
    kept.publish(table, handle)
    handle = table.open()
    kept.publish(table, handle)
    assert kept.open(table) is handle


def test_a_look_has_what_is_kept_and_keeps_nothing(lakehouse, table, opens):
    pool = TablePool()
    first = pool.peek(table)
    assert pool.peek(table) is not first
    kept = pool.open(table)
    opens.clear()
    assert pool.peek(table) is kept
    assert opens == []
    commit(plan(table, [1], 1, 2))
    assert pool.peek(table).version() == 1
    assert pool.peek(lakehouse.table("nothing")) is None


def test_tables_of_the_pipeline_itself_are_kept_however_many_games_there_are(lakehouse, table, opens, monkeypatch):
    monkeypatch.setattr(table_pool, "MOST_KEPT", 1)
    pool, bronze = TablePool(), lakehouse.table(BRONZE)
    commit(plan(bronze, [0], None, 1))
    pool.open(table)
    opens.clear()
    assert pool.open(bronze) is pool.open(bronze)
    assert opens == [BRONZE]


def test_a_version_that_is_published_late_costs_opening_the_table(table, opens):
    pool = TablePool(summaries=False)
    old = pool.open(table)
    newest = commit(plan(table, [1], 1, 2, from_table=old)).handle
    pool.publish(table, newest)
    pool.publish(table, old)
    opens.clear()
    assert pool.open(table).version() == 1
    assert opens == ["t"]


def test_handles_that_have_grown_old_make_room(lakehouse, table, monkeypatch):
    commit(plan(other := lakehouse.table("other"), [0], None, 1))
    monkeypatch.setattr(table_pool, "MOST_KEPT", 1)
    kept = TablePool()
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
    Retention(every_h=2 / 3600).apply("t", table.open())
    kept = TablePool()
    old = kept.open(table)
    table.open().create_checkpoint()  # as another writer does
    assert forget_older(table) > 0
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


def next_run(table, opens):
    """What the next run takes, and whether it opened the table for that."""
    opens.clear()
    return TablePool().open(table), bool(opens)


def leave(table, n=1):
    """A run commits the nth number, and ends."""
    kept = TablePool()
    planned = plan(table, [n], n, n + 1, info={BATCH_INFO: "1"})
    landed = commit(replace(planned, from_table=kept.open(table)))
    kept.publish(table, landed.handle)
    return landed


def summary_of(table):
    return Path(table.uri, "_delta_log", NAME)


def test_what_a_run_leaves_is_known_without_opening_it_as_delta_rs_reads_it(table, opens):
    leave(table)
    handle, opened = next_run(table, opens)
    assert not opened
    read = DeltaTable(table.uri)
    assert handle.version() == read.version() == 1
    assert handle.metadata().id == read.metadata().id
    assert handle.metadata().configuration == read.metadata().configuration
    assert pa.schema(handle.schema()).equals(pa.schema(read.schema()), check_metadata=True)
    assert handle.protocol() == read.protocol()
    assert sorted(files_of(handle), key=str) == sorted(files_of(read), key=str)
    assert handle.transaction_version("txn") == 2
    assert not restored(handle)
    assert handle.transaction_version("never set") is None
    assert sorted(handle.file_uris()) == sorted(read.file_uris()), "delta-rs reads the log when it is asked for more"


def test_a_transaction_id_that_no_run_has_read_is_read_from_the_log(table, opens):
    properties = CommitProperties(app_transactions=[Transaction("of another writer", 7)])
    other = DeltaTable(table.uri)
    other.create_write_transaction([], "append", other.schema(), commit_properties=properties)
    leave_as_it_is(table)
    handle, opened = next_run(table, opens)
    assert not opened
    assert (handle.transaction_version("txn"), handle.transaction_version("of another writer")) == (1, 7)


def leave_as_it_is(table):
    """A run reads the newest version, and ends."""
    kept = TablePool()
    handle = kept.open(table)
    handle.transaction_version("txn")
    files_of(handle)
    kept.publish(table, handle)
    return handle


def test_each_run_follows_the_one_before(table, opens):
    leave(table)
    for n in range(2, KEPT_CHECKPOINT_COMMITS + 3):
        kept = TablePool()
        planned = plan(table, [n], n, n + 1)
        opens.clear()
        landed = commit(replace(planned, from_table=kept.open(table)))
        kept.publish(table, landed.handle)
        assert opens == []
    assert numbers(table) == list(range(KEPT_CHECKPOINT_COMMITS + 3))
    assert list(Path(table.uri, "_delta_log").glob("*.checkpoint.parquet")), "its log gets checkpoints still"


def test_a_commit_of_somebody_else_makes_it_outdated(table, opens):
    leave(table)
    commit(plan(table, [2], 2, 3))
    handle, opened = next_run(table, opens)
    assert opened
    assert (handle.version(), handle.transaction_version("txn")) == (2, 3)


def test_a_rival_between_taking_and_committing_wins(table):
    leave(table)
    stale = TablePool().open(table)
    planned = plan(table, [3], 2, 4, from_table=stale)
    commit(plan(table, [2], 2, 3))
    with pytest.raises(ConflictError, match="moved txn from 2 to 3"):
        commit(planned)
    assert numbers(table) == [0, 1, 2]


def test_a_restore_makes_it_outdated(table, opens):
    leave(table)
    DeltaTable(table.uri).restore(0)
    handle, opened = next_run(table, opens)
    assert opened
    assert restored(handle)


def test_it_goes_with_a_table_that_is_deleted(table, opens):
    leave(table)
    shutil.rmtree(table.uri)
    assert next_run(table, opens)[0] is None
    commit(plan(table, [5], None, 7))
    handle, _ = next_run(table, opens)
    assert handle.transaction_version("txn") == 7


def test_it_is_not_believed_beside_another_tables_log(table, opens):
    leave(table)
    text = summary_of(table).read_bytes()
    shutil.rmtree(table.uri)
    commit(plan(table, [5], None, 7))
    commit(plan(table, [6], 7, 8))
    summary_of(table).write_bytes(text)
    handle, opened = next_run(table, opens)
    assert opened
    assert handle.transaction_version("txn") == 8


def test_a_version_that_a_power_cut_has_emptied_is_not_known_by_it(table, opens):
    leave(table)
    os.truncate(Path(table.uri, path_of(1)), 0)
    handle, opened = next_run(table, opens)
    assert opened
    assert handle.transaction_version("txn") == 1


@pytest.mark.parametrize(
    "damage", [lambda text: text[:0], lambda text: text[:-7], lambda text: bytes(len(text)), lambda text: text * 2]
)
def test_a_damaged_one_is_not_believed(table, opens, damage):
    leave(table)
    summary_of(table).write_bytes(damage(summary_of(table).read_bytes()))
    handle, opened = next_run(table, opens)
    assert opened
    assert handle.transaction_version("txn") == 2


def test_a_log_that_has_lost_an_older_entry_is_said_when_it_is_read(table, opens):
    leave(table)
    os.truncate(Path(table.uri, path_of(0)), 0)
    handle, opened = next_run(table, opens)
    assert not opened
    with pytest.raises(DataError, match=r"cannot be opened.*An entry of its log is empty, as a power cut leaves it"):
        handle.file_uris()


def test_another_table_in_its_place_is_never_read_for_it(table):
    leave(table)
    handle = TablePool().open(table)
    shutil.rmtree(table.uri)
    commit(plan(table, [5], None, 7))
    commit(plan(table, [6], 7, 8))
    with pytest.raises(DeltaError, match=r"version 1 of .* is gone"):
        handle.file_uris()


def test_tables_of_the_same_columns_that_are_altered_are_told_apart(tmp_path):
    """What is known of the columns of one game's table is known of those of another with the same columns."""
    lakehouse = Lakehouse(str(tmp_path))
    tables = [lakehouse.silver(game) for game in ("a", "b")]
    for table in tables:
        commit(plan(table, [0], None, 1))
        leave(table)
    DeltaTable(tables[1].uri).alter.set_table_properties({"delta.appendOnly": "true"})
    kept = TablePool()
    assert kept.open(tables[0]) is not None
    table = tables[1]
    table.writable(table.open())
    with pytest.raises(DataError, match=r"delta\.appendOnly forbids"):
        table.writable(kept.open(table), replaced=True)
    wider = pa.schema([("n", pa.int64()), ("s", pa.string()), ("more", pa.int64())])
    first = kept.open(tables[0])
    files = staged_numbers(tables[0], [9], wider, more=[1])
    landed = commit(plan(tables[0], [9], 2, 3, schema=wider, files=files, from_table=first))
    assert "more" in pa.schema(landed.handle.schema()).names
    assert "more" not in pa.schema(kept.open(tables[1]).schema()).names


def test_none_is_written_for_a_table_with_features_or_many_files_or_that_is_read_only(table, lakehouse):
    leave(table)
    summary_of(table).unlink()
    leave_as_it_is(replace(table, read_only=True))
    assert not summary_of(table).exists()
    commit(plan(table, [0], 2, 3, files=[f for n in range(MOST_FILES) for f in staged_numbers(table, [n])]))
    leave_as_it_is(table)
    assert not summary_of(table).exists()
    other = lakehouse.table("other")
    commit(plan(other, [0], None, 1))
    DeltaTable(other.uri).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(DataError, match="deletionVectors"):
        leave_as_it_is(other)
    assert not summary_of(other).exists()


def test_a_loop_writes_none(table):
    kept = TablePool(summaries=False)
    landed = commit(replace(plan(table, [1], 1, 2), from_table=kept.open(table)))
    kept.publish(table, landed.handle)
    assert kept.open(table) is landed.handle
    assert not summary_of(table).exists()


def test_a_folder_that_cannot_be_written_costs_only_the_summary(table):
    log = Path(table.uri, "_delta_log")
    handle = TablePool().open(table)
    files_of(handle)
    handle.transaction_version("txn")
    shutil.rmtree(log)
    TablePool().publish(table, handle)
    assert not log.exists()


def test_a_shorter_one_leaves_nothing_of_the_one_before(table, opens):
    leave(table)
    summary = summary_of(table)
    summary.write_bytes(summary.read_bytes() + b"more" * 1000)
    assert next_run(table, opens)[1]
    leave_as_it_is(table)
    handle, opened = next_run(table, opens)
    assert not opened
    assert handle.transaction_version("txn") == 2
