"""Columns are added in a commit of their own, beside any rival, and never change their type."""

import json
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from game_events.decoding.columns import METADATA_KEY
from game_events.errors import ConflictError, DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.evolution import changed_types, evolve
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.table_properties import FORMAT, KEY
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.tables import (
    SCHEMA,
    assert_nothing_left_over,
    both,
    data_files,
    numbers,
    plan,
    rows,
    staged_numbers,
    txn,
)


@pytest.fixture
def table(tmp_path):
    return Lakehouse(str(tmp_path)).table("t")


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
    wider = staged_numbers(table, [2], WIDER, t=[0], p=[{"x": 1.5}])
    commit(plan(table, None, 1, 2, schema=WIDER, files=wider))
    widest = staged_numbers(table, [3], WIDEST, t=[0], p=[{"x": 2.5, "q": {"y": 7}}], l=[[{"a": "b"}]])
    commit(plan(table, None, 2, 3, schema=WIDEST, files=widest))
    schema = pa.schema(DeltaTable(table.uri).schema())
    assert schema.names == ["n", "s", "t", "p", "l"]
    assert schema.field("p").type == WIDEST.field("p").type
    assert rows(table, "n, p.x, t IS NULL, l IS NULL") == [(1, None, True, True), (2, 1.5, False, True), (3, 2.5, False, False)]
    read = {row["n"]: row["l"] for row in read_arrow(table, table.open(), ["l", "n"]).to_pylist()}
    assert read == {1: None, 2: None, 3: [{"a": "b"}]}


def test_fewer_columns_than_the_table_has_are_no_fault(table):
    commit(plan(table, None, None, 1, schema=WIDER, files=staged_numbers(table, [1], WIDER, t=[0], p=[None])))
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
    assert field.metadata == {"k": "2", KEY: str(FORMAT)}
    assert [f.name for f in pa.schema(table.open().schema()).field("p").type] == ["x", "y"]


@pytest.mark.parametrize("attempt", range(3))
def test_rivals_that_add_columns_end_with_one_commit_and_every_column_once(table, attempt):  # noqa: ARG001 - a race: tried several times
    commit(plan(table, [0], None, 1))
    schemas = [pa.schema([*SCHEMA, (name, pa.int64())]) for name in ("a", "b")]
    plans = []
    for end, schema in zip((5, 9), schemas, strict=True):
        files = staged_numbers(table, range(1, end), schema, **{schema.names[-1]: range(1, end)})
        plans.append(plan(table, None, 1, end, schema=schema, files=files))
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

    def overtaken(*_, **__):
        commit(replace(plan(table, [], None, 1, app="of a rival", files=[]), expect_transactions={}))
        raise CommitFailedError("Metadata changed")

    monkeypatch.setattr(alter, "add_columns", overtaken)
    with pytest.raises(ConflictError, match="keeps changing"):
        commit(plan(table, None, 1, 2, schema=WIDER, files=staged_numbers(table, [1], WIDER, t=[0], p=[None])))
    assert (numbers(table), txn(table)) == ([0], 1)
    assert_nothing_left_over(table)


def test_columns_that_delta_rs_does_not_add_are_no_conflict_and_are_tried_once(table, monkeypatch):
    commit(plan(table, [0], None, 1))
    tried = []

    def refused(*_, **__):
        tried.append(1)
        raise CommitFailedError("Unsupported table features required: [SomethingNew]")

    monkeypatch.setattr(type(table.open().alter), "add_columns", refused)
    with pytest.raises(DataError, match="cannot be changed: Unsupported table features"):
        commit(plan(table, None, 1, 2, schema=WIDER, files=staged_numbers(table, [1], WIDER, t=[0], p=[None])))
    assert len(tried) == 1
    assert_nothing_left_over(table)


# --- the column map in the metadata


def shared(**shares):
    """Columns of text with their shares of the map."""
    return pa.schema([pa.field(c, pa.string(), metadata={METADATA_KEY: json.dumps(s)}) for c, s in shares.items()])


def shares_of(table):
    return {f.name: json.loads(f.metadata.get(METADATA_KEY, "{}")) for f in table.open().schema().fields}


def evolved(table, schema):
    return evolve(table, table.open(), schema, merges_column_map=True)


@pytest.fixture
def mapped(table):
    commit(Commit(table, shared(a={"m#1:string": "a"}), [], {}, {}, None))
    return table


def test_what_a_rival_added_to_a_columns_share_stays(mapped):
    evolved(mapped, shared(a={"m#1:string": "a", "rival#1:string": "a"}))
    evolved(mapped, shared(a={"m#1:string": "a", "mine#7:string": "a"}, b={"mine#8:string": "b"}))
    assert shares_of(mapped) == {
        "a": {"m#1:string": "a", "rival#1:string": "a", "mine#7:string": "a"},
        "b": {"mine#8:string": "b"},
    }


def test_a_plan_without_a_rivals_fields_changes_nothing(mapped):
    evolved(mapped, shared(a={"m#1:string": "a", "rival#1:string": "a"}))
    before = mapped.open().version()
    evolved(mapped, shared(a={"m#1:string": "a"}))
    assert mapped.open().version() == before


def test_a_field_that_a_rival_gave_another_column_is_planned_again(mapped):
    evolved(mapped, shared(a={"m#1:string": "a"}, b={"m#2:string": "b"}))
    with pytest.raises(ConflictError, match=r"m#2:string the column b, not c"):
        evolved(mapped, shared(a={"m#1:string": "a"}, c={"m#2:string": "c"}))
    assert set(shares_of(mapped)) == {"a", "b"}


OTHER = pa.schema([("n", pa.string()), ("x", pa.int64())])


def test_another_type_is_refused_with_its_name_and_leaves_nothing_behind(table):
    commit(plan(table, [1], None, 1))
    before = rows(table)
    for kind in (pa.string(), pa.float64(), pa.int32(), pa.list_(pa.int64())):
        schema = pa.schema([("n", kind)])
        value = {pa.string(): "1"}.get(kind, [1] if pa.types.is_list(kind) else 1)
        files = staged_numbers(table, [value], schema)
        with pytest.raises(DataError, match=r"t: .*n is bigint in the table and .* in the rows.* refresh this table fully"):
            commit(plan(table, None, 1, 2, schema=schema, files=files))
    assert rows(table) == before
    assert_nothing_left_over(table)


def test_nested_types_are_compared_field_by_field(table):
    def nested(kind):
        inner = pa.struct([("a", kind), ("only_here" if kind == pa.int64() else "only_there", pa.string())])
        return pa.schema([("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])

    commit(plan(table, None, None, 1, schema=nested(pa.int64()), files=[]))
    assert changed_types(table.open(), nested(pa.int64())) == []
    found = changed_types(table.open(), nested(pa.string()))
    assert [text.split(" ")[0] for text in found] == ["l", "m"]


def test_a_table_that_is_replaced_may_get_other_columns_and_types_in_the_same_commit(table):
    commit(plan(table, [1, 2], None, 1))
    properties = DeltaTable(table.uri).metadata().configuration
    landed = commit(
        plan(table, None, 1, 2, schema=OTHER, files=staged_numbers(table, ["a"], OTHER, x=[7]), replace=True, reshape=True)
    )
    assert rows(table) == [("a", 7)]
    assert pa.schema(DeltaTable(table.uri).schema()).names == ["n", "x"]
    assert (landed.rows, landed.table_rows, landed.version) == (1, 1, 1)
    assert DeltaTable(table.uri).metadata().configuration == properties
    assert txn(table) == 2
    # A rival that was first wins as ever.
    late = plan(table, None, 1, 3, schema=SCHEMA, files=staged_numbers(table, [9]), replace=True, reshape=True)
    with pytest.raises(ConflictError):
        commit(late)
    assert rows(table) == [("a", 7)]
    assert len(data_files(table)) == 2, "of the two versions, and none of the loser's"


def test_keys_of_maps_are_compared(table):
    def of(key):
        return pa.schema([("m", pa.map_(key, pa.string()))])

    commit(plan(table, None, None, 1, schema=of(pa.string()), files=[]))
    assert changed_types(table.open(), of(pa.string())) == []
    assert len(changed_types(table.open(), of(pa.int64()))) == 1


def test_a_table_that_is_replaced_by_rows_with_fewer_columns_has_these_alone(table):
    commit(plan(table, [1, 2], None, 1))
    fewer = pa.schema([SCHEMA.field("n")])
    files = staged_numbers(table, [7], fewer)
    commit(plan(table, None, 1, 2, schema=fewer, files=files, replace=True, reshape=True))
    assert pa.schema(table.open().schema()).names == ["n"]
    assert numbers(table) == [7]


LOCAL = pa.timestamp("us")


@pytest.mark.parametrize(
    "kind",
    [LOCAL, pa.struct([("at", LOCAL)]), pa.list_(LOCAL), pa.map_(pa.string(), pa.list_(pa.struct([("at", LOCAL)])))],
    ids=str,
)
@pytest.mark.parametrize("replaced", [True, False], ids=["the rows are replaced", "the column is added"])
def test_a_table_may_get_its_first_times_without_a_zone_later(kind, replaced, table):
    """Delta has a feature for them, without which no reader opens the table."""
    commit(plan(table, [1], None, 1))
    schema = pa.schema([SCHEMA.field("n"), ("local", kind)])
    files = staged_numbers(table, [2], schema, local=[None])
    landed = commit(plan(table, None, 1, 2, schema=schema, files=files, replace=replaced, reshape=replaced))
    assert numbers(table) == ([2] if replaced else [1, 2])
    assert pa.schema(table.open().schema()).field("local").type == pa.schema(landed.handle.schema()).field("local").type
    assert "timestampNtz" in table.open().protocol().reader_features
    commit(plan(table, [3], 2, 3))
    assert 3 in numbers(table)
