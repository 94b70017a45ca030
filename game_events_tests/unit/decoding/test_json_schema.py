"""JSON Schemas to columns: types, references, names that no table can have, what cannot be compiled."""

import json
import pickle

import pyarrow as pa
import pytest

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, compile_schema, make_decoder
from game_events.decoding.json_schema import MAX_COLUMNS, SchemaText, json_type
from game_events.errors import DataError
from game_events_tests.support.decoding.format_helpers import decode_one, framed, plan_of, registered
from game_events_tests.support.decoding.helpers import decode, rows_by_position

INTEGER, STRING = {"type": "integer"}, {"type": "string"}
X_AND_Y = pa.struct([("x", pa.int64()), ("y", pa.string())])
LISTS = pa.map_(pa.string(), pa.list_(pa.string()))
TIME = pa.timestamp("us", tz="UTC")


def decoder_of(text, references=()):
    return make_decoder(compile_schema(registered("JSON", text, references=references)), ())


def column_types(text, references=()):
    decoder = decoder_of(text, references)
    return dict(ColumnMap().with_message(decoder.message, decoder.fields).columns)


def with_x(schema, **more):
    return {"type": "object", "properties": {"x": schema}, **more}


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (INTEGER, pa.int64()),
        ({"type": "number"}, pa.float64()),
        (STRING, pa.string()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string", "format": "date-time"}, TIME),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "email"}, pa.string()),
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": "null"}, pa.string()),
        ({"oneOf": [{"type": "null"}, INTEGER]}, pa.int64()),
        ({"anyOf": [{"type": "string", "format": "date-time"}, {"const": None}]}, TIME),
        ({"oneOf": [{"type": "null"}, {"type": "array", "items": INTEGER}]}, pa.list_(pa.int64())),
        ({"oneOf": [INTEGER, STRING]}, pa.string()),
        ({"oneOf": [INTEGER, INTEGER]}, pa.int64()),
        ({"anyOf": [with_x(INTEGER), with_x(STRING)]}, pa.struct([("x", pa.string())])),
        ({"oneOf": [with_x(INTEGER), {"properties": {"y": STRING}}]}, X_AND_Y),
        (with_x(INTEGER, oneOf=[{"required": ["x"]}, {"properties": {"y": STRING}}]), X_AND_Y),
        ({"enum": ["a", "b"]}, pa.string()),
        ({"enum": [1, 2, None]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"enum": [1, "a"]}, pa.string()),
        ({"const": True}, pa.bool_()),
        ({"allOf": [with_x(INTEGER), {"properties": {"y": STRING}}]}, X_AND_Y),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": "number"}]}, pa.int64()),
        ({"allOf": [INTEGER, STRING]}, pa.string()),
        ({"type": "object", "additionalProperties": INTEGER}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object", "additionalProperties": {"type": "array", "items": STRING}}, LISTS),
        ({"type": "object", "additionalProperties": False}, pa.string()),
        ({"type": "object"}, pa.string()),
        ({"type": "object", "patternProperties": {"^a": INTEGER}}, pa.string()),
        ({"type": "array"}, pa.string()),
        ({"type": "array", "items": [INTEGER, STRING]}, pa.string()),
        ({"type": "array", "prefixItems": [INTEGER], "items": INTEGER}, pa.string()),
        ({"type": "array", "items": with_x(INTEGER)}, pa.list_(pa.struct([("x", pa.int64())]))),
        ({"type": "array", "items": {}}, pa.list_(pa.string())),
        ({}, pa.string()),
        (True, pa.string()),
        (False, pa.string()),
        ({"type": "what"}, pa.string()),
    ],
)  # fmt: skip
def test_each_schema_has_its_column(schema, column):
    assert column_types(with_x(schema)) == {"x": column}


@pytest.mark.parametrize(
    ("top", "name"),
    [
        ({"title": "Event"}, "Event"),
        ({"title": "Event", "$id": "http://e/x.json"}, "Event"),
        ({"$id": "http://e/x.json#"}, "http://e/x.json"),
        ({"id": "http://e/draft4"}, "http://e/draft4"),
        ({"title": "a#b"}, "a_b"),
        ({"title": "#"}, "json"),
        ({"title": 5}, "json"),
        ({}, "json"),
    ],
)
def test_the_message_is_the_title_or_the_id_and_holds_no_hash(top, name):
    assert decoder_of(with_x(INTEGER) | top).message == name


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("#/definitions/a", {}),
        ("#/$defs/b~1c%25", {}),
        ("#/properties/y/items/0", {}),
        ("#named", {}),
        ("#old", {}),
        ("other.json", {}),
        ("other.json#/definitions/deep", {}),
        ("http://e/other.json", {}),
        ("inner", {"$id": "http://e/main.json"}),
        ("other.json", {"$id": "http://e/main.json"}),
        ("#/definitions/again", {}),
    ],
)
def test_references_lead_to_definitions_names_and_addresses(reference, more):
    main = with_x({"$ref": reference}) | more
    main["definitions"] = {"a": INTEGER, "n": {"$anchor": "named"} | INTEGER, "o": {"$id": "#old"} | INTEGER}
    main["definitions"] |= {"again": {"$ref": "#/definitions/a"}, "i": {"$id": "http://e/inner"} | INTEGER}
    main["$defs"] = {"b/c%": INTEGER}
    main["properties"]["y"] = {"type": "array", "items": [INTEGER]}
    other = {"$id": "http://e/other.json", "$ref": "#/definitions/deep", "definitions": {"deep": {"$ref": "far"}}}
    references = (("far", {"$id": "http://e/far", **INTEGER}), ("other.json", other))
    assert column_types(main, references)["x"] == pa.int64()


def test_a_local_reference_inside_a_reference_means_its_own_document():
    other = {"properties": {"a": {"$ref": "#/definitions/t"}}, "definitions": {"t": STRING}}
    main = with_x({"$ref": "other"}, definitions={"t": INTEGER})
    assert column_types(main, (("other", other),)) == {"x": pa.struct([("a", pa.string())])}


@pytest.mark.parametrize("reference", ["#/definitions/none", "#none", "missing.json", "#/properties/x/5"])
def test_a_reference_that_leads_nowhere_is_named(reference):
    with pytest.raises(DataError, match=r"schema id 1 does not compile: .ref .* leads nowhere") as raised:
        compile_schema(registered("JSON", with_x({"$ref": reference})))
    assert reference in str(raised.value)


@pytest.mark.parametrize("text", ["{", "5", "[]", "[" * 100_000, '{"properties":{"\\ud800":{}}}', '{"properties":{"x":5}}'])
def test_a_text_that_is_no_schema_says_so(text):
    with pytest.raises(DataError, match="schema id 1 does not compile"):
        compile_schema(registered("JSON", text))


def test_definitions_that_refer_to_themselves_are_json_text_where_they_begin_again():
    tree = {"$ref": "#/$defs/t", "$defs": {"t": with_x(INTEGER) | {"properties": {"x": INTEGER, "in": {"$ref": "#/$defs/t"}}}}}
    assert column_types(tree) == {"x": pa.int64(), "in": pa.string()}
    assert decode_one("JSON", tree, b'{"x":1,"in":{"x":2,"in":null}}') == {"x": 1, "in": '{"x":2,"in":null}'}
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert column_types(loop) == {"value": pa.string()}


def test_a_definition_that_is_used_again_below_is_not_taken_for_recursion():
    base = {"properties": {"id": INTEGER}}
    schema = {"$defs": {"base": base}, "allOf": [{"$ref": "#/$defs/base"}], "properties": {"in": {"$ref": "#/$defs/base"}}}
    assert column_types(schema) == {"in": pa.struct([("id", pa.int64())]), "id": pa.int64()}


def test_a_schema_whose_types_double_with_every_level_is_refused_at_once():
    definitions = {"d0": INTEGER}
    for level in range(1, 30):
        inner = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    with pytest.raises(DataError, match=str(MAX_COLUMNS)):
        compile_schema(registered("JSON", {"$ref": "#/$defs/d29", "$defs": definitions}))


@pytest.mark.parametrize(
    ("schema", "document", "value"),
    [
        (INTEGER, b"5", 5),
        (INTEGER, b"null", None),
        ({"type": "array", "items": STRING}, b'["a"]', ["a"]),
        ({"type": "object"}, b'{"a": 1.50}', '{"a":1.50}'),
        ({"type": "object", "additionalProperties": INTEGER}, b'{"a":1}', [("a", 1)]),
        (True, b"[1, 2]", "[1,2]"),
    ],
)
def test_a_top_level_that_is_no_object_with_members_is_the_column_value(schema, document, value):
    assert decode_one("JSON", schema, document) == {"value": value}


def test_names_that_no_table_can_have_are_cleaned_and_stay_apart():
    names = ["a b", "a.b", "a,b", "", "😀", "_id", "A B", "x=`y`", "back\\slash", "line\nbreak", "ordinary"]
    schema = {"type": "object", "properties": dict.fromkeys(names, INTEGER)}
    schema["properties"]["in"] = {"type": "array", "items": {"type": "object", "properties": dict(schema["properties"])}}
    document = {name: number for number, name in enumerate(names)}
    row = decode_one("JSON", schema, json.dumps(document | {"in": [document]}).encode())
    (inner,) = row.pop("in")
    for cleaned in (row, inner):
        # Each value once, in the order of the names; no two names that a reader without case would take for one.
        assert list(cleaned.values()) == list(range(len(names)))
        assert len({name.lower() for name in cleaned}) == len(names)
        assert all(name and name[0] != "_" and not set(" ,;{}()\n\t=.`") & set(name) for name in cleaned)
    assert list(row) == list(inner)
    assert {"a_b", "field", "😀", "field_id", "ordinary"} <= set(row)


def test_names_that_clean_alike_stay_apart_when_their_object_becomes_a_list():
    inner = {"type": "object", "properties": dict.fromkeys(["p q", "p.q", "p;q"], INTEGER)}
    more = {"type": "object", "properties": dict.fromkeys(["p,q", "p q", "p.q", "p;q"], INTEGER)}
    versions = [{"title": "E", **with_x(inner)}, {"title": "E", **with_x({"type": "array", "items": more})}]
    plan = plan_of(*(registered("JSON", version, number) for number, version in enumerate(versions)))
    row = rows_by_position(decode(plan, [framed(b'{"x":[{"p,q":0,"p q":1,"p.q":2,"p;q":3}]}', 1)]))[0]
    assert list(row["x__array"][0].values()) == [0, 1, 2, 3]


def test_the_map_of_cleaned_names_comes_back_from_the_tables_metadata():
    names = ["a b", "a.b", "a#b", "a:b", "a~1b"]
    plan = plan_of(registered("JSON", {"title": "E", "type": "object", "properties": {n: with_x(INTEGER) for n in names}}))
    columns = plan.columns
    stored = [(name, kind, columns.metadata(name)) for name, kind in columns.columns.items()]
    assert ColumnMap.from_metadata(stored) == columns
    assert len(columns.columns) == len(names)


def test_a_member_that_changes_its_type_gets_a_column_of_its_own():
    one, two = {"title": "E", **with_x(INTEGER)}, {"title": "E", **with_x(STRING)}
    free = {"title": "E", **with_x({"type": ["string", "integer"]})}
    plan = plan_of(registered("JSON", one, 1), registered("JSON", two, 2), registered("JSON", free, 3))
    decoded = decode(plan, [framed(b'{"x":1}', 1), framed(b'{"x":"1"}', 2), framed(b'{"x":"1"}', 3), framed(b'{"x":1}', 3)])
    # JSON text and plain text are told apart: `1` could be either.
    assert rows_by_position(decoded) == {
        0: {"x": 1},
        1: {"x__string": "1"},
        2: {"x__string_2": '"1"'},
        3: {"x__string_2": "1"},
    }


def test_a_compiled_schema_travels_to_the_workers():
    plan = plan_of(registered("JSON", with_x({"$ref": "o"}), references=(("o", INTEGER),)))
    decoded = BatchDecoder(pickle.loads(pickle.dumps(plan))).decode(pa.array([framed(b'{"x":1}')], pa.binary()))  # noqa: S301
    assert rows_by_position(decoded) == {0: {"x": 1}}


def test_a_compiled_schema_is_only_the_type_of_its_documents():
    junk = {"examples": [[]] * 1_000, "description": "x" * 1_000, "default": {"type": 1}}
    tree = with_x({"$ref": "other"}, **junk)["properties"] | {"l": {"type": "array", "items": {"type": ["null", "number"]}}}
    text = registered("JSON", {"title": "T", "type": "object", "properties": tree, **junk}, references=(("other", STRING),))
    made = compile_schema(text)
    assert (made.message, json.loads(made.text)) == ("T", {"x": "string", "l": ["list", "number"]})
    assert made.type == json_type(SchemaText(text))
