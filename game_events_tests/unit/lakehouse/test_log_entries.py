"""The entry of a version in a local table's log identifies the table; in an object store: `integration/object_store`."""

import shutil

import pytest

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.open_table import entry_of, has_entry
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.tables import plan


@pytest.fixture
def table(tmp_path):
    table = Lakehouse(str(tmp_path)).table("t")
    commit(plan(table, [0], None, 1))
    return table


def test_each_version_has_an_entry_of_its_own_and_the_next_one_none(table):
    commit(plan(table, [1], 1, 2))
    entries = [entry_of(table.uri, None, version) for version in range(3)]
    assert len(set(entries)) == 3
    assert entries[2] is None
    assert [has_entry(table.uri, None, version) for version in range(3)] == [True, True, False]


def test_a_table_that_was_made_again_has_another_entry_of_the_same_version(table):
    before = entry_of(table.uri, None, 0)
    assert entry_of(table.uri, None, 0) == before
    shutil.rmtree(table.uri)
    assert (entry_of(table.uri, None, 0), has_entry(table.uri, None, 0)) == (None, False)
    commit(plan(table, [0], None, 1))
    assert entry_of(table.uri, None, 0) != before


def test_a_disk_that_fails_is_an_error_and_not_a_missing_entry(table):
    for look in (entry_of, has_entry):
        with pytest.raises(OSError, match="too long"):
            look(f"{table.uri}/{'x' * 300}", None, 0)
