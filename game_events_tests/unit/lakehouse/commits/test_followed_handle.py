"""A commit follows the handle that it was planned from, without opening the table, unless the table is another one."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import commit, without_rows
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.tables import assert_nothing_left_over, data_files, numbers, plan, staged_numbers, txn


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).table("t")


def test_a_commit_follows_the_handle_that_was_planned_from_without_opening_the_table(table):
    commit(plan(table, [0], None, 1))
    planned = plan(table, [1], 1, 2, from_table=table.open())
    with opened_tables() as opened:
        landed = commit(planned)
        again = commit(
            replace(planned, files=staged_numbers(table, [2]), expect_transactions={"txn": 2}, from_table=landed.handle)
        )
    assert (landed.version, again.version, opened) == (1, 2, [])
    assert again.table_rows == 3
    assert numbers(table) == [0, 1, 2]


def test_a_handle_that_others_have_overtaken_is_not_followed(table):
    commit(plan(table, [0], None, 1))
    planned, late = (plan(table, [n], 1, 2, from_table=table.open()) for n in (1, 2))
    commit(planned)
    with pytest.raises(ConflictError, match="moved txn from 1 to 2"):
        commit(late)
    other = plan(table, [3], None, 1, app="other", from_table=late.from_table)
    assert commit(other).version == 2
    assert (numbers(table), txn(table), txn(table, "other")) == ([0, 1, 3], 2, 1)
    assert_nothing_left_over(table)


@pytest.mark.parametrize("commits_since", [0, 1, 3])
def test_a_handle_of_a_table_that_was_deleted_and_made_again_is_not_followed(table, commits_since):
    commit(plan(table, [0], None, 1))
    commit(plan(table, [1], 1, 2))
    late = plan(table, [2], 2, 3, from_table=table.open())
    files = {file: Path(table.uri, file).read_bytes() for file in data_files(table)}
    shutil.rmtree(table.uri)
    commit(plan(table, [5], None, 1))
    for n in range(commits_since):
        commit(plan(table, [6 + n], 1 + n, 2 + n))
    for file, content in files.items():
        Path(table.uri, file).write_bytes(content)
    with pytest.raises(ConflictError, match="planned with"):
        commit(late)
    assert numbers(table) == list(range(5, 6 + commits_since))


def test_a_version_says_whether_it_is_the_newest(table):
    commit(plan(table, [0], None, 1))
    handle = table.open()
    assert handle.is_newest()
    commit(plan(table, [1], 1, 2))
    assert not handle.is_newest()
    assert table.open().is_newest()


def test_a_note_in_the_log_does_not_move_the_handle_of_whoever_makes_it(table):
    """Bronze's next commit compares progress with what this handle has: another run's progress must not come in between."""
    commit(plan(table, [0], None, 1))
    handle = table.open()
    commit(without_rows(table, handle, {"run_id": "r"}, {"txn": 1}, {"noted": 1}))
    commit(plan(table, [1], 1, 2))
    assert (handle.version(), handle.transaction_version("txn")) == (0, 1)
