"""What a schema version changed in the values of enums; `test_column_map.py` has changes of fields."""

import json

import pytest

from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.plugins.catalog.schema_history import compare_enums
from game_events_tests.support.decoding.helpers import compiled
from game_events_tests.support.decoding.registered_forms import FORMS, in_form

HEAD = 'syntax = "proto3"; package e; message Event { Mood mood = 1; map<string, int64> m = 2; '
OLD = HEAD + "enum Mood { NONE = 0; HAPPY = 1; BORED = 2; } } enum Size { SMALL = 0; }"
NEW = HEAD + "enum Mood { NONE = 0; CHEERFUL = 1; SAD = 3; } } enum Size { SMALL = 0; } enum Colour { RED = 0; }"


def enums(text, schema_id, form="text"):
    plain = compiled(text, schema_id)
    return compile_schema(RegistrySchema(schema_id, "PROTOBUF", in_form(form, text, plain.main_file))).enums()


def told(old, new):
    return [(str(c.kind), c.message, c.field, c.before, c.after, c.effect) for c in compare_enums(old, new)]


@pytest.mark.parametrize("form", FORMS)
def test_values_that_were_renamed_removed_or_added_are_told_by_their_numbers(form):
    assert told(enums(OLD, 711, form), enums(NEW, 712, form)) == [
        (
            "enum value renamed", "e.Event.Mood", "CHEERFUL", "HAPPY = 1", "CHEERFUL = 1",
            "rows of this version hold CHEERFUL, older rows keep HAPPY",
        ),
        ("enum value removed", "e.Event.Mood", "BORED", "BORED = 2", None, "older rows keep BORED"),
        ("enum value added", "e.Event.Mood", "SAD", None, "SAD = 3", "rows of this version may hold SAD"),
    ]  # fmt: skip
    assert told(enums(NEW, 712, form), enums(NEW, 712, form)) == []


def test_of_values_with_one_number_the_first_counts_as_it_is_the_one_that_is_stored():
    text = 'syntax = "proto3"; enum E {{ option allow_alias = true; {} }}'
    old = enums(text.format("A = 0; B = 0;"), 713)
    assert told(old, enums(text.format("A = 0; B = 0; C = 0;"), 714)) == []
    assert [row[:3] for row in told(old, enums(text.format("B = 0; A = 0;"), 715))] == [("enum value renamed", "E", "B")]


def test_enums_of_imported_files_are_compared_too():
    main = 'syntax = "proto3"; import "kinds.proto"; message Event { Kind kind = 1; }'
    one, two = (
        compiled(main, n, (("kinds.proto", f'syntax = "proto3"; enum Kind {{ A = 0; {more} }}'),)).enums()
        for n, more in ((716, "B = 1;"), (717, "X = 1;"))
    )
    assert [row[:5] for row in told(one, two)] == [("enum value renamed", "Kind", "X", "B = 1", "X = 1")]


def test_symbols_of_avro_are_added_and_removed_wherever_the_enum_stands():
    def schema(schema_id, symbols):
        kind = {"type": "enum", "name": "Kind", "symbols": symbols}
        fields = [
            {"name": "kinds", "type": {"type": "map", "values": ["null", {"type": "array", "items": kind}]}},
            {"name": "inner", "type": ["null", "a.Event"]},
        ]
        text = json.dumps({"type": "record", "name": "a.Event", "fields": fields})
        return compile_schema(RegistrySchema(schema_id, "AVRO", text)).enums()

    assert told(schema(718, ["SMALL", "LARGE"]), schema(719, ["LARGE", "HUGE"])) == [
        ("enum value removed", "a.Kind", "SMALL", "SMALL", None, "older rows keep SMALL"),
        ("enum value added", "a.Kind", "HUGE", None, "HUGE", "rows of this version may hold HUGE"),
    ]


def test_a_json_schema_has_no_enums_with_names():
    text = json.dumps({"title": "E", "properties": {"kind": {"enum": ["a", "b"]}}})
    assert compile_schema(RegistrySchema(720, "JSON", text)).enums() == {}
