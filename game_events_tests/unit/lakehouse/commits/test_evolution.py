"""Which field has which column, when two runs meet new fields at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap, Field, kept_columns
from game_events.decoding.projection import Projection
from game_events.errors import ConflictError, DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Lakehouse
from game_events_tests.support.tables import rows
from game_events_tests.support.worlds.waves import power_cut_at

TEXT = pa.string()


def named(ids, *, nested=False):
    """Fields by their names; perhaps one level down."""
    fields = [Field(number, name, TEXT) for name, number in ids.items()]
    inside = pa.struct([(name, TEXT) for name in ids])
    return [Field(9, "inner", inside, tuple(fields))] if nested else fields


def column_map(table):
    fields = table.open().schema().fields
    schema = pa.schema(table.open().schema())
    return ColumnMap.from_metadata((f.name, schema.field(f.name).type, f.metadata) for f in fields)


def plan(table, fields, number):
    """A run that meets a message with these fields, from what the table says now."""
    columns = column_map(table).with_message("M", fields)
    schema = pa.schema([("n", pa.int64()), *(pa.field(n, t, metadata=columns.metadata(n)) for n, t in columns.columns.items())])
    writer = StagedWriter(table, schema)
    if not fields[0].children:
        values = pa.record_batch([pa.array([f"of field {field.id}"]) for field in fields], names=[f.name for f in fields])
        found = Projection("M", fields).decoded([(np.arange(1), values)], columns, {}).table
        by_name = {"n": pa.array([number])} | {name: found.column(name) for name in found.column_names}
        writer.write(pa.table({f.name: by_name.get(f.name, pa.nulls(1, f.type)) for f in schema}, schema=schema))
    expected, advance = {"txn": number - 1}, {"txn": number}
    return Commit(table, schema, writer.close(), expected, advance, str(table.open().metadata().id), merges_column_map=True)


@pytest.fixture
def table(tmp_path):
    made = Lakehouse(str(tmp_path)).table("bronze_events")
    commit(Commit(made, pa.schema([("n", pa.int64())]), [], {}, {"txn": 0}, None))
    return made


@pytest.mark.parametrize("nested", [False, True], ids=["columns", "nested fields"])
def test_a_column_that_a_crashed_run_has_given_to_another_field_of_the_message_is_not_shared(nested, table):
    """Version 1 calls field 5 x, version 2 calls field 6 x: one run has met only the second, the other one only the first."""
    first, second = named({"x": 5}, nested=nested), named({"x": 6}, nested=nested)
    ours = plan(table, first, 1)
    with power_cut_at("columns_added"):
        commit(plan(table, second, 1))
    with pytest.raises(ConflictError, match=r"a concurrent run gave (x|inner) to the field M#(9\.)?6:string, not to"):
        commit(ours)
    commit(plan(table, first, 1))
    commit(plan(table, named({"old_x": 5, "x": 6}, nested=nested), 2))
    places = column_map(table).names
    five, six = (places[f"M#{'9.' * nested}{number}:string"] for number in (5, 6))
    assert (five, six) == ("x__string", "x")
    if not nested:
        assert rows(table, "n, x, x__string") == [(1, None, "of field 5"), (2, "of field 6", "of field 5")]


def test_a_column_that_a_rival_has_added_with_another_case_is_a_conflict_and_found_when_it_is_planned_again(table):
    ours = plan(table, named({"Note": 5}), 1)
    commit(plan(table, named({"note": 6}), 1))
    with pytest.raises(ConflictError, match="moved txn"):
        commit(ours)
    late = replace(ours, expect_transactions={}, files=[])
    with pytest.raises(ConflictError, match="Note is note there"):
        commit(late)
    with pytest.raises(DataError, match=r"Note is note there\. Refresh this table fully"):
        commit(replace(late, merges_column_map=False))
    commit(plan(table, named({"Note": 5}), 2))
    assert column_map(table).names == {"M#5:string": "Note__string", "M#6:string": "note"}


def test_a_column_that_a_rival_has_added_with_another_type_is_a_conflict_and_found_when_it_is_planned_again(table):
    ours = plan(table, [Field("x", "x", TEXT)], 1)
    columns = column_map(table).with_message("M", [Field("x", "x", pa.int64())])
    rival = pa.schema([pa.field("x", pa.int64(), metadata=columns.metadata("x"))])
    evolve(table, table.open(), rival, merges_column_map=True)
    with pytest.raises(ConflictError, match="a concurrent run has added columns of other types: x is bigint"):
        commit(ours)
    assert column_map(table).names == {"M#x:bigint": "x"}


def test_fields_of_other_messages_go_on_sharing_a_column(table):
    columns = column_map(table).with_message("M", named({"x": 5})).with_message("N", named({"x": 7}))
    schema = pa.schema([pa.field("x", TEXT, metadata=columns.metadata("x"))])
    commit(Commit(table, schema, [], {}, {}, str(table.open().metadata().id), merges_column_map=True))
    assert column_map(table).names == {"M#5:string": "x", "N#7:string": "x"}


@pytest.mark.parametrize(
    "versions",
    [
        [Field(1, "gamer_id", pa.int64()), Field(1, "gamer_id", TEXT)],
        [Field(1, "gamer_id", TEXT), Field(2, "gamer_id", TEXT)],
    ],
    ids=["another kind", "another number"],
)
@pytest.mark.parametrize("together", [False, True], ids=["slice after slice", "both in the first slice"])
def test_fields_that_share_the_keys_column_on_purpose_are_no_rivals(table, versions, together):
    def slice_of(number, *fields):
        columns = replace(column_map(table), kept=kept_columns(load_settings()))
        for field in fields:
            columns = columns.with_message("M", [field])
        schema = pa.schema([pa.field(n, t, metadata=columns.metadata(n)) for n, t in columns.columns.items()])
        expected, advance = {"txn": number - 1}, {"txn": number}
        commit(Commit(table, schema, [], expected, advance, str(table.open().metadata().id), merges_column_map=True))

    for number in range(1, 5):
        slice_of(number, *(versions if together else versions[number % 2 :][:1]))
    assert list(column_map(table).columns) == ["gamer_id"]
