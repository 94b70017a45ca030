"""Which column a field lands in: by its number, for ever."""

from itertools import permutations

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.columns import UINT64, ColumnMap, Field, field_key, kind_of, storage_type
from game_events.decoding.decoder import BatchDecoder, DecodePlan
from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.columns import column_map
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.catalog.schema_history import field_columns
from game_events_tests.support.decoding.helpers import compiled, frame, python_class

TEXT, INT, REAL = pa.string(), pa.int64(), pa.float64()


def mapped(*messages):
    """The map after messages, each (name, [(number, name, type), ...])."""
    columns = ColumnMap()
    for name, fields in messages:
        columns = columns.with_message(name, [Field(*field) for field in fields])
    return columns


def names(columns, message="g.Event"):
    """Path and kind -> name, of one message."""
    return {key.removeprefix(message + "#"): name for key, name in columns.names.items() if key.startswith(message + "#")}


def schema_of(*bodies, name="g.Event"):
    """A map made of real `.proto` texts, one version after another."""
    package, message = name.split(".")
    columns = ColumnMap()
    for number, body in enumerate(bodies):
        text = f'syntax = "proto3"; package {package}; message {message} {{ {body} }}'
        decoder = ProtobufDecoder(compiled(text, 100 + number), (0,))
        columns = columns.with_message(decoder.message, decoder.fields)
    return columns


def test_a_renamed_field_stays_one_column_and_the_first_name_wins():
    columns = schema_of("string game = 1;", "string game_name = 1;", "string title = 1;")
    assert columns.columns == {"game": TEXT}


def test_two_fields_that_swap_their_names_stay_where_they_were():
    columns = schema_of("string a = 1; string b = 2;", "string b = 1; string a = 2;")
    assert names(columns) == {"1:string": "a", "2:string": "b"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("int32", "int64"), ("sint32", "sfixed64"), ("uint32", "int64"), ("int64", "uint32"), ("string", "Kind")],
)
def test_a_type_that_is_stored_the_same_stays_one_column(old, new):
    enum = "enum Kind { NONE = 0; } "
    columns = schema_of(f"{enum} {old} level = 1;", f"{enum} {new} level = 1;")
    assert list(columns.columns) == ["level"]


@pytest.mark.parametrize(
    ("old", "new", "second"),
    [
        ("int32", "string", "level__string"),
        ("string", "int32", "level__bigint"),
        ("string", "bytes", "level__binary"),
        ("float", "double", "level__double"),
        ("int64", "uint64", "level__decimal"),
        ("int32", "bool", "level__boolean"),
        ("int32", "repeated int32", "level__array"),
        ("int32", "map<string, int32>", "level__map"),
        ("string", "In", "level__struct"),
    ],
)
def test_a_number_used_again_with_another_kind_never_lands_in_the_old_column(old, new, second):
    inner = "message In { string s = 1; } "
    columns = schema_of(f"{inner} {old} level = 1;", f"{inner} {new} level = 1;", f"{inner} {old} level = 1;")
    assert list(columns.columns) == ["level", second]


def test_a_name_taken_by_another_number_of_the_message_is_not_shared():
    columns = schema_of("string name = 1;", "string name = 2;", "string name = 3;", "string name = 4;")
    assert names(columns) == {"1:string": "name", "2:string": "name__string", "3:string": "name__3", "4:string": "name__4"}


def test_a_name_taken_in_an_older_version_is_not_shared_whatever_stands_beside_it():
    columns = schema_of("string a = 1; string b = 2;", "string b = 1; string a = 3;")
    assert names(columns) == {"1:string": "a", "2:string": "b", "3:string": "a__string"}


def test_another_message_with_the_same_name_and_type_shares_the_column():
    columns = mapped(("g.A", [(1, "game", TEXT), (2, "n", INT)]), ("g.B", [(7, "game", TEXT), (8, "n", TEXT)]))
    assert columns.columns == {"game": TEXT, "n": INT, "n__string": TEXT}
    assert names(columns, "g.B") == {"7:string": "game", "8:string": "n__string"}


def test_a_message_shares_only_one_field_with_one_column():
    columns = mapped(("g.A", [(1, "x", TEXT)]), ("g.B", [(1, "x", TEXT), (2, "X", TEXT)]))
    assert names(columns, "g.B") == {"1:string": "x", "2:string": "X__string"}


def test_a_leading_underscore_is_the_pipelines_own():
    columns = schema_of("string _batch = 1; string __x = 2; message In { string _y = 1; } In in = 3;")
    assert list(columns.columns) == ["field_batch", "field__x", "in"]
    assert not any(name.startswith("_") for name in columns.names.values())


def test_names_that_differ_only_by_case_are_two_columns_for_spark_as_well():
    inner = (Field(1, "a", TEXT), Field(2, "A", TEXT))
    struct = pa.struct([("a", TEXT), ("A", TEXT)])
    fields = [Field(1, "Level", TEXT), Field(2, "level", TEXT), Field(3, "in", struct, inner)]
    columns = ColumnMap().with_message("g.Event", fields)
    assert list(columns.columns) == ["Level", "level__string", "in"]
    assert [f.name for f in columns.columns["in"]] == ["a", "A__string"]


def test_a_schema_whose_names_differ_only_by_case_is_decoded():
    columns = schema_of("string Level = 1; string level = 2;")
    assert names(columns) == {"1:string": "Level", "2:string": "level__string"}


def test_nested_additions_and_renames():
    columns = schema_of(
        "message Pos { double x = 1; } Pos pos = 1; repeated Pos path = 2; map<string, Pos> by = 3;",
        "message Pos { double lon = 1; double lat = 2; } Pos place = 1; repeated Pos path = 2; map<string, Pos> by = 3;",
        "message Pos { string x = 1; double lat = 2; } Pos place = 1; repeated Pos path = 2; map<string, Pos> by = 3;",
    )
    struct = pa.struct([("x", REAL), ("lat", REAL), ("x__string", TEXT)])
    assert columns.columns == {"pos": struct, "path": pa.list_(struct), "by": pa.map_(TEXT, struct)}


def test_another_message_shares_what_is_nested_too():
    body = "message Pos { double x = 1; string note = 2; } Pos pos = 1;"
    first = ProtobufDecoder(compiled(f'syntax = "proto3"; package a; message Event {{ {body} }}', 201), (0,))
    other = body.replace("string note", "int32 note")
    second = ProtobufDecoder(compiled(f'syntax = "proto3"; package b; message Event {{ {other} }}', 202), (0,))
    columns = ColumnMap().with_message(first.message, first.fields).with_message(second.message, second.fields)
    assert columns.columns == {"pos": pa.struct([("x", REAL), ("note", TEXT), ("note__bigint", INT)])}


def test_a_message_that_becomes_a_list_of_it_is_another_column_and_both_stay_readable():
    inner = "message Pos { double x = 1; } "
    columns = schema_of(inner + "Pos pos = 1;", inner + "repeated Pos pos = 1;")
    assert columns.columns == {"pos": pa.struct([("x", REAL)]), "pos__array": pa.list_(pa.struct([("x", REAL)]))}
    again = columns
    for body in (inner + "Pos pos = 1;", inner + "repeated Pos pos = 1;"):
        decoder = ProtobufDecoder(compiled(f'syntax = "proto3"; package g; message Event {{ {body} }}', 210), (0,))
        again = again.with_message(decoder.message, decoder.fields)
        compiled.cache_clear()
    assert again == columns


def test_a_known_message_changes_nothing():
    columns = schema_of("string a = 1; int32 b = 2;", "string b = 1;")
    assert schema_of("string a = 1; int32 b = 2;", "string b = 1;", "string a = 1; int32 b = 2;") == columns


def test_unsigned_64_bits_become_a_decimal_that_holds_them():
    columns = schema_of("uint64 u = 1; repeated uint64 us = 2; map<uint64, fixed64> m = 3;")
    assert columns.columns == {"u": UINT64, "us": pa.list_(UINT64), "m": pa.map_(UINT64, UINT64)}
    assert pa.decimal128(20, 0) == UINT64


@pytest.mark.parametrize(
    ("decoded", "stored", "kind"),
    [
        (pa.int32(), pa.int64(), "bigint"),
        (pa.uint32(), pa.int64(), "bigint"),
        (pa.uint64(), UINT64, "decimal"),
        (pa.duration("us"), pa.int64(), "bigint"),
        (pa.time64("us"), pa.int64(), "bigint"),
        (pa.float32(), pa.float32(), "float"),
        (pa.date32(), pa.date32(), "date"),
        (pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.struct([]), pa.bool_(), "boolean"),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), "struct"),
        (pa.list_(pa.struct([])), pa.list_(pa.bool_()), "array<boolean>"),
        (pa.map_(pa.uint64(), pa.int32()), pa.map_(UINT64, pa.int64()), "map<decimal,bigint>"),
    ],
)
def test_stored_types_are_those_delta_and_spark_hold(decoded, stored, kind):
    assert storage_type(decoded) == stored
    assert kind_of(stored) == kind


# --- the map lives in the table

EVOLUTION = (
    "string game = 1; uint64 u = 2; map<string, Pos> by = 3; message Pos { double x = 1; }",
    """string game_name = 1; string u = 2; map<string, Pos> by = 3; repeated Pos _path = 4;
    message Pos { double x = 1; int32 y = 2; }""",
    """string Game = 5; bytes u = 2; map<string, Pos> by = 3;
    message Pos { string x = 1; int32 y = 2; repeated string tags = 3; }""",
)


def fields_of(columns):
    return pa.schema([pa.field(n, t, metadata=columns.metadata(n)) for n, t in columns.columns.items()])


def test_the_map_survives_the_metadata_of_a_real_table(tmp_path):
    table = Lakehouse(str(tmp_path)).table("t")
    table_id = None
    for number in range(1, len(EVOLUTION) + 1):
        columns = schema_of(*EVOLUTION[:number])
        landed = commit(Commit(table, fields_of(columns), [], {}, {"batch": number}, table_id))
        table_id = landed.table_id
        read = column_map(DeltaTable(table.uri))
        assert (dict(read.columns), dict(read.names), dict(read.owners)) == (columns.columns, columns.names, columns.owners)


def test_going_on_from_the_table_is_going_on_from_memory(tmp_path):
    for number in range(1, len(EVOLUTION)):
        table = Lakehouse(str(tmp_path)).table(f"t{number}")
        commit(Commit(table, fields_of(schema_of(*EVOLUTION[:number])), [], {}, {}, None))
        text = f'syntax = "proto3"; package g; message Event {{ {EVOLUTION[number]} }}'
        decoder = ProtobufDecoder(compiled(text, 100 + number), (0,))
        went_on = column_map(DeltaTable(table.uri)).with_message(decoder.message, decoder.fields)
        straight_on = schema_of(*EVOLUTION[: number + 1])
        assert (went_on.columns, went_on.names, went_on.owners) == (straight_on.columns, straight_on.names, straight_on.owners)


def test_columns_that_are_not_decoded_are_no_part_of_the_map():
    assert ColumnMap.from_metadata([("_batch", INT, {}), ("other", TEXT, {"comment": "x"})]) == ColumnMap()


# --- order

SOURCES = [
    ("g.A", [(1, "a", TEXT), (2, "b", INT)]),
    ("g.B", [(1, "a", TEXT), (2, "c", REAL)]),
    ("g.C", [(9, "d", TEXT), (2, "b", INT)]),
]


def test_messages_that_do_not_clash_give_the_same_names_in_any_order():
    maps = [mapped(*order) for order in permutations(SOURCES)]
    assert all(m.names == maps[0].names and m.columns == maps[0].columns for m in maps)


field_lists = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from(["a", "A", "b", "_c", "a__string"]), st.sampled_from([TEXT, INT, REAL])),
    min_size=1,
    max_size=5,
    unique_by=(lambda field: field[0], lambda field: field[1]),
)
histories = st.lists(st.tuples(st.sampled_from(["g.A", "g.B"]), field_lists), min_size=1, max_size=6)


@settings(max_examples=200)
@given(histories)
def test_any_history_keeps_every_field_in_one_column_of_its_own_kind(history):
    columns, before = ColumnMap(), {}
    for message, fields in history:
        columns = columns.with_message(message, [Field(*field) for field in fields])
        assert before.items() <= columns.names.items(), "a field has moved"
        before = dict(columns.names)
        lowered = [name.lower() for name in columns.columns]
        assert len(set(lowered)) == len(lowered)
        assert not any(name.startswith("_") for name in columns.columns)
        for key, name in columns.names.items():
            assert kind_of(columns.columns[name]) == key.rsplit(":", 1)[1]
        for one in ("g.A", "g.B"):
            mine = list(names(columns, one).values())
            assert len(set(mine)) == len(mine), "two fields of one message in one column"
    stored = ColumnMap.from_metadata((n, t, columns.metadata(n)) for n, t in columns.columns.items())
    assert (stored.names, dict(stored.columns)) == (columns.names, columns.columns)


LEAVES = (INT, TEXT, pa.list_(TEXT), pa.map_(TEXT, INT), pa.binary())


def nested_fields(draw, depth):
    """Fields of one message: numbers and names used once, messages also in lists and maps."""
    ids = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))
    taken = draw(st.permutations(["a", "A", "b", "a__string", "a__struct", "c", "a__bigint"]))
    fields = []
    for number, name in zip(ids, taken, strict=False):
        kind, children = draw(st.sampled_from(LEAVES)), ()
        if depth and draw(st.booleans()):
            children = tuple(nested_fields(draw, depth - 1))
            message = pa.struct([pa.field(c.name, c.type) for c in children])
            kind = draw(st.sampled_from([message, pa.list_(message), pa.map_(TEXT, message)]))
        fields.append(Field(number, name, kind, children))
    return fields


nested_histories = st.lists(
    st.tuples(st.sampled_from(["g.A", "g.B"]), st.composite(nested_fields)(2)), min_size=1, max_size=4
)  # fmt: skip


@settings(max_examples=200)
@given(nested_histories)
def test_any_history_of_nested_messages_keeps_every_field_in_a_member_of_its_own_kind(history):
    columns = ColumnMap()
    for message, fields in history:
        columns = columns.with_message(message, fields)
    for message, fields in history:
        for found in field_columns({message: fields}, columns):
            kind = columns.columns[found.column.split(".")[0]]
            for member in found.column.split(".")[1:]:
                while not pa.types.is_struct(kind):
                    kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
                kind = kind.field(member).type
            assert kind_of(kind) == found.field.kind


# --- values find their column

VERSIONS = (
    "message P { double x = 1; } P p = 1; repeated P ps = 2; map<string, P> m = 3; uint64 n = 4;",
    "message P { double lon = 1; P2 q = 2; message P2 { uint64 u = 1; } } P p = 1; repeated P ps = 2; map<string, P> m = 3;",
)


def test_values_of_old_and_new_versions_stand_in_the_same_columns():
    texts = [f'syntax = "proto3"; package g; message Event {{ {body} }}' for body in VERSIONS]
    schemas = [compiled(text, 300 + i) for i, text in enumerate(texts)]
    columns = schema_of(*VERSIONS)
    plan = DecodePlan({s.schema_id: s for s in schemas}, frozenset((s.schema_id, (0,)) for s in schemas), {}, columns)
    old, new = (python_class(s) for s in schemas)
    values = [
        frame(300, (0,), old(p={"x": 1}, ps=[{"x": 2}, {}], m={"k": {"x": 3}}, n=2**64 - 1)),
        frame(301, (0,), new(p={"lon": 4, "q": {"u": 5}}, ps=[{"q": {}}], m={"k": {}})),
        frame(301, (0,), new()),
    ]
    decoded = BatchDecoder(plan).decode(pa.array(values, pa.binary()))
    rows = {i: row for at, _, table, _ in decoded.good for i, row in zip(at.tolist(), table.to_pylist(), strict=True)}
    assert rows == {
        0: {
            "p": {"x": 1, "q": None},
            "ps": [{"x": 2, "q": None}, {"x": 0, "q": None}],
            "m": [("k", {"x": 3, "q": None})],
            "n": 2**64 - 1,
        },
        1: {"p": {"x": 4, "q": {"u": 5}}, "ps": [{"x": 0, "q": {"u": 0}}], "m": [("k", {"x": 0, "q": None})]},
        2: {"p": None, "ps": [], "m": []},
    }


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("gamer\u202eid", "gamer_id"),
        ("\ufeffgame_name", "field_game_name"),
        ("a\x7fb", "a_b"),
        ("\x9b31mred", "field_31mred"),
        ("a\u200bb", "a_b"),
        ("gamer\xadid", "gamer_id"),
        ("gamer\xa0id", "gamer_id"),
        ("gamer\u3000id", "gamer_id"),
        ("game\u3164name", "game_name"),
        ("game\ufe0fname", "game_name"),
        ("game\U000e0020name", "game_name"),
        ("größe", "größe"),
        ("x" * 3_000, "x" * 200),
    ],
)
def test_a_name_that_looks_like_another_one_is_cleaned(name, column):
    columns = ColumnMap().with_message("m", [Field(name, name, pa.string())])
    assert list(columns.columns) == [column]


def test_a_column_keeps_the_name_that_it_was_given_before_names_were_cleaned():
    for name in ("gamer\u202eid", "x" * 3_000):
        key = field_key("m", (name,), "string")
        before = ColumnMap({name: pa.string()}, {key: name}, {key: name})
        stored = [(column, kind, before.metadata(column)) for column, kind in before.columns.items()]
        assert list(ColumnMap.from_metadata(stored).with_message("m", [Field(name, name, pa.string())]).columns) == [name]


def test_names_that_clean_alike_are_numbered_from_the_first_free_one():
    fields = [Field(name, name, pa.string()) for name in (" ", ",", ";", "{", "}", "(")]
    names = list(ColumnMap().with_message("m", fields).columns)
    assert names == ["field_", "field___string", *(f"field___string_{n}" for n in (2, 3, 4, 5))]
    long = [Field("x" * 300 + str(n), "x" * 300 + str(n), pa.string()) for n in range(3)]
    assert list(ColumnMap().with_message("m", long).columns) == ["x" * 200 + end for end in ("", "__string", "__string_2")]
