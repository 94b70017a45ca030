"""Maps in schemas and in message indexes: the types that they are made of, which some clients count and others do not."""

import pytest

from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import Reason, RegistrySchema, schema_guid
from game_events.errors import DataError
from game_events_tests.support.decoding.helpers import (
    decode,
    frame,
    plan_for,
    python_class,
    reasons_by_position,
    rows_by_position,
)
from game_events_tests.support.decoding.registered_forms import FORMS, in_form

TEXT = """syntax = "proto3"; package p;
message Event { map<string, int64> counters = 1; map<int32, Item> items = 2; Item item = 3;
  message Item { string name = 1; map<bool, string> flags = 2; message Part { string part = 1; } }
  message Last { int64 number = 1; } }"""
#: Message -> its index path if map entries count, and if they do not: entries come where the maps are.
PATHS = {"p.Event": ((0,), (0,)), "p.Event.Item": ((0, 2), (0, 0)), "p.Event.Item.Part": ((0, 2, 1), (0, 0, 0))}
PATHS |= {"p.Event.Last": ((0, 3), (0, 1))}


def registered(form, schema_id=1):
    text = compile_schema(RegistrySchema(schema_id, "PROTOBUF", TEXT))
    return compile_schema(RegistrySchema(schema_id, "PROTOBUF", in_form(form, TEXT, text.main_file)))


@pytest.mark.parametrize("form", FORMS)
def test_a_schema_with_maps_is_the_same_in_every_form(form):
    schema = registered(form)
    event = python_class(schema)
    message = event(counters={"a": 5}, items={7: {"name": "x", "flags": {True: "y"}}})
    decoded = decode(plan_for((schema, (0,))), [frame(1, (0,), message)])
    assert rows_by_position(decoded) == {
        0: {
            "counters": [("a", 5)],
            "items": [(7, {"name": "x", "flags": [(True, "y")]})],
            "item": None,
        }
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counted", [True, False])
def test_an_index_that_can_only_be_counted_one_way_finds_its_type(form, counted):
    """Entries are never records, and there is no type behind the last one."""
    schema = registered(form)
    (with_entries, without) = PATHS["p.Event.Last"]
    assert schema.name_of((0, 2)) == "p.Event.Item"
    path = with_entries if counted else without
    assert schema.name_of(path) == "p.Event.Last"
    assert schema.other_meaning(path) is None
    assert schema.name_of((0, 4)) is None


AMBIGUOUS = """syntax = "proto3"; package p;
message Outer { map<string, string> labels = 1; message A { string text = 1; }
  message B { string text = 1; int32 number = 2; } }"""


@pytest.mark.parametrize("form", FORMS)
def test_an_index_that_has_two_meanings_is_counted_as_the_registry_shows_the_schema(form):
    """With entries written down, or a descriptor, they count; where the text says `map<>`, they do not, as in Java's client."""
    text = compile_schema(RegistrySchema(1, "PROTOBUF", AMBIGUOUS))
    schema = compile_schema(RegistrySchema(1, "PROTOBUF", in_form(form, AMBIGUOUS, text.main_file)))
    assert schema.name_of((0, 1)) == ("p.Outer.B" if form == "text" else "p.Outer.A")
    assert schema.other_meaning((0, 1)) == ("p.Outer.A" if form == "text" else "p.Outer.B")
    assert schema.name_of((0, 0)) == "p.Outer.A"  # leads to the entry, or is counted without it
    assert schema.name_of((0, 2)) == "p.Outer.B"  # behind the last one, or is counted with it
    assert [schema.other_meaning(path) for path in ((0,), (0, 0), (0, 2))] == [None] * 3


def test_a_record_never_becomes_the_entry_of_a_map():
    schema = registered("descriptor")
    values = [b"\0\0\0\0\1" + bytes((2 * len(path), *(2 * i for i in path))) + b"\x08\x05" for path in ((0, 1), (0, 9))]
    decoded = decode(plan_for((schema, (0, 1))), values)
    assert rows_by_position(decoded) == {0: {"number": 5}}
    assert reasons_by_position(decoded) == {1: Reason.BAD_INDEX}


def test_a_schema_that_came_with_files_is_counted_as_its_records_were_written():
    """Their headers were made by this project, which counts entries whatever the text looks like."""
    guid = schema_guid("PROTOBUF", AMBIGUOUS)
    schema = compile_schema(RegistrySchema(guid, "PROTOBUF", AMBIGUOUS))
    assert schema.type_paths() == {"p.Outer": (0,), "p.Outer.A": (0, 1), "p.Outer.B": (0, 2)}
    assert all(schema.name_of(path) == name for name, path in schema.type_paths().items())


@pytest.mark.parametrize("form", FORMS)
def test_type_paths_lead_back_to_their_types(form):
    schema = registered(form)
    assert {schema.name_of(path): path for path in schema.type_paths().values()} == schema.type_paths()


@pytest.mark.parametrize(
    "entry",
    [
        "string key = 1;",
        "string key = 1; int64 value = 3;",
        "string name = 1; int64 value = 2;",
        "repeated string key = 1; int64 value = 2;",
        "string key = 1; int64 value = 2; message X {}",
    ],
)
def test_a_message_that_only_says_it_is_the_entry_of_a_map_is_refused(entry):
    text = f'syntax = "proto3"; message M {{ repeated E e = 1; message E {{ option map_entry = true; {entry} }} }}'
    with pytest.raises(DataError, match=r"M\.E has the option map_entry and is no entry of a map"):
        compile_schema(RegistrySchema(1, "PROTOBUF", text))


def test_texts_and_comments_that_look_like_the_option_are_none():
    text = """syntax = "proto2"; message M { // option map_entry = true;
        /* option map_entry = true; */ optional string s = 1 [default = "option map_entry = true;"]; }"""
    schema = compile_schema(RegistrySchema(1, "PROTOBUF", text))
    assert not schema.counts_entries
    assert python_class(schema)().s == "option map_entry = true;"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("confluent/meta.proto", "confluent.Meta"), ("confluent/type/decimal.proto", "confluent.type.Decimal")],
)
def test_files_that_confluents_serializers_know_need_no_reference(name, kind):
    text = f'syntax = "proto3"; import "{name}"; message E {{ string a = 1; {kind} other = 2; }}'
    assert (
        compile_schema(RegistrySchema(1, "PROTOBUF", text)).message((0,)).fields_by_name["other"].message_type.full_name == kind
    )


def test_tags_of_confluents_data_contracts_compile_in_text_and_in_a_descriptor():
    text = """syntax = "proto3"; import "confluent/meta.proto";
        message E { string a = 1 [(confluent.field_meta) = { tags: ["PII"], params: [{ key: "k", value: "v" }] }]; }"""
    schema = compile_schema(RegistrySchema(1, "PROTOBUF", text))
    again = compile_schema(RegistrySchema(1, "PROTOBUF", in_form("descriptor", text, schema.main_file)))
    assert [s.message((0,)).fields_by_name["a"].number for s in (schema, again)] == [1, 1]
