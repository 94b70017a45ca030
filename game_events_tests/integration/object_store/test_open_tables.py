"""Opened tables are kept between commits in an object store, too, and never for another table or an older version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from deltalake import DeltaTable
from deltalake.transaction import CommitProperties, Transaction

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, ConflictError, TransientError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.open_table import OpenTable
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import Lakehouse, Table
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.servers.object_store import ObjectStore
from game_events_tests.support.tables import plan, staged_numbers


@pytest.fixture
def table(tables_only: Settings) -> Table:
    table = Lakehouse.of(tables_only).table("silver_uno_events")
    commit(plan(table, [0], None, 1))
    return table


@pytest.fixture
def opens() -> Iterator[list[str]]:
    with opened_tables() as keys:
        yield keys


@pytest.fixture
def delete(table: Table, store: ObjectStore) -> Callable[[], None]:
    return lambda: store.files().delete_dir(table.uri.removeprefix("s3://"))


def test_the_next_commits_follow_the_kept_handle_without_opening_the_table(
    table: Table, opens: list[str], store: ObjectStore
) -> None:
    kept, planned = TablePool(), plan(table, [1], 1, 2)
    requests = []
    # The last one opens the table.
    for n in range(1, 7):
        files = staged_numbers(table, [n])
        opens.clear()
        before = int(store.tell("requests"))
        follows = kept.open(table) if n < 6 else None
        landed = commit(
            replace(planned, files=files, expect_transactions={"txn": n}, set_transactions={"txn": n + 1}, from_table=follows)
        )
        kept.publish(table, landed.handle)
        requests.append(int(store.tell("requests")) - before)
        assert len(opens) == (n in (1, 6))
        assert (landed.version, landed.table_rows) == (n, n + 1)
    assert len(set(requests[1:-1])) == 1, "each costs the same"
    assert requests[1] < requests[-1], "and less than a commit that opens the table"
    assert DeltaTable(table.uri, storage_options=table.options).transaction_version("txn") == 7


def test_readers_share_a_handle_until_there_is_a_newer_version(table: Table, opens: list[str]) -> None:
    kept = TablePool()
    first = kept.open(table)
    assert kept.open(table) is first
    assert len(opens) == 1
    commit(plan(table, [1], 1, 2))
    newer = kept.open(table)
    assert newer is not None
    assert newer.version() == 1


def test_a_handle_that_was_overtaken_is_neither_given_away_nor_followed(table: Table) -> None:
    kept = TablePool()
    kept.publish(table, kept.open(table))
    late = plan(table, [2], 1, 2, from_table=kept.open(table))
    kept.publish(table, kept.open(table))
    commit(plan(table, [1], 1, 2))
    taken = kept.open(table)
    assert taken is not None
    assert taken.version() == 1
    with pytest.raises(ConflictError, match="moved txn from 1 to 2"):
        commit(late)


@pytest.mark.parametrize("commits_since", [0, 1])
def test_a_handle_of_a_table_that_was_deleted_and_made_again_is_not_used(
    table: Table, delete: Callable[[], None], commits_since: int
) -> None:
    """Entries of the same version and the same size, perhaps of the same second."""
    kept = TablePool()
    late = plan(table, [9], 1, 2, from_table=kept.open(table))
    kept.publish(table, kept.open(table))
    delete()
    commit(plan(table, [5], None, 1))
    for n in range(commits_since):
        commit(plan(table, [6 + n], 1 + n, 2 + n))
    taken = kept.open(table)
    assert taken is not None
    assert taken.version() == commits_since
    assert taken.metadata().id != late.table_id
    with pytest.raises(ConflictError, match="planned with"):
        commit(late)


def test_a_handle_of_a_table_that_is_gone_is_not_given_away(table: Table, delete: Callable[[], None]) -> None:
    kept = TablePool()
    kept.publish(table, kept.open(table))
    delete()
    assert kept.open(table) is None


def test_a_version_that_another_writer_made_is_opened_each_time(table: Table, opens: list[str]) -> None:
    """Its commit has no mark that identifies it."""
    handle = DeltaTable(table.uri, storage_options=table.options)
    properties = CommitProperties(app_transactions=[Transaction("foreign", 1)])
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)
    kept = TablePool()
    for _ in range(2):
        kept.publish(table, kept.open(table))
    assert len(opens) == 2


def test_a_store_that_is_away_is_a_transient_error_for_a_kept_handle_too(table: Table, store: ObjectStore) -> None:
    kept = TablePool()
    kept.publish(table, kept.open(table))
    store.tell("fail 503 1000")
    with pytest.raises(TransientError, match="does not answer as it should"):
        kept.open(table)


def test_after_a_change_of_credentials_kept_tables_are_opened_again(
    table: Table, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = TablePool()
    late = plan(table, [1], 1, 2, from_table=kept.open(table))
    store.tell("key ANOTHERKEY")
    with pytest.raises(ConfigurationError, match="refuses access"):
        kept.open(table)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ANOTHERKEY")
    for _ in range(2):
        opened = kept.open(table)
        assert opened is not None
        assert opened.version() == 0
    assert commit(late).version == 1


def test_of_threads_that_commit_from_one_version_that_they_share_one_wins_each_time(table: Table) -> None:
    """delta-rs writes these commits: its table must not go on to the version that a rival has just made."""
    kept = TablePool()
    for number in range(2, 6):
        plans = [plan(table, [number], number - 1, number, from_table=kept.open(table)) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            results = list(threads.map(_landed, plans))
        (newest,) = [handle for handle in results if handle is not None]
        kept.publish(table, newest)
        assert newest.version() == number - 1
    assert DeltaTable(table.uri, storage_options=table.options).transaction_version("txn") == 5


def _landed(planned: Commit) -> OpenTable | None:
    try:
        return commit(planned).handle
    except ConflictError:
        return None
