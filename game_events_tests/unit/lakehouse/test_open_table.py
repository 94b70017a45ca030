"""An opened table reads the log once, and the version after a commit of this process not at all."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partialmethod

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from deltalake.transaction import CommitProperties, Transaction
from hypothesis import given
from hypothesis import strategies as st

from game_events.errors import ConflictError
from game_events.lakehouse.commits import log
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.transactions import restored
from game_events.lakehouse.data.reading import BATCH_INFO, row_count
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.open_table import MOST_FILES, MOST_NOTED, NOTED, OpenTable, entry_of, has_entry, read_add_actions
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import Lakehouse, files_of, paths
from game_events_tests.support.faults import at_commit
from game_events_tests.support.tables import numbers, plan, staged_numbers


@pytest.fixture
def reads(monkeypatch):
    """The transaction ids that are read from a log from now on."""
    found, real = [], DeltaTable.transaction_version
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda self, app: found.append(app) or real(self, app))
    return found


def overtaken_by(action):
    """Within the block the action is done right before the first commit is written."""
    actions = [action]

    def late(write, *given):
        if actions:
            actions.pop()()
        return write(*given)

    return at_commit(late)


def sets(table, **transactions):
    """What another writer's commit sets, which notes nothing."""
    properties = CommitProperties(app_transactions=[Transaction(app, to) for app, to in transactions.items()])
    handle = DeltaTable(table.uri)
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)


def test_a_transaction_id_is_read_once_for_each_version(table, reads):
    sets(table, txn=1)
    handle = table.open()
    assert [handle.transaction_version("txn"), handle.transaction_version("txn")] == [1, 1]
    assert [handle.transaction_version("other"), handle.transaction_version("other")] == [None, None]
    assert reads == ["txn", "other"]
    sets(table, txn=2)
    reads.clear()
    assert handle.transaction_version("txn") == 1, "a version goes on having its own values"
    assert table.open().transaction_version("txn") == 2
    assert reads == ["txn"]


def test_a_commit_notes_the_transaction_ids_that_are_known_for_whoever_opens_its_version(table, reads):
    """delta-rs replays the log for each id: with six of them, a sixth of what a game's silver table costs a run."""
    assert table.open().transaction_version("other") is None
    first = table.open()
    sets(table, other=7)
    handle = table.open()
    assert (handle.transaction_version("txn"), handle.transaction_version("other")) == (1, 7)
    commit(plan(table, [1], 1, 2, from_table=handle))
    reads.clear()
    newest = table.open()
    assert (newest.transaction_version("txn"), newest.transaction_version("other")) == (2, 7)
    assert reads == []
    assert newest.transaction_version("third") is None
    assert reads == ["third"], "an id that is not noted is read from the log"
    assert first.transaction_version("other") is None, "a version goes on having its own values"


def test_a_commit_that_came_after_a_concurrent_writers_notes_nothing_that_is_believed(table):
    """It becomes the version after the other one; its note was made for the version before."""
    handle = table.open()
    assert handle.transaction_version("other") is None
    with overtaken_by(lambda: sets(table, other=7)):
        assert commit(plan(table, [1], 1, 2, from_table=handle)).version == 2
    newest = table.open()
    assert (newest.transaction_version("txn"), newest.transaction_version("other")) == (2, 7)


def test_a_table_with_many_transaction_ids_notes_none(table):
    """Bronze has one for each partition: each commit would repeat them all."""
    more = {f"kafka:{n}": n for n in range(MOST_NOTED)}
    commit(replace(plan(table, [1], 1, 2), set_transactions={"txn": 2} | more))
    assert NOTED not in next(iter(table.open().history(1)))
    assert table.open().transaction_version("kafka:3") == 3


def test_after_a_commit_its_transaction_ids_are_known_and_the_others_as_before(table, reads):
    planned = plan(table, [1], 1, 2, from_table=table.open())
    assert planned.from_table.transaction_version("other") is None
    landed = commit(planned)
    reads.clear()
    assert (landed.handle.transaction_version("txn"), landed.handle.transaction_version("other")) == (2, None)
    assert reads == []
    assert table.open().transaction_version("txn") == 2


@pytest.fixture
def log_reads(monkeypatch):
    """Names of the methods of opened tables that read a log from now on."""
    found = []
    for name in ("get_add_actions", "history"):
        real = getattr(OpenTable, name)

        def noted(self, *args, of, do, **options):
            found.append(of)
            return do(self, *args, **options)

        monkeypatch.setattr(OpenTable, name, partialmethod(noted, of=name, do=real))
    return found


def test_files_and_the_newest_commit_are_read_once_for_each_version(table, log_reads):
    commit(replace(plan(table, [1], 1, 2), info={BATCH_INFO: "1"}))
    log_reads.clear()
    handle = table.open()
    for _ in range(2):
        assert (len(paths(handle)), row_count(handle), restored(handle)) == (2, 2, False)
    assert sorted(log_reads) == ["get_add_actions", "history"]
    sets(table, other=1)
    log_reads.clear()
    assert not restored(table.open())
    assert "history" in log_reads, "another writer's commit"


def test_after_a_commit_of_a_handle_nothing_of_its_table_is_read(table, log_reads, opens):
    planned = replace(plan(table, [1], 1, 2, from_table=table.open()), info={BATCH_INFO: "1"})
    assert (row_count(planned.from_table), restored(planned.from_table)) == (1, False)
    log_reads.clear()
    opens.clear()
    handle = commit(planned).handle
    assert (len(paths(handle)), row_count(handle), restored(handle), handle.version()) == (2, 2, False, 1)
    assert (log_reads, opens) == ([], [])
    assert handle.history(1)[0][BATCH_INFO] == "1", "what is not known is read"
    assert len(handle.file_uris()) == 2


@given(st.lists(st.tuples(st.lists(st.integers(-(2**40), 2**40), max_size=3), st.sampled_from(["add", "replace", "rewrite"]))))
def test_a_handle_that_was_moved_by_its_commits_has_what_whoever_opens_the_table_reads(tmp_path_factory, steps):
    table = Lakehouse(str(tmp_path_factory.mktemp("lakehouse"))).table("t")
    schema = pa.schema([("n", pa.int64()), ("_batch", pa.int64())])
    handle = commit(plan(table, [], None, 0, schema=schema, files=[])).handle
    for number, (values, how) in enumerate(steps):
        rows = pa.table({"n": values, "_batch": pa.array([v if v % 5 else None for v in values], pa.int64())}, schema)
        gone = frozenset(paths(handle)[:1]) if how == "rewrite" else frozenset()
        made = {"replace": how == "replace", "rewritten": gone, "from_version": handle.version(), "from_table": handle}
        handle = commit(plan(table, [], number, number + 1, schema=schema, files=staged(table, rows), **made)).handle
        read = table.open()
        assert sorted(files_of(handle), key=str) == sorted(files_of(read), key=str)
        assert (handle.version(), handle.newest_commit()[NOTED]) == (read.version(), read.newest_commit()[NOTED])
        assert handle.transaction_version("txn") == DeltaTable(table.uri).transaction_version("txn") == number + 1
    assert sorted(handle.file_uris()) == sorted(DeltaTable(table.uri).file_uris())
    assert handle.version() == DeltaTable(table.uri).version() == len(steps)


def test_statistics_of_many_files_are_not_kept(table, log_reads):
    for before, after, reads in ((1, MOST_FILES, 1), (MOST_FILES, MOST_FILES + 1, 2)):
        commit(plan(table, [], before, after, files=[f for n in range(before, after) for f in staged_numbers(table, [n])]))
        handle = table.open()
        log_reads.clear()
        assert [row_count(handle), row_count(handle)] == [after] * 2
        assert log_reads == ["get_add_actions"] * reads


def test_a_handle_goes_on_having_its_version_when_others_commit_behind_it(table):
    handle = commit(plan(table, [1], 1, 2, from_table=table.open())).handle
    commit(plan(table, [2], 2, 3))
    assert (handle.version(), len(paths(handle)), len(handle.file_uris())) == (1, 2, 2)
    assert (handle.version(), handle.transaction_version("txn")) == (1, 2)


@pytest.mark.parametrize("columns", [["n"], ["n", "later"]])
def test_a_reader_of_the_version_between_never_gets_transaction_ids_of_the_next_one(table, columns):
    """The version between: another writer's, over which the commit is tried again, or the one that adds its columns."""
    handle, between = table.open(), []
    rows = pa.table({name: [1] for name in columns})
    planned = replace(plan(table, [1], 1, 2, from_table=handle), schema=rows.schema, files=staged(table, rows))

    def overtake():
        if columns == ["n"]:
            sets(table, other=7)
        between.append(table.open())

    with overtaken_by(overtake):
        assert commit(planned).version == 2
    assert between[0].version() == 1
    assert between[0].transaction_version("txn") == 1


@pytest.mark.parametrize("newer", [0, 1, 3])
def test_a_handle_never_mixes_its_table_with_another_one_that_was_made_in_its_place(table, newer):
    """`newer`: versions of the other table after the handle's own."""
    handle = commit(plan(table, [1], 1, 2, from_table=table.open())).handle
    shutil.rmtree(table.uri)
    commit(plan(table, [10], None, 1))
    for n in range(1, newer + 2):
        commit(plan(table, [10 + n], n, n + 1))
    for _ in range(2):
        with pytest.raises(DeltaError, match=r"version 1 of .* is gone"):
            handle.file_uris()
    with pytest.raises(DeltaError, match=r"version 1 of .* is gone"):
        handle.create_checkpoint()
    assert (handle.version(), len(paths(handle))) == (1, 2), "what it knows is of its own table"


def test_a_version_stays_as_it_is_after_a_commit_that_was_planned_from_it(table):
    """Other threads may use it: the next version has taken over what delta-rs has read."""
    first = table.open()
    newest = commit(plan(table, [1], 1, 2, from_table=first)).handle
    for _ in range(2):
        assert (newest.version(), len(newest.file_uris()), len(paths(newest)), newest.transaction_version("txn")) == (
            1,
            2,
            2,
            2,
        )
        assert (first.version(), len(first.file_uris()), len(paths(first)), first.transaction_version("txn")) == (0, 1, 1, 1)
    assert [first.is_newest(), newest.is_newest()] == [False, True]
    with pytest.raises(NotImplementedError, match="stays at its version: open 0"):
        newest.load_as_version(0)


def test_a_table_that_is_altered_stays_as_it_is_and_each_change_follows_the_one_before(table):
    handle = table.open()
    alter = handle.alter
    alter.add_columns([Field("more", "long")])
    alter.set_column_metadata("more", {"comment": "later"})
    assert (handle.version(), len(handle.schema().fields), len(handle.file_uris())) == (0, 2, 1)
    assert not handle.is_newest()
    assert (table.open().version(), len(table.open().schema().fields)) == (2, 3)


@pytest.mark.parametrize("plain", [True, False], ids=["written here", "by delta-rs"])
def test_of_two_threads_that_commit_from_one_version_that_they_share_one_wins_each_time(table, monkeypatch, plain):
    """delta-rs' table goes on to the version that the first one has made: the second one's must not follow that."""
    monkeypatch.setattr(log, "_are_plain", lambda _: plain)
    together = threading.Barrier(2)
    pool = TablePool(summaries=False)

    def one(number, shared):
        planned = plan(table, [number], shared.transaction_version("txn"), number, from_table=shared)
        together.wait()
        try:
            return commit(planned).handle
        except ConflictError:
            return None

    with ThreadPoolExecutor(2) as threads:
        for number in range(2, 12):
            results = list(threads.map(one, [number, number], [pool.open(table)] * 2))
            (newest,) = [result for result in results if result is not None]
            pool.publish(table, newest)
            assert newest.version() == number - 1
    assert numbers(table) == [0, *range(2, 12)]


def test_threads_that_share_a_version_read_its_files_while_another_one_commits_from_it(table):
    shared = [table.open()]
    wrong = []

    def read():
        while len(shared) < 40:
            newest = shared[-1]
            numbers_of_files = {len(newest.file_uris()), read_add_actions(newest).num_rows, newest.version() + 1}
            wrong.extend(numbers_of_files if len(numbers_of_files) > 1 else ())

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for n in range(1, 40):
            newest = commit(plan(table, [n], n, n + 1, from_table=shared[-1])).handle
            newest.file_uris()  # delta-rs' table goes on
            shared.append(newest)
        for reader in readers:
            reader.result()
    assert wrong == []


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
