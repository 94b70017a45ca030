"""Avro schemas to columns: names, references, renames, what cannot be compiled."""

import json
import pickle
import re

import pyarrow as pa
import pytest

from game_events.decoding.avro_decoder import MAX_COLUMNS
from game_events.decoding.avro_schema import compile_avro, read_avro
from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, compile_schema, make_decoder
from game_events.decoding.schema_diff import _of_avro
from game_events.errors import DataError
from game_events_tests.support.decoding.format_helpers import decode_one, framed, plan_of, registered
from game_events_tests.support.decoding.helpers import decode, rows_by_position


def record(*fields, **more):
    return {"type": "record", "name": "g.Event", "fields": list(fields), **more}


def field(name, type_, **more):
    return {"name": name, "type": type_, **more}


def decoder_of(text, references=()):
    return make_decoder(compile_schema(registered("AVRO", text, references=references)), ())


def column_types(text, references=()):
    decoder = decoder_of(text, references)
    return dict(ColumnMap().with_message(decoder.message, decoder.fields).columns)


def test_the_message_is_the_records_full_name():
    assert decoder_of(record()).message == "g.Event"
    assert decoder_of({"type": "record", "name": "Event", "namespace": "a.b", "fields": []}).message == "a.b.Event"


@pytest.mark.parametrize(
    ("type_", "column"),
    [
        ("null", pa.bool_()),
        ("boolean", pa.bool_()),
        ("int", pa.int64()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bytes", pa.binary()),
        ("string", pa.string()),
        ({"type": "string", "avro.java.string": "String"}, pa.string()),
        (["null", "long"], pa.int64()),
        (["long"], pa.int64()),
        (["null"], pa.bool_()),
        ({"type": "fixed", "name": "F", "size": 3}, pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "array", "items": "int"}, pa.list_(pa.int64())),
        ({"type": "map", "values": "float"}, pa.map_(pa.string(), pa.float32())),
        (["null", "int", "string"], pa.struct([("int", pa.int64()), ("string", pa.string())])),
        ({"type": "record", "name": "Empty", "fields": []}, pa.bool_()),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int64()),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.timestamp("us", tz="UTC")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.string()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4}, pa.decimal128(38, 4)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 4}, pa.string()),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, pa.string()),
        # Logical types that are unknown or do not fit are ignored, as the specification says.
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal"}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": None}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2.0}, pa.binary()),
        ({"type": "array", "items": "int", "values": {"symbols": []}, "fields": [1]}, pa.list_(pa.int64())),
        ({"type": "int", "logicalType": "timestamp-micros"}, pa.int64()),
        ({"type": "fixed", "name": "D", "size": 11, "logicalType": "duration"}, pa.binary()),
        ({"type": "string", "logicalType": "regex"}, pa.string()),
    ],
)
def test_each_type_has_its_column(type_, column):
    assert column_types(record(field("x", type_))) == {"x": column}


def test_named_types_of_references_are_used_by_full_name_and_may_refer_to_each_other():
    references = (
        ("city", {"type": "record", "name": "geo.City", "fields": [field("name", "string")]}),
        ("place", {"type": "record", "name": "geo.Place", "fields": [field("city", "City"), field("next", "geo.City")]}),
    )
    city = pa.struct([("name", pa.string())])
    types = column_types(record(field("at", "geo.Place"), field("home", "geo.City")), references)
    assert types == {"at": pa.struct([("city", city), ("next", city)]), "home": city}
    assert decode_one("AVRO", record(field("home", "geo.City")), b"\x04ab", references) == {"home": {"name": "ab"}}


def test_the_schema_may_be_a_reference_alone():
    assert decoder_of('"geo.City"', (("city", {"type": "record", "name": "geo.City", "fields": []}),)).message == "geo.City"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no json", "its text"),
        ('"Missing"', "Missing"),
        (record(field("x", "g.Missing")), "Event.x: no type is named 'g.Missing'"),
        (record(field("x", {"type": "array"})), "Event.x: a array"),
        (record(field("x", [])), "Event.x: a union"),
        (record(field("x", ["int", "int"])), "Event.x: a union"),
        (record(field("x", ["null", ["int"]])), "Event.x: a union"),
        (record(field("x", "int"), field("x", "int")), "two fields"),
        (record(field("x", 5)), "Event.x: 5 is no type"),
        ({"type": "record", "name": "R"}, "R: a record without"),
        ({"type": "record", "fields": []}, "without a name"),
        ({"type": "enum", "name": "E"}, "E: an enum"),
        ({"type": "fixed", "name": "F", "size": -1}, "F: a fixed"),
        (record(field("x", record())), "defined twice"),
        ("[" * 100_000, "does not compile"),
        ("null", "no type"),
    ],
)
def test_a_text_that_is_no_schema_says_where(text, what):
    with pytest.raises(DataError, match="schema id 1 does not compile") as raised:
        compile_schema(registered("AVRO", text))
    assert what in str(raised.value)


def test_a_bad_reference_is_named():
    with pytest.raises(DataError, match="reference 'geo'"):
        compile_schema(registered("AVRO", record(), references=(("geo", "{"),)))


def test_a_schema_whose_types_double_with_every_level_is_refused_at_once():
    inner = "int"
    for level in range(40):
        fields = [field("a", inner), field("b", inner if isinstance(inner, str) else inner["name"])]
        inner = {"type": "record", "name": f"L{level}", "fields": fields}
    compiled = compile_schema(registered("AVRO", inner))
    with pytest.raises(DataError, match=str(MAX_COLUMNS)):
        make_decoder(compiled, ())


def test_a_compiled_schema_travels_to_the_workers():
    plan = plan_of(registered("AVRO", record(field("x", "int"))))
    decoded = BatchDecoder(pickle.loads(pickle.dumps(plan))).decode(pa.array([framed(b"\x02")], pa.binary()))  # noqa: S301
    assert rows_by_position(decoded) == {0: {"x": 1}}


def test_a_field_renamed_with_an_alias_stays_its_column():
    plan = plan_of(
        registered("AVRO", record(field("game", "string"), field("n", "int")), 1),
        registered("AVRO", record(field("title", "string", aliases=["game"]), field("n", "int")), 2),
        registered("AVRO", record(field("name", "string", aliases=["game", "title"])), 3),
    )
    decoded = decode(plan, [framed(b"\x02a\x02", 1), framed(b"\x02b\x04", 2), framed(b"\x02c", 3)])
    assert rows_by_position(decoded) == {0: {"game": "a", "n": 1}, 1: {"game": "b", "n": 2}, 2: {"game": "c"}}


def test_an_alias_that_is_another_fields_name_renames_nothing():
    both = record(field("game", "string", aliases=["title"]), field("title", "string"))
    assert decode_one("AVRO", both, b"\x02a\x02b") == {"game": "a", "title": "b"}
    claimed = record(field("a", "string", aliases=["x"]), field("b", "string", aliases=["x"]))
    assert decode_one("AVRO", claimed, b"\x02a\x02b") == {"a": "a", "b": "b"}


def test_a_field_that_changes_its_type_gets_a_column_of_its_own_and_one_that_is_added_or_dropped_is_null():
    plan = plan_of(
        registered("AVRO", record(field("x", "int"), field("in", record(field("a", "int"), name="In"))), 1),
        registered("AVRO", record(field("in", record(field("b", "string"), name="In")), field("x", "string")), 2),
        registered("AVRO", record(field("x", "long")), 3),
    )
    assert plan.columns.columns == {
        "x": pa.int64(),
        "in": pa.struct([("a", pa.int64()), ("b", pa.string())]),
        "x__string": pa.string(),
    }
    decoded = decode(plan, [framed(b"\x02\x04", 1), framed(b"\x02b\x02s", 2), framed(b"\x06", 3)])
    assert rows_by_position(decoded) == {
        0: {"x": 1, "in": {"a": 2, "b": None}},
        1: {"in": {"a": None, "b": "b"}, "x__string": "s"},
        2: {"x": 3},
    }


def test_a_decimal_that_gets_more_digits_is_a_new_column_with_a_name_that_tables_can_have():
    def decimal(precision, scale):
        return record(field("x", {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}))

    plan = plan_of(
        registered("AVRO", decimal(9, 2), 1), registered("AVRO", decimal(20, 0), 2), registered("AVRO", decimal(38, 9), 3)
    )
    assert plan.columns.columns == {
        "x": pa.decimal128(9, 2),
        "x__decimal": pa.decimal128(20, 0),
        "x__decimal_38_9": pa.decimal128(38, 9),
    }


def test_json_text_of_a_recursive_type_never_shares_a_column_with_plain_text():
    plan = plan_of(
        registered("AVRO", record(field("x", "string")), 1), registered("AVRO", record(field("x", ["null", "Event"])), 2)
    )
    decoded = decode(plan, [framed(b"\x02a", 1), framed(b"\x02\x00", 2)])
    assert rows_by_position(decoded) == {0: {"x": "a"}, 1: {"x__string": '{"x":null}'}}


def test_a_union_of_records_at_the_top_is_a_column_for_each():
    login, buy = record(field("user", "string"), name="g.Login"), record(field("price", "double"), name="g.Buy")
    plan = plan_of(registered("AVRO", ["null", login, buy]))
    decoded = decode(plan, [framed(b"\x02\x02u"), framed(b"\x04" + b"\0" * 8), framed(b"\x00")])
    assert rows_by_position(decoded) == {
        0: {"Login": {"user": "u"}, "Buy": None},
        1: {"Login": None, "Buy": {"price": 0.0}},
        2: {"Login": None, "Buy": None},
    }


def test_a_union_of_references_at_the_top_is_what_the_registrys_documentation_shows():
    references = (("a", record(field("x", "int"), name="a.T")), ("b", record(field("y", "int"), name="b.T")))
    types = column_types(["a.T", "b.T"], references)
    # Two branches with one short name: their full names, cleaned.
    assert types == {"a_T": pa.struct([("x", pa.int64())]), "b_T": pa.struct([("y", pa.int64())])}


@pytest.mark.parametrize(
    ("text", "payload", "value"),
    [
        ('"long"', b"\x02", 1),
        ({"type": "array", "items": "int"}, b"\x02\x02\x00", [1]),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x00", "A"),
    ],
)
def test_a_top_level_that_is_no_record_is_the_column_value(text, payload, value):
    assert decode_one("AVRO", text, payload) == {"value": value}


def test_types_nested_deeper_than_columns_go_are_json_text():
    inner = "int"
    for _ in range(40):
        inner = {"type": "array", "items": inner}
    row = decode_one("AVRO", record(field("x", inner)), b"\x02" * 40 + b"\x0e" + b"\x00" * 40)
    deep = row["x"]
    while isinstance(deep, list):
        (deep,) = deep
    assert isinstance(deep, str)
    deep = json.loads(deep)
    while isinstance(deep, list):
        (deep,) = deep
    assert deep == 7


def test_a_compiled_schema_has_only_what_decoding_needs():
    fields = [
        {
            "name": "a",
            "type": {"type": "long", "logicalType": "timestamp-millis", "x": "y"},
            "doc": "d" * 100,
            "aliases": ["b", "c"],
        },
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"], "default": "A", "namespace": "n"}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}, "default": "xxx"},
        {"name": "m", "type": {"type": "map", "values": ["null", {"type": "array", "items": "E", "doc": "x"}]}},
        {
            "name": "d",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2, "symbols": [1], "fields": []},
        },
    ]
    text = {"type": "record", "name": "R", "namespace": "n", "fields": fields, "x": [[]] * 1_000, "size": [[]]}
    made = compile_avro(registered("AVRO", text))
    assert dict(_of_avro(made.root)) == dict(_of_avro(read_avro(registered("AVRO", text))[0]))
    assert made.size < 600
    assert not {"doc", "x", "default"} & set(re.findall(r"\w+", made.text))


def test_a_namespace_that_is_null_stays_none():
    inner = record(name="Inner", namespace=None)
    schema = compile_schema(registered("AVRO", record(field("a", inner), field("b", record(name="Inner")), name="g.Event")))
    assert [f.type.name for f in schema.root.fields] == ["Inner", "g.Inner"]
