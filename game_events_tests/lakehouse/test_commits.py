"""Data and progress in one version, or nothing; of rivals exactly one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from game_events.errors import ConflictError, DataError, TransientError
from game_events.lakehouse import commits
from game_events.lakehouse.commits import Commit, commit, evolve
from game_events.lakehouse.reading import files_with, read_arrow, row_count, rows_above
from game_events.lakehouse.tables import Lakehouse, game_of_silver, gold_name, is_game, silver_name
from game_events_tests.lakehouse.helpers import SCHEMA, committed_files, data_files, numbers, plan, rows, staged


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).table("t")


def txn(table, app="txn"):
    return DeltaTable(table.uri).transaction_version(app)


def both(*calls):
    """Calls at the same moment; what each returned or raised."""
    start = threading.Barrier(len(calls))

    def one(call):
        start.wait()
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def assert_nothing_left_over(table):
    """Every file on disk is in the log of some version."""
    assert data_files(table) == committed_files(table)


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
    assert (landed.version, landed.rows) == (1, 2)
    assert numbers(table) == list(range(5))
    assert txn(table) == 2


def test_a_commit_without_files_moves_progress_alone(table):
    commit(plan(table, range(3), None, 1))
    landed = commit(plan(table, [], 1, 5, files=[]))
    assert (landed.rows, landed.files) == (0, 0)
    assert (numbers(table), txn(table)) == ([0, 1, 2], 5)


def test_a_table_can_be_made_without_rows(table):
    commit(Commit(table, SCHEMA, [], {}, {"a": 0, "b": 3}, None))
    assert (numbers(table), txn(table, "a"), txn(table, "b")) == ([], 0, 3)


def test_several_txns_move_together_or_not_at_all(table):
    commit(Commit(table, SCHEMA, staged(table, [1]), {}, {"a": 1, "b": 1}, None))
    table_id = str(table.open().metadata().id)
    with pytest.raises(ConflictError, match="moved b from 0 to 1"):
        commit(Commit(table, SCHEMA, staged(table, [2]), {"a": 1, "b": 0}, {"a": 2, "b": 2}, table_id))
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
def test_of_rivals_that_passed_the_comparison_together_exactly_one_lands(table, ends, monkeypatch):
    commit(plan(table, [0], None, 1))
    meeting = threading.Barrier(2)
    evolve_ = commits.evolve

    def meet(*arguments):
        handle = evolve_(*arguments)
        meeting.wait(10)  # both hold a handle from before either commit
        return handle

    monkeypatch.setattr(commits, "evolve", meet)
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
    late = Commit(table, SCHEMA, staged(table, [3]), {"txn": None}, {"txn": 2}, late.table_id)
    with pytest.raises(ConflictError, match="planned with"):
        commit(late)
    assert numbers(table) == [8]


# --- lost answers and failures


def fails_after(real, error):
    """The real call, whose answer is lost."""

    def call(*arguments, **options):
        real(*arguments, **options)
        raise error

    return call


def fails_before(error):
    """A call that never happens."""

    def call(*_, **__):
        raise error

    return call


LOST = [OSError("connection reset"), DeltaError("timed out"), CommitFailedError("answer lost")]


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_a_commit_whose_answer_is_lost_counts_as_landed(table, error, monkeypatch):
    commit(plan(table, [0], None, 1))
    real = DeltaTable.create_write_transaction
    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_after(real, error))
    landed = commit(plan(table, [1, 2], 1, 2))
    assert (landed.version, landed.rows) == (1, 2)
    assert (numbers(table), txn(table)) == ([0, 1, 2], 2)
    assert_nothing_left_over(table)


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_a_new_table_whose_answer_is_lost_counts_as_made(table, error, monkeypatch):
    real = commits.create_table_with_add_actions
    monkeypatch.setattr(commits, "create_table_with_add_actions", fails_after(real, error))
    landed = commit(plan(table, [1, 2], None, 2))
    assert (landed.version, landed.rows) == (0, 2)
    assert numbers(table) == [1, 2]


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_a_commit_without_files_whose_answer_is_lost_moved_progress_once(table, error, monkeypatch):
    commit(plan(table, [0], None, 1))
    real = DeltaTable.create_write_transaction
    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_after(real, error))
    with suppress(TransientError):  # planned again from the table's own progress, which has moved
        commit(plan(table, [], 1, 2, files=[]))
    assert (numbers(table), txn(table)) == ([0], 2)


@pytest.mark.parametrize(
    ("error", "expected"), [(LOST[0], TransientError), (LOST[1], TransientError), (LOST[2], ConflictError)]
)
def test_a_commit_that_did_not_happen_leaves_nothing(table, error, expected, monkeypatch):
    commit(plan(table, [0], None, 1))
    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_before(error))
    with pytest.raises(expected):
        commit(plan(table, [1], 1, 2))
    assert (numbers(table), txn(table)) == ([0], 1)
    assert_nothing_left_over(table)


def test_an_unknown_outcome_keeps_the_files(table, monkeypatch):
    commit(plan(table, [0], None, 1))
    late = plan(table, [1], 1, 2)
    opened = table.open
    answers = [opened()]

    def once(_):
        if answers:
            return answers.pop()
        raise OSError("still down")

    monkeypatch.setattr(type(table), "open", once)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_before(OSError("down")))
    with pytest.raises(TransientError, match="unknown") as caught:
        commit(late)
    assert not isinstance(caught.value, ConflictError)
    assert {f.path for f in late.files} <= data_files(table)


# --- columns

WIDER = pa.schema([*SCHEMA, ("t", pa.timestamp("us", tz="UTC")), ("p", pa.struct([("x", pa.float64())]))])
WIDEST = pa.schema(
    [
        *WIDER.remove(3),
        ("p", pa.struct([("x", pa.float64()), ("q", pa.struct([("y", pa.int64())]))])),
        ("l", pa.list_(pa.struct([("a", pa.string())]))),
    ]
)


def test_new_columns_and_nested_fields_are_added_and_old_rows_have_null(table):
    commit(plan(table, [1], None, 1))
    wider = staged(table, [2], WIDER, t=[0], p=[{"x": 1.5}])
    commit(plan(table, None, 1, 2, schema=WIDER, files=wider))
    widest = staged(table, [3], WIDEST, t=[0], p=[{"x": 2.5, "q": {"y": 7}}], l=[[{"a": "b"}]])
    commit(plan(table, None, 2, 3, schema=WIDEST, files=widest))
    schema = pa.schema(DeltaTable(table.uri).schema())
    assert schema.names == ["n", "s", "t", "p", "l"]
    assert schema.field("p").type == WIDEST.field("p").type
    assert rows(table, "n, p.x, t IS NULL, l IS NULL") == [(1, None, True, True), (2, 1.5, False, True), (3, 2.5, False, False)]
    read = {row["n"]: row["l"] for row in read_arrow(table, table.open(), ["l", "n"]).to_pylist()}
    assert read == {1: None, 2: None, 3: [{"a": "b"}]}


def test_fewer_columns_than_the_table_has_are_no_fault(table):
    commit(plan(table, None, None, 1, schema=WIDER, files=staged(table, [1], WIDER, t=[0], p=[None])))
    commit(plan(table, [2], 1, 2))
    assert [f.name for f in DeltaTable(table.uri).schema().fields] == WIDER.names
    assert rows(table, "n, t IS NULL") == [(1, False), (2, True)]


def test_two_rivals_that_each_add_nested_fields_both_find_theirs(table):
    base = pa.schema([("n", pa.int64()), ("p", pa.struct([("x", pa.int64())]))])
    commit(Commit(table, base, [], {}, {}, None))
    for name in ("y", "z"):
        evolve(table, table.open(), pa.schema([("n", pa.int64()), ("p", pa.struct([("x", pa.int64()), (name, pa.int64())]))]))
    assert [f.name for f in pa.schema(table.open().schema()).field("p").type] == ["x", "y", "z"]


def test_a_columns_metadata_is_kept_when_nested_fields_are_added(table):
    old = pa.schema([pa.field("p", pa.struct([("x", pa.int64())]), metadata={"k": "1"})])
    new = pa.schema([pa.field("p", pa.struct([("x", pa.int64()), ("y", pa.int64())]), metadata={"k": "2"})])
    commit(Commit(table, old, [], {}, {}, None))
    evolve(table, table.open(), new)
    (field,) = table.open().schema().fields
    assert field.metadata == {"k": "2"}
    assert [f.name for f in pa.schema(table.open().schema()).field("p").type] == ["x", "y"]


@pytest.mark.parametrize("attempt", range(3))
def test_rivals_that_add_columns_end_with_one_commit_and_every_column_once(table, attempt):  # noqa: ARG001 - a race: tried several times
    commit(plan(table, [0], None, 1))
    schemas = [pa.schema([*SCHEMA, (name, pa.int64())]) for name in ("a", "b")]
    plans = [
        plan(
            table, None, 1, end, schema=schema, files=staged(table, range(1, end), schema, **{schema.names[-1]: range(1, end)})
        )
        for end, schema in zip((5, 9), schemas, strict=True)
    ]
    outcomes = both(*(partial(commit, p) for p in plans))
    landed = [o for o in outcomes if not isinstance(o, Exception)]
    assert len(landed) <= 1
    assert all(isinstance(o, ConflictError) for o in outcomes if isinstance(o, Exception)), outcomes
    assert numbers(table) == list(range(txn(table)))
    names = [f.name for f in DeltaTable(table.uri).schema().fields]
    assert len(names) == len(set(names))
    assert_nothing_left_over(table)


def test_a_schema_that_keeps_changing_is_a_conflict_and_the_files_go(table, monkeypatch):
    commit(plan(table, [0], None, 1))
    alter = type(table.open().alter)
    monkeypatch.setattr(alter, "add_columns", fails_before(CommitFailedError("Metadata changed")))
    with pytest.raises(ConflictError, match="keeps changing"):
        commit(plan(table, None, 1, 2, schema=WIDER, files=staged(table, [1], WIDER, t=[0], p=[None])))
    assert (numbers(table), txn(table)) == ([0], 1)
    assert_nothing_left_over(table)


# --- names and handles


def test_a_table_that_is_not_there_opens_as_nothing(table):
    assert table.open() is None
    table.local_path.mkdir(parents=True)
    assert table.open() is None


def test_a_table_with_deletion_vectors_is_refused_with_what_to_do(table):
    write_deltalake(
        table.uri, pa.table({"n": [1]}), configuration={"delta.enableDeletionVectors": "true", "delta.minReaderVersion": "3"}
    )
    if "deletionVectors" not in (DeltaTable(table.uri).protocol().reader_features or []):
        pytest.skip("this delta-rs did not set the feature")
    with pytest.raises(DataError, match="deletionVectors"):
        table.open()


def test_files_below_a_batch_are_not_read(table):
    for batch in (1, 2, 3):
        commit(plan(table, [batch * 10, batch * 10 + 1], batch - 1 or None, batch))
    handle = table.open()
    assert row_count(handle) == rows_above(handle, "n", 0) == 6
    assert rows_above(handle, "n", 20) == 4
    assert len(files_with(handle, "n", 21)) == 1
    assert len(files_with(handle, "no_such_column", 21)) == len(files_with(handle)) == 3


@pytest.mark.parametrize("name", ["rummy", "a", "7_wonders", "a" * 63, "poker_2"])
def test_good_names_are_games(name):
    assert is_game(name)
    assert game_of_silver(silver_name(name)) == name


@pytest.mark.parametrize(
    "name",
    [None, "", "unified", "../../etc", "a/b", "Rummy", "_a", "a b", "a" * 64, "ü", "🎲", "a\n", "a\0", "a-b", ".", b"rummy", 7],
)
def test_bad_names_are_no_games(name):
    assert not is_game(name)


def test_no_two_games_share_a_table_and_none_has_the_unified_one():
    games = ["a", "a_events", "a_player_agg", "silver_a", "unified_x"]
    names = [name for game in games for name in (silver_name(game), gold_name(game))]
    assert len(set(names)) == len(names)
    assert "gold_unified_player_agg" not in names
    assert [game_of_silver(silver_name(game)) for game in games] == games


def test_a_lakehouse_lists_its_tables_and_nothing_else(tmp_path):
    lakehouse = Lakehouse(str(tmp_path / "new"))
    assert lakehouse.names() == []
    commit(plan(lakehouse.silver("b"), [1], None, 1))
    commit(plan(lakehouse.table("a"), [1], None, 1))
    (tmp_path / "new" / "stranger").mkdir()
    assert lakehouse.names() == ["a", "silver_b_events"]
