"""Versions of a table as `game-events history` lists them: kind, rows, files, batch."""

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.transactions import MAINTENANCE_INFO, RESTORE_CHECKED, versions
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.tables import put


@pytest.fixture
def table(tmp_path):
    made = Lakehouse(str(tmp_path)).table("t")
    put(made, {"n": [0]})
    return made


def newest(table):
    return next(versions(table, [table.open().version()]))


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        ({"batch": "4"}, "rows"),
        ({BATCH_INFO: "4"}, "rows"),
        ({"batch": "4", "full_refresh": "x"}, "full refresh"),
        ({"batch": "4", "replay_of": "x"}, "replay"),
        ({BATCH_INFO: "4", "redecode": "x"}, "redecode"),
        ({MAINTENANCE_INFO: "x"}, "maintenance"),
        ({RESTORE_CHECKED: "x"}, "restore looked at"),
        ({}, "rows"),
    ],
    ids=str,
)
def test_a_commits_information_says_what_kind_it_is(table, info, kind):
    put(table, {"n": [1, 2]}, info=info)
    found = newest(table)
    assert (found.kind, found.added, found.files_added, found.files_removed) == (kind, 2, 1, 0)
    assert found.batch == (4 if {"batch", BATCH_INFO} & info.keys() else None)


@pytest.mark.parametrize("info", [{"batch": "4"}, {}], ids=str)
def test_a_commit_without_files_has_no_rows(table, info):
    put(table, {"n": pa.array([], pa.int64())}, info=info)
    assert (newest(table).kind, newest(table).added, newest(table).files_added) == ("no rows", 0, 0)


def test_versions_come_newest_first_and_a_restore_is_one_of_them(table):
    put(table, {"n": [1]}, info={"batch": "1"})
    put(table, {"n": [2]}, info={"batch": "2"})
    table.open().restore(1)
    found = list(versions(table, (3, 2, 1, 0)))
    assert [(v.version, v.kind) for v in found] == [(3, "restore"), (2, "rows"), (1, "rows"), (0, "created")]
    assert (found[0].files_added, found[0].files_removed) == (0, 1)
    assert [v.version for v in versions(table, (3, 2))] == [3, 2]
