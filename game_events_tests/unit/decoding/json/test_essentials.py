"""Of a large JSON Schema only what decoding needs is kept, and what is decoded is the same."""

import json

import pytest

from game_events.decoding.frame import RegistrySchema
from game_events.decoding.json import schema
from game_events.decoding.json.schema import JsonSchema, compile_json, json_type

JUNK = {"examples": [[]] * 10_000, "description": "x" * 20_000, "x-own": {"a": {"type": "string"}}, "default": {"type": 1}}
CASES = {
    "plain": {"properties": {"a": {"type": "integer", **JUNK}, "b": {"enum": ["x", 1, None]}, "c": {"const": {"a": 1}}}},
    "names like keywords": {"properties": {"examples": {"type": "string"}, "description": {"type": "boolean"}, "enum": True}},
    "references": {
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/l/2/x"}, "c": {"$ref": "#named"},
                       "d": {"$ref": "other"}},
        "$defs": {
            "unused": {"properties": {"z": {"$ref": "#/$defs/A"}}},
            "A": {"properties": {"again": {"$ref": "#/$defs/A"}, "n": {"type": "number"}}},
            "l": [1, {"type": "string"}, {"x": {"type": "array", "items": {"format": "date", "type": "string"}}}],
            "n": {"$anchor": "named", "type": ["null", "string"], "format": "date-time"},
        },
    },
    "addresses": {
        "$id": "http://h/root", "properties": {"a": {"$ref": "inner#/deep"}},
        "x": {"$id": "inner", "y": 1, "deep": {"$ref": "#/more"}, "more": {"type": "boolean"}},
    },
    "choices": {
        "oneOf": [{"properties": {"a": {"type": "string"}}}, {"type": "null"}, False],
        "allOf": [True, {"properties": {"b": {}}}],
        "properties": {"m": {"type": "object", "additionalProperties": {"type": "integer"}}},
    },
    "presence": {
        "properties": {
            "t": {"prefixItems": [{"type": "string"}], "items": False},
            "p": {"patternProperties": {"x": {}}, "additionalProperties": {"type": "string"}},
            "e": {"properties": {}}, "l": {"items": [{"type": "string"}]}, "any": {"items": {}}, "no": {"allOf": [False]},
        }
    },
}  # fmt: skip
OTHER = ("other", json.dumps({"type": "object", "properties": {"x": {"type": "string"}}, **JUNK}))


@pytest.mark.parametrize("case", CASES)
def test_what_decoding_needs_is_kept_and_nothing_else(case):
    text = json.dumps({"title": "T", "type": "object", **CASES[case], **JUNK})
    whole = JsonSchema(1, text, (OTHER,))
    made = compile_json(RegistrySchema(1, "JSON", text, (OTHER,)))
    assert made.size < 1_500
    assert made.message == "T"
    assert json_type(made) == json_type(whole)
    assert "xxxx" not in made.text


def test_a_small_schema_stays_as_it_is_and_so_does_one_whose_reduced_form_decodes_otherwise(monkeypatch):
    small = RegistrySchema(1, "JSON", json.dumps({"type": "object", "description": "x"}))
    assert compile_json(small).text == small.text
    monkeypatch.setattr(schema, "_text", lambda *_: "{}")
    large = RegistrySchema(1, "JSON", json.dumps({"title": "T", "type": "object", **JUNK}))
    assert compile_json(large).text == large.text
