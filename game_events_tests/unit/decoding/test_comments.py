"""What schemas say of their fields."""

import json

import pytest

from game_events.decoding.comments import MAX_CHARS, clean, read_comments
from game_events.decoding.frame import RegistrySchema

PROTO = """syntax = "proto3"; package t;
import "place.proto";
// An event of a game.
message Event {
  // The game,
  // by its short name.
  string game_name = 1;
  int32 score = 2;  // points
  Place place = 3;
  map<string, Place> places = 4;
  repeated Inner many = 5;
  message Inner {
    /* the inner one */
    string city = 1;
  }
}"""
PLACE = """syntax = "proto3"; package t; message Place {
  // the city
  string city = 1;
  Place parent = 2;
}"""
AVRO = {
    "type": "record", "name": "Event", "namespace": "t", "doc": "An event of a game.",
    "fields": [
        {"name": "game_name", "type": "string", "doc": "The game,\n by its short name."},
        {"name": "score", "type": ["null", "long"], "doc": "points"},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [
            {"name": "city", "type": "string", "doc": "the city"}, {"name": "parent", "type": ["null", "Place"]}]}},
        {"name": "places", "type": {"type": "map", "values": "Place"}},
        {"name": "many", "type": {"type": "array", "items": {"type": "record", "name": "Inner", "fields": [
            {"name": "city", "type": "string", "doc": "the inner one"}]}}},
    ],
}  # fmt: skip
_PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "the city"}, "parent": {"$ref": "#/$defs/P"}},
}
JSON = {
    "title": "t.Event", "description": "An event of a game.", "type": "object", "$defs": {"P": _PLACE},
    "properties": {
        "game_name": {"type": "string", "description": "The game, by its short name."},
        "score": {"type": ["null", "integer"], "description": "points"},
        "place": {"$ref": "#/$defs/P"},
        "places": {"type": "object", "additionalProperties": {"$ref": "#/$defs/P"}},
        "many": {"type": "array", "items": {"type": "object", "properties": {"city": {"description": "the inner one"}}}},
    },
}  # fmt: skip
SCHEMAS = {
    "PROTOBUF": RegistrySchema(1, "PROTOBUF", PROTO, (("place.proto", PLACE),)),
    "AVRO": RegistrySchema(1, "AVRO", json.dumps(AVRO), ()),
    "JSON": RegistrySchema(1, "JSON", json.dumps(JSON), ()),
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_each_formats_comments_are_found_nested_ones_too(kind):
    comments = read_comments(SCHEMAS[kind])
    said = {
        (): "An event of a game.",
        ("game_name",): "The game, by its short name.",
        ("score",): "points",
        ("place",): "",
        ("place", "city"): "the city",
        ("place", "parent", "city"): "the city",
        ("places", "city"): "the city",
        ("many", "city"): "the inner one",
        ("not_there",): "",
        ("score", "not_there"): "",
    }
    assert {names: clean(comments.of("t.Event", names)) for names in said} == said
    assert comments.of("t.Other", ("game_name",)) == ""


@pytest.mark.parametrize("schema", [RegistrySchema(1, kind, "nonsense {", ()) for kind in (*SCHEMAS, "XML")])
def test_a_schema_that_cannot_be_read_has_no_comments(schema):
    assert read_comments(schema).of("t.Event", ("a",)) == ""


def test_hostile_comments_are_short_single_lines_without_anything_invisible():
    assert clean("a\x00b\r\n\t c\u202e\u200bd\x1b[31m") == "a b c d [31m"
    assert clean("half a pair \ud800") == "half a pair"
    long = clean("word " * 1_000_000)
    assert len(long) <= MAX_CHARS
    assert long.endswith("...")
    assert [clean(x) for x in (None, 3, ["a"], {}, "", " \n ")] == [""] * 6
