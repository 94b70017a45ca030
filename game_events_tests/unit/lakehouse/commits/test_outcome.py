"""A commit whose answer is an error: landed, failed or unknown, told apart; files go only if it is known to have failed."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.errors import ConflictError, DataError, TransientError
from game_events.lakehouse.commits import commit as commits
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.outcome import CommitOutcome, new_mark, outcome_of
from game_events.lakehouse.commits.restores import COMMIT_ID
from game_events.lakehouse.tables import Lakehouse, Table
from game_events_tests.support.tables import assert_nothing_left_over, data_files, numbers, plan, txn

TIMED_OUT = DeltaError("Generic S3 error: request timed out")


@pytest.fixture
def table(tmp_path):
    found = Lakehouse(str(tmp_path)).table("t")
    commit(plan(found, [0], None, 1))
    return found


class Storage:
    """A fault-injecting layer around delta-rs: what happens around the one call that makes a commit."""

    def __init__(self, monkeypatch):
        self._patch, self._real = monkeypatch, DeltaTable.create_write_transaction

    def loses(self, *, landed, error, then=lambda: None):
        """The answer of the next commit is an error; whether the commit is made, and what follows before the error is seen."""
        calls = []

        def call(handle, *arguments, **options):
            calls.append(1)
            if len(calls) > 1:
                return self._real(handle, *arguments, **options)
            if landed:
                self._real(handle, *arguments, **options)
            then()
            raise error

        self._patch.setattr(DeltaTable, "create_write_transaction", call)


@pytest.fixture
def storage(monkeypatch):
    return Storage(monkeypatch)


def far_away(monkeypatch):
    """The table as if it lay in an object store, where a request without an answer may still be carried out."""
    monkeypatch.setattr(Table, "local_path", property(lambda _: None))
    monkeypatch.setattr(
        "game_events.lakehouse.data.staging.file_system", lambda t: pytest.fail(f"files of {t.name} were touched")
    )
    monkeypatch.setattr(commits, "discard", lambda t, files: pytest.fail(f"files of {t.name} were deleted: {files}"))


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


def test_in_an_object_store_a_time_out_is_unknown_and_the_files_stay_for_the_request_that_may_still_land(
    table, storage, monkeypatch
):
    late = plan(table, [1], 1, 2)
    storage.loses(landed=False, error=TIMED_OUT)
    with monkeypatch.context() as patch:
        far_away(patch)
        with pytest.raises(TransientError, match=r"outcome of the commit is unknown.*Run again") as caught:
            commit(late)
    assert not isinstance(caught.value, ConflictError)
    # The request is carried out after all; whoever planned the same rows again meets its `txn`.
    again = plan(table, [1], 1, 2)
    commit(late)
    with pytest.raises(ConflictError, match="moved txn from 1 to 2"):
        commit(again)
    assert (numbers(table), txn(table)) == ([0, 1], 2)
    assert_nothing_left_over(table)


def test_in_an_object_store_a_refusal_is_a_known_failure(table, storage, monkeypatch):
    deleted = []
    refused = CommitFailedError("Concurrent transaction failed")
    late, rival = plan(table, [1], 1, 2), plan(table, [7], 1, 2)
    storage.loses(landed=False, error=refused, then=lambda: commit(rival))
    with monkeypatch.context() as patch:
        far_away(patch)
        patch.setattr(commits, "discard", lambda _, files: deleted.extend(files))
        with pytest.raises(ConflictError, match="moved txn from 1 to 2"):
            commit(late)
    assert deleted == late.files


def test_a_refusal_by_a_commit_that_moved_nothing_of_ours_is_no_conflict(table, storage, monkeypatch):
    storage.loses(landed=False, error=CommitFailedError("a concurrent transaction"))
    with monkeypatch.context() as patch:
        far_away(patch)
        commit(plan(table, [], 1, 2, files=[]))
    assert txn(table) == 2


@pytest.mark.parametrize("second", [OSError("down"), DeltaError("down"), DataError("table cannot be opened")])
def test_a_table_that_cannot_be_looked_at_after_an_error_is_unknown_whatever_says_so(table, storage, monkeypatch, second):
    late = plan(table, [1], 1, 2)

    def storage_goes_away():
        def down(_):
            raise second

        monkeypatch.setattr(Table, "open", down)

    storage.loses(landed=True, error=TIMED_OUT, then=storage_goes_away)
    with pytest.raises(TransientError, match="unknown"):
        commit(late)
    monkeypatch.undo()
    assert (numbers(table), txn(table)) == ([0, 1], 2)


@pytest.mark.parametrize("second", [OSError("down"), DataError("table cannot be opened"), None])
def test_a_commit_that_landed_keeps_its_files_although_the_table_cannot_be_looked_at_afterwards(table, monkeypatch, second):
    """A caller that deletes files after a DataError must never get one for a commit that stands."""
    late, opened = plan(table, [1], 1, 2), Table.open
    calls = []

    def once(self):
        calls.append(1)
        return opened(self) if len(calls) == 1 else None

    def look(_):
        if second is not None:
            raise second

    with monkeypatch.context() as patch:
        patch.setattr(Table, "open", once)
        patch.setattr(DeltaTable, "update_incremental", look)
        with pytest.raises(TransientError, match="the commit landed, but"):
            commit(late)
    assert (numbers(table), txn(table)) == ([0, 1], 2)


def test_a_failure_before_the_commit_was_sent_is_known_whatever_the_error(table, monkeypatch):
    def fails(*_, **__):
        raise TIMED_OUT

    monkeypatch.setattr(commits, "evolve", fails)
    with monkeypatch.context() as patch:
        patch.setattr(Table, "local_path", property(lambda _: None))
        patch.setattr(commits, "discard", lambda *_: None)
        with pytest.raises(TransientError, match="nothing is visible"):
            commit(plan(table, [1], 1, 2, files=[]))
    assert txn(table) == 1


def test_a_file_that_cannot_be_deleted_does_not_hide_the_conflict(table, monkeypatch):
    late = plan(table, [1], 1, 2)
    commit(plan(table, [2], 1, 2))

    def refused(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr("game_events.lakehouse.data.staging.file_system", refused)
    with pytest.raises(ConflictError, match="moved txn"):
        commit(late)


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
