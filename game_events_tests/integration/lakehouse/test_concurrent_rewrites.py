"""Commits that remove files, each with a concurrent one that removes files of the same table right before it lands."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import suppress

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.errors import ConflictError, TransientError
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.maintenance import FULL_GOAL, join_files, small_files
from game_events.lakehouse.tables import Lakehouse, paths
from game_events_tests.support.faults import at_commit
from game_events_tests.support.tables import SCHEMA, data_files, numbers, plan, staged_numbers

WIDER = SCHEMA.append(pa.field("more", pa.string()))


@pytest.fixture
def table(tmp_path):
    table = Lakehouse(str(tmp_path)).table("silver_uno_events")
    for n in range(3):
        commit(plan(table, [n], n or None, n + 1))
    return table


def compaction(table):
    """All files as one; it knows of those that are there when it is planned."""
    handle = table.open()
    return lambda: join_files(table, handle, paths(handle))


def replacement(table, **options):
    planned = plan(table, [10, 11, 12], 3, 9, replace=True, **options)
    return lambda: commit(planned)


def reshaping(table):
    files = staged_numbers(table, [10, 11, 12], WIDER, more=["x"] * 3)
    return replacement(table, schema=WIDER, files=files, reshape=True)


def erasure(table):
    """The oldest file goes, with the row 0."""
    gone = frozenset(paths(table.open())[-1:])
    planned = plan(table, [], None, 1, app="erasures", files=[], rewritten=gone)
    return lambda: commit(planned)


def other_engine(table):
    """OPTIMIZE as delta-rs has it: rows are moved, `dataChange` is false, no `txn` of ours."""
    return DeltaTable(table.uri).optimize.compact


@contextlib.contextmanager
def before_the_write(action):
    """Do something at the last moment before a commit is handed to the storage, once."""
    happened = []

    def late(write, *given):
        if not happened:
            happened.append(True)
            action()
        return write(*given)

    with at_commit(late):
        yield


REPLACED, WITHOUT_OLDEST, SAME = [10, 11, 12], [1, 2], [0, 1, 2]


@pytest.mark.parametrize(
    ("ours", "rival", "held"),
    [
        (compaction, compaction, SAME),
        (compaction, other_engine, SAME),
        (compaction, replacement, REPLACED),
        (compaction, reshaping, REPLACED),
        (compaction, erasure, WITHOUT_OLDEST),
        (replacement, compaction, REPLACED),
        (replacement, other_engine, REPLACED),
        (reshaping, compaction, REPLACED),
        (reshaping, other_engine, REPLACED),
    ],
)
def test_of_two_commits_that_remove_files_the_later_one_sees_the_earlier_one(ours, rival, held, table):
    late, early = ours(table), rival(table)
    with before_the_write(early), suppress(ConflictError):
        late()
    assert numbers(table) == held
    if rival is not other_engine:
        assert_every_file_is_of_a_version(table)


@pytest.mark.parametrize("rival", [compaction, other_engine])
def test_rows_that_are_erased_beside_a_compaction_are_gone_or_the_erasure_says_that_it_lost(rival, table):
    late, early = erasure(table), rival(table)
    with before_the_write(early), pytest.raises(ConflictError):
        late()
    assert numbers(table) == SAME


def test_a_replacement_beside_a_compaction_lands_without_being_planned_anew(table):
    late, early = replacement(table), compaction(table)
    with before_the_write(early):
        assert late().version == table.open().version()


def test_two_compactions_of_one_version_by_deltalake_duplicate_rows(table):
    """Why compaction is our own (docs/decisions/0021): when this fails, deltalake has become safe, and ours can go."""
    first, second = DeltaTable(table.uri), DeltaTable(table.uri)
    first.optimize.compact()
    second.optimize.compact()
    assert numbers(table) == sorted(SAME * 2)


def assert_every_file_is_of_a_version(table):
    everything = set()
    for version in range(table.open().version() + 1):
        everything |= {uri.rsplit("/", 1)[-1] for uri in DeltaTable(table.uri, version=version).file_uris()}
    assert data_files(table) == everything


def race(table, seconds):
    """Two compactors, one appender and one that replaces everything, each as fast as it can; the numbers that must be there."""
    ended = time.monotonic() + seconds

    def compact():
        while time.monotonic() < ended:
            for group in small_files(table, table.open(), FULL_GOAL):
                with suppress(ConflictError, TransientError):
                    join_files(table, table.open(), group)

    compactors = [threading.Thread(target=compact) for _ in range(2)]
    for thread in compactors:
        thread.start()
    held, progress, appended, replaced = [0, 1, 2], 3, 0, 0
    while time.monotonic() < ended or not replaced:
        number = progress * 10
        if progress % 7:
            commit(plan(table, [number], progress, progress + 1))
            held, appended = [*held, number], appended + 1
        else:
            commit(plan(table, [number, number + 1], progress, progress + 1, replace=True))
            held, replaced = [number, number + 1], replaced + 1
        assert numbers(table) == held
        progress += 1
    for thread in compactors:
        thread.join()
    assert appended
    return held


def test_rows_in_are_rows_out_in_a_race_of_compactions_appends_and_full_refreshes(table):
    held = race(table, 2)
    assert numbers(table) == held


@pytest.mark.scenario
def test_rows_in_are_rows_out_in_a_minute_of_such_a_race(table):
    held = race(table, 60)
    assert numbers(table) == held
