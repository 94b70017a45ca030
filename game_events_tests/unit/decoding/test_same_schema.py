"""Two texts of one id are compared by what they decode, and a difference is said in words."""

import json

import pytest

from game_events.decoding import schema_diff
from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.schema_diff import difference
from game_events_tests.support.decoding.registered_forms import in_form

AVRO = {
    "type": "record", "namespace": "acme", "name": "Ev", "doc": "an event",
    "fields": [
        {"name": "game", "type": "string", "default": "none"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "aliases": ["time"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 3}]},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "again", "type": ["null", "Ev"]}]}},
    ],
}  # fmt: skip
JSON = {
    "title": "Ev", "type": "object", "description": "an event",
    "properties": {"game": {"type": "string", "maxLength": 10}, "many": {"type": "array", "items": {"type": "integer"}}},
}  # fmt: skip
PROTO = """syntax = "proto3"; package t; import "google/protobuf/timestamp.proto"; import "other.proto";
message Ev { string game = 1; google.protobuf.Timestamp at = 2; map<string, Other> many = 3; Kind kind = 4;
  repeated int32 n = 5;
  enum Kind { A = 0; B = 1; } message Inner { Ev again = 1; } Inner inner = 6; }
message Second {}"""
OTHER = ("other.proto", 'syntax = "proto3"; package t; message Other { string a = 1; }')


def avro(**changed):
    return RegistrySchema(1, "AVRO", json.dumps(AVRO | changed))


def with_field(number, **changed):
    fields = [dict(f) for f in AVRO["fields"]]
    fields[number] |= changed
    return avro(fields=fields)


def document(text=None, **changed):
    return RegistrySchema(1, "JSON", text or json.dumps(JSON | changed))


def proto(text=PROTO, references=(OTHER,)):
    return RegistrySchema(1, "PROTOBUF", text, references)


def form(name):
    return proto(in_form(name, PROTO, compile_schema(proto()).main_file))


FULL = (
    json.dumps(AVRO | {"name": "acme.Ev", "namespace": ""}).replace('"Kind"', '"acme.Kind"').replace('"Inner"', '"acme.Inner"')
)
SAME = {
    "Avro, keys in another order": lambda: (avro(), RegistrySchema(1, "AVRO", json.dumps(AVRO, sort_keys=True, indent=3))),
    "Avro, full names": lambda: (avro(), RegistrySchema(1, "AVRO", FULL.replace('"Ev"', '"acme.Ev"'))),
    "Avro, other comments": lambda: (avro(), avro(doc="of another team")),
    "Avro, other defaults, which are for readers": lambda: (avro(), with_field(0, default="x")),
    "JSON, keys in another order": lambda: (document(), document(json.dumps(JSON, sort_keys=True, indent=1))),
    "JSON, numbers spelled otherwise": lambda: (document(), document(json.dumps(JSON).replace("10", "1.0e1"))),
    "JSON, other comments and bounds": lambda: (document(), document(description="x", minProperties=1)),
    "protobuf as a descriptor": lambda: (proto(), form("descriptor")),
    "protobuf as Confluent's registry writes it": lambda: (proto(), form("converted")),
    "protobuf, imports in another order": lambda: (
        proto(), proto(PROTO.replace('import "other.proto";', "").replace("package", 'import "other.proto"; package'))),
    "protobuf, options and comments": lambda: (
        proto(),
        proto(PROTO.replace("game = 1", 'game = 1 [json_name = "g", deprecated = true]').replace("message", "/**/ message"))),
    "protobuf, types with a leading dot": lambda: (proto(), proto(PROTO.replace("string, Other", "string, .t.Other"))),
    "protobuf, a lost reference": lambda: (proto(), proto(PROTO + "\n", ())),
    "neither compiles": lambda: (proto("message"), proto("message {")),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_another_spelling_is_no_difference(what):
    one, other = SAME[what]()
    assert (one.text, one.references) != (other.text, other.references)
    assert difference(one, other) is None
    assert difference(other, one) is None


def changed(old, new):
    assert old in PROTO
    return proto(PROTO.replace(old, new))


CHOICE = 'syntax = "proto2"; package t; message M { %s } enum E { A = 0; }'
OTHERS = {
    "format": (avro, document, "its format is JSON instead of AVRO"),
    "Avro name": (avro, lambda: RegistrySchema(1, "AVRO", json.dumps(AVRO).replace('"Ev"', '"Other"')),
        "its type is record acme.Other instead of record acme.Ev"),
    "Avro type": (avro, lambda: with_field(0, type="bytes"), "field 0 of acme.Ev is bytes game instead of string game"),
    "Avro logical type": (
        avro, lambda: with_field(1, type="long"),
        "field 1 of acme.Ev is long at (once time) instead of long (timestamp-millis) at (once time)"),
    "Avro alias": (
        avro, lambda: with_field(1, aliases=["day"]),
        "field 1 of acme.Ev is long (timestamp-millis) at (once day) instead of long (timestamp-millis) at (once time)"),
    "Avro symbols": (
        avro, lambda: with_field(2, type={"type": "enum", "name": "Kind", "symbols": ["A", "C"]}),
        "symbol 1 of the enum acme.Kind is C instead of B"),
    "Avro decimal": (
        avro, lambda: with_field(3, type=["null", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}]),
        "type 1 in field 3 of acme.Ev is bytes (decimal(5, 2)) instead of bytes (decimal(5, 3))"),
    "Avro branches": (
        avro, lambda: with_field(3, type=["null"]),
        "type 1 in field 3 of acme.Ev is nothing instead of bytes (decimal(5, 3))"),
    "Avro field": (
        avro, lambda: avro(fields=AVRO["fields"][:4]),
        "field 4 of acme.Ev is nothing instead of record acme.Inner inner"),
    "JSON title": (document, lambda: document(title="X"), "its title is X instead of Ev"),
    "JSON type": (document, lambda: document(type="array"), "the document is text instead of struct"),
    "JSON items": (
        document, lambda: document(properties=JSON["properties"] | {"many": {"type": "array", "items": {"type": "string"}}}),
        "an item of 'many' of the document is string instead of integer"),
    "protobuf type": (
        proto, lambda: changed("string game", "bytes game"),
        "field 1 of t.Ev is bytes game instead of string game"),
    "protobuf number": (
        proto, lambda: changed("game = 1", "game = 9"),
        "field 1 of t.Ev is nothing instead of string game"),
    "protobuf presence": (
        proto, lambda: changed("string game", "optional string game"),
        "field 1 of t.Ev is optional string game instead of string game"),
    "protobuf enum": (proto, lambda: changed("B = 1", "C = 1"), "1 of the enum t.Ev.Kind is C instead of B"),
    "protobuf map": (
        proto, lambda: changed("map<string, Other>", "map<string, bytes>"),
        "field 2 of t.Ev.ManyEntry is bytes value instead of optional t.Other value"),
    "protobuf order": (
        proto, lambda: proto(PROTO.replace("message Ev", "message First {} message Ev")),
        "message index [0] is t.First instead of t.Ev"),
    "protobuf reference": (
        proto, lambda: proto(references=((OTHER[0], OTHER[1].replace("string a", "string b")),)),
        "field 1 of t.Other is string b instead of string a"),
    "protobuf oneof": (
        lambda: proto(CHOICE % "oneof x { int32 a = 1; int32 b = 2; }", ()),
        lambda: proto(CHOICE % "optional int32 a = 1; optional int32 b = 2;", ()),
        "field 1 of t.M is optional int32 a instead of optional int32 a (one of the fields 1, 2)"),
    "protobuf closed enum": (
        lambda: proto(CHOICE % "optional E a = 1;", ()),
        lambda: proto((CHOICE % "optional E a = 1;").replace("proto2", "proto3"), ()),
        "the enum t.E is open instead of closed"),
    "protobuf message set": (
        lambda: proto(CHOICE % "extensions 4 to 99;", ()),
        lambda: proto(CHOICE % "option message_set_wire_format = true; extensions 4 to 99;", ()),
        "the encoding of t.M is that of a message set instead of that of messages"),
    "a text that is broken now": (proto, lambda: proto("message {"), "the new text does not compile"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_a_difference_names_the_field_and_both_types(what):
    one, other, words = OTHERS[what]
    found = difference(one(), other())
    assert found is not None
    assert words in found


def test_equal_texts_are_not_compiled(monkeypatch):
    monkeypatch.setattr(schema_diff, "compile_schema", None)
    assert difference(proto(), proto()) is None
    assert difference(proto(), proto(references=())) is None
