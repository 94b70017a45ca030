"""A commit whose answer is an error: landed, failed or unknown, told apart; files go only if it is known to have failed."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.errors import ConflictError, DataError, TransientError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.evolution import CommitOutcome, is_refusal, new_mark, outcome_of
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.open_table import COMMIT_ID
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.faults import at_commit, at_opening, unreadable
from game_events_tests.support.tables import SCHEMA, assert_nothing_left_over, data_files, fails_before, numbers, plan, txn

TIMED_OUT = DeltaError("Generic S3 error: request timed out")


@pytest.fixture
def table(tmp_path):
    found = Lakehouse(str(tmp_path)).table("t")
    commit(plan(found, [0], None, 1))
    return found


class Storage:
    """A fault-injecting layer around delta-rs: what happens around the one call that makes a commit."""

    def __init__(self, stack):
        self._stack = stack

    def loses(self, *, landed, error, then=lambda: None):
        """The answer of the next commit is an error; whether the commit is made, and what follows before the error is seen."""
        calls = []

        def call(write, *given, **options):
            calls.append(1)
            if landed or len(calls) > 1:
                write(*given, **options)
            if len(calls) == 1:
                then()
                raise error

        self._stack.enter_context(at_commit(call))


@pytest.fixture
def storage():
    with ExitStack() as stack:
        yield Storage(stack)


def far_away(planned):
    """The plan for the table as an object store has it, by an address: a request without an answer may still be carried out."""
    return replace(planned, table=replace(planned.table, uri=f"file://{planned.table.uri}"))


@pytest.mark.parametrize("error", [TIMED_OUT, OSError("connection reset"), CommitFailedError("answer lost")])
def test_a_commit_that_landed_is_known_by_its_mark_even_if_a_rival_has_taken_its_files_out_again(table, storage, error):
    late = plan(table, [1], 1, 2)
    storage.loses(landed=True, error=error, then=lambda: commit(plan(table, [7], 2, 3, replace=True)))
    landed = commit(late)
    assert landed.rows == 1
    assert (numbers(table), txn(table)) == ([7], 3)
    # A reader of the version in between, or of the one before the rival's, still finds every file.
    assert {f.path for f in late.files} <= data_files(table)


def test_a_commit_that_landed_is_known_by_its_mark_although_rivals_committed_behind_it(table, storage):
    def rivals():
        for number in range(2, 6):
            commit(plan(table, [number], number, number + 1))

    storage.loses(landed=True, error=TIMED_OUT, then=rivals)
    commit(plan(table, [1], 1, 2))
    assert (numbers(table), txn(table)) == (list(range(6)), 6)
    assert_nothing_left_over(table)


@pytest.mark.parametrize("error", [TIMED_OUT, CommitFailedError("a concurrent transaction")])
def test_the_same_error_without_the_mark_is_a_rivals_commit_and_the_files_go(table, storage, error):
    storage.loses(landed=False, error=error, then=lambda: commit(plan(table, [7], 1, 2)))
    with pytest.raises(TransientError) as caught:
        commit(plan(table, [1], 1, 5))
    assert isinstance(caught.value, ConflictError) == isinstance(error, CommitFailedError)
    assert (numbers(table), txn(table)) == ([0, 7], 2)
    assert_nothing_left_over(table)


def test_a_commit_without_files_that_landed_is_known_by_its_mark(table, storage):
    storage.loses(landed=True, error=TIMED_OUT)
    assert commit(plan(table, [], 1, 2, files=[])).version == 1
    assert txn(table) == 2


def test_in_an_object_store_a_time_out_is_unknown_and_the_files_stay_for_the_request_that_may_still_land(table, storage):
    late = plan(table, [1], 1, 2)
    storage.loses(landed=False, error=TIMED_OUT)
    with pytest.raises(TransientError, match=r"outcome of the commit is unknown.*Run again") as caught:
        commit(far_away(late))
    assert not isinstance(caught.value, ConflictError)
    assert {f.path for f in late.files} <= data_files(table)
    # The request is carried out after all; whoever planned the same rows again meets its `txn`.
    again = plan(table, [1], 1, 2)
    commit(late)
    with pytest.raises(ConflictError, match="moved txn from 1 to 2"):
        commit(again)
    assert (numbers(table), txn(table)) == ([0, 1], 2)
    assert_nothing_left_over(table)


def test_in_an_object_store_a_refusal_is_a_known_failure(table, storage):
    refused = CommitFailedError("Concurrent transaction failed")
    late, rival = plan(table, [1], 1, 2), plan(table, [7], 1, 2)
    storage.loses(landed=False, error=refused, then=lambda: commit(rival))
    with pytest.raises(ConflictError, match="moved txn from 1 to 2"):
        commit(far_away(late))
    assert numbers(table) == [0, 7]
    assert_nothing_left_over(table)


def test_a_refusal_by_a_commit_that_moved_nothing_of_ours_is_no_conflict(table, storage):
    error, rival = CommitFailedError("a concurrent transaction"), plan(table, [], 5, 6, app="of a rival", files=[])
    storage.loses(landed=False, error=error, then=lambda: commit(replace(rival, expect_transactions={})))
    commit(far_away(plan(table, [], 1, 2, files=[])))
    assert txn(table) == 2


@pytest.mark.parametrize("second", [OSError("down"), DeltaError("down"), DataError("table cannot be opened")])
def test_a_table_that_cannot_be_looked_at_after_an_error_is_unknown_whatever_says_so(table, storage, second):
    late = plan(table, [1], 1, 2)
    with ExitStack() as outage:
        storage.loses(landed=True, error=TIMED_OUT, then=lambda: outage.enter_context(unreadable(table.key, second)))
        with pytest.raises(TransientError, match="unknown"):
            commit(late)
    assert (numbers(table), txn(table)) == ([0, 1], 2)


@pytest.mark.parametrize("second", [OSError("down"), DataError("table cannot be opened"), None])
def test_a_commit_that_landed_keeps_its_files_although_the_table_cannot_be_looked_at_afterwards(table, second):
    """A caller that deletes files after a DataError must never get one for a commit that stands."""
    wider = SCHEMA.append(pa.field("more", pa.string()))
    rows = staged(table, pa.table({"n": [1], "s": ["a"], "more": ["b"]}, wider))
    late = plan(table, [1], 1, 2, schema=wider, files=rows, replace=True, reshape=True)
    calls = []

    def once(usual, asked):
        calls.append(1)
        if len(calls) > 1 and second is not None:
            raise second
        return usual(asked) if len(calls) == 1 else None

    with at_opening(once), pytest.raises(TransientError, match="the commit landed, but"):
        commit(late)
    assert (numbers(table), txn(table)) == ([1], 2)


def test_a_failure_before_the_commit_was_sent_is_known_whatever_the_error(table, monkeypatch):
    wider = SCHEMA.append(pa.field("t", pa.int64()))
    monkeypatch.setattr(type(table.open().alter), "add_columns", fails_before(TIMED_OUT))
    with pytest.raises(TransientError, match="nothing is visible"):
        commit(far_away(plan(table, [1], 1, 2, files=[], schema=wider)))
    assert txn(table) == 1


def test_a_file_that_cannot_be_deleted_does_not_hide_the_conflict(table, caplog):
    late = plan(table, [1], 1, 2)
    commit(plan(table, [2], 1, 2))
    (file,) = late.files
    path = Path(table.uri, file.path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConflictError, match="moved txn"):
        commit(far_away(late))
    assert "not_deleted" in caplog.text


def test_a_process_that_sees_neither_answer_nor_error_keeps_its_files(table, storage):
    """A time-out or Ctrl-C in the driver: no handler runs, the next run finds the `txn`."""
    late = plan(table, [1], 1, 2)
    storage.loses(landed=True, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        commit(late)
    assert (numbers(table), txn(table)) == ([0, 1], 2)
    with pytest.raises(ConflictError):
        commit(replace(late, files=[]))


def test_every_commit_has_a_mark_of_its_own(table):
    commit(plan(table, [1], 1, 2, info={"batch": "1"}))
    marks = [entry[COMMIT_ID] for entry in DeltaTable(table.uri).history()]
    assert len(set(marks)) == 2
    assert DeltaTable(table.uri).history(1)[0]["batch"] == "1"
    before = DeltaTable(table.uri, version=0)
    assert outcome_of(table, before, marks[0], TIMED_OUT, sent=True) == (CommitOutcome.LANDED, "")
    assert outcome_of(table, before, marks[1], TIMED_OUT, sent=True) == (CommitOutcome.FAILED, "")
    assert outcome_of(table, None, marks[1], TIMED_OUT, sent=True) == (CommitOutcome.LANDED, "")
    assert outcome_of(table, before, new_mark(), TIMED_OUT, sent=False) == (CommitOutcome.FAILED, "")


def test_a_version_that_is_the_same_is_no_newer_one_if_its_entry_is_not_known(table):
    before = table.open()
    commit(plan(table, [1], 1, 2))
    error, now = CommitFailedError("refused for another reason"), table.open()
    assert is_refusal(error, before, now)
    before = table.open()
    before.entry = None
    assert not is_refusal(error, before, now)
