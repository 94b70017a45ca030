"""A table that this process has made is known without opening it, as delta-rs reads it."""

import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.open_table import MOST_NOTED
from game_events.lakehouse.tables import Lakehouse, files_of
from game_events_tests.support.tables import plan


@pytest.fixture
def opens(monkeypatch):
    """Tables of which delta-rs reads the log from now on."""
    found, real = [], DeltaTable.__init__
    monkeypatch.setattr(DeltaTable, "__init__", lambda self, *at, **how: found.append(at) or real(self, *at, **how))
    return found


COLUMNS = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False, metadata={"comment": 'of "players", é'}),
        ("game_name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(38, 18)),
        ("parts", pa.list_(pa.struct([pa.field("key", pa.string(), metadata={"id": "1"}), ("value", pa.binary())]))),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


@pytest.mark.parametrize("more", [{}, {"description": "what it is", "partition_by": ("game_name",)}], ids=str)
def test_it_says_of_itself_what_delta_rs_reads(tmp_path, opens, more):
    table = Lakehouse(str(tmp_path / "a folder, 100% é+#?[1]~!$&'()*:;=@|^`{}<>")).table("new")
    handle = commit(plan(table, [], None, 1, schema=COLUMNS, files=[], **more)).handle
    assert opens == []
    assert handle.version() == 0
    read = DeltaTable(table.uri)
    assert json.loads(handle.schema().to_json()) == json.loads(read.schema().to_json())
    assert pa.schema(handle.schema()).equals(pa.schema(read.schema()), check_metadata=True)
    assert vars_of(handle.metadata()) == vars_of(read.metadata())
    assert handle.protocol() == read.protocol()
    assert handle.table_uri == read.table_uri
    assert files_of(handle) == files_of(read) == ()


def vars_of(metadata):
    names = ("id", "name", "description", "partition_columns", "created_time", "configuration")
    return {name: getattr(metadata, name) for name in names}


@pytest.mark.parametrize("own_commits", [0, 2])
def test_it_is_opened_when_more_is_asked_at_its_own_version(lakehouse, opens, own_commits):
    table = lakehouse.table("new")
    handle = commit(plan(table, [0], None, 1)).handle
    for n in range(1, own_commits + 1):
        planned = plan(table, [n], n, n + 1, from_table=handle)
        opens.clear()
        handle = commit(planned).handle
    assert (handle.transaction_version("txn"), handle.transaction_version("other")) == (own_commits + 1, None)
    assert opens == []
    commit(plan(table, [7], own_commits + 1, 9))
    assert len(handle.file_uris()) == len(files_of(handle)) == own_commits + 1
    assert handle.version() == own_commits
    assert not handle.is_newest()


def test_all_transaction_ids_are_known_even_if_they_are_too_many_to_be_noted(lakehouse):
    table = lakehouse.table("new")
    many = {f"txn-{n}": n for n in range(MOST_NOTED + 1)}
    handle = commit(replace(plan(table, [0], None, 1), set_transactions=many)).handle
    assert {app: handle.transaction_version(app) for app in [*many, "other"]} == {**many, "other": None}


def test_another_table_that_was_made_in_its_place_is_never_read_for_it(lakehouse):
    table = lakehouse.table("new")
    handle = commit(plan(table, [0], None, 1)).handle
    shutil.rmtree(table.uri)
    commit(plan(table, [10], None, 1))
    with pytest.raises(DeltaError, match=r"version 0 of .* is gone"):
        handle.file_uris()
    assert not handle.is_newest()
