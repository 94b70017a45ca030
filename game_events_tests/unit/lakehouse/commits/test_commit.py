"""Data and progress in one version, or nothing; of rivals exactly one."""

import threading
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.errors import ConflictError, DataError, TransientError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import restored_between, version_before_restores
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.faults import at_commit, at_creation, at_opening
from game_events_tests.support.tables import (
    SCHEMA,
    assert_nothing_left_over,
    both,
    data_files,
    fails_before,
    numbers,
    plan,
    staged_numbers,
    txn,
)


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).table("t")


# --- one after another


def test_the_first_commit_makes_the_table_with_rows_and_progress(table):
    landed = commit(plan(table, range(3), None, 7, info={"batch": "1"}, description="Numbers"))
    assert (landed.table, landed.version, landed.rows, landed.files) == ("t", 0, 3, 1)
    assert numbers(table) == [0, 1, 2]
    assert txn(table) == 7
    metadata = DeltaTable(table.uri).metadata()
    assert (metadata.description, landed.table_id) == ("Numbers", str(metadata.id))
    assert DeltaTable(table.uri).history()[0]["batch"] == "1"


def test_rows_are_appended_and_progress_moves(table):
    commit(plan(table, range(3), None, 1))
    landed = commit(plan(table, range(3, 5), 1, 2))
    assert (landed.version, landed.rows, landed.table_rows) == (1, 2, 5)
    assert numbers(table) == list(range(5))
    assert txn(table) == 2


def test_a_commit_without_files_moves_progress_alone(table):
    commit(plan(table, range(3), None, 1))
    landed = commit(plan(table, [], 1, 5, files=[]))
    assert (landed.rows, landed.files) == (0, 0)
    assert (numbers(table), txn(table)) == ([0, 1, 2], 5)


def test_a_table_can_be_made_without_rows(table):
    landed = commit(Commit(table, SCHEMA, [], {}, {"a": 0, "b": 3}, None))
    assert (landed.rows, landed.files, landed.table_rows, landed.table_bytes) == (0, 0, 0, 0)
    assert (numbers(table), txn(table, "a"), txn(table, "b")) == ([], 0, 3)


def test_several_txns_move_together_or_not_at_all(table):
    commit(Commit(table, SCHEMA, staged_numbers(table, [1]), {}, {"a": 1, "b": 1}, None))
    table_id = str(table.open().metadata().id)
    with pytest.raises(ConflictError, match="moved b from 0 to 1"):
        commit(Commit(table, SCHEMA, staged_numbers(table, [2]), {"a": 1, "b": 0}, {"a": 2, "b": 2}, table_id))
    assert (numbers(table), txn(table, "a"), txn(table, "b")) == ([1], 1, 1)
    assert_nothing_left_over(table)


def test_progress_may_move_to_a_lower_value_if_that_is_what_was_planned(table):
    commit(plan(table, [1], None, 5))
    commit(plan(table, [2], 5, 3, replace=True))
    assert (numbers(table), txn(table)) == ([2], 3)


def test_replace_shows_the_new_rows_alone_and_the_old_version_stays_readable(table):
    commit(plan(table, range(3), None, 1))
    commit(plan(table, range(3, 6), 1, 2))
    landed = commit(plan(table, [9], 2, 3, replace=True))
    assert (numbers(table), landed.version) == ([9], 2)
    assert sum(a["num_records"] for a in pa.table(DeltaTable(table.uri, version=1).get_add_actions()).to_pylist()) == 6


def test_replace_by_nothing_empties_the_table(table):
    commit(plan(table, range(3), None, 1))
    commit(plan(table, [], 1, 2, files=[], replace=True))
    assert (numbers(table), txn(table)) == ([], 2)


# --- rivals


@pytest.mark.parametrize(("first", "second"), [(10, 10), (10, 25), (25, 10)])
def test_a_plan_made_before_a_rivals_commit_is_refused_and_its_files_are_deleted(table, first, second):
    commit(plan(table, [0], None, 5))
    early, late = plan(table, range(1, first), 5, first), plan(table, range(1, second), 5, second)
    commit(early)
    with pytest.raises(ConflictError, match=f"moved txn from 5 to {first}"):
        commit(late)
    assert (numbers(table), txn(table)) == (list(range(first)), first)
    assert_nothing_left_over(table)


def test_a_plan_from_before_a_restore_does_not_land_although_progress_is_as_it_was(table):
    commit(plan(table, [0], None, 1))
    commit(plan(table, [1], 1, 2))
    seen = table.open().version()
    late, again = plan(table, [2], 2, 3, from_version=seen), plan(table, [2], 2, 3, from_version=seen + 3)
    table.open().alter.set_table_properties({"delta.appendOnly": "false"})
    table.open().restore(0)
    table.open().alter.set_table_properties({"delta.appendOnly": "true"})
    assert txn(table) == 2
    with pytest.raises(ConflictError, match="restored since version 1"):
        commit(late)
    commit(again)
    assert (numbers(table), txn(table)) == ([0, 2], 3)


def test_a_restore_is_found_among_the_versions_that_were_asked_for_whatever_came_since(table):
    for n in range(3):
        commit(plan(table, [n], n or None, n + 1))
    table.open().restore(0)
    stale = table.open()
    commit(plan(table, [3], 3, 4))
    assert restored_between(table, 2, stale.version())
    assert not restored_between(table, 3, stale.version())
    assert not restored_between(table, 0, 2)
    assert version_before_restores(table, stale.version()) == 2


def test_a_plan_from_before_a_change_of_properties_lands(table):
    commit(plan(table, [0], None, 1))
    late = plan(table, [1], 1, 2, from_version=0)
    table.open().alter.set_table_properties({"delta.appendOnly": "false"})
    assert commit(late).version == 2


@pytest.mark.parametrize("ends", [(10, 10), (10, 25), (25, 10), (10, 20, 30, 40)])
@pytest.mark.parametrize("attempt", range(3))
def test_of_rivals_at_the_same_moment_exactly_one_lands(table, ends, attempt):  # noqa: ARG001 - a race: tried several times
    commit(plan(table, [0], None, 1))
    plans = [plan(table, range(1, end), 1, end) for end in ends]
    outcomes = both(*(partial(commit, p) for p in plans))
    landed = [end for end, outcome in zip(ends, outcomes, strict=True) if not isinstance(outcome, Exception)]
    assert len(landed) == 1, outcomes
    assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == len(ends) - 1
    assert (numbers(table), txn(table)) == (list(range(landed[0])), landed[0])
    assert_nothing_left_over(table)


@pytest.mark.parametrize("ends", [(10, 20), (10, 10)])
def test_of_rivals_that_passed_the_comparison_together_exactly_one_lands(table, ends):
    commit(plan(table, [0], None, 1))
    meeting = threading.Barrier(2)

    def meet(write, *given, **options):
        meeting.wait(10)  # both hold a handle from before either commit
        return write(*given, **options)

    with at_commit(meet):
        outcomes = both(*(partial(commit, plan(table, range(1, end), 1, end)) for end in ends))
    assert sorted(isinstance(o, ConflictError) for o in outcomes) == [False, True], outcomes
    assert numbers(table) == list(range(txn(table)))
    assert_nothing_left_over(table)


def test_rivals_with_txns_of_their_own_both_land(table):
    commit(plan(table, [0], None, 1))
    plans = [plan(table, [n], None, 1, app=f"game{n}") for n in range(1, 5)]
    outcomes = both(*(partial(commit, p) for p in plans))
    landed = {n for n, outcome in enumerate(outcomes, 1) if not isinstance(outcome, Exception)}
    assert all(isinstance(o, ConflictError) for n, o in enumerate(outcomes, 1) if n not in landed)
    assert landed
    assert numbers(table) == [0, *sorted(landed)]
    assert_nothing_left_over(table)


@pytest.mark.parametrize("attempt", range(5))
def test_of_creators_at_the_same_moment_exactly_one_lands(table, attempt):  # noqa: ARG001 - a race: tried several times
    plans = [plan(table, range(end), None, end) for end in (5, 9, 11)]
    outcomes = both(*(partial(commit, p) for p in plans))
    assert sorted(isinstance(o, ConflictError) for o in outcomes) == [False, True, True], outcomes
    assert numbers(table) == list(range(txn(table)))
    assert DeltaTable(table.uri).version() == 0
    assert_nothing_left_over(table)


def test_who_planned_to_make_a_table_that_now_exists_is_refused(table):
    late = plan(table, [1], None, 1)
    commit(plan(table, [2], None, 1))
    with pytest.raises(ConflictError, match="planned with none"):
        commit(late)
    assert numbers(table) == [2]
    assert_nothing_left_over(table)


def test_a_table_that_was_rebuilt_is_another_table(table):
    commit(plan(table, [1], None, 1))
    late = plan(table, [2], 1, 2)
    write_deltalake(table.uri, pa.table({"n": [7], "s": ["7"]}), mode="overwrite")
    rebuilt = plan(table, [], None, 1, files=[], table_id="00000000-0000-0000-0000-000000000000")
    with pytest.raises(ConflictError, match="planned with 00000000"):
        commit(rebuilt)
    for path in sorted((table.local_path / "_delta_log").iterdir()):
        path.unlink()
    (table.local_path / "_delta_log").rmdir()
    with pytest.raises(ConflictError, match="table is absent"):
        commit(late)
    write_deltalake(table.uri, pa.table({"n": [8], "s": ["8"]}))
    late = Commit(table, SCHEMA, staged_numbers(table, [3]), {"txn": None}, {"txn": 2}, late.table_id)
    with pytest.raises(ConflictError, match="planned with"):
        commit(late)
    assert numbers(table) == [8]


# --- lost answers and failures


def fails_after(error):
    """The real call, whose answer is lost."""

    def call(write, *given, **options):
        write(*given, **options)
        raise error

    return call


LOST = [OSError("connection reset"), DeltaError("timed out"), CommitFailedError("answer lost")]


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_a_commit_whose_answer_is_lost_counts_as_landed(table, error):
    commit(plan(table, [0], None, 1))
    with at_commit(fails_after(error)):
        landed = commit(plan(table, [1, 2], 1, 2))
    assert (landed.version, landed.rows) == (1, 2)
    assert (numbers(table), txn(table)) == ([0, 1, 2], 2)
    assert_nothing_left_over(table)


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_a_new_table_whose_answer_is_lost_counts_as_made(table, error):
    with at_creation(fails_after(error)):
        landed = commit(plan(table, [1, 2], None, 2))
    assert (landed.version, landed.rows) == (0, 2)
    assert numbers(table) == [1, 2]


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_a_commit_without_files_whose_answer_is_lost_moved_progress_once(table, error):
    commit(plan(table, [0], None, 1))
    with at_commit(fails_after(error)):
        landed = commit(plan(table, [], 1, 2, files=[]))
    assert (landed.version, landed.rows) == (1, 0)
    assert (numbers(table), txn(table)) == ([0], 2)


@pytest.mark.parametrize("files", [[], None], ids=["without files", "with files"])
def test_a_commit_whose_answer_is_lost_is_found_behind_a_rivals_that_replaced_its_rows(table, files):
    commit(plan(table, [0], None, 1))

    def lost(write, *given, **options):
        write(*given, **options)
        with at_commit(lambda _, *given, **options: write(*given, **options)):
            commit(plan(table, [7], 2, 3, replace=True))
        raise OSError("connection reset")

    mine = plan(table, [1], 1, 2, **({} if files is None else {"files": files}))
    with at_commit(lost):
        assert commit(mine).rows == len(mine.files)
    assert (numbers(table), txn(table)) == ([7], 3)


@pytest.mark.parametrize(("error", "expected"), [(LOST[0], TransientError), (LOST[1], TransientError), (LOST[2], DataError)])
def test_a_commit_that_did_not_happen_leaves_nothing(table, error, expected):
    commit(plan(table, [0], None, 1))
    with at_commit(fails_before(error)), pytest.raises(expected):
        commit(plan(table, [1], 1, 2))
    assert (numbers(table), txn(table)) == ([0], 1)
    assert_nothing_left_over(table)


def test_an_unknown_outcome_keeps_the_files(table):
    commit(plan(table, [0], None, 1))
    late = plan(table, [1], 1, 2)
    answers = [table.open()]

    def once(*_):
        if answers:
            return answers.pop()
        raise OSError("still down")

    lost = at_commit(fails_before(OSError("down")))
    with at_opening(once), lost, pytest.raises(TransientError, match="unknown") as caught:
        commit(late)
    assert not isinstance(caught.value, ConflictError)
    assert {f.path for f in late.files} <= data_files(table)


def test_a_txn_that_was_to_be_new_is_compared_as_well(table):
    commit(plan(table, [0], None, 5))
    with pytest.raises(ConflictError, match="moved txn from None to 5"):
        commit(plan(table, [1], None, 6))
    assert numbers(table) == [0]
    assert_nothing_left_over(table)


def test_a_restore_right_behind_the_planned_version_is_a_conflict(table):
    commit(plan(table, [0], None, 1))
    commit(plan(table, [1], 1, 2))
    late = plan(table, [2], 2, 3, from_version=1)
    table.open().restore(0)
    with pytest.raises(ConflictError, match="restored since version 1"):
        commit(late)
