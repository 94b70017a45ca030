"""A table with one commit, and the tables that are opened."""

import pytest

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.tables import plan


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
