"""Every change between two schema versions: which columns there are, what old and new rows hold (docs/decoding.md)."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from game_events.decoding.decoder import BatchDecoder
from game_events_tests.support.decoding.helpers import compiled, frame, plan_for, python_class, rows_by_position

DOCS = Path(__file__).parents[3] / "docs" / "decoding.md"
AT = datetime(2026, 1, 2, tzinfo=UTC)


HEAD = 'syntax = "proto3"; package v;'


def message(body, *, head=HEAD, name="Event", more=""):
    return f"{head} message {name} {{ {body} }} {more}"


# change -> (old schema, new schema, message in each version as keyword arguments, old row, new row)
INNER = "message Inner { int32 a = 1; }"
CHANGES = {
    "field added": (
        message("string a = 1;"), message("string a = 1; string b = 2;"),
        {"a": "x"}, {"a": "y", "b": "z"}, {"a": "x", "b": None}, {"a": "y", "b": "z"},
    ),
    "field removed": (
        message("string a = 1; string b = 2;"), message("string a = 1;"),
        {"a": "x", "b": "z"}, {"a": "y"}, {"a": "x", "b": "z"}, {"a": "y", "b": None},
    ),
    "field renamed": (
        message("string a = 1;"), message("string other = 1;"), {"a": "x"}, {"other": "y"}, {"a": "x"}, {"a": "y"},
    ),
    "names of two fields swapped": (
        message("string a = 1; string b = 2;"), message("string b = 1; string a = 2;"),
        {"a": "1", "b": "2"}, {"b": "1", "a": "2"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2"},
    ),
    "field renumbered": (
        message("string a = 1;"), message("string a = 9;"),
        {"a": "x"}, {"a": "y"}, {"a": "x", "a__string": None}, {"a": None, "a__string": "y"},
    ),
    "number used again, other type": (
        message("string a = 1;"), message("int32 b = 1;"),
        {"a": "x"}, {"b": 5}, {"a": "x", "b": None}, {"a": None, "b": 5},
    ),
    "number used again, same type": (
        message("string a = 1;"), message("string unrelated = 1;"), {"a": "x"}, {"unrelated": "y"}, {"a": "x"}, {"a": "y"},
    ),
    "int32 -> int64, uint32, sint, fixed": (
        message("int32 a = 1; int32 b = 2; int32 c = 3; int32 d = 4;"),
        message("int64 a = 1; uint32 b = 2; sint64 c = 3; fixed32 d = 4;"),
        {"a": -1, "b": 2, "c": 3, "d": 4}, {"a": 2**40, "b": 2**32 - 1, "c": -(2**40), "d": 7},
        {"a": -1, "b": 2, "c": 3, "d": 4}, {"a": 2**40, "b": 2**32 - 1, "c": -(2**40), "d": 7},
    ),
    "int -> uint64": (
        message("int32 a = 1;"), message("uint64 a = 1;"),
        {"a": 1}, {"a": 2**64 - 1}, {"a": 1, "a__decimal": None}, {"a": None, "a__decimal": Decimal(2**64 - 1)},
    ),
    "int -> bool": (
        message("int32 a = 1;"), message("bool a = 1;"),
        {"a": 2}, {"a": True}, {"a": 2, "a__boolean": None}, {"a": None, "a__boolean": True},
    ),
    "int -> enum": (
        message("int32 a = 1;"), message("Kind a = 1;", more="enum Kind { NONE = 0; ONE = 1; }"),
        {"a": 1}, {"a": 1}, {"a": 1, "a__string": None}, {"a": None, "a__string": "ONE"},
    ),
    "enum -> int": (
        message("Kind a = 1;", more="enum Kind { NONE = 0; ONE = 1; }"), message("int32 a = 1;"),
        {"a": 1}, {"a": 1}, {"a": "ONE", "a__bigint": None}, {"a": None, "a__bigint": 1},
    ),
    "enum value renamed or added": (
        message("Kind a = 1;", more="enum Kind { NONE = 0; ONE = 1; }"),
        message("Kind a = 1;", more="enum Kind { NONE = 0; FIRST = 1; SECOND = 2; }"),
        {"a": 1}, {"a": 1}, {"a": "ONE"}, {"a": "FIRST"},
    ),
    "string -> bytes": (
        message("string a = 1;"), message("bytes a = 1;"),
        {"a": "x"}, {"a": b"\xff"}, {"a": "x", "a__binary": None}, {"a": None, "a__binary": b"\xff"},
    ),
    "bytes -> string": (
        message("bytes a = 1;"), message("string a = 1;"),
        {"a": b"\xff"}, {"a": "x"}, {"a": b"\xff", "a__string": None}, {"a": None, "a__string": "x"},
    ),
    "float -> double": (
        message("float a = 1;"), message("double a = 1;"),
        {"a": 0.5}, {"a": 0.1}, {"a": 0.5, "a__double": None}, {"a": None, "a__double": 0.1},
    ),
    "singular -> repeated": (
        message("string a = 1;"), message("repeated string a = 1;"),
        {"a": "x"}, {"a": ["y", "z"]}, {"a": "x", "a__array": None}, {"a": None, "a__array": ["y", "z"]},
    ),
    "repeated -> singular": (
        message("repeated string a = 1;"), message("string a = 1;"),
        {"a": ["x"]}, {"a": "y"}, {"a": ["x"], "a__string": None}, {"a": None, "a__string": "y"},
    ),
    "plain -> optional": (
        message("int32 a = 1; int32 b = 2;"), message("optional int32 a = 1; optional int32 b = 2;"),
        {"a": 1}, {"a": 0}, {"a": 1, "b": 0}, {"a": 0, "b": None},
    ),
    "optional -> plain": (
        message("optional int32 a = 1;"), message("int32 a = 1;"), {}, {}, {"a": None}, {"a": 0},
    ),
    "field into a oneof": (
        message("int32 a = 1; int32 b = 2;"), message("oneof one { int32 a = 1; int32 b = 2; }"),
        {"a": 1}, {"a": 1}, {"a": 1, "b": 0}, {"a": 1, "b": None},
    ),
    "field out of a oneof": (
        message("oneof one { int32 a = 1; int32 b = 2; }"), message("int32 a = 1; int32 b = 2;"),
        {"a": 1}, {"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": 0},
    ),
    "scalar -> wrapper": (
        message("string a = 1;"),
        message("google.protobuf.StringValue a = 1;", head=HEAD + 'import "google/protobuf/wrappers.proto";'),
        {"a": "x"}, {"a": {"value": "y"}}, {"a": "x"}, {"a": "y"},
    ),
    "int64 -> Timestamp": (
        message("int64 a = 1;"),
        message("google.protobuf.Timestamp a = 1;", head=HEAD + 'import "google/protobuf/timestamp.proto";'),
        {"a": 1}, {"a": AT}, {"a": 1, "a__timestamp": None}, {"a": None, "a__timestamp": AT},
    ),
    "message type moved or renamed": (
        message(f"Inner a = 1; {INNER}"), message("Outer a = 1;", more="message Outer { int32 a = 1; }"),
        {"a": {"a": 1}}, {"a": {"a": 2}}, {"a": {"a": 1}}, {"a": {"a": 2}},
    ),
    "nested field added": (
        message(f"Inner a = 1; {INNER}"), message("Inner a = 1; message Inner { int32 a = 1; string b = 2; }"),
        {"a": {"a": 1}}, {"a": {"a": 2, "b": "x"}}, {"a": {"a": 1, "b": None}}, {"a": {"a": 2, "b": "x"}},
    ),
    "nested field renamed": (
        message(f"Inner a = 1; {INNER}"), message("Inner a = 1; message Inner { int32 z = 1; }"),
        {"a": {"a": 1}}, {"a": {"z": 2}}, {"a": {"a": 1}}, {"a": {"a": 2}},
    ),
    "nested field, other type": (
        message(f"Inner a = 1; {INNER}"), message("Inner a = 1; message Inner { string a = 1; }"),
        {"a": {"a": 1}}, {"a": {"a": "x"}}, {"a": {"a": 1, "a__string": None}}, {"a": {"a": None, "a__string": "x"}},
    ),
    "message -> list of it": (
        message(f"Inner a = 1; {INNER}"), message(f"repeated Inner a = 1; {INNER}"),
        {"a": {"a": 1}}, {"a": [{"a": 2}]}, {"a": {"a": 1}, "a__array": None}, {"a": None, "a__array": [{"a": 2}]},
    ),
    "message -> string": (
        message(f"Inner a = 1; {INNER}"), message("string a = 1;"),
        {"a": {"a": 1}}, {"a": "x"}, {"a": {"a": 1}, "a__string": None}, {"a": None, "a__string": "x"},
    ),
    "map value, other type": (
        message("map<string, int32> a = 1;"), message("map<string, string> a = 1;"),
        {"a": {"k": 1}}, {"a": {"k": "v"}}, {"a": [("k", 1)], "a__map": None}, {"a": None, "a__map": [("k", "v")]},
    ),
    "package changed, or message renamed": (
        message("string a = 1; int32 b = 2;"),
        message("string a = 5; string b = 6;", head='syntax = "proto3"; package w;', name="New"),
        {"a": "x", "b": 1}, {"a": "y", "b": "z"},
        {"a": "x", "b": 1, "b__string": None}, {"a": "y", "b": None, "b__string": "z"},
    ),
    "proto2 -> proto3": (
        message("required string a = 1; optional int32 b = 2 [default = 7];", head='syntax = "proto2"; package v;'),
        message("string a = 1; int32 b = 2;"),
        {"a": "x"}, {"a": "y"}, {"a": "x", "b": None}, {"a": "y", "b": 0},
    ),
    "name that differs only by case": (
        message("string a = 1;"), message("string A = 2;"),
        {"a": "x"}, {"A": "y"}, {"a": "x", "A__string": None}, {"a": None, "A__string": "y"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("upgrade_first", [True, False], ids=["in order", "old rows after new ones"])
def test_old_and_new_rows_of_a_change_stand_where_the_table_says(change, upgrade_first):
    old, new, old_values, new_values, old_row, new_row = CHANGES[change]
    versions = [compiled(old, 901), compiled(new, 902)]
    plan = plan_for((versions[0], (0,)), (versions[1], (0,)))
    values = [
        frame(901, (0,), python_class(versions[0])(**old_values)),
        frame(902, (0,), python_class(versions[1])(**new_values)),
    ]
    order = [0, 1] if upgrade_first else [1, 0]
    decoded = rows_by_position(BatchDecoder(plan).decode(pa.array([values[i] for i in order], pa.binary())))
    names = list(plan.columns.columns)
    got = [{name: decoded[order.index(i)].get(name) for name in names} for i in (0, 1)]
    assert got == [old_row, new_row]


def test_messages_reordered_or_put_first_are_still_their_own():
    first = compiled('syntax = "proto3"; package v; message A { string a = 1; } message B { string b = 1; }', 903)
    second = compiled(
        'syntax = "proto3"; package v; message New { int32 n = 1; } message B { string b = 1; } message A { string a = 1; }',
        904,
    )
    plan = plan_for(*((first, (i,)) for i in range(2)), *((second, (i,)) for i in range(3)))
    values = [
        frame(903, (0,), python_class(first, (0,))(a="1")), frame(903, (1,), python_class(first, (1,))(b="2")),
        frame(904, (0,), python_class(second, (0,))(n=3)), frame(904, (1,), python_class(second, (1,))(b="4")),
        frame(904, (2,), python_class(second, (2,))(a="5")),
    ]  # fmt: skip
    decoded = rows_by_position(BatchDecoder(plan).decode(pa.array(values, pa.binary())))
    assert decoded == {0: {"a": "1"}, 1: {"b": "2"}, 2: {"n": 3}, 3: {"b": "4"}, 4: {"a": "5"}}


def test_the_documented_table_has_exactly_these_changes():
    section = DOCS.read_text("utf-8").split("\n## Evolution\n", 1)[1].split("\n## ", 1)[0]
    (table,) = re.findall(r"^\| change \|.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    documented = re.findall(r"^\| (.+?) \| ", table, re.MULTILINE)
    assert documented == [*CHANGES, "messages reordered, or a new first one"]
